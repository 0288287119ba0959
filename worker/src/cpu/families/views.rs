//! Ops that give the same elements another shape, or the same one: nothing is copied.

use convoke_graph::Outputs;

use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, body, one, write};

/// Makes the kernel of an op whose result has its operand's elements in the same order.
pub(super) fn view() -> FamilyAnswer {
    body(|mut call| {
        let x = call.take(0)?;
        if x.shape() == call.out_shape(0) {
            return one(x);
        }
        let elements = x.elements();
        let y = x.into_shape(call.out_shape(0));
        y.map(one).unwrap_or_else(|| {
            Err(KernelFailure::values(format!(
                "{elements} elements cannot take the shape {:?}",
                call.out_shape(0)
            )))
        })
    })
}

/// Makes the kernel of `Dropout`.
pub(super) fn unchanged() -> FamilyAnswer {
    body(dropout)
}

/// Computes `Dropout` of inference, which keeps every element.
fn dropout(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let mut outputs = Outputs::from([call.take(0)?]);
    if call.outputs.len() > 1 {
        let mut mask = call.output(1)?;
        write::<u8>(&mut mask)?.fill(1);
        outputs.push(mask);
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::Attrs;

    use crate::cpu::testing::{counting, one, vec1};

    #[test]
    fn the_buffer_is_shared() {
        let x = counting(&[2, 3]);
        let y = one("Reshape", Attrs::default(), &[&x, &vec1(&[3i64, -1])]).unwrap();
        assert_eq!(
            (y.shape(), y.bytes().as_ptr()),
            (&[3usize, 2][..], x.bytes().as_ptr())
        );
        let e = one("Reshape", Attrs::default(), &[&x, &vec1(&[4i64])]).unwrap_err();
        assert_eq!(e.code, convoke_common::Code::KernelFailed);
    }
}
