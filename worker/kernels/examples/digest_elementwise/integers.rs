//! The kernels of integer types.

use crate::digest::{Digest, data};
use convoke_kernels::Exec;
use convoke_kernels::binary::{Arith, Bitwise, arith, bitwise, pow_mixed};
use convoke_kernels::element::Integer;
use convoke_kernels::error::Result;
use convoke_kernels::movement;
use convoke_kernels::reduce::{Reduce, reduce_integer};
use convoke_kernels::shape::Operand;
use convoke_kernels::unary::{self, IntegerUnary};

pub fn integers<T: Integer>(exec: &Exec, digest: &mut Digest) -> Result {
    let n = 10_007;
    let shape = [n];
    let a = data::<T>(n, T::HIGHEST.to_f64(), 3);
    let b: Vec<T> = data::<T>(n, 50.0, 5)
        .into_iter()
        .map(|b| if b == T::ZERO { T::ONE } else { b })
        .collect();
    let mut y = vec![T::ZERO; n];
    use IntegerUnary::*;
    for op in [Abs, Neg, Sign, Relu, BitwiseNot] {
        unary::integer(exec, op, &a, &mut y)?;
        digest.add(&format!("{op:?}"), &y);
    }
    let (a, b) = (Operand::new(&a, &shape), Operand::new(&b, &shape));
    for op in [
        Arith::Add,
        Arith::Sub,
        Arith::Mul,
        Arith::Div,
        Arith::Mod,
        Arith::Fmod,
        Arith::Pow,
        Arith::PRelu,
        Arith::Min,
        Arith::Max,
    ] {
        arith(exec, op, a, b, &mut y, &shape)?;
        digest.add(&format!("{op:?}"), &y);
    }
    use Bitwise::{And, Or, ShiftLeft, ShiftRight, Xor};
    for op in [And, Or, Xor, ShiftLeft, ShiftRight] {
        bitwise(exec, op, a, b, &mut y, &shape)?;
        digest.add(&format!("{op:?}"), &y);
    }
    pow_mixed(exec, b, Operand::new(&[1.5], &[1]), &mut y, &shape)?;
    digest.add("pow_mixed", &y);
    use Reduce::*;
    for op in [
        Sum, Mean, Max, Min, Prod, L1, L2, LogSum, LogSumExp, SumSquare,
    ] {
        reduce_integer(
            exec,
            op,
            &b.data[..10_000],
            &[100, 100],
            &[0],
            &mut y[..100],
        )?;
        digest.add(&format!("{op:?}"), &y[..100]);
    }
    movement::range(exec, T::ONE, T::from_f64(3.0), &mut y)?;
    digest.add("range", &y);
    Ok(())
}
