//! Scaled dot-product attention.

use convoke_graph::DType;
use convoke_kernels::attention::{Attention, Bias, attention};

use crate::cpu::cast::wide::{narrow_to, optional_wide, wide, wide_output};
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, Spec, body, one, write};

/// Makes the kernel of `FusedAttention`, which computes in f32.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    let dtype = spec.dtype(0)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(spec.no_dtype(dtype));
    }
    let (scale, softcap) = (
        spec.attrs.float("scale", 1.0),
        spec.attrs.float("softcap", 0.0),
    );
    body(move |call| {
        let (q, k, v) = (wide(&call, 0)?, wide(&call, 1)?, wide(&call, 2)?);
        let bias = optional_wide(&call, 3)?;
        let misfit = || {
            KernelFailure::values(format!(
                "{q:?}, {k:?} and {v:?} do not fit together in attention"
            ))
        };
        let (&[batch, query_heads, queries, size], &[k_batch, heads, keys, k_size]) =
            (q.shape(), k.shape())
        else {
            return Err(misfit());
        };
        let &[v_batch, v_heads, v_keys, value_size] = v.shape() else {
            return Err(misfit());
        };
        let group = query_heads.checked_div(heads).unwrap_or(0);
        if (k_batch, v_batch, v_heads, v_keys, k_size) != (batch, batch, heads, keys, size)
            || group * heads != query_heads
        {
            return Err(misfit());
        }
        let scores = [batch, query_heads, queries, keys];
        let strides = match &bias {
            None => None,
            Some(bias) => Some(strides(bias.shape(), scores).ok_or_else(|| {
                KernelFailure::values(format!("{bias:?} does not broadcast to {scores:?}"))
            })?),
        };
        let bias = match (&bias, strides) {
            (Some(bias), Some(strides)) => Some(Bias {
                data: bias.as_slice()?,
                strides,
            }),
            _ => None,
        };
        let shape = Attention {
            batch,
            heads,
            group,
            queries,
            keys,
            size,
            value_size,
            scale,
            softcap,
            bias,
        };
        let mut scratch = call.scratch::<f32>(shape.scratch_len())?;
        let mut y = wide_output(&call, 0)?;
        attention(
            &call.launch.exec,
            &shape,
            (q.as_slice()?, k.as_slice()?, v.as_slice()?),
            write(&mut scratch)?,
            write(&mut y)?,
        )?;
        one(narrow_to(&call, 0, y)?)
    })
}

/// The strides of a bias of `shape` along the axes of the scores; `None` where it does not broadcast to them.
fn strides(shape: &[usize], scores: [usize; 4]) -> Option<[usize; 4]> {
    let lead = 4usize.checked_sub(shape.len())?;
    let mut strides = [0; 4];
    let mut stride = 1;
    for (axis, length) in shape.iter().enumerate().rev() {
        match *length {
            1 => {}
            length if length == scores[lead + axis] => strides[lead + axis] = stride,
            _ => return None,
        }
        stride *= length;
    }
    Some(strides)
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{counting, launch, one};

    fn scaled(scale: f32) -> Attrs {
        Attrs::default().with("scale", Attr::Float(scale))
    }

    #[test]
    fn equals_the_ops_that_it_consists_of() {
        let small = |shape: &[usize]| {
            let t = counting(shape);
            let v: Vec<f32> = t
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|x| (x * 0.37).sin())
                .collect();
            Tensor::from_slice(shape, &v).unwrap()
        };
        let (q, k, v) = (
            small(&[2, 4, 5, 8]),
            small(&[2, 4, 7, 8]),
            small(&[2, 4, 7, 3]),
        );
        let bias = small(&[4, 1, 7]);
        let plain = Attrs::default;
        let perm = plain().with("perm", Attr::Ints(vec![0, 1, 3, 2]));
        let scores = one(
            "MatMul",
            plain(),
            &[&q, &one("Transpose", perm, &[&k]).unwrap()],
        )
        .unwrap();
        let scores = one("Mul", plain(), &[&scores, &Tensor::scalar(0.5f32)]).unwrap();
        let scores = one("Add", plain(), &[&scores, &bias]).unwrap();
        let weights = one("Softmax", plain(), &[&scores]).unwrap();
        let want = one("MatMul", plain(), &[&weights, &v]).unwrap();
        let got = one("FusedAttention", scaled(0.5), &[&q, &k, &v, &bias]).unwrap();
        assert_eq!(got, want);
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let refused = |q: &[usize], k: &[usize], v: &[usize], bias: &[usize]| {
            let inputs = [q, k, v, bias].map(|s| Some(counting(s))).to_vec();
            assert!(
                launch("FusedAttention", scaled(1.0), inputs, 1).is_err(),
                "{q:?} {k:?} {v:?} {bias:?}"
            );
        };
        refused(&[1, 3, 2, 4], &[1, 2, 2, 4], &[1, 2, 2, 4], &[1]);
        refused(&[1, 2, 2, 4], &[1, 2, 2, 5], &[1, 2, 2, 4], &[1]);
        refused(&[1, 2, 2, 4], &[1, 2, 2, 4], &[1, 2, 3, 4], &[1]);
        refused(&[1, 2, 2, 4], &[2, 2, 2, 4], &[1, 2, 2, 4], &[1]);
        refused(&[1, 2, 2, 4], &[1, 2, 2, 4], &[1, 2, 2, 4], &[3, 2]);
        refused(&[2, 4], &[1, 2, 2, 4], &[1, 2, 2, 4], &[1]);
    }
}
