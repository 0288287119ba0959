//! Positions of tokens in sequences.

use convoke_graph::ops::PositionOp;
use convoke_graph::ops::attrs::RotaryAttrs;
use convoke_graph::{Element, Outputs, Tensor};
use convoke_kernels::element::Float;
use convoke_kernels::rotary::{Rotary, rotary};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write};

pub(super) fn find(op: PositionOp, spec: &Spec<'_>) -> FamilyAnswer {
    let dtype = spec.dtype(0)?;
    let found = match op {
        PositionOp::RotaryEmbedding => by_dtype!(float dtype, T => body(rotated::<T>)?),
    };
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn rotated<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let attrs = RotaryAttrs::new(call.attrs)?;
    let (x, cos, sin) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let positions = call.optional(3);
    let layout = attrs.layout(x.shape())?;
    let strides = layout.strides(cos.shape(), sin.shape(), positions.map(Tensor::shape));
    let sizes = Rotary {
        batch: layout.batch,
        heads: layout.heads,
        tokens: layout.tokens,
        size: layout.size,
        half: layout.half,
        heads_first: layout.heads_first,
        interleaved: attrs.interleaved,
        strides: strides.ok_or_else(|| {
            KernelFailure::values(format!(
                "{x:?}, {cos:?}, {sin:?} and {positions:?} do not fit together"
            ))
        })?,
        places: call.optional_slice::<i64>(3)?,
    };
    let mut y = call.output(0)?;
    rotary::<T>(
        &call.launch.exec,
        &sizes,
        x.as_slice()?,
        cos.as_slice()?,
        sin.as_slice()?,
        write(&mut y)?,
    )?;
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{counting, one, vec1};

    #[test]
    fn heads_are_rotated_by_the_angles_of_their_tokens() {
        // A quarter turn at row 1, none at row 0.
        let cos = Tensor::from_slice(&[2, 1], &[1f32, 0.0]).unwrap();
        let sin = Tensor::from_slice(&[2, 1], &[0f32, 1.0]).unwrap();
        let places = Tensor::from_slice(&[1, 2], &[1i64, -2]).unwrap();
        let x = counting(&[1, 1, 2, 2]);
        let y = one(
            "RotaryEmbedding",
            Attrs::default(),
            &[&x, &cos, &sin, &places],
        )
        .unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [-1.0, 0.0, 2.0, 3.0]);
        // The same as columns, of which each head keeps its last element.
        let x = counting(&[1, 2, 6]);
        let attrs = Attrs::default()
            .with("num_heads", Attr::Int(2))
            .with("rotary_embedding_dim", Attr::Int(2));
        let y = one("RotaryEmbedding", attrs, &[&x, &cos, &sin, &places]).unwrap();
        let want = [
            -1f32, 0.0, 2.0, -4.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0,
        ];
        assert_eq!(y.as_slice::<f32>().unwrap(), want);
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let cache = Tensor::zeros(convoke_graph::DType::F32, &[3, 1]).unwrap();
        let refused = |places: &[i64]| {
            let x = counting(&[1, 1, places.len(), 2]);
            let places = vec1(places).into_shape(&[1, places.len()]).unwrap();
            let given = [&x, &cache, &cache, &places];
            one("RotaryEmbedding", Attrs::default(), &given).unwrap_err()
        };
        assert!(refused(&[0, 3]).message.contains("index 3 is out of range"));
        assert!(refused(&[-4]).message.contains("index -4 is out of range"));
    }
}
