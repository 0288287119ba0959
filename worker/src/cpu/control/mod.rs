//! Control flow: kernels that run functions on the calling thread; the kernels within may use all threads.
//!
//! Invariants
//! 1. A function is checked, its kernels are resolved, and it is lowered once, when the op is resolved ([`body`]).
//! 2. The cancel flag is checked before each run of a function and between two of its kernels, so that a loop without end
//!    can be stopped.
//! 3. A value is moved at its last use, so that a carried tensor may be overwritten.

mod body;
mod collect;

use std::sync::Arc;

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{self, ControlOp, OpError};
use convoke_graph::{DType, Shape, Tensor};
use smallvec::SmallVec;

use body::Body;
use collect::IterationResults;

use super::{Inputs, Kernel, KernelFailure, Launch, Operands, Outputs, Register, packed, text};

type Values = SmallVec<[Tensor; 4]>;

/// The kernel of a control-flow op.
pub(super) fn find(
    op: ControlOp,
    attrs: &Attrs,
    operands: &[Option<DType>],
) -> Result<Arc<dyn Kernel>, OpError> {
    let body = |name: &str| {
        let reason = || OpError::Attr {
            attr: name.into(),
            reason: "is required".into(),
        };
        Body::new(attrs.function(name).ok_or_else(reason)?)
    };
    Ok(match op {
        ControlOp::If => {
            ops::check_bodies(attrs)?;
            let [yes, no] = ["then_branch", "else_branch"].map(body);
            let (yes, no) = (yes?, no?);
            for branch in [&yes, &no] {
                branch.takes(operands.len().saturating_sub(1))?;
            }
            if yes.function().results.len() != no.function().results.len() {
                return Err(OpError::shape(
                    "the branches yield different numbers of results",
                ));
            }
            Arc::new(If { yes, no })
        }
        ControlOp::Loop => {
            ops::check_bodies(attrs)?;
            let (carried, captured) = ops::split_loop(attrs, operands.len())?;
            let body = body("body")?;
            body.takes(2 + carried + captured)?;
            body.yields(1 + carried)?;
            Arc::new(Loop { body, carried })
        }
        ControlOp::Scan => {
            ops::check_bodies(attrs)?;
            let (carried, scanned, captured) = ops::split_scan(attrs, operands.len())?;
            let body = body("body")?;
            body.takes(carried + scanned + captured)?;
            body.yields(carried)?;
            let reversed = |name: &str, n: usize| -> Vec<bool> {
                let given = attrs.ints(name).unwrap_or_default();
                (0..n).map(|i| given.get(i) == Some(&1)).collect()
            };
            let made = body.function().results.len() - carried;
            Arc::new(Scan {
                carried,
                from_last: reversed("scan_input_directions", scanned),
                to_first: reversed("scan_output_directions", made),
                body,
            })
        }
    })
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

/// Moves all operands out of the launch.
fn taken(inputs: &mut Operands<'_>) -> impl Iterator<Item = Register> {
    let all: Inputs = (0..inputs.len()).map(|i| inputs.take(i)).collect();
    all.into_iter()
}

fn given(t: Option<Tensor>) -> Result<Tensor, KernelFailure> {
    t.ok_or_else(|| Error::internal("an operand of control flow is missing").into())
}

/// The scalar of an iteration's number.
fn number(n: i64, pool: &Pool) -> Result<Tensor, KernelFailure> {
    let mut t = pool.tensor(DType::I64, &[])?;
    super::call::write::<i64>(&mut t)?.fill(n);
    Ok(t)
}

struct If {
    yes: Body,
    no: Body,
}

impl Kernel for If {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        let (exec, pool) = (launch.exec, launch.pool);
        let mut inputs = taken(&mut launch.inputs);
        let cond = given(inputs.next().flatten())?;
        let branch = match holds(&cond)? {
            true => &self.yes,
            false => &self.no,
        };
        let params: Result<Values, _> = inputs.map(given).collect();
        let made = branch.run(params?, &mut vec![], exec, pool)?;
        Ok(made.into_iter().collect())
    }
}

struct Loop {
    body: Body,
    carried: usize,
}

impl Kernel for Loop {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        let (exec, pool) = (launch.exec, launch.pool);
        let mut inputs = taken(&mut launch.inputs);
        let most = match inputs.next().flatten() {
            None => i64::MAX,
            Some(m) => match m.as_slice::<i64>()? {
                [m] => *m,
                _ => return Err(KernelFailure::values("'M' is not one number")),
            },
        };
        let asks = inputs.next().flatten();
        let mut going = asks.as_ref().map_or(Ok(true), holds)?;
        let rest: Result<Values, _> = inputs.map(given).collect();
        let mut carried = rest?;
        let captured: Values = carried.drain(self.carried..).collect();
        let shapes = [SmallVec::new(), SmallVec::new()].into_iter();
        let shapes = shapes.chain(carried.iter().chain(&captured).map(|t| t.shape().into()));
        let mut made = IterationResults::new(&self.body, 1 + self.carried, shapes, None);
        let mut truth = pool.tensor(DType::Bool, &[])?;
        truth.bytes_mut().into_iter().for_each(|b| b.fill(1));
        let first = number(0, pool)?;
        let counts = self.body.reads(0);
        let mut registers = vec![];
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
            let results = self.body.run(params, &mut registers, exec, pool)?;
            let mut results = results.into_iter();
            // A loop without a condition ignores the one that its body returns.
            let goes_on = holds(&given(results.next())?)?;
            going = goes_on || asks.is_none();
            carried.extend(results.by_ref().take(self.carried));
            made.add(results, exec, pool)?;
            n += 1;
        }
        let mut outputs: Outputs = carried.into_iter().collect();
        outputs.extend(made.finish(exec, pool)?);
        Ok(outputs)
    }
}

struct Scan {
    body: Body,
    carried: usize,
    /// By scanned operand, whether its last slice comes first.
    from_last: Vec<bool>,
    /// By collected result, whether its last slice stands first.
    to_first: Vec<bool>,
}

impl Kernel for Scan {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        let (exec, pool) = (launch.exec, launch.pool);
        let all: Result<Values, _> = taken(&mut launch.inputs).map(given).collect();
        let mut carried = all?;
        let mut over: Values = carried.drain(self.carried..).collect();
        let captured: Values = over.drain(self.from_last.len()..).collect();
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
        let mut made = IterationResults::new(&self.body, self.carried, shapes, Some(length));
        made.to_first.clone_from(&self.to_first);
        // Strings are checked when they are read, so they are read once, and not for each slice.
        let strings = over.iter().map(|t| match t.dtype() {
            DType::Str => t.strings().map(Some),
            _ => Ok(None),
        });
        let strings: SmallVec<[_; 4]> = strings.collect::<Result<_, _>>()?;
        let mut registers = vec![];
        for n in 0..length {
            let mut params: Values = SmallVec::new();
            params.append(&mut carried);
            for ((t, strings), from_last) in over.iter().zip(&strings).zip(&self.from_last) {
                let at = if *from_last { length - 1 - n } else { n };
                let shape = t.shape().get(1..).unwrap_or_default();
                params.push(match strings {
                    Some(strings) => {
                        let first = at * (strings.len() / length);
                        text::made(&exec, pool, shape, |i, sink| {
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
            let results = self.body.run(params, &mut registers, exec, pool)?;
            let mut results = results.into_iter();
            carried.extend(results.by_ref().take(self.carried));
            made.add(results, exec, pool)?;
        }
        let mut outputs: Outputs = carried.into_iter().collect();
        outputs.extend(made.finish(exec, pool)?);
        Ok(outputs)
    }
}
