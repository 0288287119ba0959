//! Control flow that data decides: branches and loops that run on a device, not in the program.
//!
//! Rust's own `if` and `for` decide when ops are issued, or when a function is traced. What is here decides while it runs:
//! each call is one op, on one worker. Bodies are traced once; tensors that they use from outside are operands of the op.

use std::cell::Cell;
use std::panic::Location;

use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::{Attr, Attrs, Function, TensorType};
use convoke_common::{DType, Dim, Tensor as HostTensor};

use crate::device::Device;
use crate::tensor::{Operand, Tensor, issue};
use crate::trace::{Body, Trace};

fn wrong(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message.into())
}

/// Where large constants of bodies go: where the operands are.
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

/// Issues the op with what it is given and what its bodies capture.
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

/// The results of `yes` where `pred`, a bool scalar, is true, else of `no`; both are given `operands`. Only one of them
/// runs. They yield as many results, of the same dtypes and ranks; sizes that differ are known once it has run.
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
    // Both take what either captures.
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

/// Gives a function, called with `own` operands, the parameters of all captured tensors; it has those that it captures.
fn widen(
    Body {
        function: f,
        captured,
    }: &mut Body,
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

/// `body` again and again while `cond` of what it carries is true, a bool scalar; begins with `init`. What is carried
/// keeps its dtypes and ranks. A size that an iteration changes is known once the loop has run; within, `shape()` is
/// `None` of what has it, and the closures may be called more than once to find that out. A loop that does not end is
/// ended with the call of its function, eagerly with the connection.
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

/// `body` for 0 to `count` - 1, with that number as an i64 scalar and what is carried, which begins with `init`: see
/// [`while_loop`]. `count` is a number of the program, or an i64 scalar on a device.
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
        // The condition stays what it was.
        Ok([t[1].clone()].into_iter().chain(carried).collect())
    };
    looped(count, Operand::None, init, iteration, Location::caller())
}

/// How often a loop runs.
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

/// A body that runs again and again. What a trace knows of sizes has to hold for every iteration: where one changes them,
/// the body is traced again with sizes that it does not know. What is carried are the parameters and the results from
/// the given ones on.
fn repeated(
    name: &str,
    mut params: Vec<TensorType>,
    (first_param, first_result): (usize, usize),
    carried: usize,
    home: Option<Device>,
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Body> {
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
    let Body {
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

/// `body` for each slice of `over` along their first axis, which is as long for all: it is given what is carried, which
/// begins with `init`, and the slices, and yields what is carried next, and any number of tensors to be collected.
/// Returns what is carried in the end, and what was collected, along a new first axis.
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
    let Body {
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
