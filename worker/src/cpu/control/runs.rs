//! The order in which control flow runs its functions, and their operands. It is the same where a kernel runs them and
//! where several workers do.

use std::future::Future;

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::graph::{Attrs, Function};
use convoke_graph::ops::{self, ControlOp, OpError};
use convoke_graph::{DType, Outputs, Shape, Tensor};
use convoke_kernels::Exec;
use smallvec::SmallVec;

use super::collect::IterationResults;
use crate::cpu::kernel::{Inputs, KernelFailure, write};
use crate::cpu::text;

/// The operands of a function, or its results.
pub(crate) type Values = SmallVec<[Tensor; 4]>;

/// The number of the function that is a loop's body, or the branch that is taken where the condition holds.
const FIRST: usize = 0;
/// The number of the other branch.
const OTHER: usize = 1;

/// The order in which a node of control flow runs its functions.
pub(crate) enum Runs {
    If,
    Loop {
        carried: usize,
        /// Whether the body reads the number of its iteration.
        counts: bool,
    },
    Scan {
        carried: usize,
        /// By scanned operand, whether its last slice comes first.
        from_last: Vec<bool>,
        /// By collected result, whether its last slice stands first.
        to_first: Vec<bool>,
    },
}

/// The attributes that are the functions of a node, in the order of their numbers.
pub(crate) fn functions(op: ControlOp) -> &'static [&'static str] {
    match op {
        ControlOp::If => &["then_branch", "else_branch"],
        ControlOp::Loop | ControlOp::Scan => &["body"],
    }
}

impl Runs {
    /// The order for a node with this many operands, whose functions yield this many `results`.
    pub fn of(
        op: ControlOp,
        attrs: &Attrs,
        operands: usize,
        results: usize,
    ) -> Result<Runs, OpError> {
        Ok(match op {
            ControlOp::If => Runs::If,
            ControlOp::Loop => Runs::Loop {
                carried: ops::split_loop(attrs, operands)?.0,
                counts: true,
            },
            ControlOp::Scan => {
                let (carried, scanned, _) = ops::split_scan(attrs, operands)?;
                let reversed = |name: &str, n: usize| -> Vec<bool> {
                    let given = attrs.ints(name).unwrap_or_default();
                    (0..n).map(|i| given.get(i) == Some(&1)).collect()
                };
                let made = results.saturating_sub(carried);
                Runs::Scan {
                    carried,
                    from_last: reversed("scan_input_directions", scanned),
                    to_first: reversed("scan_output_directions", made),
                }
            }
        })
    }

    /// Runs a node's functions on its operands. `run` runs the function of a number; `types` are the functions, of which
    /// the types of parameters and results count.
    pub async fn run<'e, R: Future<Output = Result<Values, KernelFailure>>>(
        &self,
        types: &[&Function],
        inputs: Inputs,
        exec: impl Fn() -> Exec<'e>,
        pool: &Pool,
        mut run: impl FnMut(usize, Values) -> R,
    ) -> Result<Outputs, KernelFailure> {
        let none = || Error::internal("control flow without a function");
        let body = *types.first().ok_or_else(none)?;
        match self {
            Runs::If => {
                let mut inputs = inputs.into_iter();
                let cond = given(inputs.next().flatten())?;
                let branch = if holds(&cond)? { FIRST } else { OTHER };
                let params: Result<Values, _> = inputs.map(given).collect();
                Ok(run(branch, params?).await?.into_iter().collect())
            }
            Runs::Loop { carried, counts } => {
                iterate(body, *carried, *counts, inputs, exec, pool, |p| {
                    run(FIRST, p)
                })
                .await
            }
            Runs::Scan {
                carried,
                from_last,
                to_first,
            } => {
                let all: Result<Values, _> = inputs.into_iter().map(given).collect();
                let directions = (&from_last[..], &to_first[..]);
                scan(body, *carried, directions, all?, exec, pool, |p| {
                    run(FIRST, p)
                })
                .await
            }
        }
    }
}

/// The value of a bool scalar.
fn holds(t: &Tensor) -> Result<bool, KernelFailure> {
    match t.bytes() {
        [byte] => Ok(*byte != 0),
        _ => Err(KernelFailure::values(format!(
            "a condition is {}, not one bool",
            t.signature()
        ))),
    }
}

fn given(t: Option<Tensor>) -> Result<Tensor, KernelFailure> {
    t.ok_or_else(|| Error::internal("an operand of control flow is missing").into())
}

/// The scalar of an iteration's number.
fn number(n: i64, pool: &Pool) -> Result<Tensor, KernelFailure> {
    let mut t = pool.tensor(DType::I64, &[])?;
    write::<i64>(&mut t)?.fill(n);
    Ok(t)
}

/// Runs a loop.
async fn iterate<'e, R: Future<Output = Result<Values, KernelFailure>>>(
    body: &Function,
    count: usize,
    counts: bool,
    inputs: Inputs,
    exec: impl Fn() -> Exec<'e>,
    pool: &Pool,
    mut run: impl FnMut(Values) -> R,
) -> Result<Outputs, KernelFailure> {
    let mut inputs = inputs.into_iter();
    let most = match inputs.next().flatten() {
        None => None,
        Some(m) => match m.as_slice::<i64>()? {
            [m] => Some(*m),
            _ => return Err(KernelFailure::values("'M' is not one number")),
        },
    };
    let condition = inputs.next().flatten();
    let mut going = condition.as_ref().map_or(Ok(true), holds)?;
    let asks = ops::asks_body(most.is_some(), condition.is_some());
    let most = most.unwrap_or(i64::MAX);
    let rest: Result<Values, _> = inputs.map(given).collect();
    let mut carried = rest?;
    let captured: Values = carried.drain(count..).collect();
    let shapes = [SmallVec::new(), SmallVec::new()].into_iter();
    let shapes = shapes.chain(carried.iter().chain(&captured).map(|t| t.shape().into()));
    let mut made = IterationResults::new(body, 1 + count, shapes, None);
    let mut truth = pool.tensor(DType::Bool, &[])?;
    truth.bytes_mut().into_iter().for_each(|b| b.fill(1));
    let first = number(0, pool)?;
    let mut n = 0;
    while going && n < most {
        let at = match counts && n > 0 {
            true => number(n, pool)?,
            false => first.clone(),
        };
        let mut params: Values = SmallVec::new();
        params.extend([at, truth.clone()]);
        params.append(&mut carried);
        params.extend(captured.iter().cloned());
        let mut results = run(params).await?.into_iter();
        going = holds(&given(results.next())?)? || !asks;
        carried.extend(results.by_ref().take(count));
        made.add(results, exec(), pool)?;
        n += 1;
    }
    let mut outputs: Outputs = carried.into_iter().collect();
    outputs.extend(made.finish(exec(), pool)?);
    Ok(outputs)
}

/// Runs a scan. `directions` say of scanned operands whether they are read from the last slice on, and of collected
/// results whether they are written so.
async fn scan<'e, R: Future<Output = Result<Values, KernelFailure>>>(
    body: &Function,
    count: usize,
    directions: (&[bool], &[bool]),
    mut carried: Values,
    exec: impl Fn() -> Exec<'e>,
    pool: &Pool,
    mut run: impl FnMut(Values) -> R,
) -> Result<Outputs, KernelFailure> {
    let (from_last, to_first) = directions;
    let mut over: Values = carried.drain(count..).collect();
    let captured: Values = over.drain(from_last.len()..).collect();
    let lengths = || over.iter().map(|t| t.shape().first().copied());
    let length = lengths().next().flatten();
    let Some(length) = length.filter(|n| lengths().all(|l| l == Some(*n))) else {
        return Err(KernelFailure::values("what is scanned differs in length"));
    };
    let shape = |t: &Tensor| -> Shape { t.shape().into() };
    let slice = |t: &Tensor| -> Shape { t.shape().iter().skip(1).copied().collect() };
    let shapes = carried.iter().map(shape);
    let shapes = shapes
        .chain(over.iter().map(slice))
        .chain(captured.iter().map(shape));
    let mut made = IterationResults::new(body, count, shapes, Some(length));
    made.to_first = to_first.to_vec();
    // Strings are checked when they are read, so they are read once, and not for each slice.
    let strings = over.iter().map(|t| match t.dtype() {
        DType::Str => t.strings().map(Some),
        _ => Ok(None),
    });
    let strings: SmallVec<[_; 4]> = strings.collect::<Result<_, _>>()?;
    for n in 0..length {
        let mut params: Values = SmallVec::new();
        params.append(&mut carried);
        for ((t, strings), from_last) in over.iter().zip(&strings).zip(from_last) {
            let at = if *from_last { length - 1 - n } else { n };
            let shape = t.shape().get(1..).unwrap_or_default();
            params.push(match strings {
                Some(strings) => {
                    let first = at * (strings.len() / length);
                    text::made(&exec(), pool, shape, |i, sink| {
                        Ok(sink(strings.get(first + i))?)
                    })?
                }
                None => {
                    let slice = t.outer_range(at, at + 1);
                    given(slice.and_then(|s| s.reshape(shape)))?
                }
            });
        }
        params.extend(captured.iter().cloned());
        let mut results = run(params).await?.into_iter();
        carried.extend(results.by_ref().take(count));
        made.add(results, exec(), pool)?;
    }
    let mut outputs: Outputs = carried.into_iter().collect();
    outputs.extend(made.finish(exec(), pool)?);
    Ok(outputs)
}
