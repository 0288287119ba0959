//! Matrix products: `MatMul` and `Gemm`.

use convoke_common::{Error, mutant};
use convoke_graph::ops::MatMulOp;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::GemmAttrs;
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::element::Number;
use convoke_kernels::gemm::{
    Addend, Batch, ChainElement, Epilogue, Lhs, Rhs, Strided, gemm_batched, gemm_generic,
};
use smallvec::SmallVec;

use crate::cpu::cast::wide::{narrow_to, wide, wide_output};
use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

pub(super) fn find(op: MatMulOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        MatMulOp::Det => super::vision::det(spec),
        MatMulOp::Inverse => super::vision::inverse(spec),
        MatMulOp::MatMul => matmul(spec),
        MatMulOp::Gemm => gemm(spec),
    }
}

/// Whether products of this dtype are computed in f32.
fn in_f32(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The sizes of a stack of products, and the offsets of its matrices.
pub(super) struct Stack {
    pub sizes: (usize, usize, usize),
    dims: Dims,
    a_strides: Dims,
    b_strides: Dims,
}

type Dims = SmallVec<[usize; 6]>;

impl Stack {
    /// The stack for `a[..., m, k] · b[..., k, n]`, with broadcast leading axes. A vector is one row on the left, and
    /// one column on the right.
    pub fn new(a: &[usize], b: &[usize]) -> Result<Stack, KernelFailure> {
        let mismatch = || KernelFailure::values(format!("{a:?} and {b:?} cannot be multiplied"));
        let (a_batch, (m, k)) = match a {
            [] => return Err(mismatch()),
            [k] => (&a[..0], (1, *k)),
            [batch @ .., m, k] => (batch, (*m, *k)),
        };
        let (b_batch, (k_b, n)) = match b {
            [] => return Err(mismatch()),
            [k] => (&b[..0], (*k, 1)),
            [batch @ .., k, n] => (batch, (*k, *n)),
        };
        if k != k_b {
            return Err(mismatch());
        }
        if b_batch.iter().all(|d| *d == 1) && b_batch.len() <= a_batch.len() {
            // With one right-hand matrix for all, the rows of the whole stack are the rows of one product.
            let rows = a_batch.iter().product::<usize>() * m;
            let none = Dims::new;
            return Ok(Stack {
                sizes: (rows, n, k),
                dims: none(),
                a_strides: none(),
                b_strides: none(),
            });
        }
        let rank = a_batch.len().max(b_batch.len());
        let at =
            |batch: &[usize], i: usize| (i + batch.len()).checked_sub(rank).map_or(1, |i| batch[i]);
        let mut dims = Dims::new();
        for i in 0..rank {
            dims.push(match (at(a_batch, i), at(b_batch, i)) {
                (x, y) if x == y || y == 1 => x,
                (1, y) => y,
                _ => return Err(mismatch()),
            });
        }
        let strides = |batch: &[usize], matrix: usize| {
            let mut strides = Dims::from_elem(0, rank);
            let mut stride = matrix;
            for i in (0..rank).rev() {
                let own = at(batch, i);
                strides[i] = if own == 1 { 0 } else { stride };
                stride *= own;
            }
            strides
        };
        let (a_strides, b_strides) = (strides(a_batch, m * k), strides(b_batch, k * n));
        Ok(Stack {
            sizes: (m, n, k),
            dims,
            a_strides,
            b_strides,
        })
    }

    /// The batch axes of the stack.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            dims: &self.dims,
            a_strides: &self.a_strides,
            b_strides: &self.b_strides,
        }
    }
}

/// Computes `a · b` of dense row-major operands into a new output 0, and applies `epilogue`.
pub(super) fn product(
    call: &OpLaunch<'_, '_>,
    a: &Tensor,
    b: &Tensor,
    epilogue: &Epilogue<'_>,
) -> Result<Tensor, KernelFailure> {
    let stack = Stack::new(a.shape(), b.shape())?;
    let (_, n, k) = stack.sizes;
    let mut y = wide_output(call, 0)?;
    let lhs = Lhs::Strided(Strided::row_major(a.as_slice()?, k));
    let rhs = Rhs::Strided(Strided::row_major(b.as_slice()?, n));
    gemm_batched(
        call.launch.exec,
        &stack.batch(),
        stack.sizes,
        lhs,
        rhs,
        write(&mut y)?,
        epilogue,
    )?;
    if mutant!("product-off") {
        let off = |y: &mut f32| *y = f32::from_bits(y.to_bits() ^ 1);
        write(&mut y)?.iter_mut().for_each(off);
    }
    Ok(y)
}

fn matmul(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    if in_f32(dtype) {
        return body(|call| {
            let y = product(&call, &wide(&call, 0)?, &wide(&call, 1)?, &Epilogue::NONE)?;
            one(narrow_to(&call, 0, y)?)
        });
    }
    let found = by_dtype!([F64 f64, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64]
        dtype, T => body(matmul_generic::<T>)?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn matmul_generic<T: Element + ChainElement>(
    call: OpLaunch<'_, '_>,
) -> Result<Outputs, KernelFailure> {
    let stack = Stack::new(call.shape(0)?, call.shape(1)?)?;
    let (_, n, k) = stack.sizes;
    let mut y = call.output(0)?;
    let a = Strided::row_major(call.slice::<T>(0)?, k);
    let b = Strided::row_major(call.slice::<T>(1)?, n);
    gemm_generic(
        call.launch.exec,
        &stack.batch(),
        stack.sizes,
        a,
        b,
        write(&mut y)?,
    )?;
    one(y)
}

fn gemm_sizes(
    attrs: &GemmAttrs,
    a: &[usize],
    b: &[usize],
) -> Result<(usize, usize, usize), KernelFailure> {
    let (&[ar, ac], &[br, bc]) = (a, b) else {
        return Err(KernelFailure::values(format!(
            "A and B must be matrices, not {a:?} and {b:?}"
        )));
    };
    let (m, k) = if attrs.trans_a { (ac, ar) } else { (ar, ac) };
    let (k_b, n) = if attrs.trans_b { (bc, br) } else { (br, bc) };
    if k != k_b {
        return Err(KernelFailure::values(format!(
            "{a:?} and {b:?} cannot be multiplied"
        )));
    }
    Ok((m, n, k))
}

/// The data as `[rows, cols]`; with `trans` it is stored transposed.
fn oriented<T>(data: &[T], trans: bool, (rows, cols): (usize, usize)) -> Strided<'_, T> {
    if trans {
        Strided::col_major(data, rows)
    } else {
        Strided::row_major(data, cols)
    }
}

/// `c` viewed as a matrix that broadcasts to `[m, n]`.
fn broadcast<'t, T>(
    data: &'t [T],
    shape: &[usize],
    (m, n): (usize, usize),
) -> Result<Strided<'t, T>, KernelFailure> {
    let (rows, cols) = match shape {
        [] => (1, 1),
        [cols] => (1, *cols),
        [rows, cols] => (*rows, *cols),
        _ => {
            return Err(KernelFailure::values(format!(
                "C must have at most two axes, not {shape:?}"
            )));
        }
    };
    if (rows != m && rows != 1) || (cols != n && cols != 1) {
        return Err(KernelFailure::values(format!(
            "C of shape {shape:?} does not broadcast to [{m}, {n}]"
        )));
    }
    let row_stride = if rows == 1 { 0 } else { cols };
    Ok(Strided {
        data,
        row_stride,
        col_stride: usize::from(cols != 1),
    })
}

fn gemm(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let attrs = GemmAttrs::new(spec.attrs);
    let dtype = spec.dtype(0)?;
    if in_f32(dtype) {
        return body(move |call| gemm_f32(call, attrs));
    }
    let found = by_dtype!([F64 f64, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64]
        dtype, T => body(move |call| gemm_of::<T>(call, attrs))?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn gemm_f32(call: OpLaunch<'_, '_>, attrs: GemmAttrs) -> Result<Outputs, KernelFailure> {
    let (a, b) = (wide(&call, 0)?, wide(&call, 1)?);
    let c = call
        .optional(2)
        .is_some()
        .then(|| wide(&call, 2))
        .transpose()?;
    let sizes = gemm_sizes(&attrs, a.shape(), b.shape())?;
    let (m, n, k) = sizes;
    let addend = match &c {
        Some(c) => Some(Addend {
            values: broadcast(c.as_slice()?, c.shape(), (m, n))?,
            scale: attrs.beta,
        }),
        None => None,
    };
    let epilogue = Epilogue {
        alpha: attrs.alpha,
        addend,
        ..Epilogue::NONE
    };
    let mut y = wide_output(&call, 0)?;
    let lhs = Lhs::Strided(oriented(a.as_slice()?, attrs.trans_a, (m, k)));
    let rhs = Rhs::Strided(oriented(b.as_slice()?, attrs.trans_b, (k, n)));
    gemm_batched(
        call.launch.exec,
        &Batch::ONE,
        sizes,
        lhs,
        rhs,
        write(&mut y)?,
        &epilogue,
    )?;
    one(narrow_to(&call, 0, y)?)
}

fn gemm_of<T: Element + ChainElement + Number>(
    call: OpLaunch<'_, '_>,
    attrs: GemmAttrs,
) -> Result<Outputs, KernelFailure> {
    let sizes = gemm_sizes(&attrs, call.shape(0)?, call.shape(1)?)?;
    let (m, n, k) = sizes;
    let mut out = call.output(0)?;
    let y = write::<T>(&mut out)?;
    let a = oriented(call.slice(0)?, attrs.trans_a, (m, k));
    let b = oriented(call.slice(1)?, attrs.trans_b, (k, n));
    gemm_generic(call.launch.exec, &Batch::ONE, sizes, a, b, y)?;
    let c = match call.optional(2) {
        Some(c) => Some(broadcast(c.as_slice::<T>()?, c.shape(), (m, n))?),
        None => None,
    };
    for (row, y) in y.chunks_exact_mut(n.max(1)).enumerate() {
        call.launch.exec.check()?;
        for (col, y) in y.iter_mut().enumerate() {
            *y = scaled(*y, attrs.alpha);
            if let Some(c) = &c {
                *y = T::add(
                    *y,
                    scaled(c.data[row * c.row_stride + col * c.col_stride], attrs.beta),
                );
            }
        }
    }
    one(out)
}

/// `factor * x`, where an integer is scaled as f64 and truncated.
fn scaled<T: Number>(x: T, factor: f32) -> T {
    match (factor == 1.0, T::INTEGER) {
        (true, _) => x,
        (false, true) => T::from_f64(f64::from(factor) * x.to_f64()),
        (false, false) => T::mul(T::from_f64(f64::from(factor)), x),
    }
}

/// The sizes of `a` as one matrix: the product of all axes except the last, and the last.
pub(super) fn rows(a: &[usize]) -> Result<(usize, usize), KernelFailure> {
    let (k, batch) = a
        .split_last()
        .ok_or_else(|| Error::internal("the left operand of a product is a scalar"))?;
    Ok((batch.iter().product(), *k))
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{counting, one, vec1};

    #[test]
    fn stacks_broadcast() {
        let check = |a: &[usize], b: &[usize], want: &[usize]| {
            let y = one("MatMul", Attrs::default(), &[&counting(a), &counting(b)]).unwrap();
            assert_eq!(y.shape(), want, "{a:?} {b:?}");
            y
        };
        assert_eq!(check(&[3], &[3], &[]), Tensor::scalar(5f32));
        check(&[2, 5, 3], &[3, 4], &[2, 5, 4]);
        check(&[2, 1, 5, 3], &[7, 3, 4], &[2, 7, 5, 4]);
        check(&[3], &[2, 3, 4], &[2, 4]);
        let y = check(&[1, 2], &[2, 2, 1], &[2, 1, 1]);
        assert_eq!(y.as_slice::<f32>().unwrap(), [1.0, 3.0]);
    }

    #[test]
    fn every_dtype_has_a_product() {
        let ints = |v: &[i64]| Tensor::from_slice(&[2, 2], v).unwrap();
        let y = one(
            "MatMul",
            Attrs::default(),
            &[&ints(&[1, 2, 3, 4]), &ints(&[1 << 40, 0, 0, 1])],
        )
        .unwrap();
        assert_eq!(y, ints(&[1 << 40, 2, 3 << 40, 4]));
        let half = |v: [f32; 2], s: [usize; 2]| {
            Tensor::from_slice(&s, &v.map(half::bf16::from_f32)).unwrap()
        };
        let y = one(
            "MatMul",
            Attrs::default(),
            &[&half([1.0, 256.0], [1, 2]), &half([1.0, 1.0], [2, 1])],
        )
        .unwrap();
        // bf16 cannot represent 257: the sum is rounded once, to even.
        assert_eq!(y.as_slice::<half::bf16>().unwrap()[0].to_f32(), 256.0);
    }

    #[test]
    fn gemm_scales_transposes_and_broadcasts() {
        let attrs = Attrs::default()
            .with("alpha", Attr::Float(0.5))
            .with("beta", Attr::Float(2.0))
            .with("transB", Attr::Int(1));
        let (a, b) = (counting(&[2, 3]), counting(&[2, 3]));
        let y = one("Gemm", attrs.clone(), &[&a, &b, &vec1(&[1f32, 10.0])]).unwrap();
        assert_eq!(
            y,
            Tensor::from_slice(&[2, 2], &[4.5f32, 27.0, 9.0, 45.0]).unwrap()
        );
        let wide = |t: &Tensor| {
            let data: Vec<f64> = t
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|x| f64::from(*x))
                .collect();
            Tensor::from_slice(t.shape(), &data).unwrap()
        };
        assert_eq!(
            one("Gemm", attrs, &[&wide(&a), &wide(&b), &vec1(&[1f64, 10.0])]).unwrap(),
            wide(&y)
        );
    }
}
