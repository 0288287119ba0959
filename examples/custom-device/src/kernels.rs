//! The kernels of the device: plain loops over f32.

use convoke::DType;
use convoke::devices::DeviceOp;

/// A kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FileKernel {
    Neg,
    Relu,
    Add,
    Mul,
    /// A product of two matrices.
    MatMul,
}

/// An operand: its dimensions and its elements.
pub struct Array {
    pub shape: Vec<usize>,
    pub elements: Vec<f32>,
}

impl FileKernel {
    /// The ops that the device has kernels for, with their kernels.
    pub const OPS: [(&str, FileKernel); 5] = [
        ("Add", FileKernel::Add),
        ("MatMul", FileKernel::MatMul),
        ("Mul", FileKernel::Mul),
        ("Neg", FileKernel::Neg),
        ("Relu", FileKernel::Relu),
    ];

    /// The kernel of an op; `None` where the device has none.
    pub fn resolve(op: &DeviceOp<'_>) -> Option<FileKernel> {
        let of_op = FileKernel::OPS
            .iter()
            .find(|(name, _)| *name == op.def.name);
        let (_, kernel) = of_op?;
        let floats = op.operands.iter().all(|dtype| *dtype == Some(DType::F32));
        (floats && op.attrs.0.is_empty() && op.outputs == 1).then_some(*kernel)
    }

    /// Computes the result, which has this shape. The error says why the operands do not fit.
    pub fn run(self, operands: &[Array], shape: &[usize]) -> Result<Vec<f32>, String> {
        match (self, operands) {
            (FileKernel::Neg, [x]) => Ok(x.elements.iter().map(|x| -x).collect()),
            (FileKernel::Relu, [x]) => Ok(x.elements.iter().map(|x| x.max(0.0)).collect()),
            (FileKernel::Add, [x, y]) => broadcast(x, y, shape, |x, y| x + y),
            (FileKernel::Mul, [x, y]) => broadcast(x, y, shape, |x, y| x * y),
            (FileKernel::MatMul, [x, y]) => product(x, y, shape),
            _ => Err(format!("{self:?} with {} operands", operands.len())),
        }
    }
}

/// For each element of `shape`, the place of the element of an operand of shape `own` that is broadcast to it.
fn places<'a>(own: &'a [usize], shape: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let missing = shape.len() - own.len();
    let all: usize = shape.iter().product();
    (0..all).map(move |mut at| {
        let (mut place, mut stride) = (0, 1);
        for (d, size) in shape.iter().enumerate().rev() {
            let length = d.checked_sub(missing).map_or(1, |d| own[d]);
            if length != 1 {
                place += at % size * stride;
            }
            stride *= length;
            at /= size;
        }
        place
    })
}

fn broadcast(
    x: &Array,
    y: &Array,
    shape: &[usize],
    f: impl Fn(f32, f32) -> f32,
) -> Result<Vec<f32>, String> {
    let pairs = places(&x.shape, shape).zip(places(&y.shape, shape));
    Ok(pairs
        .map(|(i, j)| f(x.elements[i], y.elements[j]))
        .collect())
}

/// The product of matrices, or of stacks of them. A vector is a matrix of one row, or of one column behind a matrix.
fn product(x: &Array, y: &Array, shape: &[usize]) -> Result<Vec<f32>, String> {
    let (mut x_shape, mut y_shape, mut made_shape) =
        (x.shape.clone(), y.shape.clone(), shape.to_vec());
    if let [k] = *x.shape {
        x_shape = vec![1, k];
        made_shape.insert(
            shape.len().saturating_sub(usize::from(y.shape.len() > 1)),
            1,
        );
    }
    if let [k] = *y.shape {
        y_shape = vec![k, 1];
        made_shape.push(1);
    }
    let ([x_stack @ .., n, k], [y_stack @ .., k_of_y, m]) = (&*x_shape, &*y_shape) else {
        return Err("a number is no matrix".into());
    };
    if k != k_of_y {
        return Err(format!("{k} columns by {k_of_y} rows"));
    }
    let stack = &made_shape[..made_shape.len() - 2];
    let mut made = Vec::with_capacity(made_shape.iter().product());
    for (i, j) in places(x_stack, stack).zip(places(y_stack, stack)) {
        let (x, y) = (&x.elements[i * n * k..], &y.elements[j * k * m..]);
        for row in 0..*n {
            for column in 0..*m {
                // The last product is added first, unlike on the CPU.
                let products = (0..*k).rev().map(|i| x[row * k + i] * y[i * m + column]);
                made.push(products.sum());
            }
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

    use super::*;

    fn array(shape: &[usize]) -> Array {
        let elements = 0..shape.iter().product::<usize>();
        Array {
            shape: shape.to_vec(),
            elements: elements.map(|i| i as f32).collect(),
        }
    }

    #[test]
    fn operands_are_broadcast() {
        let (x, y) = (array(&[2, 1, 2]), array(&[3, 1]));
        let sums = FileKernel::Add.run(&[x, y], &[2, 3, 2]).unwrap();
        assert_eq!(sums, [0., 1., 1., 2., 2., 3., 2., 3., 3., 4., 4., 5.]);
    }

    #[test]
    fn matrices_are_multiplied() {
        let check = |x: &[usize], y: &[usize], shape: &[usize], want: &[f32]| {
            let made = FileKernel::MatMul.run(&[array(x), array(y)], shape);
            assert_eq!(made.unwrap(), want, "{x:?} by {y:?}");
        };
        check(&[2, 2, 3], &[3, 1], &[2, 2, 1], &[5., 14., 23., 32.]);
        check(&[2, 1, 1, 2], &[2, 2, 1], &[2, 2, 1, 1], &[1., 3., 3., 13.]);
        check(&[3], &[3, 2], &[2], &[10., 13.]);
        check(&[2, 2], &[2], &[2], &[1., 3.]);
        check(&[3], &[3], &[], &[5.]);
        let operands = [array(&[2, 3]), array(&[2, 3])];
        assert!(FileKernel::MatMul.run(&operands, &[2, 3]).is_err());
    }
}
