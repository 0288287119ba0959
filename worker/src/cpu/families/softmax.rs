//! Softmax along one axis.

use convoke_graph::ops::attrs::axis;
use convoke_kernels::shape::Axis;
use convoke_kernels::softmax::{log_softmax, softmax};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, Spec, body, one, write};

/// Makes the kernel of a softmax, or with `log` of its logarithm.
pub(super) fn find(spec: &Spec<'_>, log: bool) -> FamilyAnswer {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(float dtype, T => body(move |call| {
        let shape = call.shape(0)?;
        let axis = Axis::of(shape, axis(call.attrs, -1, shape.len())?);
        let mut y = call.output(0)?;
        let (x, out) = (call.slice::<T>(0)?, write(&mut y)?);
        if log { log_softmax(&call.launch.exec, x, axis, out)? } else { softmax(&call.launch.exec, x, axis, out)? }
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{one, vec1};
    use convoke_graph::Tensor;

    #[test]
    fn any_axis_and_dtype() {
        let half = half::f16::from_f32(0.5);
        assert_eq!(
            one("Softmax", Attrs::default(), &[&vec1(&[7f32, 7.0])]).unwrap(),
            vec1(&[0.5f32, 0.5])
        );
        let x = Tensor::from_slice(&[2, 1], &[half, half]).unwrap();
        let attrs = Attrs::default().with("axis", Attr::Int(0));
        assert_eq!(
            one("Softmax", attrs, &[&x]).unwrap(),
            Tensor::from_slice(&[2, 1], &[half, half]).unwrap()
        );
        let y = one("LogSoftmax", Attrs::default(), &[&vec1(&[3f64])]).unwrap();
        assert_eq!(y, vec1(&[0f64]));
    }
}
