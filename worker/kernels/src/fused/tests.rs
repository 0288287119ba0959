use super::*;
use crate::binary::{arith, arith_inplace};
use crate::cast::cast;
use crate::element::{Number, bf16, f16};
use crate::reduce::reduce_float;
use crate::testing::{bits, check_stops, each_exec, exec, random};
use crate::unary::float;
use Source::{Input as I, Tile as T};

fn unary(op: FloatUnary, x: Source, to: u8) -> Stage {
    let function = ElementFunction::Unary(op, x);
    Stage { function, to }
}

fn binary(op: Arith, a: Source, b: Source, to: u8) -> Stage {
    let function = ElementFunction::Binary(op, a, b);
    Stage { function, to }
}

fn own<'a, E>(operands: &[Operand<'a, E>]) -> Vec<ChainInput<'a, E>>
where
    Operand<'a, E>: Copy,
{
    operands.iter().map(|x| ChainInput::Own(*x)).collect()
}

/// The number of a code, or the code of a number.
fn coded(coding: Coding, x: f32) -> f32 {
    match coding {
        Coding::Decode { scale, zero } => (x - zero) * scale,
        Coding::Encode { scale, .. } if (x / scale).is_nan() => 0.,
        Coding::Encode {
            scale,
            zero,
            low,
            high,
        } => ((x / scale).round_ties_even() + zero).clamp(low, high),
    }
}

/// The result of the stages run one after the other, each over whole tensors.
fn one_by_one<E: Float>(
    stages: &[Stage],
    operands: &[Operand<E>],
    y: &[E],
    shape: &[usize],
) -> Vec<E> {
    let mut tiles = vec![y.to_vec(); MOST_TILES];
    for stage in stages {
        let read = |s: Source| match s {
            T(t) => Operand::new(&tiles[usize::from(t)], shape),
            I(i) => operands[usize::from(i)],
        };
        let mut made = y.to_vec();
        // Adding zero broadcasts, and changes no bit except the sign of a negative zero, which the data does not contain.
        let broadcast = |x: Source, made: &mut [E]| {
            let zero = [E::ZERO];
            let zero = Operand::new(&zero, &[]);
            arith(&exec(), Arith::Add, read(x), zero, made, shape).unwrap();
        };
        match stage.function {
            ElementFunction::Coding(coding, x) => {
                broadcast(x, &mut made);
                for v in &mut made {
                    *v = E::from_f64(coded(coding, v.to_f64() as f32).into());
                }
            }
            ElementFunction::Unary(op, x) => {
                broadcast(x, &mut made);
                let wide = made.clone();
                float(&exec(), op, &wide, &mut made).unwrap();
            }
            ElementFunction::Binary(op, a, b) => {
                arith(&exec(), op, read(a), read(b), &mut made, shape).unwrap()
            }
        }
        tiles[usize::from(stage.to)] = made;
    }
    tiles.swap_remove(0)
}

fn check_type<E: Float + ChainKernels>(stages: &[Stage]) {
    for shape in [&[][..], &[7], &[3, 5], &[2, 3, 700], &[513], &[40_000]] {
        let last = shape.last().copied().unwrap_or(1);
        let row = [last];
        let column: Vec<usize> = match shape {
            [rest @ .., _] => rest.iter().copied().chain([1]).collect(),
            [] => vec![],
        };
        let shapes = [shape, &[], &row[..shape.len().min(1)], &column];
        let data: Vec<Vec<E>> = (0..4)
            .map(|i| random(count(shapes[i]), 2., i as u64))
            .collect();
        let operands: Vec<_> = data
            .iter()
            .zip(shapes)
            .map(|(d, s)| Operand::new(d, s))
            .collect();
        let start: Vec<E> = random(count(shape), 1., 9);
        let expected = one_by_one(stages, &operands, &start, shape);
        each_exec(|exec| {
            let mut y = start.clone();
            chain(exec, stages, &own(&operands), &mut y, shape).unwrap();
            assert_eq!(bits(&y), bits(&expected), "{stages:?} {shape:?}");
        });
    }
}

fn check(stages: &[Stage]) {
    check_type::<f32>(stages);
    check_type::<f64>(stages);
    check_type::<f16>(stages);
    check_type::<bf16>(stages);
}

#[test]
fn chains_equal_their_functions_one_by_one() {
    use Arith::{Add, Div, Max, Min, Mul, PRelu, Pow, Sub};
    // Every stage works in place, beginning with the former content of the output.
    check(&[
        binary(Add, T(0), I(0), 0),
        binary(Mul, T(0), I(1), 0),
        binary(Sub, T(0), I(2), 0),
        unary(FloatUnary::Tanh, T(0), 0),
        binary(Max, T(0), I(3), 0),
    ]);
    // Several tiles, and every layout of operands.
    check(&[
        binary(Div, I(0), I(1), 3),
        unary(FloatUnary::Erf, T(3), 1),
        unary(FloatUnary::Sigmoid, I(2), 2),
        binary(Mul, T(1), T(2), 1),
        binary(Mul, T(3), T(3), 3),
        binary(Min, T(1), T(3), 4),
        binary(PRelu, I(3), T(4), 0),
        unary(FloatUnary::Neg, I(1), 1),
        binary(Add, I(1), I(1), 2),
        binary(Sub, T(0), T(1), 0),
        binary(Add, T(0), T(2), 0),
    ]);
    check(&[
        unary(FloatUnary::Abs, I(0), 0),
        binary(Pow, T(0), I(1), 0),
        binary(Pow, T(0), I(3), 0),
    ]);
}

#[test]
fn codes_become_numbers_and_numbers_codes() {
    let coding = |coding: Coding, x: Source, to: u8| {
        let function = ElementFunction::Coding(coding, x);
        Stage { function, to }
    };
    let decode = |scale: f32, zero: f32| Coding::Decode { scale, zero };
    let encode = |scale: f32, zero: f32, low: f32| Coding::Encode {
        scale,
        zero,
        low,
        high: low + 255.,
    };
    check_type::<f32>(&[
        coding(decode(0.3, 7.), I(0), 1),
        coding(decode(-1.5, 0.), I(2), 2),
        binary(Arith::Add, T(1), T(2), 1),
        coding(encode(0.01, 3., -128.), T(1), 0),
    ]);
    check_type::<f32>(&[
        coding(encode(0.5, 1., 0.), T(0), 0),
        coding(decode(0.125, 2.), T(0), 0),
        binary(Arith::Div, T(0), I(0), 0),
        coding(encode(f32::NAN, 0., 0.), T(0), 0),
    ]);
}

fn check_exponents<E: Float + ChainKernels>() {
    for exponent in [2., 3., 0.5] {
        let (x, e) = (random::<E>(600, 3., 4), [E::from_f64(exponent)]);
        let operands = [Operand::new(&x, &[600]), Operand::new(&e, &[])];
        let mut expected = vec![E::ZERO; 600];
        arith(
            &exec(),
            Arith::Pow,
            operands[0],
            operands[1],
            &mut expected,
            &[600],
        )
        .unwrap();
        for stages in [
            &[binary(Arith::Pow, I(0), I(1), 0)][..],
            &[
                unary(FloatUnary::Neg, I(0), 0),
                unary(FloatUnary::Neg, T(0), 0),
                binary(Arith::Pow, T(0), I(1), 0),
            ],
        ] {
            let mut y = vec![E::ZERO; 600];
            chain(&exec(), stages, &own(&operands), &mut y, &[600]).unwrap();
            assert_eq!(bits(&y), bits(&expected));
        }
    }
}

#[test]
fn constant_exponents_are_those_of_the_single_function() {
    check_exponents::<f32>();
    check_exponents::<f16>();
    check_exponents::<bf16>();
}

#[test]
fn a_long_chain_looks_at_the_flag() {
    let stages = vec![unary(FloatUnary::Neg, T(0), 0); 10_000];
    check_stops(|exec| chain(exec, &stages, &[], &mut [1f32; 3], &[3]));
}

/// Checks that functions of two of these values have the same bits however they are computed.
fn check_values<E: Float + ChainKernels>(values: &[E], raw: fn(&[E]) -> Vec<u32>) {
    use Arith::{Add, Div, Max, Min, Mul, PRelu, Sub};
    let negated = [
        unary(FloatUnary::Neg, I(0), 0),
        unary(FloatUnary::Neg, T(0), 0),
    ];
    for op in [Add, Sub, Mul, Div, PRelu, Min, Max] {
        for (x, y) in values
            .iter()
            .flat_map(|x| values.iter().map(move |y| (*x, *y)))
        {
            // Rows of 21 elements; the second operand is dense, has one element a row, or one element in all.
            let shape = [2, 21];
            let sizes: [&[usize]; 3] = [&shape, &[2, 1], &[1]];
            let data = |value: E| sizes.map(|s| vec![value; count(s)]);
            let (left, right) = (data(x), data(y));
            let mut all: Vec<Vec<u32>> = vec![];
            for (a, b) in (0..9).map(|i| (i / 3, i % 3)) {
                let both = [
                    Operand::new(&left[a], sizes[a]),
                    Operand::new(&right[b], sizes[b]),
                ];
                let mut y = vec![E::ZERO; 42];
                arith(&exec(), op, both[0], both[1], &mut y, &shape).unwrap();
                all.push(raw(&y));
                let long = [&negated[..], &[binary(op, T(0), I(1), 0)]].concat();
                for stages in [&[binary(op, I(0), I(1), 0)][..], &long] {
                    chain(&exec(), stages, &own(&both), &mut y, &shape).unwrap();
                    all.push(raw(&y));
                }
                if a == 0 {
                    y.copy_from_slice(&left[0]);
                    arith_inplace(&exec(), op, &mut y, &shape, both[1]).unwrap();
                    all.push(raw(&y));
                }
            }
            assert!(all.iter().all(|y| *y == all[0]), "{op:?} {x:?} {y:?}");
        }
    }
}

#[test]
fn not_even_a_nan_depends_on_the_loop() {
    let nans = [0x7fc0_0000, 0xffc0_0000, 0x7fc0_0123, 0xffc0_0456].map(f32::from_bits);
    check_values(&[&nans[..], &[1., 0., -0.]].concat(), |y| {
        y.iter().map(|x| x.to_bits()).collect()
    });
    // NaNs, of which the last two are signalling; one, zeros, the least number, and the greatest.
    let values = [
        0x7e00, 0xfe00, 0x7e12, 0xfe45, 0x7c01, 0xfc23, 0x3c00, 0, 0x8000, 1, 0x7bff,
    ];
    check_values(&values.map(f16::from_bits), |y| {
        y.iter().map(|x| x.to_bits().into()).collect()
    });
    let values = [
        0x7fc0, 0xffc0, 0x7fc5, 0xffca, 0x7f81, 0xffa2, 0x3f80, 0, 0x8000, 1, 0x7f7f,
    ];
    check_values(&values.map(bf16::from_bits), |y| {
        y.iter().map(|x| x.to_bits().into()).collect()
    });
}

/// Data, and the same values converted to `E`.
fn converted<A: Number + CastTo<E>, E: Float>(n: usize, seed: u64) -> (Vec<A>, Vec<E>) {
    let x: Vec<A> = random(n, 3., seed);
    let mut y = vec![E::ZERO; n];
    cast(&exec(), &x, &mut y).unwrap();
    (x, y)
}

/// Checks a chain in type `E` whose inputs are of type `A` and whose result is of type `B`.
fn check_casts<A, E, B>()
where
    A: Number + CastTo<E>,
    E: Float + ChainKernels + CastTo<B>,
    B: Number,
{
    let stages = [
        binary(Arith::Add, I(0), I(1), 0),
        binary(Arith::Mul, T(0), I(2), 0),
        binary(Arith::Sub, I(3), T(0), 1),
        binary(Arith::Max, T(0), T(1), 0),
    ];
    for shape in [&[3, 5][..], &[2, 3, 700], &[40_000]] {
        let last = shape.last().copied().unwrap_or(1);
        let row = [last];
        let column: Vec<usize> = shape[..shape.len() - 1]
            .iter()
            .copied()
            .chain([1])
            .collect();
        // Inputs of the chain's own type and of the other one: dense, one element in all, along rows and along columns.
        let shapes = [shape, &[], &row, &column];
        let data: Vec<(Vec<A>, Vec<E>)> = (0..4)
            .map(|i| converted(count(shapes[i]), 3 + i as u64))
            .collect();
        let all: Vec<Operand<'_, E>> = (data.iter().zip(shapes))
            .map(|((_, own), s)| Operand::new(own, s))
            .collect();
        let others: Vec<Operand<'_, A>> = (data.iter().zip(shapes))
            .map(|((other, _), s)| Operand::new(other, s))
            .collect();
        let start = vec![E::ZERO; count(shape)];
        let plain = one_by_one(&stages, &all, &start, shape);
        let mut expected = vec![B::ZERO; plain.len()];
        cast(&exec(), &plain, &mut expected).unwrap();
        for mask in [0b0000, 0b1111, 0b0110] {
            let given: Vec<ChainInput<'_, E>> = (0..4)
                .map(|i| match mask >> i & 1 {
                    0 => ChainInput::Own(all[i]),
                    _ => ChainInput::Other(&others[i]),
                })
                .collect();
            each_exec(|exec| {
                let mut y = start.clone();
                chain(exec, &stages, &given, &mut y, shape).unwrap();
                assert_eq!(bits(&y), bits(&plain), "{mask} {shape:?}");
                let mut y = vec![B::ZERO; plain.len()];
                chain_cast(exec, &stages, &given, &mut y, shape).unwrap();
                assert_eq!(bits(&y), bits(&expected), "{mask} {shape:?}");
            });
        }
    }
}

#[test]
fn inputs_and_results_of_other_types() {
    check_casts::<f16, f32, f16>();
    check_casts::<i64, f64, f32>();
    check_casts::<u8, bf16, i32>();
}

fn check_reduced<E: Float + ChainKernels>(op: Reduce) {
    let stages = [
        binary(Arith::Mul, I(0), I(0), 0),
        binary(Arith::Add, T(0), I(1), 0),
    ];
    // (shape, how many of its axes are reduced)
    for (shape, axes) in [
        (&[7, 1][..], 1),
        (&[5, 3], 1),
        (&[3, 700], 1),
        (&[40, 1030], 1),
        (&[2, 3, 40], 2),
        (&[1, 33_000], 1),
        (&[4, 5], 2),
    ] {
        let kept = shape.len() - axes;
        let x: Vec<E> = random(count(shape), 2., 5);
        let row: Vec<E> = random(shape[shape.len() - 1], 2., 6);
        let operands = [
            Operand::new(&x, shape),
            Operand::new(&row, &shape[shape.len() - 1..]),
        ];
        let plain = one_by_one(&stages, &operands, &x, shape);
        let mut expected = vec![E::ZERO; count(&shape[..kept])];
        let reduced: Vec<usize> = (kept..shape.len()).collect();
        reduce_float(&exec(), op, &plain, shape, &reduced, &mut expected).unwrap();
        each_exec(|exec| {
            let mut y = vec![E::ONE; expected.len()];
            chain_reduced(exec, &stages, &own(&operands), op, &mut y, shape).unwrap();
            assert_eq!(bits(&y), bits(&expected), "{op:?} {shape:?}");
        });
    }
}

#[test]
fn reductions_at_the_end_have_the_bits_of_reductions() {
    use Reduce::{L1, L2, LogSum, Max, Mean, Min, Prod, Sum, SumSquare};
    for op in [Sum, Mean, Max, Min, Prod, L1, L2, LogSum, SumSquare] {
        check_reduced::<f32>(op);
        check_reduced::<f16>(op);
    }
}

#[test]
fn chains_that_end_otherwise_look_at_the_flag() {
    let stages = [unary(FloatUnary::Tanh, I(0), 0)];
    let x = vec![0.5f32; 1 << 20];
    let shape = [1 << 10, 1 << 10];
    let given = [ChainInput::Own(Operand::new(&x, &shape))];
    check_stops(|exec| chain_cast(exec, &stages, &given, &mut vec![0f64; 1 << 20], &shape));
    let sum =
        |exec: &Exec, y: &mut [f32]| chain_reduced(exec, &stages, &given, Reduce::Sum, y, &shape);
    check_stops(|exec| sum(exec, &mut vec![0.; 1 << 10]));
}
