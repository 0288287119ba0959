use super::*;
use crate::element::{Float, Integer, bf16, f16};
use crate::testing::{bits, each_exec, exec, random};

/// Shapes (a, b, result) that reach every loop.
const SHAPES: [(&[usize], &[usize], &[usize]); 11] = [
    (&[3, 7, 5], &[3, 7, 5], &[3, 7, 5]),
    (&[41, 997], &[], &[41, 997]),
    (&[], &[3, 5], &[3, 5]),
    (&[61, 771], &[771], &[61, 771]),
    (&[2, 5, 7, 9], &[5, 1, 1], &[2, 5, 7, 9]),
    (&[7, 1], &[1, 33], &[7, 33]),
    (&[2, 1, 3, 1, 5], &[4, 1, 6, 1], &[2, 4, 3, 6, 5]),
    (&[1], &[1, 1, 1], &[1, 1, 1]),
    (&[0, 3], &[3], &[0, 3]),
    (&[1, 300], &[200, 300], &[200, 300]),
    (&[4, 4], &[4, 1], &[4, 4]),
];

fn at<T: Copy>(x: Operand<T>, out: &[usize], flat: usize) -> T {
    let (mut rest, mut offset, mut stride) = (flat, 0, 1);
    for (axis, &dim) in out.iter().enumerate().rev() {
        let index = rest % dim;
        rest /= dim;
        if let Some(own) = (axis + x.shape.len()).checked_sub(out.len()) {
            offset += if x.shape[own] == 1 { 0 } else { index * stride };
            stride *= x.shape[own];
        }
    }
    x.data[offset]
}

fn check_arith<T: Number>(op: Arith, scale: f64, want: fn(T, T) -> T) {
    for (a_shape, b_shape, shape) in SHAPES {
        let a: Vec<T> = random(count(a_shape) + 1, scale, 1);
        let mut b: Vec<T> = random(count(b_shape) + 1, scale, 2);
        if T::INTEGER && matches!(op, Arith::Div | Arith::Mod | Arith::Fmod) {
            b.iter_mut()
                .filter(|b| **b == T::ZERO)
                .for_each(|b| *b = T::ONE);
        }
        let (a, b) = (
            Operand::new(&a[1..], a_shape),
            Operand::new(&b[1..], b_shape),
        );
        let expected: Vec<T> = (0..count(shape))
            .map(|i| want(at(a, shape, i), at(b, shape, i)))
            .collect();
        each_exec(|exec| {
            let mut y = vec![T::ONE; count(shape) + 3];
            arith(exec, op, a, b, &mut y[3..], shape).unwrap();
            assert_eq!(
                bits(&y[3..]),
                bits(&expected),
                "{op:?} {a_shape:?} {b_shape:?}"
            );
            if a_shape == shape {
                let mut y = a.data.to_vec();
                arith_inplace(exec, op, &mut y, shape, b).unwrap();
                assert_eq!(
                    bits(&y),
                    bits(&expected),
                    "{op:?} in place {a_shape:?} {b_shape:?}"
                );
            }
        });
    }
}

fn check_floats<T: Float>() {
    check_arith::<T>(Arith::Add, 3.0, |a, b| T::from_f64(a.to_f64() + b.to_f64()));
    check_arith::<T>(Arith::Sub, 3.0, |a, b| T::from_f64(a.to_f64() - b.to_f64()));
    check_arith::<T>(Arith::Mul, 3.0, |a, b| T::from_f64(a.to_f64() * b.to_f64()));
    check_arith::<T>(Arith::Div, 3.0, |a, b| T::from_f64(a.to_f64() / b.to_f64()));
    check_arith::<T>(Arith::Fmod, 3.0, |a, b| {
        T::from_f64(a.to_f64() % b.to_f64())
    });
    check_arith::<T>(Arith::PRelu, 3.0, |a, b| {
        if a < T::ZERO { T::mul(a, b) } else { a }
    });
    check_arith::<T>(Arith::Min, 3.0, |a, b| if a < b { a } else { b });
    check_arith::<T>(Arith::Max, 3.0, |a, b| if a > b { a } else { b });
    check_arith::<T>(Arith::Pow, 3.0, T::pow);
}

#[test]
fn float_arithmetic() {
    check_floats::<f32>();
    check_floats::<f64>();
    check_floats::<f16>();
    check_floats::<bf16>();
}

fn check_integers<T: Integer>() {
    check_arith::<T>(Arith::Add, 100.0, T::add);
    check_arith::<T>(Arith::Sub, 100.0, T::sub);
    check_arith::<T>(Arith::Mul, 100.0, T::mul);
    check_arith::<T>(Arith::Div, 100.0, |a, b| {
        T::from_f64((a.to_f64() / b.to_f64()).trunc())
    });
    check_arith::<T>(Arith::Fmod, 100.0, |a, b| {
        T::from_f64(a.to_f64() % b.to_f64())
    });
    check_arith::<T>(Arith::Mod, 100.0, |a, b| {
        let (a, b) = (a.to_f64(), b.to_f64());
        T::from_f64(a - b * (a / b).floor())
    });
    check_arith::<T>(Arith::Min, 100.0, |a, b| if a < b { a } else { b });
    check_arith::<T>(Arith::Max, 100.0, |a, b| if a > b { a } else { b });
    let divisor = [T::ONE, T::ZERO];
    let zero = Operand::new(&divisor, &[2]);
    for op in [Arith::Div, Arith::Mod, Arith::Fmod] {
        let result = arith(&exec(), op, zero, zero, &mut [T::ZERO; 2], &[2]);
        assert_eq!(result, Err(KernelError::DivisionByZero { element: 1 }));
        let mut y = [T::LOWEST, T::HIGHEST];
        arith_inplace(
            &exec(),
            op,
            &mut y,
            &[2],
            Operand::new(&[T::neg(T::ONE)], &[]),
        )
        .unwrap();
    }
}

#[test]
fn integer_arithmetic() {
    check_integers::<i8>();
    check_integers::<i16>();
    check_integers::<i32>();
    check_integers::<i64>();
    check_integers::<u8>();
    check_integers::<u16>();
    check_integers::<u32>();
    check_integers::<u64>();
}

#[test]
fn floats_keep_nan_and_take_the_sign_of_the_divisor() {
    let a = [f32::NAN, 1.0, -5.0, 5.0];
    let b = [1.0, f32::NAN, 3.0, -3.0];
    let mut y = [0.0; 4];
    for (op, want) in [
        (Arith::Min, [-5.0, -3.0]),
        (Arith::Max, [3.0, 5.0]),
        (Arith::Mod, [1.0, -1.0]),
    ] {
        arith(
            &exec(),
            op,
            Operand::new(&a, &[4]),
            Operand::new(&b, &[4]),
            &mut y,
            &[4],
        )
        .unwrap();
        assert!(y[0].is_nan() && y[1].is_nan(), "{op:?}");
        assert_eq!(y[2..], want, "{op:?}");
    }
}

#[test]
fn comparisons() {
    type Expected = fn(&f32, &f32) -> bool;
    let cases: [(Compare, Expected); 5] = [
        (Compare::Equal, f32::eq),
        (Compare::Less, f32::lt),
        (Compare::LessOrEqual, f32::le),
        (Compare::Greater, f32::gt),
        (Compare::GreaterOrEqual, f32::ge),
    ];
    for (a_shape, b_shape, shape) in SHAPES {
        let mut a: Vec<f32> = random::<i8>(count(a_shape), 3.0, 1)
            .into_iter()
            .map(f32::from)
            .collect();
        let b: Vec<f32> = random::<i8>(count(b_shape), 3.0, 2)
            .into_iter()
            .map(f32::from)
            .collect();
        if let Some(a) = a.first_mut() {
            *a = f32::NAN;
        }
        let (a, b) = (Operand::new(&a, a_shape), Operand::new(&b, b_shape));
        for (op, want) in cases {
            let mut y = vec![9; count(shape)];
            compare(&exec(), op, a, b, &mut y, shape).unwrap();
            for (i, &y) in y.iter().enumerate() {
                assert_eq!(
                    y,
                    u8::from(want(&at(a, shape, i), &at(b, shape, i))),
                    "{op:?} {shape:?} {i}"
                );
            }
        }
    }
}

#[test]
fn logic_and_bits() {
    let (a, b) = ([0u8, 0, 1, 1], [0u8, 1, 0, 1]);
    let (a, b) = (Operand::new(&a, &[4]), Operand::new(&b, &[4]));
    for (op, want) in [
        (Logic::And, [0, 0, 0, 1]),
        (Logic::Or, [0, 1, 1, 1]),
        (Logic::Xor, [0, 1, 1, 0]),
    ] {
        let mut y = [9; 4];
        logic(&exec(), op, a, b, &mut y, &[4]).unwrap();
        assert_eq!(y, want);
    }
    let (a, b) = ([0b1100u16, 1, 0xffff, 5], [0b1010u16, 15, 16, 0]);
    let (a, b) = (Operand::new(&a, &[4]), Operand::new(&b, &[4]));
    for (op, want) in [
        (Bitwise::And, [0b1000, 1, 16, 0]),
        (Bitwise::Or, [0b1110, 15, 0xffff, 5]),
        (Bitwise::Xor, [0b0110, 14, 0xffef, 5]),
        (Bitwise::ShiftLeft, [0b1100 << 10, 0x8000, 0, 5]),
        (Bitwise::ShiftRight, [0, 0, 0, 5]),
    ] {
        let mut y = [9; 4];
        bitwise(&exec(), op, a, b, &mut y, &[4]).unwrap();
        assert_eq!(y, want, "{op:?}");
    }
    let mut y = [0i8];
    bitwise(
        &exec(),
        Bitwise::ShiftRight,
        Operand::new(&[-3], &[]),
        Operand::new(&[9], &[]),
        &mut y,
        &[1],
    )
    .unwrap();
    assert_eq!(y, [-1]);
}

#[test]
fn powers() {
    let base = [2i32, -3, 0, -1, 7, 1];
    let mut y = [0; 6];
    arith(
        &exec(),
        Arith::Pow,
        Operand::new(&base, &[6]),
        Operand::new(&[3], &[]),
        &mut y,
        &[6],
    )
    .unwrap();
    assert_eq!(y, [8, -27, 0, -1, 343, 1]);
    arith(
        &exec(),
        Arith::Pow,
        Operand::new(&base, &[6]),
        Operand::new(&[-3], &[]),
        &mut y,
        &[6],
    )
    .unwrap();
    assert_eq!(y, [0, 0, 0, -1, 0, 1]);
    let exponents = [0.5f64, 2.0, 3.0, 4.0, 1.5, 9.0];
    pow_mixed(
        &exec(),
        Operand::new(&base, &[6]),
        Operand::new(&exponents, &[6]),
        &mut y,
        &[6],
    )
    .unwrap();
    assert_eq!(y, [1, 9, 0, 1, 18, 1]);
    let mut y = [0f32; 6];
    let base = [2f32, -3.0, 0.5, -1.0, 7.0, 1.0];
    pow_mixed(
        &exec(),
        Operand::new(&base, &[6]),
        Operand::new(&[3.0], &[1]),
        &mut y,
        &[6],
    )
    .unwrap();
    assert_eq!(y, [8.0, -27.0, 0.125, -1.0, 343.0, 1.0]);
    let mut y = [0i64];
    pow_mixed(
        &exec(),
        Operand::new(&[3i64], &[]),
        Operand::new(&[39.0], &[]),
        &mut y,
        &[],
    )
    .unwrap();
    assert_eq!(y, [3i64.pow(39)]);
}

fn check_constant_exponents<T: Float>() {
    let x: Vec<T> = random(1000, 9.0, 5);
    for n in [2.0, 3.0] {
        let (one, many) = ([T::from_f64(n)], vec![T::from_f64(n); 1000]);
        let mut y = [vec![T::ZERO; 1000], vec![T::ZERO; 1000], x.clone()];
        let x = Operand::new(&x, &[1000]);
        arith(
            &exec(),
            Arith::Pow,
            x,
            Operand::new(&one, &[1]),
            &mut y[0],
            &[1000],
        )
        .unwrap();
        arith(
            &exec(),
            Arith::Pow,
            x,
            Operand::new(&many, &[1000]),
            &mut y[1],
            &[1000],
        )
        .unwrap();
        arith_inplace(
            &exec(),
            Arith::Pow,
            &mut y[2],
            &[1000],
            Operand::new(&one, &[]),
        )
        .unwrap();
        assert_eq!(bits(&y[0]), bits(&y[1]));
        assert_eq!(bits(&y[0]), bits(&y[2]));
    }
}

#[test]
fn constant_exponents_give_the_bits_of_any() {
    check_constant_exponents::<f32>();
    check_constant_exponents::<f64>();
    check_constant_exponents::<f16>();
    check_constant_exponents::<bf16>();
}

#[test]
fn select_broadcasts_three_ways() {
    let shapes: [(&[usize], &[usize], &[usize], &[usize]); 8] = [
        (&[3, 5], &[3, 5], &[3, 5], &[3, 5]),
        (&[3, 1], &[3, 5], &[1, 5], &[3, 5]),
        (&[3, 1], &[], &[1, 5], &[3, 5]),
        (&[1, 1, 4, 4], &[2, 3, 4, 4], &[], &[2, 3, 4, 4]),
        (&[4, 4], &[], &[2, 4, 4], &[2, 4, 4]),
        (&[200, 300], &[1], &[1, 1], &[200, 300]),
        (&[], &[], &[], &[]),
        (&[4, 1], &[4, 1], &[4, 7], &[4, 7]),
    ];
    for (c_shape, x_shape, y_shape, shape) in shapes {
        let condition: Vec<u8> = random::<f32>(count(c_shape), 1.0, 3)
            .iter()
            .map(|x| u8::from(*x > 0.0))
            .collect();
        let (x, y) = (
            random::<u32>(count(x_shape), 1e6, 1),
            random::<u32>(count(y_shape), 1e6, 2),
        );
        let condition = Operand::new(&condition, c_shape);
        let (x, y) = (Operand::new(&x, x_shape), Operand::new(&y, y_shape));
        each_exec(|exec| {
            let mut out = vec![0; count(shape)];
            select(exec, condition, x, y, &mut out, shape).unwrap();
            for (i, &got) in out.iter().enumerate() {
                let want = if at(condition, shape, i) != 0 {
                    at(x, shape, i)
                } else {
                    at(y, shape, i)
                };
                assert_eq!(got, want, "{c_shape:?} {x_shape:?} {y_shape:?} at {i}");
            }
        });
    }
}
