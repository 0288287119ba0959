use super::*;
use crate::testing::{each_exec, exec};

const SEED: Seed = Seed {
    key: 0x0123_4567_89ab_cdef,
    stream: u64::MAX - 1,
};

fn drawn<T: Float>(law: Law, seed: Seed, n: usize) -> Vec<T> {
    let mut y = vec![T::ZERO; n];
    match law {
        Law::Uniform => uniform(&exec(), seed, 0.0, 1.0, &mut y).unwrap(),
        Law::Normal => normal(&exec(), seed, 0.0, 1.0, &mut y).unwrap(),
    }
    y
}

fn between<T: Float>(low: f64, high: f64, n: usize) -> Vec<T> {
    let mut y = vec![T::ZERO; n];
    uniform(&exec(), SEED, low, high, &mut y).unwrap();
    y
}

/// Compares with numbers that another implementation of the definition computed.
#[test]
fn numbers_follow_from_words() {
    fn check<T: Float>(law: Law, want: &[f64], within: f64) {
        let got = drawn::<T>(law, SEED, want.len());
        for (got, want) in got.into_iter().zip(want) {
            assert!((got.to_f64() - want).abs() <= within, "{got:?} {want}");
        }
    }
    let words = [2492857, 2444857, 10290009, 7919230, 14278232, 4363319];
    let fractions = words.map(|w| f64::from(w) / (1 << 24) as f64);
    check::<f32>(Law::Uniform, &fractions, 0.0);
    check::<f16>(Law::Uniform, &fractions, 2f64.powi(-12));
    check::<bf16>(Law::Uniform, &fractions, 2f64.powi(-9));
    let words = [1312573045915959u64, 4251604707680363, 2342539566463947];
    let fractions = words.map(|w| w as f64 / (1u64 << 53) as f64);
    check::<f64>(Law::Uniform, &fractions, 0.0);
    let normals = [
        1.18980720040609,
        1.5484001396189335,
        -0.9735477713150591,
        0.17292023214961513,
        -0.03592592871630828,
    ];
    check::<f32>(Law::Normal, &normals, 1e-6);
    check::<f16>(Law::Normal, &normals, 6e-4);
    check::<bf16>(Law::Normal, &normals, 5e-3);
    let normals = [
        -1.9324234011283847,
        0.34323375762269676,
        -0.9963711371621139,
        -1.3041555333579677,
        2.0989405443948206,
    ];
    check::<f64>(Law::Normal, &normals, 4e-15);
}

/// The numbers of a seed are promised to be the same on every machine and in every version.
#[test]
fn bits_are_fixed() {
    fn check<T: Float>(law: Law, want: u64) {
        let bits = drawn::<T>(law, SEED, 10_000)
            .into_iter()
            .map(|y| y.to_f64().to_bits());
        let hash = bits.fold(0u64, |h, y| {
            (h.rotate_left(5) ^ y).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        assert_eq!(hash, want, "{law:?} {hash:#018x}");
    }
    check::<f32>(Law::Uniform, 0x52bb_a260_5e47_1a2b);
    check::<f64>(Law::Uniform, 0xcc4d_abd9_c590_a0ad);
    check::<f16>(Law::Uniform, 0x6bba_a990_1f2b_c5ba);
    check::<bf16>(Law::Uniform, 0x93ea_3ac0_4207_4b4d);
    check::<f32>(Law::Normal, 0x2cba_7a04_4cc2_07ec);
    check::<f64>(Law::Normal, 0x5ba1_41f9_1511_dc06);
    check::<f16>(Law::Normal, 0xc464_3e2d_acd2_d356);
    check::<bf16>(Law::Normal, 0x995e_57ad_2c46_332e);
}

#[test]
fn threads_tiles_and_lengths_do_not_matter() {
    fn check<T: Below>()
    where
        T::Wide: Draw,
    {
        const N: usize = 3 * GRAIN + 7;
        for law in [Law::Uniform, Law::Normal] {
            let by = match law {
                Law::Uniform => uniform_scaling::<T>(-2.0, 3.0),
                Law::Normal => normal_scaling::<T>(-2.0, 3.0),
            };
            let numbers = |exec: &Exec, grain, n| {
                let mut y = vec![T::ZERO; n];
                fill(exec, grain, SEED, law, by, &mut y).unwrap();
                y
            };
            let whole = numbers(&exec(), N.next_multiple_of(4), N);
            each_exec(|exec| assert_eq!(numbers(exec, GRAIN, N), whole));
            for grain in [4, 12, 1020, 1024, 1028, 5000] {
                assert_eq!(numbers(&exec(), grain, N), whole, "{grain}");
            }
            for n in [0, 1, 2, 3, 5, 511, 1023, 1025, GRAIN + 1] {
                assert_eq!(numbers(&exec(), GRAIN, n), whole[..n], "{n}");
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
}

#[test]
fn seeds_give_unrelated_numbers() {
    fn check<T: Float>(a: Seed, b: Seed) {
        const N: usize = 100_000;
        let (x, y) = (drawn::<T>(Law::Normal, a, N), drawn::<T>(Law::Normal, b, N));
        let together: f64 = x.iter().zip(&y).map(|(x, y)| x.to_f64() * y.to_f64()).sum();
        assert!((together / N as f64).abs() < 0.016, "{a:?} {b:?}");
    }
    let seed = |key, stream| Seed { key, stream };
    for (a, b) in [
        (seed(0, 0), seed(1, 0)),
        (seed(0, 0), seed(0, 1)),
        (seed(0, 1), seed(1, 0)),
        (seed(0, 0), seed(1 << 32, 0)),
        (seed(0, 0), seed(0, 1 << 32)),
        (seed(0, 0), seed(0, 1 << 63)),
    ] {
        check::<f32>(a, b);
        check::<f64>(a, b);
    }
}

/// The averages of the first to fourth powers of the deviations from `mean`, and of the products of deviations that are
/// `apart` positions apart.
fn moments<T: Float>(y: &[T], mean: f64, apart: usize) -> ([f64; 4], f64) {
    let n = y.len() as f64;
    let off = |v: &T| v.to_f64() - mean;
    let power = |k: i32| y.iter().map(|v| off(v).powi(k)).sum::<f64>() / n;
    let pairs = y.iter().zip(&y[apart..]);
    let products: f64 = pairs.map(|(a, b)| off(a) * off(b)).sum();
    ([1, 2, 3, 4].map(power), products / n)
}

/// The bounds are about five standard deviations of the measured averages.
#[test]
fn distributions_have_their_moments() {
    fn check<T: Float>(law: Law, mean: f64, want: [f64; 4], bounds: [f64; 4], product: f64) {
        let y = drawn::<T>(law, SEED, 1_000_000);
        for apart in 1..=8 {
            let (got, together) = moments(&y, mean, apart);
            for k in 0..4 {
                let off = (got[k] - want[k]).abs();
                assert!(off < bounds[k], "{law:?} {k}: {got:?}");
            }
            assert!(together.abs() < product, "{law:?} {apart}: {together}");
        }
    }
    fn check_both<T: Float>() {
        let want = [0.0, 1.0 / 12.0, 0.0, 1.0 / 80.0];
        let bounds = [1.5e-3, 4e-4, 2.5e-4, 1e-4];
        check::<T>(Law::Uniform, 0.5, want, bounds, 4.5e-4);
        let bounds = [5e-3, 7.5e-3, 2e-2, 5e-2];
        check::<T>(Law::Normal, 0.0, [0.0, 1.0, 0.0, 3.0], bounds, 5e-3);
    }
    check_both::<f32>();
    check_both::<f64>();
    check_both::<f16>();
    check_both::<bf16>();
    // Of normal numbers 0.27 % lie beyond three standard deviations, and one in 1.7 million lies beyond five.
    let y = drawn::<f32>(Law::Normal, SEED, 4_000_000);
    let beyond = |d: f32| y.iter().filter(|v| v.abs() > d).count();
    assert!((10_300..11_300).contains(&beyond(3.0)), "{}", beyond(3.0));
    assert!((1..12).contains(&beyond(5.0)), "{}", beyond(5.0));
}

#[test]
fn uniform_numbers_are_below_the_upper_bound() {
    fn check<T: Float>(low: f64, high: f64) -> Vec<f64> {
        let y: Vec<f64> = between::<T>(low, high, 100_000)
            .into_iter()
            .map(T::to_f64)
            .collect();
        let (low, high) = (T::from_f64(low).to_f64(), T::from_f64(high).to_f64());
        for v in &y {
            assert!(low <= *v && *v < high, "{v} is not in {low}..{high}");
        }
        y
    }
    fn check_all<T: Float>() {
        for (low, high) in [
            (0.0, 1.0),
            (1.0, 2.0),
            (-1.0, 0.0),
            (-2.0, -1.0),
            (-1e-7, 1.0),
            (-6e4, 6e4),
            (0.0, 1e-7),
        ] {
            check::<T>(low, high);
        }
        let same = between::<T>(3.0, 3.0, 100);
        assert!(same.into_iter().all(|v| v.to_f64() == 3.0));
    }
    check_all::<f32>();
    check_all::<f64>();
    check_all::<f16>();
    check_all::<bf16>();
    // The bounds are four representable numbers apart, so an eighth of the numbers would round to the upper one.
    for high in [1.0 + 4.0 * f64::from(f32::EPSILON), -1.0 + 2e-7] {
        let low = high.floor();
        let y = check::<f32>(low, high);
        let top = y.iter().fold(low, |a, b| a.max(*b));
        let (next, bound) = ((top as f32).next_up(), high as f32);
        assert_eq!(next, bound, "the largest number is reached");
    }
    let y = check::<bf16>(0.0, 1.0);
    assert!(y.contains(&(1.0 - 2f64.powi(-8))));
    let y = check::<f16>(-1.0, 0.0);
    assert!(y.iter().any(|v| *v > -0.001));
}

#[test]
fn numbers_below() {
    fn check<T: Below>(of: f64, want: f64) {
        assert_eq!(T::from_f64(of).below().to_f64(), want, "{of}");
    }
    for (of, f32, f64) in [
        (1.0, 1.0f32.next_down(), 1.0f64.next_down()),
        (-1.0, (-1.0f32).next_down(), (-1.0f64).next_down()),
        (0.0, -f32::from_bits(1), -f64::from_bits(1)),
        (-0.0, -f32::from_bits(1), -f64::from_bits(1)),
    ] {
        check::<f32>(of, f64::from(f32));
        check::<f64>(of, f64);
    }
    check::<f16>(1.0, 1.0 - 2f64.powi(-11));
    check::<f16>(-1.0, -1.0 - 2f64.powi(-10));
    check::<f16>(0.0, -(2f64.powi(-24)));
    check::<bf16>(2.0, 2.0 - 2f64.powi(-7));
}
