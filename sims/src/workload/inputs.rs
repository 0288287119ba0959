//! Random inputs of a model.

use convoke_graph::dim::Bindings;
use convoke_graph::{DType, Tensor};

use super::Model;
use crate::draw::Draw;

/// Draws inputs in the order of the parameters, with the dynamic axis at size `axis`. With `sprung`, they make the trap
/// fail.
pub fn inputs(model: &Model, seed: u64, axis: i64, sprung: bool) -> Vec<(String, Tensor)> {
    let mut d = Draw::new(seed);
    let f = &model.function;
    let bindings: Bindings = [("n".into(), axis)].into();
    let of = |id: &_| {
        let value = f.value(*id);
        let dims = value.ty.shape.iter();
        let shape: Vec<usize> = dims
            .map(|dim| dim.eval(&bindings).and_then(|n| usize::try_from(n).ok()))
            .collect::<Option<_>>()
            .expect("parameters have one symbol at most");
        (value.name.to_string(), value.ty.dtype, shape)
    };
    let mut all = Vec::new();
    for (name, dtype, shape) in f.params.iter().map(of) {
        let tensor = match (name.as_str(), dtype) {
            ("which", _) => indices(&mut d, sprung),
            ("divisor", _) => {
                let by = if sprung { 0 } else { d.range(1, 5) as i32 };
                Tensor::from_slice(&[1], &[by])
            }
            // A sprung size exceeds every worker's memory, and is small enough that only the ledger can refuse it.
            ("size", _) => {
                let size = if sprung {
                    1 << 32
                } else {
                    d.range(0, 40) as i64
                };
                Tensor::from_slice(&[1], &[size])
            }
            (_, DType::F32) => {
                let n = shape.iter().product();
                let data: Vec<f32> = (0..n).map(|_| number(&mut d)).collect();
                Tensor::from_slice(&shape, &data)
            }
            (name, dtype) => unreachable!("no parameter '{name}' of {dtype} is generated"),
        };
        all.push((name, tensor.expect("inputs are small")));
    }
    all
}

fn indices(d: &mut Draw, sprung: bool) -> Result<Tensor, convoke_graph::tensor::TensorError> {
    let good = d.below(5) as i64;
    let other = match sprung {
        true => d.pick(&[5, -6, i64::MAX, i64::MIN]),
        false => d.below(5) as i64 - 5,
    };
    Tensor::from_slice(&[2], &[good, other])
}

/// Draws ordinary numbers, and now and then a special one: results have to agree in every bit for these too.
fn number(d: &mut Draw) -> f32 {
    match d.below(200) {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => -0.,
        3 => f32::MIN_POSITIVE / 2.,
        _ => d.below(8001) as f32 / 2000. - 2.,
    }
}
