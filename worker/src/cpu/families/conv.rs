//! Convolutions, alone and fused with the ops that follow them.

use convoke_common::Error;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::ConvOp;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::{ConvAttrs, flag};
use convoke_graph::{DType, Outputs, Tensor};
use convoke_kernels::conv::{
    ConvEpilogue, ConvShape, ConvSizes, ConvWeights, NarrowConv, NarrowEnding, conv,
    pack_conv_weights_into,
};
use convoke_kernels::gemm::Activation;

use super::conv_f64;
use crate::cpu::cast::wide::{optional_wide, wide, wide_output};
use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::activation::{activation, ending};
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

pub(super) fn find(op: ConvOp, spec: &Spec<'_>) -> FamilyAnswer {
    let ConvOp::Conv = op;
    let fused = FusedActivation {
        packed: None,
        activation: Activation::None,
        ending: NarrowEnding::NONE,
    };
    match spec.dtype(0)? {
        DType::F32 | DType::F16 | DType::BF16 => body(move |call| fused.run(call)),
        DType::F64 => body(conv_f64::conv),
        other => Err(spec.no_dtype(other)),
    }
}

struct FusedActivation {
    /// The original shape of the weights, if they are packed.
    packed: Option<Vec<usize>>,
    /// The activation of sums of f32.
    activation: Activation,
    /// What follows sums that are rounded to 16 bits.
    ending: NarrowEnding,
}

/// Makes the kernel of a convolution with an activation, whose weights may be packed.
pub(super) fn fused_conv(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let packed = if flag(spec.attrs, "packed", false) {
        let dims = spec
            .attrs
            .ints("w_shape")
            .ok_or_else(|| spec.bad_attr("w_shape", "is required"))?;
        let dims: Option<Vec<usize>> = dims.iter().map(|d| usize::try_from(*d).ok()).collect();
        Some(dims.ok_or_else(|| spec.bad_attr("w_shape", "must not be negative"))?)
    } else {
        None
    };
    let fused = FusedActivation {
        packed,
        activation: activation(spec)?,
        ending: ending(spec)?,
    };
    body(move |call| fused.run(call))
}

impl FusedActivation {
    fn run(&self, call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
        let x = call.input(0)?;
        let w = match self.packed {
            Some(_) => call.input(1)?.clone(),
            None => wide(&call, 1)?,
        };
        let (bias, residual) = (optional_wide(&call, 2)?, optional_wide(&call, 3)?);
        let shape = sizes(
            call.attrs,
            x.shape(),
            self.packed.as_deref().unwrap_or(w.shape()),
        )?;
        let of = |t: &'_ Option<Tensor>, len: usize, name: &str| match t {
            Some(t) if t.elements() != len => Err(KernelFailure::values(format!(
                "'{name}' must have {len} elements, not {t:?}"
            ))),
            _ => Ok(()),
        };
        let channels = call.out_shape(0).get(1).copied().unwrap_or(0);
        let outputs: usize = call.out_shape(0).iter().product();
        of(&bias, channels, "B")?;
        of(&residual, outputs, "residual")?;
        if w.elements() != shape.weights_len() || outputs != shape.output_len() {
            return Err(Error::internal(
                "a convolution's sizes differ between registry and kernel",
            )
            .into());
        }
        let weights = match (&self.packed, w.dtype()) {
            (Some(_), DType::F16) => ConvWeights::packed::<half::f16>(w.as_slice()?),
            (Some(_), DType::BF16) => ConvWeights::packed::<half::bf16>(w.as_slice()?),
            (Some(_), _) => ConvWeights::packed::<f32>(w.as_slice()?),
            (None, _) => ConvWeights::RowMajor(w.as_slice()?),
        };
        let is_narrow = x.dtype() != DType::F32;
        let epilogue = ConvEpilogue {
            bias: bias.as_ref().map(Tensor::as_slice).transpose()?,
            residual: residual.as_ref().map(Tensor::as_slice).transpose()?,
            activation: match is_narrow {
                true => Activation::None,
                false => self.activation,
            },
        };
        let exec = call.launch.exec;
        let narrow = match residual {
            None if is_narrow => NarrowConv::new(&shape),
            _ => None,
        };
        if let Some(plan) = narrow {
            let mut y = call.output(0)?;
            let done = by_dtype!([F16 half::f16, BF16 half::bf16] x.dtype(), T => {
                let end = (epilogue.bias, self.ending);
                plan.run(exec, x.as_slice::<T>()?, weights, end, write::<T>(&mut y)?)?
            });
            done.ok_or_else(|| Error::internal("a convolution of another dtype"))?;
            return one(y);
        }
        let (dtype, x, mut y) = (x.dtype(), wide(&call, 0)?, wide_output(&call, 0)?);
        let sums = write(&mut y)?;
        conv(exec, &shape, x.as_slice()?, weights, &epilogue, sums)?;
        if !is_narrow {
            return one(y);
        }
        let mut out = call.output(0)?;
        let done = by_dtype!([F16 half::f16, BF16 half::bf16] dtype, T => {
            self.ending.finish_all(&exec, sums, write::<T>(&mut out)?)?
        });
        done.ok_or_else(|| Error::internal("a convolution of another dtype"))?;
        one(out)
    }
}

/// The sizes of the convolution of `x [n, c, spatial..]` by `w [m, c / group, kernel..]`.
pub(super) fn sizes(attrs: &Attrs, x: &[usize], w: &[usize]) -> Result<ConvShape, KernelFailure> {
    let ([batch, in_channels, input @ ..], [out_channels, depth, kernel @ ..]) = (x, w) else {
        return Err(KernelFailure::values(format!(
            "{x:?} cannot be convolved by {w:?}"
        )));
    };
    let attrs = ConvAttrs::new(attrs, kernel)?;
    if input.len() != kernel.len() || depth.checked_mul(attrs.group) != Some(*in_channels) {
        return Err(KernelFailure::values(format!(
            "{x:?} cannot be convolved by {w:?} in {} groups",
            attrs.group
        )));
    }
    let window = &attrs.window;
    let (begin, end): (Vec<usize>, Vec<usize>) = input
        .iter()
        .enumerate()
        .map(|(axis, len)| window.pads(axis, *len))
        .unzip();
    let sizes = ConvSizes {
        batch: *batch,
        in_channels: *in_channels,
        out_channels: *out_channels,
        groups: attrs.group,
        input,
        kernel,
        strides: &window.strides,
        dilations: &window.dilations,
        pads_begin: &begin,
        pads_end: &end,
    };
    ConvShape::new(&sizes).map_err(|e| KernelFailure::values(e.to_string()))
}

/// Makes the kernel that packs weights into the order in which convolutions read them.
pub(super) fn pack(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let group = ConvAttrs::group(spec.attrs)?;
    let dtype = spec.dtype(0)?;
    let found = by_dtype!([F32 f32, F16 half::f16, BF16 half::bf16] dtype, T => body(move |call| {
        let w = call.slice::<T>(0)?;
        let mut y = call.output(0)?;
        let out = write::<T>(&mut y)?;
        let channels = call.shape(0)?.first().copied().unwrap_or(0);
        if !channels.is_multiple_of(group) || out.len() != w.len() {
            return Err(Error::internal("the registry's packed length is not the kernel's").into());
        }
        pack_conv_weights_into(out, w, channels, group);
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::Attr;
    use convoke_graph::ops::packing::packed_conv_len;

    use super::*;
    use crate::cpu::testing::{counting, launch, one, vec1};

    fn pads() -> Attrs {
        Attrs::default().with("pads", Attr::Ints(vec![1, 1, 1, 1]))
    }

    #[test]
    fn one_two_and_three_dimensions() {
        for spatial in [&[5][..], &[5, 4], &[3, 4, 5]] {
            let (mut x, mut w) = (vec![1, 2], vec![3, 2]);
            x.extend(spatial);
            w.extend(spatial.iter().map(|_| 2));
            let y = one("Conv", Attrs::default(), &[&counting(&x), &counting(&w)]).unwrap();
            let want: Vec<usize> = [1, 3]
                .into_iter()
                .chain(spatial.iter().map(|d| d - 1))
                .collect();
            assert_eq!(y.shape(), want);
        }
        let y = one(
            "Conv",
            pads(),
            &[
                &counting(&[1, 1, 2, 2]),
                &counting(&[1, 1, 3, 3]),
                &vec1(&[1f32]),
            ],
        );
        assert_eq!(
            y.unwrap().as_slice::<f32>().unwrap(),
            [44.0, 38.0, 26.0, 20.0]
        );
    }

    #[test]
    fn fused_and_packed_equal_the_separate_ops() {
        let (x, w, b) = (
            counting(&[2, 4, 5, 5]),
            counting(&[6, 2, 3, 3]),
            counting(&[6]),
        );
        let group = pads().with("group", Attr::Int(2));
        let plain = one("Conv", group.clone(), &[&x, &w, &b]).unwrap();
        let residual = one("Neg", Attrs::default(), &[&plain]).unwrap();
        let sum = one("Add", Attrs::default(), &[&plain, &residual]).unwrap();
        let want = one("Relu", Attrs::default(), &[&sum]).unwrap();
        let packed = one(
            "PackConvW",
            Attrs::default().with("group", Attr::Int(2)),
            &[&w],
        )
        .unwrap();
        assert_eq!(packed.elements(), packed_conv_len(6, 2, 9, 2).unwrap());
        let fused = group
            .with("w_shape", Attr::Ints(vec![6, 2, 3, 3]))
            .with("activation", Attr::Str("Relu".into()));
        for (flag, w) in [(0, w), (1, packed)] {
            let attrs = fused.clone().with("packed", Attr::Int(flag));
            let inputs = [&x, &w, &b, &residual].map(|t| Some(t.clone())).into();
            assert_eq!(launch("FusedConv", attrs, inputs, 1).unwrap()[0], want);
        }
    }

    #[test]
    fn packed_halves_give_the_bits_of_the_plain_op() {
        let half = |shape: &[usize]| {
            let attrs = Attrs::default().with("to", Attr::DType(DType::F16));
            let x = one("Sin", Attrs::default(), &[&counting(shape)]).unwrap();
            one("Cast", attrs, &[&x]).unwrap()
        };
        let (x, w, b) = (half(&[2, 4, 5, 5]), half(&[6, 4, 3, 3]), half(&[6]));
        let want = one("Conv", pads(), &[&x, &w, &b]).unwrap();
        let packed = one("PackConvW", Attrs::default(), &[&w]).unwrap();
        assert_eq!(packed.dtype(), DType::F16);
        let attrs = pads()
            .with("w_shape", Attr::Ints(vec![6, 4, 3, 3]))
            .with("packed", Attr::Int(1));
        let inputs = vec![Some(x), Some(packed), Some(b)];
        assert_eq!(launch("FusedConv", attrs, inputs, 1).unwrap()[0], want);
    }

    #[test]
    fn halves_end_as_the_separate_ops_do() {
        let half = |x: &Tensor, to| {
            let attrs = Attrs::default().with("to", Attr::DType(to));
            one("Cast", attrs, &[x]).unwrap()
        };
        let wide = |shape: &[usize]| {
            let mut x: Vec<f32> = (0..shape.iter().product::<usize>())
                .map(|i| 3. * (i as f32).sin())
                .collect();
            // Infinities that meet give NaN.
            x.iter_mut()
                .skip(5)
                .step_by(41)
                .for_each(|x| *x = f32::INFINITY);
            x.iter_mut()
                .skip(7)
                .step_by(53)
                .for_each(|x| *x = f32::NEG_INFINITY);
            Tensor::from_slice(shape, &x).unwrap()
        };
        let sixth = Attrs::default().with("alpha", Attr::Float(1. / 6.));
        let none = Attrs::default;
        let functions = [
            ("Relu", "Relu", none(), false),
            ("Gelu", "Gelu", none(), false),
            ("HardSwish", "HardSwish", none(), false),
            ("GatedSigmoid", "Sigmoid", none(), true),
            ("GatedHardSigmoid", "HardSigmoid", sixth, true),
        ];
        // The last one is converted as a whole: a block of it does not fit.
        let shapes: [(&[usize], &[usize], i64); 3] = [
            (&[2, 4, 9, 7], &[6, 4, 3, 3], 1),
            (&[2, 3, 9, 7], &[3, 1, 3, 3], 3),
            (&[1, 1, 2, 1 << 17], &[1, 1, 3, 3], 1),
        ];
        for (x, w, group) in shapes {
            for to in [DType::F16, DType::BF16] {
                let [x, w, b] = [wide(x), wide(w), wide(&w[..1])].map(|t| half(&t, to));
                let attrs = pads().with("group", Attr::Int(group));
                let sums = one("Conv", attrs.clone(), &[&x, &w, &b]).unwrap();
                for (name, op, of, gates) in functions.clone() {
                    let f = one(op, of, &[&sums]).unwrap();
                    let want = match gates {
                        true => one("Mul", none(), &[&sums, &f]).unwrap(),
                        false => f,
                    };
                    let dims = w.shape().iter().map(|d| *d as i64).collect();
                    let attrs = attrs
                        .clone()
                        .with("w_shape", Attr::Ints(dims))
                        .with("activation", Attr::Str(name.into()));
                    let inputs = [&x, &w, &b].map(|t| Some(t.clone())).into();
                    let got = launch("FusedConv", attrs, inputs, 1).unwrap();
                    assert_eq!(got[0], want, "{name} of {to} in {group} groups");
                }
            }
        }
    }

    #[test]
    fn depthwise_halves_give_the_bits_of_whole_conversions() {
        let cast = |x: &Tensor, to| {
            let attrs = Attrs::default().with("to", Attr::DType(to));
            one("Cast", attrs, &[x]).unwrap()
        };
        let wide = |shape: &[usize]| one("Sin", Attrs::default(), &[&counting(shape)]).unwrap();
        let attrs = pads().with("group", Attr::Int(3));
        for to in [DType::F16, DType::BF16] {
            let half = [wide(&[2, 3, 9, 7]), wide(&[6, 1, 3, 3]), wide(&[6])].map(|t| cast(&t, to));
            let whole = half.clone().map(|t| cast(&t, DType::F32));
            let conv = |[x, w, b]: &[Tensor; 3]| one("Conv", attrs.clone(), &[x, w, b]).unwrap();
            assert_eq!(conv(&half), cast(&conv(&whole), to));
        }
    }

    #[test]
    fn halves_round_once() {
        let half = |v: &[f32], s: &[usize]| {
            let v: Vec<half::f16> = v.iter().map(|x| half::f16::from_f32(*x)).collect();
            Tensor::from_slice(s, &v).unwrap()
        };
        let (x, w) = (
            half(&[2048.0, 1.0, 1.0], &[1, 3, 1]),
            half(&[1.0, 1.0, 1.0], &[1, 3, 1]),
        );
        let y = one("Conv", Attrs::default(), &[&x, &w]).unwrap();
        assert_eq!(y, half(&[2050.0], &[1, 1, 1]));
    }
}
