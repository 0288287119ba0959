//! The kernels of floating-point types.

use crate::digest::{Digest, data, tame};
use convoke_kernels::Exec;
use convoke_kernels::binary::{Arith, Compare, arith, arith_inplace, compare, pow_mixed};
use convoke_kernels::cast::{CastTo, cast, cast_to_bool};
use convoke_kernels::element::{Float, Number, bf16, f16};
use convoke_kernels::error::Result;
use convoke_kernels::norm::{LpNorm, batch_norm, group_norm, instance_norm, layer_norm};
use convoke_kernels::norm::{layer_norm_stats, lp_norm, lrn, mean_variance_norm, rms_norm};
use convoke_kernels::pooling::{
    StorageOrder, Window, average_pool, global_average_pool, global_max_pool,
};
use convoke_kernels::pooling::{lp_pool, max_pool, max_pool_with_indices};
use convoke_kernels::reduce::{
    Covered, Extreme, Reduce, Running, arg_extreme, cumulate, reduce_float, top_k,
};
use convoke_kernels::resize::{Position, ResizeKernels, Scaling, Taps, Weights, resize};
use convoke_kernels::rotary::{Rotary, rotary};
use convoke_kernels::shape::{Axis, Operand};
use convoke_kernels::softmax::{log_softmax, softmax};
use convoke_kernels::unary::{self, FloatUnary, Test};

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

pub fn floats<T: Float + CastTo<i32> + CastTo<f16> + CastTo<bf16> + CastTo<f32>>(
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
    use Compare::*;
    for op in [Equal, Less, LessOrEqual, Greater, GreaterOrEqual] {
        compare(exec, op, a, b, &mut truth, &[n])?;
        digest.add(&format!("{op:?}"), &truth);
    }
    let infinite = Test::IsInf {
        positive: true,
        negative: true,
    };
    for test in [Test::IsNan, infinite] {
        unary::test(exec, test, a.data, &mut truth)?;
        digest.add(&format!("{test:?}"), &truth);
    }
    cast_to_bool(exec, a.data, &mut truth)?;
    digest.add("cast_to_bool", &truth);
    unary::not_inplace(exec, &mut truth)?;
    digest.add("not", &truth);
    unary::clip(exec, T::from_f64(-0.5), T::ONE, a.data, &mut y)?;
    digest.add("clip", &y);
    arith_inplace(exec, Mul, &mut y, &[n], b)?;
    digest.add("arith_inplace", &y);
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
        let covered = Covered {
            exclusive: false,
            reverse: true,
        };
        cumulate(exec, Running::Sum, &x, axis, covered, &mut y)?;
        digest.add("cum_sum", &y);
        cumulate(exec, Running::Product, &x, axis, covered, &mut y)?;
        digest.add("cum_prod", &y);
        let n = axis.outer * 5 * axis.inner;
        let (mut values, mut indices) = (vec![T::ZERO; n], vec![0; n]);
        top_k(exec, Extreme::Max, &x, axis, 5, &mut values, &mut indices)?;
        digest.add("top_k", &values);
        digest.add("top_k", &indices);
        let mut at = vec![0; axis.outer * axis.inner];
        arg_extreme(exec, Extreme::Min, &x, axis, true, &mut at)?;
        digest.add("arg_extreme", &at);
    }
    Ok(())
}

fn rotations<T: Float>(exec: &Exec, digest: &mut Digest, x: &[T]) -> Result {
    let places: Vec<i64> = (0..2 * 19).map(|i| i * 7 % 23 - 5).collect();
    let (cos, sin) = (tame::<T>(23 * 33, 1.0, 23), tame::<T>(23 * 33, 1.0, 29));
    for form in 0..4 {
        let sizes = Rotary {
            batch: 2,
            heads: 5,
            tokens: 19,
            size: 71,
            half: 33,
            heads_first: form & 1 > 0,
            interleaved: form & 2 > 0,
            strides: [19, 1],
            places: Some(&places),
        };
        let x = &x[..2 * 5 * 19 * 71];
        let mut y = vec![T::ZERO; x.len()];
        rotary(exec, &sizes, x, &cos, &sin, &mut y)?;
        digest.add("rotary", &y);
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
    rotations(exec, digest, &x)?;
    let mut stats = [vec![T::ZERO.widen(); rows], vec![T::ZERO.widen(); rows]];
    let [mean, inverse] = &mut stats;
    layer_norm_stats(exec, &x, n, 1e-5, mean, inverse)?;
    stats
        .iter()
        .for_each(|stats| digest.add("layer_norm_stats", stats));
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
    instance_norm(
        exec,
        &x[..n],
        channels,
        &scale[..12],
        &bias[..12],
        1e-5,
        &mut y[..n],
    )?;
    digest.add("instance_norm", &y[..n]);
    let variance: Vec<T> = scale[..12].iter().map(|&s| T::abs(s)).collect();
    let (scale, bias, mean) = (&scale[..12], &bias[..12], &bias[12..24]);
    batch_norm(
        exec,
        Some(&x[..n]),
        channels,
        scale,
        bias,
        mean,
        &variance,
        1e-3,
        &mut y[..n],
    )?;
    digest.add("batch_norm", &y[..n]);
    mean_variance_norm(
        exec,
        &x[..n],
        &[3, 12, 35],
        &[0, 2],
        &mut [T::ZERO; 12],
        &mut y[..n],
    )?;
    digest.add("mean_variance_norm", &y[..n]);
    for norm in [LpNorm::L1, LpNorm::L2] {
        lp_norm(exec, norm, &x[..n], channels, &mut y[..n])?;
        digest.add(&format!("lp_norm {norm:?}"), &y[..n]);
    }
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
    let mut indices = vec![0; y.len()];
    max_pool_with_indices(
        exec,
        &window,
        StorageOrder::ColumnMajor,
        &x,
        &mut y,
        &mut indices,
    )?;
    digest.add("max_pool_with_indices", &indices);
    for include_pad in [false, true] {
        average_pool(exec, &window, include_pad, &x, &mut y)?;
        digest.add("average_pool", &y);
    }
    for p in 1..4 {
        lp_pool(exec, &window, p, &x, &mut y)?;
        digest.add("lp_pool", &y);
    }
    global_average_pool(exec, &x, 23 * 29, &mut y[..6])?;
    digest.add("global_average_pool", &y[..6]);
    global_max_pool(exec, &x, 23 * 29, &mut y[..6])?;
    digest.add("global_max_pool", &y[..6]);
    Ok(())
}

/// Interpolates along every axis, with each kind of weights.
pub fn interpolations<W: Float + ResizeKernels>(exec: &Exec, digest: &mut Digest) -> Result {
    let shape = [3, 7, 37];
    let x = tame::<W>(3 * 7 * 37, 2.0, 31);
    for axis in 0..3 {
        let axis = Axis::of(&shape, axis);
        for (to, weights) in [
            (2 * axis.len, Weights::Linear { antialias: false }),
            (axis.len / 2, Weights::Linear { antialias: true }),
            (
                axis.len + 2,
                Weights::Cubic {
                    a: -0.75,
                    antialias: false,
                },
            ),
            (
                axis.len / 3,
                Weights::Cubic {
                    a: -0.5,
                    antialias: true,
                },
            ),
        ] {
            let scaling = Scaling {
                from: axis.len,
                to,
                scale: to as f32 / axis.len as f32,
                position: Position::HalfPixel,
                weights,
                exclude_outside: false,
            };
            let taps = Taps::new(exec, &scaling)?;
            let mut y = vec![W::ZERO; axis.outer * to * axis.inner];
            resize(exec, &x, axis, &taps, &mut y)?;
            digest.add("resize", &y);
        }
    }
    Ok(())
}
