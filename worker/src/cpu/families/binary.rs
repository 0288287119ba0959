//! Functions of two elements with broadcasting, folds of them over many operands, and `Where`.

use convoke_graph::ops::BinaryOp;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::flag;
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::binary::{
    Arith, Bitwise, Compare, Logic, arith, arith_inplace, bitwise, compare, logic, pow_mixed,
    select,
};
use convoke_kernels::cast::{CastTo, cast};
use convoke_kernels::element::Number;
use convoke_kernels::shape::Operand;

use crate::cpu::dispatch::{by_dtype, by_size};
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, bits, body, one, operand, write,
    write_bits,
};

pub(super) fn find(op: BinaryOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        BinaryOp::Add => pair(spec, Arith::Add),
        BinaryOp::Sub => pair(spec, Arith::Sub),
        BinaryOp::Mul => pair(spec, Arith::Mul),
        BinaryOp::Div => pair(spec, Arith::Div),
        BinaryOp::PRelu => pair(spec, Arith::PRelu),
        BinaryOp::Mod if flag(spec.attrs, "fmod", false) => pair(spec, Arith::Fmod),
        BinaryOp::Mod => pair(spec, Arith::Mod),
        BinaryOp::Pow => pow(spec),
        BinaryOp::Min => chain(spec, Arith::Min, false),
        BinaryOp::Max => chain(spec, Arith::Max, false),
        BinaryOp::Sum => chain(spec, Arith::Add, false),
        BinaryOp::Mean => chain(spec, Arith::Add, true),
        BinaryOp::Equal => comparison(spec, Compare::Equal),
        BinaryOp::Less => comparison(spec, Compare::Less),
        BinaryOp::LessOrEqual => comparison(spec, Compare::LessOrEqual),
        BinaryOp::Greater => comparison(spec, Compare::Greater),
        BinaryOp::GreaterOrEqual => comparison(spec, Compare::GreaterOrEqual),
        BinaryOp::And => logical(Logic::And),
        BinaryOp::Or => logical(Logic::Or),
        BinaryOp::Xor => logical(Logic::Xor),
        BinaryOp::BitwiseAnd => bits_of(spec, Bitwise::And),
        BinaryOp::BitwiseOr => bits_of(spec, Bitwise::Or),
        BinaryOp::BitwiseXor => bits_of(spec, Bitwise::Xor),
        BinaryOp::BitShift => match spec.attrs.str("direction", "") {
            "LEFT" => bits_of(spec, Bitwise::ShiftLeft),
            "RIGHT" => bits_of(spec, Bitwise::ShiftRight),
            other => {
                Err(spec.bad_attr("direction", format!("must be LEFT or RIGHT, not '{other}'")))
            }
        },
        BinaryOp::Where => choose(spec),
    }
}

/// The function that `op` computes of this many float operands of one dtype.
pub(super) fn fold_of(op: BinaryOp, operands: usize) -> Option<Arith> {
    let (fold, many) = match op {
        BinaryOp::Add => (Arith::Add, false),
        BinaryOp::Sub => (Arith::Sub, false),
        BinaryOp::Mul => (Arith::Mul, false),
        BinaryOp::Div => (Arith::Div, false),
        BinaryOp::PRelu => (Arith::PRelu, false),
        BinaryOp::Pow => (Arith::Pow, false),
        BinaryOp::Min => (Arith::Min, true),
        BinaryOp::Max => (Arith::Max, true),
        BinaryOp::Sum => (Arith::Add, true),
        BinaryOp::Mean
        | BinaryOp::Mod
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Equal
        | BinaryOp::Less
        | BinaryOp::Greater
        | BinaryOp::LessOrEqual
        | BinaryOp::GreaterOrEqual
        | BinaryOp::BitShift
        | BinaryOp::BitwiseAnd
        | BinaryOp::BitwiseOr
        | BinaryOp::BitwiseXor
        | BinaryOp::Where => return None,
    };
    (many || operands == 2).then_some(fold)
}

fn pair(spec: &Spec<'_>, op: Arith) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(move |call| apply::<T>(call, op))?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn apply<T: Element + Number>(
    mut call: OpLaunch<'_, '_>,
    op: Arith,
) -> Result<Outputs, KernelFailure> {
    if let Some(mut y) = call.reuse(0, 0) {
        arith_inplace::<T>(
            &call.launch.exec,
            op,
            write(&mut y)?,
            call.out_shape(0),
            operand(call.input(1)?)?,
        )?;
        return one(y);
    }
    let mut y = call.output(0)?;
    let (a, b) = (operand(call.input(0)?)?, operand(call.input(1)?)?);
    arith::<T>(
        &call.launch.exec,
        op,
        a,
        b,
        write(&mut y)?,
        call.out_shape(0),
    )?;
    one(y)
}

fn pow(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let (base, exponent) = (spec.dtype(0)?, spec.dtype(1)?);
    if base == exponent {
        return pair(spec, Arith::Pow);
    }
    let widened = by_dtype!(number exponent, B => widened::<B> as WidenFunction);
    let widened = widened.ok_or_else(|| spec.no_dtype(exponent))?;
    let found = by_dtype!(number base, A => body(move |call| pow_of::<A>(call, widened))?);
    found.ok_or_else(|| spec.no_dtype(base))
}

/// A function that converts operand 1, whatever its dtype, to f64.
type WidenFunction = fn(&OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure>;

fn widened<B: Element + CastTo<f64>>(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
    let mut wide = call.scratch::<f64>(call.input(1)?.elements())?;
    cast::<B, f64>(&call.launch.exec, call.slice(1)?, write(&mut wide)?)?;
    Ok(wide)
}

fn pow_of<A: Element + Number>(
    call: OpLaunch<'_, '_>,
    widened: WidenFunction,
) -> Result<Outputs, KernelFailure> {
    let wide = widened(&call)?;
    let exponent = Operand::new(wide.as_slice()?, call.shape(1)?);
    let mut y = call.output(0)?;
    pow_mixed::<A>(
        &call.launch.exec,
        operand(call.input(0)?)?,
        exponent,
        write(&mut y)?,
        call.out_shape(0),
    )?;
    one(y)
}

fn chain(spec: &Spec<'_>, op: Arith, mean: bool) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(move |call| folded::<T>(call, op, mean))?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

/// Combines the first two operands into the result, and then each further one in place.
fn folded<T: Element + Number>(
    mut call: OpLaunch<'_, '_>,
    op: Arith,
    mean: bool,
) -> Result<Outputs, KernelFailure> {
    let (mut y, done) = match call.reuse(0, 0) {
        Some(y) => (y, 1),
        None if call.launch.inputs.len() == 1 => return one(call.take(0)?),
        None => {
            let mut y = call.output(0)?;
            let (a, b) = (operand(call.input(0)?)?, operand(call.input(1)?)?);
            arith::<T>(
                &call.launch.exec,
                op,
                a,
                b,
                write(&mut y)?,
                call.out_shape(0),
            )?;
            (y, 2)
        }
    };
    for i in done..call.launch.inputs.len() {
        arith_inplace::<T>(
            &call.launch.exec,
            op,
            write(&mut y)?,
            call.out_shape(0),
            operand(call.input(i)?)?,
        )?;
    }
    if mean {
        let count = [T::from_f64(call.launch.inputs.len() as f64)];
        let count = Operand::new(&count, &[]);
        arith_inplace::<T>(
            &call.launch.exec,
            Arith::Div,
            write(&mut y)?,
            call.out_shape(0),
            count,
        )?;
    }
    one(y)
}

fn comparison(spec: &Spec<'_>, op: Compare) -> Result<KernelBody, OpError> {
    let dtype: DType = spec.dtype(0)?;
    let found = by_dtype!(any dtype, T => body(move |call| {
        let mut y = call.output(0)?;
        let (a, b) = (operand::<T>(call.input(0)?)?, operand(call.input(1)?)?);
        compare(&call.launch.exec, op, a, b, write(&mut y)?, call.out_shape(0))?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn logical(op: Logic) -> Result<KernelBody, OpError> {
    body(move |call| {
        let mut y = call.output(0)?;
        let (a, b) = (operand(call.input(0)?)?, operand(call.input(1)?)?);
        logic(
            &call.launch.exec,
            op,
            a,
            b,
            write(&mut y)?,
            call.out_shape(0),
        )?;
        one(y)
    })
}

fn bits_of(spec: &Spec<'_>, op: Bitwise) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(integer dtype, T => body(move |call| {
        let mut y = call.output(0)?;
        let (a, b) = (operand::<T>(call.input(0)?)?, operand(call.input(1)?)?);
        bitwise(&call.launch.exec, op, a, b, write(&mut y)?, call.out_shape(0))?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn choose(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    by_size!(spec.dtype(1)?, T => body(|call| {
        let mut y = call.output(0)?;
        let (yes, no) = (call.input(1)?, call.input(2)?);
        let (yes, no) = (Operand::new(bits::<T>(yes), yes.shape()), Operand::new(bits(no), no.shape()));
        select(&call.launch.exec, operand(call.input(0)?)?, yes, no, write_bits(&mut y)?, call.out_shape(0))?;
        one(y)
    }))
}

#[cfg(test)]
mod tests {
    use convoke_common::Code;
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{launch, one, vec1};

    fn none() -> Attrs {
        Attrs::default()
    }

    #[test]
    fn broadcasts_and_reuses_the_left_operand() {
        let a = Tensor::from_slice(&[2, 1], &[10f32, 20.0]).unwrap();
        let sum = one("Add", none(), &[&a, &vec1(&[1f32, 2.0])]).unwrap();
        assert_eq!(
            sum,
            Tensor::from_slice(&[2, 2], &[11f32, 12.0, 21.0, 22.0]).unwrap()
        );
        let at = sum.bytes().as_ptr();
        let twice = launch(
            "Mul",
            none(),
            vec![Some(sum), Some(Tensor::scalar(2f32))],
            1,
        )
        .unwrap()
        .remove(0);
        assert_eq!(twice.bytes().as_ptr(), at);
        let same = vec1(&[3i64]);
        let inputs = vec![Some(same.clone()), Some(same)];
        assert_eq!(
            launch("Sub", none(), inputs, 1).unwrap().remove(0),
            vec1(&[0i64])
        );
    }

    #[test]
    fn integer_division_by_zero_is_an_error() {
        let e = one("Div", none(), &[&vec1(&[1i32, 2]), &vec1(&[1i32, 0])]).unwrap_err();
        assert_eq!(e.code, Code::KernelFailed);
        assert!(e.message.contains("division by zero"), "{e}");
        let inf = one("Div", none(), &[&vec1(&[1f32]), &vec1(&[0f32])]).unwrap();
        assert_eq!(inf, vec1(&[f32::INFINITY]));
    }

    #[test]
    fn chains_take_any_number() {
        let (a, b, c) = (vec1(&[1f32, 5.0]), vec1(&[4f32, 2.0]), vec1(&[4f32]));
        assert_eq!(
            one("Max", none(), &[&a, &b, &c]).unwrap(),
            vec1(&[4f32, 5.0])
        );
        assert_eq!(
            one("Mean", none(), &[&a, &b, &c]).unwrap(),
            vec1(&[3f32, 11.0 / 3.0])
        );
        assert_eq!(one("Sum", none(), &[&a]).unwrap(), a);
    }

    #[test]
    fn powers_may_differ_in_dtype() {
        let y = one("Pow", none(), &[&vec1(&[2f32, 3.0]), &vec1(&[3i64, 2])]).unwrap();
        assert_eq!(y, vec1(&[8f32, 9.0]));
        let y = one("Pow", none(), &[&vec1(&[2u8, 3]), &vec1(&[3f32, 6.0])]).unwrap();
        assert_eq!(y, vec1(&[8u8, 217]));
    }

    #[test]
    fn where_moves_any_dtype() {
        let c = Tensor::from_bools(&[2], &[true, false]).unwrap();
        let y = one(
            "Where",
            none(),
            &[&c, &vec1(&[1i64, 2]), &Tensor::scalar(-1i64)],
        )
        .unwrap();
        assert_eq!(y, vec1(&[1i64, -1]));
    }

    #[test]
    fn shifts_need_a_direction() {
        let shift = |d: &str| {
            let attrs = none().with("direction", Attr::Str(d.into()));
            one("BitShift", attrs, &[&vec1(&[1u8, 255]), &vec1(&[3u8, 1])])
        };
        assert_eq!(shift("LEFT").unwrap(), vec1(&[8u8, 254]));
        assert!(shift("UP").is_err());
    }
}
