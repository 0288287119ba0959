//! The reductions of ONNX.

use super::lanes::{Fold, ReductionTiling, pass};
use crate::Exec;
use crate::compiled::{compiled_floats, compiled_integers};
use crate::element::{Float, Integer, Number, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::shape::count;

/// A reduction. Over no elements, sums are 0, products 1, and extremes the identity of the dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduce {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    /// Sum of absolute values.
    L1,
    /// Square root of the sum of squares.
    L2,
    /// Logarithm of the sum.
    LogSum,
    /// Logarithm of the sum of exponentials, shifted by the maximum.
    LogSumExp,
    SumSquare,
}

impl Reduce {
    /// Whether the reduction reads each element once.
    pub fn is_single_pass(self) -> bool {
        self != Reduce::LogSumExp
    }
}

macro_rules! folds {
    ($bound:path, $wide:expr;
     $($name:ident: $acc:ty = $identity:expr; push($a:ident, $x:ident, $p:ident) $push:expr;
       merge $merge:expr; finish($f:ident, $n:ident, $q:ident) $finish:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;
        impl<T: $bound> Fold<T> for $name {
            type Acc = $acc;
            const WIDE: bool = $wide;
            #[inline(always)]
            fn identity(self) -> $acc {
                $identity
            }
            #[inline(always)]
            fn push(self, $a: $acc, $x: T::Wide, $p: T) -> $acc {
                $push
            }
            #[inline(always)]
            fn merge(self, a: $acc, b: $acc) -> $acc {
                $merge(a, b)
            }
            #[inline(always)]
            fn finish(self, $f: $acc, $n: usize, $q: T) -> T {
                canonical_nan($finish)
            }
        }
    )*};
}

folds! { Number, !T::INTEGER;
    Sum: T::Wide = T::Wide::ZERO; push(a, x, _p) T::Wide::add(a, x);
        merge T::Wide::add; finish(a, _n, _p) T::narrow(a);
    Mean: T::Wide = T::Wide::ZERO; push(a, x, _p) T::Wide::add(a, x);
        merge T::Wide::add; finish(a, n, _p) T::narrow(T::Wide::div(a, T::Wide::from_f64(n as f64)));
    Prod: T::Wide = T::Wide::ONE; push(a, x, _p) T::Wide::mul(a, x);
        merge T::Wide::mul; finish(a, _n, _p) T::narrow(a);
    Max: T::Wide = T::LOWEST.widen(); push(a, x, _p) T::Wide::max(a, x);
        merge T::Wide::max; finish(a, _n, _p) T::narrow(a);
    Min: T::Wide = T::HIGHEST.widen(); push(a, x, _p) T::Wide::min(a, x);
        merge T::Wide::min; finish(a, _n, _p) T::narrow(a);
    L1: T::Wide = T::Wide::ZERO; push(a, x, _p) T::Wide::add(a, T::Wide::abs(x));
        merge T::Wide::add; finish(a, _n, _p) T::narrow(a);
    SumSquare: T::Wide = T::Wide::ZERO; push(a, x, _p) T::Wide::fma(x, x, a);
        merge T::Wide::add; finish(a, _n, _p) T::narrow(a);
}

/// The shift of `LogSumExp`: the maximum, or 0 where the maximum is infinite.
#[inline(always)]
fn shift<W: Real>(pivot: W) -> W {
    if pivot.abs() == W::INFINITY {
        W::ZERO
    } else {
        pivot
    }
}

folds! { Float, true;
    L2: T::Wide = Real::ZERO; push(a, x, _p) Real::mul_add(x, x, a);
        merge <T::Wide as Number>::add; finish(a, _n, _p) T::narrow(a.sqrt());
    LogSum: T::Wide = Real::ZERO; push(a, x, _p) a + x;
        merge <T::Wide as Number>::add; finish(a, _n, _p) T::narrow(a.ln());
    LogSumExp: T::Wide = Real::ZERO; push(a, x, p) a + (x - shift(p.widen())).exp();
        merge <T::Wide as Number>::add; finish(a, _n, p) T::narrow(a.ln() + shift(p.widen()));
}

folds! { Integer, false;
    IntegerL2: f64 = 0.0; push(a, x, _p) x.to_f64().mul_add(x.to_f64(), a);
        merge f64::add; finish(a, _n, _p) T::from_f64(a.sqrt());
    IntegerLogSum: f64 = 0.0; push(a, x, _p) a + x.to_f64();
        merge f64::add; finish(a, _n, _p) T::from_f64(libm::log(a));
    IntegerLogSumExp: f64 = 0.0; push(a, x, p) a + libm::exp(x.to_f64() - p.to_f64());
        merge f64::add; finish(a, _n, p) T::from_f64(libm::log(a) + p.to_f64());
}

/// A function that is generic over the fold that it receives.
pub(crate) trait Visit<T: Number> {
    fn visit<F: Fold<T>>(&mut self, fold: F) -> Result;
}

/// Passes the fold of a reduction that every dtype has to `to`; `None` for the other reductions.
fn common<T: Number>(op: Reduce, to: &mut impl Visit<T>) -> Option<Result> {
    Some(match op {
        Reduce::Sum => to.visit(Sum),
        Reduce::Mean => to.visit(Mean),
        Reduce::Max => to.visit(Max),
        Reduce::Min => to.visit(Min),
        Reduce::Prod => to.visit(Prod),
        Reduce::L1 => to.visit(L1),
        Reduce::SumSquare => to.visit(SumSquare),
        Reduce::L2 | Reduce::LogSum | Reduce::LogSumExp => return None,
    })
}

/// Passes the fold of a float reduction that reads each element once to `to`; `None` for the other reductions.
pub(crate) fn single_pass<T: Float>(op: Reduce, to: &mut impl Visit<T>) -> Option<Result> {
    match op {
        Reduce::L2 => Some(to.visit(L2)),
        Reduce::LogSum => Some(to.visit(LogSum)),
        Reduce::LogSumExp => None,
        op => common(op, to),
    }
}

/// The arguments of one [`pass`] over whole tensors.
struct Pass<'a, T> {
    exec: &'a Exec<'a>,
    plan: &'a ReductionTiling,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Number> Visit<T> for Pass<'_, T> {
    fn visit<F: Fold<T>>(&mut self, fold: F) -> Result {
        pass(self.exec, fold, self.plan, self.x, self.y)
    }
}

fn plan<T>(x: &[T], shape: &[usize], axes: &[usize], y: &[T]) -> Result<ReductionTiling> {
    let kept: usize = (0..shape.len())
        .filter(|a| !axes.contains(a))
        .map(|a| shape[a])
        .product();
    assert!(
        x.len() == count(shape) && y.len() == kept && axes.iter().all(|&a| a < shape.len()),
        "{shape:?} {axes:?}"
    );
    ReductionTiling::new(shape, axes)
}

fn reduce_float_any<T: Float>(
    exec: &Exec,
    op: Reduce,
    x: &[T],
    shape: &[usize],
    axes: &[usize],
    y: &mut [T],
) -> Result {
    let plan = &plan(x, shape, axes, y)?;
    let mut over = Pass { exec, plan, x, y };
    single_pass(op, &mut over).unwrap_or_else(|| {
        over.visit(Max)?;
        over.visit(LogSumExp)
    })
}

fn reduce_integer_any<T: Integer>(
    exec: &Exec,
    op: Reduce,
    x: &[T],
    shape: &[usize],
    axes: &[usize],
    y: &mut [T],
) -> Result {
    let plan = &plan(x, shape, axes, y)?;
    let mut over = Pass { exec, plan, x, y };
    common(op, &mut over).unwrap_or_else(|| match op {
        Reduce::L2 => over.visit(IntegerL2),
        Reduce::LogSum => over.visit(IntegerLogSum),
        _ => {
            over.visit(Max)?;
            over.visit(IntegerLogSumExp)
        }
    })
}

compiled_floats! {
    /// The reductions of a floating-point type.
    trait FloatReduceKernels {
        fn reduce(exec: &Exec, op: Reduce, x: &[Self], shape: &[usize], axes: &[usize], y: &mut [Self])
            = reduce_float_any;
    }
}

compiled_integers! {
    /// The reductions of an integer type.
    trait IntegerReduceKernels {
        fn reduce(exec: &Exec, op: Reduce, x: &[Self], shape: &[usize], axes: &[usize], y: &mut [Self])
            = reduce_integer_any;
    }
}

/// Reduces `x` over `axes` into `y`, whose shape is that of the kept axes in order. Each axis is less than the rank and
/// listed once; without axes, every element is reduced by itself. `f16` and `bf16` accumulate in `f32`.
pub fn reduce_float<T: Float>(
    exec: &Exec,
    op: Reduce,
    x: &[T],
    shape: &[usize],
    axes: &[usize],
    y: &mut [T],
) -> Result {
    T::reduce(exec, op, x, shape, axes, y)
}

/// Reduces integers like [`reduce_float`]: sums wrap, a mean truncates, and reductions with roots or logarithms are
/// computed in `f64` and truncated.
pub fn reduce_integer<T: Integer>(
    exec: &Exec,
    op: Reduce,
    x: &[T],
    shape: &[usize],
    axes: &[usize],
    y: &mut [T],
) -> Result {
    T::reduce(exec, op, x, shape, axes, y)
}
