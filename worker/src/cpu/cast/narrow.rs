//! Conversions from and to narrow dtypes.

use convoke_graph::DType;
use convoke_graph::narrow::narrow_of;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::{CastAttrs, RoundMode};
use convoke_kernels::narrow::{
    Narrow, NarrowRounding, PowerRounding, narrow, renarrow, widen, widen_to_bool,
};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, KernelBody, Spec, body, one, write, write_bits};

fn rounding(spec: &Spec<'_>) -> Result<NarrowRounding, OpError> {
    let attrs = CastAttrs::new(spec.attrs)?;
    Ok(NarrowRounding {
        saturate: attrs.saturate,
        power: match attrs.round_mode {
            RoundMode::Up => PowerRounding::Up,
            RoundMode::Down => PowerRounding::Down,
            RoundMode::Nearest => PowerRounding::Nearest,
        },
    })
}

/// Makes the kernel that converts operand 0 from `from` to `to`, one of which is narrow.
pub(super) fn convert(spec: &Spec<'_>, from: DType, to: DType) -> FamilyAnswer {
    let how = rounding(spec)?;
    let found = match (narrow_of(from), narrow_of(to)) {
        (Some(from), Some(to)) => Some(body(move |call| {
            let (x, mut y) = (call.input(0)?, call.output(0)?);
            let len = x.elements();
            let result = (to, write_bits(&mut y)?);
            renarrow(&call.launch.exec, (from, x.bytes()), result, len, how)?;
            one(y)
        })?),
        (Some(from), None) => widening(from, to)?,
        (None, Some(to)) => by_dtype!(any from, A => body(move |call| {
            let mut y = call.output(0)?;
            narrow::<A>(&call.launch.exec, call.slice(0)?, to, how, write_bits(&mut y)?)?;
            one(y)
        })?),
        (None, None) => None,
    };
    found.ok_or_else(|| spec.no_dtype(from))
}

fn widening(from: Narrow, to: DType) -> Result<Option<KernelBody>, OpError> {
    if to == DType::Bool {
        let kernel = body(move |call| {
            let mut y = call.output(0)?;
            widen_to_bool(
                &call.launch.exec,
                from,
                call.input(0)?.bytes(),
                write(&mut y)?,
            )?;
            one(y)
        })?;
        return Ok(Some(kernel));
    }
    Ok(by_dtype!(number to, B => body(move |call| {
        let mut y = call.output(0)?;
        widen::<B>(&call.launch.exec, from, call.input(0)?.bytes(), write(&mut y)?)?;
        one(y)
    })?))
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{one, vec1};

    fn cast(x: &Tensor, to: DType) -> Tensor {
        one("Cast", Attrs::default().with("to", Attr::DType(to)), &[x]).unwrap()
    }

    #[test]
    fn numbers_that_every_dtype_has_survive_any_two_conversions() {
        // The numbers 0 and 1; the least number of f8e8m0 is above 0.
        let check = |x: &Tensor, first: DType, second: DType| {
            let back = cast(&cast(&cast(x, first), second), DType::F32);
            assert_eq!(back, *x, "{first}, then {second}");
        };
        for first in DType::ALL {
            for second in DType::ALL {
                match first == DType::F8E8M0 || second == DType::F8E8M0 {
                    true => check(&vec1(&[1f32; 5]), first, second),
                    false => check(&vec1(&[0f32, 1., 1., 0., 1.]), first, second),
                }
            }
        }
    }

    #[test]
    fn attributes_decide_what_overflows() {
        let x = vec1(&[1e6f32, -1e6]);
        let check = |to: DType, saturate: i64, want: [u8; 2]| {
            let attrs = Attrs::default().with("to", Attr::DType(to));
            let attrs = attrs.with("saturate", Attr::Int(saturate));
            let y = one("Cast", attrs, &[&x]).unwrap();
            assert_eq!(y.bytes(), want, "{to}");
        };
        check(DType::F8E4M3FN, 1, [0x7e, 0xfe]);
        check(DType::F8E4M3FN, 0, [0x7f, 0xff]);
        check(DType::F8E5M2, 0, [0x7c, 0xfc]);
        let power = |mode: &str| {
            let attrs = Attrs::default().with("to", Attr::DType(DType::F8E8M0));
            let attrs = attrs.with("round_mode", Attr::Str(mode.into()));
            one("Cast", attrs, &[&vec1(&[1.25f32])]).map(|t| t.bytes().to_vec())
        };
        assert_eq!(power("up").unwrap(), [128]);
        assert_eq!(power("down").unwrap(), [127]);
        assert_eq!(power("nearest").unwrap(), [127]);
        assert!(power("sideways").is_err());
        let infinite = one(
            "Cast",
            Attrs::default().with("to", Attr::DType(DType::F8E8M0)),
            &[&vec1(&[f32::INFINITY, 0., f32::NAN])],
        );
        assert_eq!(infinite.unwrap().bytes(), [254, 0, 255]);
    }
}
