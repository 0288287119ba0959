//! Random tensors of a given shape; the seed is an operand.

use convoke_graph::ops::OpError;
use convoke_graph::ops::RandomOp;
use convoke_graph::ops::attrs::{NormalAttrs, UniformAttrs};
use convoke_kernels::random::{self, Seed};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

pub(super) fn find(op: RandomOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        RandomOp::PhiloxUniform => uniform(spec),
        RandomOp::PhiloxNormal => normal(spec),
    }
}

fn seed(call: &OpLaunch<'_, '_>) -> Result<Seed, KernelFailure> {
    match call.slice::<i64>(1)? {
        [key, stream] => Ok(Seed {
            key: key.cast_unsigned(),
            stream: stream.cast_unsigned(),
        }),
        _ => Err(KernelFailure::values("a seed is a key and a stream")),
    }
}

fn uniform(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let UniformAttrs { dtype, low, high } = UniformAttrs::new(spec.attrs)?;
    let (low, high) = (f64::from(low), f64::from(high));
    let found = by_dtype!(float dtype, T => body(move |call| {
        let mut y = call.output(0)?;
        random::uniform::<T>(&call.launch.exec, seed(&call)?, low, high, write(&mut y)?)?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn normal(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let NormalAttrs { dtype, mean, scale } = NormalAttrs::new(spec.attrs)?;
    let (mean, scale) = (f64::from(mean), f64::from(scale));
    let found = by_dtype!(float dtype, T => body(move |call| {
        let mut y = call.output(0)?;
        random::normal::<T>(&call.launch.exec, seed(&call)?, mean, scale, write(&mut y)?)?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};
    use convoke_graph::{DType, Tensor};

    use crate::cpu::testing::{one, vec1};

    fn draw(op: &str, shape: &[i64], seed: &[i64], dtype: DType) -> Tensor {
        let attrs = Attrs::default().with("dtype", Attr::DType(dtype));
        one(op, attrs, &[&vec1(shape), &vec1(seed)]).unwrap()
    }

    #[test]
    fn shape_and_seed_are_operands() {
        for op in ["PhiloxUniform", "PhiloxNormal"] {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let y = draw(op, &[3, 5], &[-1, i64::MIN], dtype);
                assert_eq!((y.dtype(), y.shape()), (dtype, &[3, 5][..]));
                assert_eq!(y, draw(op, &[3, 5], &[-1, i64::MIN], dtype));
                assert_ne!(y, draw(op, &[3, 5], &[-1, 0], dtype));
                assert_ne!(y, draw(op, &[3, 5], &[i64::MIN, -1], dtype));
                let row = draw(op, &[15], &[-1, i64::MIN], dtype);
                assert_eq!(row.bytes(), y.bytes(), "the index alone counts");
                assert_eq!(draw(op, &[0, 2], &[1, 2], dtype).elements(), 0);
            }
        }
    }

    #[test]
    fn attributes_reach_the_kernels() {
        let run = |op, a: (&str, f32), b: (&str, f32)| {
            let attrs = Attrs::default()
                .with("dtype", Attr::DType(DType::F32))
                .with(a.0, Attr::Float(a.1))
                .with(b.0, Attr::Float(b.1));
            one(op, attrs, &[&vec1(&[100i64]), &vec1(&[1i64, 2])]).unwrap()
        };
        let y = run("PhiloxUniform", ("low", 7.0), ("high", 9.0));
        let y = y.as_slice::<f32>().unwrap();
        assert!(y.iter().all(|v| (7.0..9.0).contains(v)));
        assert!(y.iter().any(|v| *v < 7.5) && y.iter().any(|v| *v > 8.5));
        let y = run("PhiloxNormal", ("mean", 50.0), ("scale", 0.5));
        let y = y.as_slice::<f32>().unwrap();
        assert!(y.iter().all(|v| (46.0..54.0).contains(v)));
        assert!(y.iter().any(|v| *v < 49.7) && y.iter().any(|v| *v > 50.3));
    }

    #[test]
    fn a_seed_is_a_key_and_a_stream() {
        let attrs = Attrs::default().with("dtype", Attr::DType(DType::F32));
        for seed in [&[1i64][..], &[1, 2, 3], &[]] {
            let e = one(
                "PhiloxNormal",
                attrs.clone(),
                &[&vec1(&[4i64]), &vec1(seed)],
            );
            assert!(e.is_err(), "{seed:?}");
        }
    }
}
