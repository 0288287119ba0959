//! Prints one digest over the results of the element-wise, reducing, normalizing, pooling and moving kernels on
//! fixed data. Equal digests on two machines, natively or emulated, mean equal bits:
//!
//! ```text
//! cargo build --release -p convoke-kernels --example digest_elementwise
//! target/release/examples/digest_elementwise
//! qemu-x86_64 -cpu Haswell target/release/examples/digest_elementwise
//! ```

use convoke_kernels::binary::{Arith, Compare, arith, compare, pow_mixed, select};
use convoke_kernels::cast::{CastTo, cast};
use convoke_kernels::element::{Float, Number, bf16, f16};
use convoke_kernels::error::Result;
use convoke_kernels::movement::{Indices, ScatterReduction, gather, scatter_elements, transpose};
use convoke_kernels::norm::{LpNorm, group_norm, layer_norm, lp_norm, lrn, rms_norm};
use convoke_kernels::pool::{Window, average_pool, lp_pool, max_pool};
use convoke_kernels::reduce::{Extreme, Reduce, cum_sum, reduce_float, top_k};
use convoke_kernels::shape::{Axis, Operand};
use convoke_kernels::softmax::{log_softmax, softmax};
use convoke_kernels::unary::{self, FloatUnary};
use convoke_kernels::{Exec, KernelError};
use std::sync::atomic::AtomicBool;

/// FNV-1a over bit patterns; every NaN counts as one.
struct Digest {
    all: u64,
    verbose: bool,
}

impl Digest {
    fn add<T: Number>(&mut self, what: &str, values: &[T]) {
        let mut own = 0xcbf2_9ce4_8422_2325u64;
        for &value in values {
            let bits = if value.is_nan() {
                u64::MAX
            } else {
                value.to_f64().to_bits()
            };
            own = (own ^ bits).wrapping_mul(0x100_0000_01b3);
        }
        if self.verbose {
            println!("{own:016x} {what} {}", std::any::type_name::<T>());
        }
        self.all = (self.all ^ own).wrapping_mul(0x100_0000_01b3);
    }
}

/// Fixed numbers: most within ±`scale`, some huge, tiny or special.
fn data<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    let special = [
        0.0,
        -0.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e-45,
        -1e-40,
        3e38,
        -3e38,
        1e9,
        0.5,
        2.5,
    ];
    let mut state = seed | 1;
    (0..n)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let uniform = (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
            T::from_f64(if i % 97 == 13 && !T::INTEGER {
                special[i / 97 % special.len()]
            } else {
                uniform * scale
            })
        })
        .collect()
}

/// As [`data`], without the special values that would make every sum NaN.
fn tame<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    data::<i32>(n, 1e6, seed)
        .into_iter()
        .map(|x| T::from_f64(f64::from(x) * 1e-6 * scale))
        .collect()
}

fn unary_ops() -> Vec<FloatUnary> {
    use FloatUnary::*;
    vec![
        Abs,
        Neg,
        Sign,
        Reciprocal,
        Sqrt,
        Floor,
        Ceil,
        Round,
        Exp,
        Log,
        Sin,
        Cos,
        Tan,
        Sinh,
        Cosh,
        Tanh,
        Asin,
        Acos,
        Atan,
        Asinh,
        Acosh,
        Atanh,
        Erf,
        Sigmoid,
        Swish { alpha: 1.0 },
        Swish { alpha: 1.5 },
        Relu,
        LeakyRelu { alpha: 0.01 },
        ThresholdedRelu { alpha: 0.7 },
        Elu { alpha: 1.1 },
        Selu {
            alpha: 1.67,
            gamma: 1.05,
        },
        Celu { alpha: 1.3 },
        HardSigmoid {
            alpha: 0.2,
            beta: 0.5,
        },
        HardSwish,
        Gelu,
        GeluTanh,
        Softplus,
        Softsign,
        Mish,
    ]
}

fn floats<T: Float + CastTo<i32> + CastTo<f16> + CastTo<bf16> + CastTo<f32>>(
    exec: &Exec,
    digest: &mut Digest,
) -> Result {
    let n = 20_011;
    for scale in [1.0, 12.0, 300.0] {
        let (x, mut y) = (data::<T>(n, scale, 7), vec![T::ZERO; n]);
        for op in unary_ops() {
            unary::float(exec, op, &x, &mut y)?;
            digest.add(&format!("{op:?} {scale}"), &y);
        }
    }
    let (a, b) = (data::<T>(n, 4.0, 3), data::<T>(n, 4.0, 5));
    let shape = [n];
    let (a, b) = (Operand::new(&a, &shape), Operand::new(&b, &shape));
    let mut y = vec![T::ZERO; n];
    use Arith::*;
    for op in [Add, Sub, Mul, Div, Mod, Fmod, Pow, PRelu, Min, Max] {
        arith(exec, op, a, b, &mut y, &[n])?;
        digest.add(&format!("{op:?}"), &y);
    }
    pow_mixed(exec, a, Operand::new(&[2.5], &[1]), &mut y, &[n])?;
    digest.add("pow_mixed", &y);
    let mut truth = vec![0u8; n];
    compare(exec, Compare::Less, a, b, &mut truth, &[n])?;
    digest.add("less", &truth);
    converted::<T, i32>(exec, digest, a.data)?;
    converted::<T, f16>(exec, digest, a.data)?;
    converted::<T, bf16>(exec, digest, a.data)?;
    converted::<T, f32>(exec, digest, a.data)?;
    reductions::<T>(exec, digest)?;
    normalizations::<T>(exec, digest)?;
    pools::<T>(exec, digest)
}

fn converted<T: CastTo<U>, U: Number>(exec: &Exec, digest: &mut Digest, x: &[T]) -> Result {
    let mut y = vec![U::ZERO; x.len()];
    cast(exec, x, &mut y)?;
    digest.add("cast", &y);
    Ok(())
}

fn reductions<T: Float>(exec: &Exec, digest: &mut Digest) -> Result {
    let shape = [19, 37, 41];
    let x = tame::<T>(19 * 37 * 41, 2.0, 11);
    let axes: [&[usize]; 4] = [&[2], &[1], &[0, 2], &[0, 1, 2]];
    use Reduce::*;
    for op in [
        Sum, Mean, Max, Min, Prod, L1, L2, LogSum, LogSumExp, SumSquare,
    ] {
        for axes in axes {
            let kept = (0..3)
                .filter(|a| !axes.contains(a))
                .map(|a| shape[a])
                .product();
            let mut y = vec![T::ZERO; kept];
            reduce_float(exec, op, &x, &shape, axes, &mut y)?;
            digest.add(&format!("{op:?} {axes:?}"), &y);
        }
    }
    let mut y = vec![T::ZERO; x.len()];
    for axis in 0..3 {
        let axis = Axis::of(&shape, axis);
        softmax(exec, &x, axis, &mut y)?;
        digest.add("softmax", &y);
        log_softmax(exec, &x, axis, &mut y)?;
        digest.add("log_softmax", &y);
        cum_sum(exec, &x, axis, false, true, &mut y)?;
        digest.add("cum_sum", &y);
        let n = axis.outer * 5 * axis.inner;
        let (mut values, mut indices) = (vec![T::ZERO; n], vec![0; n]);
        top_k(exec, Extreme::Max, &x, axis, 5, &mut values, &mut indices)?;
        digest.add("top_k", &values);
        digest.add("top_k", &indices);
    }
    Ok(())
}

fn normalizations<T: Float>(exec: &Exec, digest: &mut Digest) -> Result {
    let (rows, n) = (37, 773);
    let (x, scale, bias) = (
        tame::<T>(rows * n, 2.0, 13),
        tame::<T>(n, 1.0, 17),
        tame::<T>(n, 1.0, 19),
    );
    let mut y = vec![T::ZERO; x.len()];
    layer_norm(exec, &x, &scale, Some(&bias), 1e-5, &mut y)?;
    digest.add("layer_norm", &y);
    rms_norm(exec, &x, &scale, 1e-5, &mut y)?;
    digest.add("rms_norm", &y);
    let channels = Axis {
        outer: 3,
        len: 12,
        inner: 35,
    };
    let n = channels.count();
    group_norm(
        exec,
        &x[..n],
        channels,
        4,
        &scale[..12],
        &bias[..12],
        1e-5,
        &mut y[..n],
    )?;
    digest.add("group_norm", &y[..n]);
    lp_norm(exec, LpNorm::L2, &x[..n], channels, &mut y[..n])?;
    digest.add("lp_norm", &y[..n]);
    lrn(exec, &x[..n], channels, 5, 1e-4, 0.75, 1.0, &mut y[..n])?;
    digest.add("lrn", &y[..n]);
    Ok(())
}

fn pools<T: Float>(exec: &Exec, digest: &mut Digest) -> Result {
    let x = tame::<T>(6 * 23 * 29, 2.0, 23);
    let window = Window::new(&[23, 29], &[12, 15], &[3, 3], &[2, 2], &[1, 1], &[1; 4])?;
    let mut y = vec![T::ZERO; 6 * 12 * 15];
    max_pool(exec, &window, &x, &mut y)?;
    digest.add("max_pool", &y);
    average_pool(exec, &window, false, &x, &mut y)?;
    digest.add("average_pool", &y);
    lp_pool(exec, &window, 3, &x, &mut y)?;
    digest.add("lp_pool", &y);
    Ok(())
}

fn movement(exec: &Exec, digest: &mut Digest) -> Result {
    let x = data::<u32>(17 * 90 * 33, 4e9, 29);
    let mut y = vec![0; x.len()];
    for perm in [[0, 2, 1], [1, 0, 2], [2, 1, 0]] {
        transpose(exec, &x, &[17, 90, 33], &perm, &mut y)?;
        digest.add("transpose", &y);
    }
    let indices: Vec<i64> = (0..40).map(|i| i * 7 % 90).collect();
    gather(
        exec,
        &x,
        &[17, 90, 33],
        1,
        Indices::I64(&indices),
        &mut y[..17 * 40 * 33],
    )?;
    digest.add("gather", &y);
    let mut sums = vec![0.0f32; 90];
    let updates = tame::<f32>(40, 1.0, 31);
    scatter_elements(
        exec,
        ScatterReduction::Add,
        &mut sums,
        &[90],
        0,
        Indices::I64(&indices),
        &updates,
        &[40],
    )?;
    digest.add("scatter", &sums);
    let condition: Vec<u8> = x.iter().map(|x| (x & 1) as u8).collect();
    let shape = [x.len()];
    let (yes, no) = (Operand::new(&x, &shape), Operand::new(&[7], &[]));
    select(
        exec,
        Operand::new(&condition, &shape),
        yes,
        no,
        &mut y,
        &shape,
    )?;
    digest.add("select", &y);
    Ok(())
}

fn main() -> std::result::Result<(), KernelError> {
    let running = AtomicBool::new(false);
    let exec = Exec::single(&running);
    let mut digest = Digest {
        all: 0xcbf2_9ce4_8422_2325,
        verbose: std::env::args().any(|a| a == "--verbose"),
    };
    floats::<f32>(&exec, &mut digest)?;
    floats::<f64>(&exec, &mut digest)?;
    floats::<f16>(&exec, &mut digest)?;
    floats::<bf16>(&exec, &mut digest)?;
    movement(&exec, &mut digest)?;
    println!("{:016x}", digest.all);
    Ok(())
}
