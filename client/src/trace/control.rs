//! Control flow that data decides: branches and loops that run on a device, not in the program.
//!
//! Rust's own `if` and `for` decide when ops are issued, or when a function is traced. The functions of this module
//! decide while the graph runs: each call is one op, on one worker. Their bodies are traced; tensors that a body uses
//! from outside are operands of the op.

use std::cell::Cell;
use std::panic::Location;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::{Attr, Attrs, Function, TensorType};
use convoke_graph::{DType, Dim};

use crate::device::Device;
use crate::tensor::{Operand, Tensor, issue};
use crate::trace::{ControlFlowBody, Trace};

fn wrong(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message.into())
}

/// The device for the bodies' large constants: that of the first operand with a device.
fn home(operands: &[Tensor]) -> Option<Device> {
    operands.iter().find_map(|t| match t.traced() {
        Some(symbolic) => symbolic.trace.home(),
        None => t.device(),
    })
}

fn scalar(dtype: DType) -> TensorType {
    TensorType::new(dtype, vec![])
}

fn types(tensors: &[Tensor]) -> Vec<TensorType> {
    tensors.iter().map(Tensor::ty).collect()
}

fn name(what: &str, at: &Location<'_>) -> String {
    format!("{what} at {}:{}", at.file(), at.line())
}

fn function(f: Function) -> Attr {
    Attr::Function(f.into())
}

/// Issues a control-flow op, whose operands are those that it is given and the tensors that its bodies capture.
#[track_caller]
fn run(
    op: &str,
    attrs: Attrs,
    given: &[Operand<'_>],
    captured: &[Tensor],
    outputs: usize,
) -> Result<Vec<Tensor>> {
    let given = given.iter().map(|o| match o {
        Operand::Tensor(t) => Operand::Tensor(t),
        Operand::Value(t) => Operand::Value(t.clone()),
        Operand::None => Operand::None,
    });
    let all: Vec<Operand<'_>> = given.chain(captured.iter().map(Operand::Tensor)).collect();
    issue(op, attrs, &all, outputs)
}

/// Returns the results of `yes` where `pred`, a bool scalar, is true, and those of `no` otherwise. Both closures get
/// `operands`, and only the chosen branch runs. Both yield the same number of results, of the same dtypes and ranks;
/// sizes in which they differ are known once the op has run.
#[track_caller]
pub fn cond(
    pred: &Tensor,
    operands: &[Tensor],
    yes: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    no: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let (params, home) = (
        types(operands),
        home(operands).or_else(|| home(std::slice::from_ref(pred))),
    );
    let mut yes = Trace::body(&name("then", at), &params, home.clone(), yes)?;
    let mut no = Trace::body(&name("else", at), &params, home, no)?;
    let outputs = yes.function.results.len();
    // Both branches take the tensors that either of them captures.
    let mut all = yes.captured.clone();
    let missing = no.captured.iter();
    let missing = missing.filter(|t| !yes.captured.iter().any(|c| c.same(t)));
    all.extend(missing.cloned());
    widen(&mut yes, params.len(), &all);
    widen(&mut no, params.len(), &all);
    let attrs = Attrs::default()
        .with("then_branch", function(yes.function))
        .with("else_branch", function(no.function));
    let given: Vec<_> = [pred]
        .into_iter()
        .chain(operands)
        .map(Operand::Tensor)
        .collect();
    run("If", attrs, &given, &all, outputs)
}

/// Gives a branch a parameter for each of the captured tensors in `all`, after its first `own` parameters. The tensors
/// that the branch captures itself have parameters already.
fn widen(
    ControlFlowBody {
        function: f,
        captured,
    }: &mut ControlFlowBody,
    own: usize,
    all: &[Tensor],
) {
    let had = f.params.split_off(own);
    for (i, t) in all.iter().enumerate() {
        let value = match captured.iter().position(|c| c.same(t)) {
            Some(at) => had[at],
            None => f.add_value(format!("unused{i}"), t.ty()),
        };
        f.params.push(value);
    }
}

/// Runs `body` as long as `cond`, a bool scalar computed from the carried tensors, is true, and returns the carried
/// tensors in the end. They begin as `init`, and keep their dtypes and ranks. A size that an iteration changes is known
/// once the loop has run; inside the loop `shape()` of such a tensor is `None`, and the closures may be called more
/// than once to find that out. An endless loop ends with the call of its function, or, issued eagerly, with the
/// connection.
#[track_caller]
pub fn while_loop(
    init: &[Tensor],
    cond: impl Fn(&[Tensor]) -> Result<Tensor>,
    body: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let first = cond(init)?;
    let iteration = |t: &[Tensor]| {
        let carried = body(&t[2..])?;
        let going = cond(&carried)?;
        Ok([going].into_iter().chain(carried).collect())
    };
    looped(
        Operand::None,
        Operand::Tensor(&first),
        init,
        iteration,
        Location::caller(),
    )
}

/// Runs `body` for each number from 0 to `count` - 1. It gets the number, as an i64 scalar, and the carried tensors,
/// which begin as `init`: see [`while_loop`]. `count` is a number of the program, or an i64 scalar on a device.
#[track_caller]
pub fn for_loop<'a>(
    count: impl Into<Count<'a>>,
    init: &[Tensor],
    body: impl Fn(&Tensor, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let count = match count.into() {
        Count::Number(n) => Operand::Value(HostTensor::scalar(n)),
        Count::Tensor(t) => Operand::Tensor(t),
    };
    let iteration = |t: &[Tensor]| {
        let carried = body(&t[0], &t[2..])?;
        // The condition is passed on unchanged: only the count ends the loop.
        Ok([t[1].clone()].into_iter().chain(carried).collect())
    };
    looped(count, Operand::None, init, iteration, Location::caller())
}

/// How often a [`for_loop`] runs.
pub enum Count<'a> {
    /// A number of the program.
    Number(i64),
    /// An i64 scalar on a device.
    Tensor(&'a Tensor),
}

impl From<i64> for Count<'_> {
    fn from(n: i64) -> Self {
        Count::Number(n)
    }
}

impl<'a> From<&'a Tensor> for Count<'a> {
    fn from(t: &'a Tensor) -> Self {
        Count::Tensor(t)
    }
}

/// Traces the body of a loop. The sizes that a trace takes for known have to hold in every iteration: where an
/// iteration changes a size, the body is traced again with that size unknown. The carried tensors are the parameters
/// from `first_param` on, and the results from `first_result` on.
fn repeated(
    name: &str,
    mut params: Vec<TensorType>,
    (first_param, first_result): (usize, usize),
    carried: usize,
    home: Option<Device>,
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<ControlFlowBody> {
    loop {
        let body = Trace::body(name, &params, home.clone(), &f)?;
        let results = body.function.results.iter().skip(first_result);
        let mut changed = false;
        for (c, (_, id)) in results.take(carried).enumerate() {
            let before = params[first_param + c].shape.iter_mut();
            let dims = before.zip(&body.function.ty(*id).shape).enumerate();
            for (axis, (before, after)) in dims {
                let any = Dim::sym(&format!("carried {c}.{axis}"));
                if before != after && *before != any {
                    (*before, changed) = (any, true);
                }
            }
        }
        if !changed {
            return Ok(body);
        }
    }
}

#[track_caller]
fn looped(
    count: Operand<'_>,
    cond: Operand<'_>,
    init: &[Tensor],
    iteration: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    at: &Location<'_>,
) -> Result<Vec<Tensor>> {
    let mut params = vec![scalar(DType::I64), scalar(DType::Bool)];
    params.extend(types(init));
    let ControlFlowBody {
        function: body,
        captured,
    } = repeated(
        &name("loop", at),
        params,
        (2, 1),
        init.len(),
        home(init),
        iteration,
    )?;
    if body.results.len() != init.len() + 1 {
        let (got, want) = (body.results.len() - 1, init.len());
        return Err(wrong(format!(
            "the body yields {got} tensors, {want} are carried"
        )));
    }
    let attrs = Attrs::default()
        .with("body", function(body))
        .with("captured", Attr::Int(captured.len() as i64));
    let mut given = vec![count, cond];
    given.extend(init.iter().map(Operand::Tensor));
    run("Loop", attrs, &given, &captured, init.len())
}

/// Runs `body` for each slice of the tensors in `over` along their first axis, whose length is the same for all. It
/// gets the carried tensors, which begin as `init`, and the slices; it yields the next carried tensors, and any number
/// of tensors to collect. Returns the carried tensors in the end, and the collected tensors along a new first axis.
#[track_caller]
pub fn scan(
    init: &[Tensor],
    over: &[Tensor],
    body: impl Fn(&[Tensor], &[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let at = Location::caller();
    let mut params = types(init);
    for t in over {
        let mut ty = t.ty();
        if ty.shape.is_empty() {
            return Err(wrong(format!("{ty} has no axis to scan")));
        }
        ty.shape.remove(0);
        params.push(ty);
    }
    let kept = init.len();
    let carried = Cell::new(0);
    let iteration = |t: &[Tensor]| {
        let (state, made) = body(&t[..kept], &t[kept..])?;
        carried.set(state.len());
        Ok(state.into_iter().chain(made).collect())
    };
    let home = home(init).or_else(|| home(over));
    let ControlFlowBody {
        function: body,
        captured,
    } = repeated(&name("scan", at), params, (0, 0), kept, home, iteration)?;
    if carried.get() != kept {
        let msg = "the body yields another number of tensors to carry";
        return Err(wrong(format!("{msg}: {}, not {kept}", carried.get())));
    }
    let outputs = body.results.len();
    let attrs = Attrs::default()
        .with("body", function(body))
        .with("num_scan_inputs", Attr::Int(over.len() as i64))
        .with("captured", Attr::Int(captured.len() as i64));
    let given: Vec<_> = init.iter().chain(over).map(Operand::Tensor).collect();
    let mut all = run("Scan", attrs, &given, &captured, outputs)?;
    let made = all.split_off(kept);
    Ok((all, made))
}
