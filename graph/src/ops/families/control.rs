//! Control flow: ops that run functions, on one worker each. They are ONNX's, except that a value which a function
//! captures from outside is an operand like others, at the end of the list.
//!
//! ```text
//! If(cond, captured…)                     then_branch, else_branch: captured… -> results…
//! Loop(M?, cond?, carried…, captured…)    body: iteration, cond, carried…, captured… -> cond, carried…, scanned…
//! Scan(carried…, scanned…, captured…)     body: carried…, slices…, captured… -> carried…, scanned…
//! ```
//!
//! Invariants
//! 1. A function that a node runs is checked by itself, for the types that the node gives it: it reads no file, it has
//!    no part that runs at install, and its ops are pure.
//! 2. Functions are nested [`MOST_NESTED`] deep at most, and a check goes through [`MOST_WORK`] nodes, values, literals
//!    and operands at most: rules within a loop are run again until the types of its carried values have settled, which
//!    multiplies from level to level.

use crate::Dim;
use crate::dim::Bindings;
use crate::graph::{Attrs, Function, Node, RunsAt, TensorType, Value, ValueId};
use crate::ops::cost::{Cost, moved};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::infer::infer_types;
use crate::ops::infer::verify::verify_untyped;
use crate::ops::kind::{ControlOp, Op};
use crate::ops::registry::{lookup, node_cost};
use crate::ops::shapes::*;

/// The most levels of functions within functions.
pub const MOST_NESTED: usize = 5;
/// The most nodes, values, literals and operands that a check of a function may have to go through.
const MOST_WORK: usize = 800_000;
/// The most times that a body's rules are run until the types of its carried values have settled.
const ROUNDS: usize = 4;
/// The most results of an op, which are as many as an eager op may have.
const MOST_OUTPUTS: usize = 255;
/// The functions of an `If`.
const BRANCHES: [&str; 2] = ["then_branch", "else_branch"];
/// How many iterations the cost of a `Loop` assumes where only a run decides that.
pub const ITERATIONS: u32 = 1000;

/// Whether the condition that a Loop's body yields decides whether the loop goes on. With a number of iterations and no
/// condition the standard ignores what the body yields. With neither of them nothing else could end the loop, so that it counts,
/// as in ONNX Runtime.
pub fn asks_body(has_number: bool, has_condition: bool) -> bool {
    has_condition || !has_number
}

/// How many operands of a loop are carried, and how many captured.
pub fn split_loop(attrs: &Attrs, operands: usize) -> Result<(usize, usize), OpError> {
    let captured = count(attrs, "captured", operands.saturating_sub(2))?;
    Ok((operands.saturating_sub(2 + captured), captured))
}

/// How many operands of a scan are carried, scanned and captured.
pub fn split_scan(attrs: &Attrs, operands: usize) -> Result<(usize, usize, usize), OpError> {
    let captured = count(attrs, "captured", operands)?;
    let scanned = count(attrs, "num_scan_inputs", operands - captured)?;
    if scanned == 0 {
        return Err(crate::ops::attrs::bad(
            "num_scan_inputs",
            "must be at least 1",
        ));
    }
    Ok((operands - captured - scanned, scanned, captured))
}

fn count(attrs: &Attrs, name: &str, most: usize) -> Result<usize, OpError> {
    let n = usize::try_from(attrs.int(name, 0)).ok();
    let reason =
        || crate::ops::attrs::bad(name, format!("must be a number of operands up to {most}"));
    n.filter(|n| *n <= most).ok_or_else(reason)
}

/// Checks that an attribute of directions, where present, has `n` entries of 0 (forward) or 1 (reverse).
fn check_directions(attrs: &Attrs, name: &str, n: usize) -> Result<(), OpError> {
    match attrs.ints(name) {
        Some(d) if d.len() != n || d.iter().any(|d| !(0..=1).contains(d)) => Err(
            crate::ops::attrs::bad(name, format!("must be {n} of 0 or 1")),
        ),
        _ => Ok(()),
    }
}

fn depth(f: &Function) -> usize {
    let nested = f.nodes.iter().flat_map(|n| n.attrs.functions());
    1 + nested.map(|(_, f)| depth(f)).max().unwrap_or(0)
}

/// The most nodes, values, literals and operands that are gone through to check a function. Those of a branch are counted once.
fn work(f: &Function) -> usize {
    let nested = |n: &Node| {
        let bodies = n.attrs.functions().map(|(_, body)| work(body));
        let once = bodies.fold(0, usize::saturating_add);
        match n.is(ControlOp::If) {
            true => once,
            false => once.saturating_mul(ROUNDS),
        }
    };
    let operands = f.nodes.iter().map(|n| n.inputs.len() + n.outputs.len());
    let own = operands.fold(
        f.nodes.len() + f.values.len() + f.literals.len(),
        usize::saturating_add,
    );
    let nested = f.nodes.iter().map(nested);
    nested.fold(own, usize::saturating_add)
}

/// Checks the functions in a node's attributes by themselves, with the types that they declare.
pub fn check_bodies(attrs: &Attrs) -> Result<(), OpError> {
    for (name, f) in attrs.functions() {
        check_body(name, f)?;
        let verified = f.verify();
        verified.map_err(|e| crate::ops::attrs::bad(name, e.to_string()))?;
    }
    Ok(())
}

fn check_body(name: &str, f: &Function) -> Result<(), OpError> {
    let bad = |why: String| Err(crate::ops::attrs::bad(name, why));
    if depth(f) > MOST_NESTED {
        return bad(format!("functions are nested more than {MOST_NESTED} deep"));
    }
    if work(f) > MOST_WORK {
        return bad("too many nodes in branches and loops within each other".into());
    }
    if !f.artifacts.is_empty() {
        return bad("a function within a node reads files".into());
    }
    for n in &f.nodes {
        if n.runs_at == RunsAt::Init {
            return bad(format!("node '{}' runs at install", n.name));
        }
        if crate::ops::is_custom(&n.op) {
            let msg = "is not one of Convoke's ops, which alone run in branches and loops";
            return bad(format!("node '{}' ({}) {msg}", n.name, n.op));
        }
        if lookup(&n.op).is_some_and(|op| !op.pure_op) {
            return bad(format!("node '{}' ({}) is not pure", n.name, n.op));
        }
    }
    Ok(())
}

/// Types of a function's results for parameters of these types.
fn results(i: &Infer<'_>, name: &str, params: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
    let f = typed(i, name, params)?;
    Ok(f.results.iter().map(|(_, id)| f.ty(*id).clone()).collect())
}

/// A function with the types that its values have for parameters of these types.
fn typed(i: &Infer<'_>, name: &str, params: &[TensorType]) -> Result<Function, OpError> {
    let bad = |why: String| crate::ops::attrs::bad(name, why);
    let f = i.attrs.function(name);
    let f = f.ok_or_else(|| bad("is required".into()))?;
    check_body(name, f)?;
    if f.params.len() != params.len() {
        let (takes, given) = (f.params.len(), params.len());
        return Err(bad(format!("takes {takes} operands, {given} are given")));
    }
    let level = depth(f);
    let mut f = Function::clone(f);
    // Symbols are named after values. Those of a function get names that no symbol from outside has.
    for value in &mut f.values {
        value.name = format!("{level}~{}", value.name).into();
    }
    for (p, (id, ty)) in f.params.clone().iter().zip(params).enumerate() {
        let value = f.values.get_mut(id.ix());
        let value = value.ok_or_else(|| bad("a parameter does not exist".into()))?;
        if value.ty.dtype != ty.dtype || value.ty.shape.len() != ty.shape.len() {
            let declared = &value.ty;
            return Err(bad(format!("operand {p} is {declared}, not {ty}")));
        }
        value.ty = ty.clone();
    }
    verify_untyped(&f).map_err(|e| bad(e.to_string()))?;
    infer_types(&mut f)
        .map_err(|e| bad(e.first().map_or_else(String::new, ToString::to_string)))?;
    Ok(f)
}

/// The functions of a node of control flow, by attribute, with types that hold in each of their runs. `values` are
/// those of the function that the node is a part of.
pub fn typed_bodies(
    op: ControlOp,
    node: &Node,
    values: &[Value],
) -> Result<Vec<(&'static str, Function)>, OpError> {
    let operand = |id: &Option<ValueId>| {
        let ty = &values.get((*id)?.ix())?.ty;
        Some(Operand {
            ty,
            value: None,
            tensor: None,
        })
    };
    let inputs: Vec<_> = node.inputs.iter().map(operand).collect();
    // Nodes of functions within each other may have one name. Those that enclose this one are deeper.
    let level = node.attrs.functions().map(|(_, f)| depth(f)).max();
    let level = level.unwrap_or(0);
    let fresh =
        |output: usize, axis: usize| Dim::sym(&format!("{level}~~{}.{output}#{axis}", node.name));
    let i = Infer {
        attrs: &node.attrs,
        inputs: &inputs,
        outputs: node.outputs.len(),
        fresh: &fresh,
    };
    let one = |name, params: &[TensorType]| {
        let mut f = typed(&i, name, params)?;
        let given = node.attrs.function(name).into_iter();
        for (value, given) in f.values.iter_mut().zip(given.flat_map(|f| &f.values)) {
            value.name = given.name.clone();
        }
        Ok((name, f))
    };
    match op {
        ControlOp::If => {
            let given = types(&i, 1)?;
            BRANCHES.iter().map(|name| one(*name, &given)).collect()
        }
        ControlOp::Loop => {
            let l = loop_types(&i)?;
            Ok(vec![one("body", &loop_params(&l.carried, &l.captured))?])
        }
        ControlOp::Scan => {
            let s = scan_types(&i)?;
            let params = s.carried.iter().chain(&s.slices).chain(&s.captured);
            Ok(vec![one("body", &params.cloned().collect::<Vec<_>>())?])
        }
    }
}

/// The types of the operands from `from` on. Fails where one is left out.
fn types(i: &Infer<'_>, from: usize) -> Result<Vec<TensorType>, OpError> {
    let given = i.inputs.iter().skip(from);
    let ty = |o: &Option<Operand<'_>>| o.as_ref().map(|o| o.ty.clone());
    let all: Option<Vec<_>> = given.map(ty).collect();
    all.ok_or(OpError::MissingOperand { operand: "inputs" })
}

fn check_outputs(i: &Infer<'_>, results: usize) -> Result<(), OpError> {
    match i.outputs == results {
        true => Ok(()),
        false => Err(OpError::shape(format!(
            "its function yields {results} results, {} are declared",
            i.outputs
        ))),
    }
}

fn of(ty: TensorType) -> InferredOutput {
    InferredOutput { ty, value: None }
}

/// The type that covers both: their common dimensions, and new symbols where they differ. `None` where dtypes or ranks
/// differ.
fn either(i: &Infer<'_>, output: usize, a: &TensorType, b: &TensorType) -> Option<TensorType> {
    if a.dtype != b.dtype || a.shape.len() != b.shape.len() {
        return None;
    }
    let dims = a.shape.iter().zip(&b.shape).enumerate();
    let shape = dims.map(|(axis, (a, b))| match a == b {
        true => a.clone(),
        false => i.fresh(output, axis),
    });
    Some(TensorType::new(a.dtype, shape.collect()))
}

/// The type that a function's result has outside: symbols that are not of `known` types are the function's own, and
/// become new ones.
fn outside(i: &Infer<'_>, output: usize, ty: TensorType, known: &[TensorType]) -> TensorType {
    let mut symbols = std::collections::BTreeSet::new();
    let dims = known.iter().flat_map(|t| &t.shape);
    dims.for_each(|d| d.symbols(&mut symbols));
    let mine = |d: &Dim| {
        let mut own = std::collections::BTreeSet::new();
        d.symbols(&mut own);
        own.is_subset(&symbols)
    };
    let dims = ty.shape.into_iter().enumerate();
    let shape = dims.map(|(axis, d)| match mine(&d) {
        true => d,
        false => i.fresh(output, axis),
    });
    TensorType::new(ty.dtype, shape.collect())
}

fn check_cond(i: &Infer<'_>, operand: usize) -> Result<(), OpError> {
    match i.opt(operand) {
        Some(o) if o.ty.dtype != Bool => Err(OpError::shape(format!(
            "'cond' must be bool, not {}",
            o.ty.dtype
        ))),
        _ => i.check_scalar(operand, "cond"),
    }
}

fn if_rule(i: &Infer<'_>) -> Rule {
    check_cond(i, 0)?;
    let given = types(i, 1)?;
    let [yes, no] = BRANCHES.map(|name| results(i, name, &given));
    let (yes, no) = (yes?, no?);
    if yes.len() != no.len() {
        let (a, b) = (yes.len(), no.len());
        let msg = format!("one branch yields {a} results, the other {b}");
        return Err(OpError::shape(msg));
    }
    check_outputs(i, yes.len())?;
    let both = yes.into_iter().zip(no).enumerate();
    both.map(|(o, (a, b))| {
        let ty = either(i, o, &a, &b).ok_or_else(|| {
            OpError::shape(format!("result {o} is {a} in one branch, {b} in the other"))
        })?;
        Ok(of(outside(i, o, ty, &given)))
    })
    .collect()
}

/// The carried types that an iteration leaves as they are, and the types of the body's other results. `run` gives the
/// types of a body's results for carried types; the first `skip` results are not carried.
fn settled(
    i: &Infer<'_>,
    mut carried: Vec<TensorType>,
    run: impl Fn(&[TensorType]) -> Result<Vec<TensorType>, OpError>,
    skip: usize,
) -> Result<(Vec<TensorType>, Vec<TensorType>), OpError> {
    // For each carried value, which of its dimensions have become new symbols.
    let mut open: Vec<Vec<bool>> = carried.iter().map(|t| vec![false; t.shape.len()]).collect();
    for round in 1..=ROUNDS {
        let made = run(&carried)?;
        let Some((next, more)) = made
            .get(skip..)
            .and_then(|m| m.split_at_checked(carried.len()))
        else {
            let (made, need) = (made.len(), skip + carried.len());
            let msg = format!("the body yields {made} results, at least {need} are needed");
            return Err(crate::ops::attrs::bad("body", msg));
        };
        let mut changed = false;
        for (c, (old, new)) in carried.iter_mut().zip(next).enumerate() {
            if old.dtype != new.dtype || old.shape.len() != new.shape.len() {
                let msg = format!("carried value {c} is {old} before an iteration, {new} after");
                return Err(OpError::shape(msg));
            }
            let dims = old.shape.iter_mut().zip(&new.shape).zip(&mut open[c]);
            for (axis, ((old, new), open)) in dims.enumerate() {
                if !*open && old != new {
                    (*old, *open, changed) = (i.fresh(c, axis), true, true);
                }
            }
        }
        if !changed {
            return Ok((carried, more.to_vec()));
        }
        if round + 1 == ROUNDS {
            // Dimensions change one after the other. All become symbols, so that the last round finds none that
            // changes.
            for (c, (ty, open)) in carried.iter_mut().zip(&mut open).enumerate() {
                for (axis, (d, open)) in ty.shape.iter_mut().zip(open).enumerate() {
                    if !std::mem::replace(open, true) {
                        *d = i.fresh(c, axis);
                    }
                }
            }
        }
    }
    Err(OpError::shape("the carried values' shapes do not settle"))
}

/// The output that collects a result of `n` iterations along a new first axis.
fn collected(n: &Dim, ty: &TensorType) -> InferredOutput {
    let shape = std::iter::once(n.clone()).chain(ty.shape.iter().cloned());
    of(TensorType::new(ty.dtype, shape.collect()))
}

/// The types of a loop's values that hold in every iteration.
struct LoopTypes {
    /// The operands that are carried and captured, as they are given.
    given: Vec<TensorType>,
    carried: Vec<TensorType>,
    captured: Vec<TensorType>,
    /// The results of an iteration that are collected.
    scanned: Vec<TensorType>,
}

/// The types of the parameters of a loop's body.
fn loop_params(carried: &[TensorType], captured: &[TensorType]) -> Vec<TensorType> {
    let own = [I64, Bool].map(|dtype| TensorType::new(dtype, vec![]));
    let all = own.iter().chain(carried).chain(captured);
    all.cloned().collect()
}

fn loop_types(i: &Infer<'_>) -> Result<LoopTypes, OpError> {
    let (count, _) = split_loop(i.attrs, i.inputs.len())?;
    let mut carried = types(i, 2)?;
    let given = carried.clone();
    let captured = carried.split_off(count);
    let run = |carried: &[TensorType]| {
        let made = results(i, "body", &loop_params(carried, &captured))?;
        match made.first() {
            Some(c) if c.dtype == Bool && c.shape.iter().all(|d| !known_other(d, 1)) => Ok(made),
            Some(c) => Err(crate::ops::attrs::bad(
                "body",
                format!("its condition is {c}"),
            )),
            None => Err(crate::ops::attrs::bad("body", "yields no condition")),
        }
    };
    let (carried, scanned) = settled(i, carried, run, 1)?;
    Ok(LoopTypes {
        given,
        carried,
        captured,
        scanned,
    })
}

fn loop_rule(i: &Infer<'_>) -> Rule {
    if let Some(m) = i.opt(0)
        && m.ty.dtype != I64
    {
        let msg = format!("'M' must be i64, not {}", m.ty.dtype);
        return Err(OpError::shape(msg));
    }
    i.check_scalar(0, "M")?;
    check_cond(i, 1)?;
    let l = loop_types(i)?;
    check_outputs(i, l.carried.len() + l.scanned.len())?;
    let kept = l.carried.len();
    let carried = l.carried.into_iter().enumerate();
    let carried = carried.map(|(o, ty)| of(outside(i, o, ty, &l.given)));
    let scanned = l.scanned.into_iter().enumerate().map(|(s, ty)| {
        let inner = outside(i, kept + s, ty, &l.given);
        collected(&i.fresh(kept + s, inner.shape.len()), &inner)
    });
    Ok(carried.chain(scanned).collect())
}

/// The types of a scan's values that hold in every iteration.
struct ScanTypes {
    /// The operands as they are given.
    given: Vec<TensorType>,
    carried: Vec<TensorType>,
    slices: Vec<TensorType>,
    captured: Vec<TensorType>,
    /// The results of an iteration that are collected.
    made: Vec<TensorType>,
    /// The number of iterations.
    length: Dim,
}

fn scan_types(i: &Infer<'_>) -> Result<ScanTypes, OpError> {
    let (count, scanned, _) = split_scan(i.attrs, i.inputs.len())?;
    let mut carried = types(i, 0)?;
    let given = carried.clone();
    let captured = carried.split_off(count + scanned);
    let over = carried.split_off(count);
    let mut length: Option<Dim> = None;
    let mut slices = Vec::new();
    for ty in &over {
        let Some((n, rest)) = ty.shape.split_first() else {
            return Err(OpError::shape("a scalar cannot be scanned"));
        };
        length = Some(match length {
            None => n.clone(),
            Some(l) => unify(&l, n, "lengths of what is scanned")?,
        });
        slices.push(TensorType::new(ty.dtype, rest.to_vec()));
    }
    let run = |carried: &[TensorType]| {
        let all = carried.iter().chain(&slices).chain(&captured);
        results(i, "body", &all.cloned().collect::<Vec<_>>())
    };
    let (carried, made) = settled(i, carried, run, 0)?;
    Ok(ScanTypes {
        given,
        carried,
        slices,
        captured,
        made,
        length: length.unwrap_or(Dim::Const(0)),
    })
}

fn scan_rule(i: &Infer<'_>) -> Rule {
    let (_, scanned, _) = split_scan(i.attrs, i.inputs.len())?;
    let s = scan_types(i)?;
    check_outputs(i, s.carried.len() + s.made.len())?;
    check_directions(i.attrs, "scan_input_directions", scanned)?;
    check_directions(i.attrs, "scan_output_directions", s.made.len())?;
    let kept = s.carried.len();
    let carried = s.carried.into_iter().enumerate();
    let carried = carried.map(|(o, ty)| of(outside(i, o, ty, &s.given)));
    let made = s.made.into_iter().enumerate();
    let made = made.map(|(o, ty)| collected(&s.length, &outside(i, kept + o, ty, &s.given)));
    Ok(carried.chain(made).collect())
}

/// The cost of one run of a function, with the sizes that it declares under `axes`.
fn of_body(attrs: &Attrs, name: &str, axes: &Bindings) -> Cost {
    let Some(f) = attrs.function(name) else {
        return Cost::default();
    };
    let each = f.nodes.iter().map(|n| node_cost(f, n, axes));
    each.fold(Cost::default(), |sum, c| Cost {
        flops: sum.flops + c.flops,
        bytes: sum.bytes + c.bytes,
    })
}

fn times(n: f64, cost: Cost) -> Cost {
    Cost {
        flops: n * cost.flops,
        bytes: n * cost.bytes,
    }
}

/// How many times a node of control flow of `f` runs its function at most, where the graph and the sizes of its axes
/// say it.
pub fn known_iterations(f: &Function, node: &Node, op: ControlOp, axes: &Bindings) -> Option<i64> {
    match op {
        ControlOp::If => Some(1),
        ControlOp::Loop => {
            let most = f.inline((*node.inputs.first()?)?)?;
            let most = most.as_slice::<i64>().ok()?.first().copied()?;
            // Loops that a condition ends are given the largest number there is.
            (most < i64::from(i32::MAX)).then_some(most.max(0))
        }
        ControlOp::Scan => {
            let (carried, ..) = split_scan(&node.attrs, node.inputs.len()).ok()?;
            // An expression such as n - 3 may be negative, where the operand would be refused.
            slices(f.ty((*node.inputs.get(carried)?)?), axes).map(|n| n.max(0))
        }
    }
}

/// How many slices a scanned operand of this type has.
fn slices(scanned: &TensorType, axes: &Bindings) -> Option<i64> {
    scanned.shape.first()?.eval(axes)
}

/// How many runs of its function the cost of a node of control flow of `f` assumes.
pub fn iterations(f: &Function, node: &Node, op: ControlOp, axes: &Bindings) -> f64 {
    match (known_iterations(f, node, op, axes), op) {
        (Some(n), _) => n as f64,
        (None, ControlOp::Scan) => 0.0,
        (None, _) => f64::from(ITERATIONS),
    }
}

/// The cost of a node of control flow whose operands and results have these types, which runs its function this many
/// times, and whose functions declare sizes in terms of `axes`.
pub fn control_cost(
    (op, runs): (ControlOp, f64),
    attrs: &Attrs,
    ins: &[Option<&TensorType>],
    outs: &[&TensorType],
    axes: &Bindings,
) -> Cost {
    if op == ControlOp::If {
        let [yes, no] = BRANCHES.map(|name| of_body(attrs, name, axes));
        return match yes.flops + yes.bytes > no.flops + no.bytes {
            true => yes,
            false => no,
        };
    }
    let mut all = times(runs, of_body(attrs, "body", axes));
    all.bytes += moved(ins, outs);
    all
}

fn if_cost(attrs: &Attrs, ins: &[Option<&TensorType>], outs: &[&TensorType]) -> Cost {
    control_cost((ControlOp::If, 1.0), attrs, ins, outs, &Bindings::new())
}

fn loop_cost(attrs: &Attrs, ins: &[Option<&TensorType>], outs: &[&TensorType]) -> Cost {
    let runs = (ControlOp::Loop, f64::from(ITERATIONS));
    control_cost(runs, attrs, ins, outs, &Bindings::new())
}

fn scan_cost(attrs: &Attrs, ins: &[Option<&TensorType>], outs: &[&TensorType]) -> Cost {
    let axes = Bindings::new();
    let over = split_scan(attrs, ins.len()).ok();
    let over = over.and_then(|(carried, ..)| ins.get(carried).copied().flatten());
    let runs = over.and_then(|ty| slices(ty, &axes)).unwrap_or(0).max(0) as f64;
    control_cost((ControlOp::Scan, runs), attrs, ins, outs, &axes)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Control(ControlOp::If),
        "The results of one function or the other, for the operands after `cond`, a bool scalar.",
        &[
            operand("cond", BOOL),
            operand("captured", STORED).variadic().optional(),
        ],
        if_rule,
    )
    .attrs(&[
        required("then_branch", AttrKind::Function),
        required("else_branch", AttrKind::Function),
    ])
    .outputs(1, MOST_OUTPUTS)
    .cost(if_cost),
    OpDef::of(
        Op::Control(ControlOp::Loop),
        "`body` again and again, up to `M` times and while `cond` holds: the carried values, and its other results of \
         all iterations along a new first axis.",
        &[
            operand("M", LONG).optional(),
            operand("cond", BOOL).optional(),
            operand("carried", STORED).variadic().optional(),
        ],
        loop_rule,
    )
    .attrs(&[
        required("body", AttrKind::Function),
        attr("captured", AttrKind::Int),
    ])
    .outputs(1, MOST_OUTPUTS)
    .cost(loop_cost),
    OpDef::of(
        Op::Control(ControlOp::Scan),
        "`body` for each slice of the scanned operands along their first axis: the carried values, and its other \
         results along a new first axis.",
        &[operand("inputs", STORED).variadic()],
        scan_rule,
    )
    .attrs(&[
        required("body", AttrKind::Function),
        required("num_scan_inputs", AttrKind::Int),
        attr("captured", AttrKind::Int),
        attr("scan_input_directions", AttrKind::Ints),
        attr("scan_output_directions", AttrKind::Ints),
    ])
    .outputs(1, MOST_OUTPUTS)
    .cost(scan_cost),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::graph::Literal;

    #[test]
    fn all_that_a_check_goes_through_counts() {
        let refused = |f: &Function| {
            let e = check_body("body", f).expect_err("too large").to_string();
            assert!(e.contains("too many nodes"), "{e}");
        };
        let mut values = Function::default();
        let v = values.add_value("v", TensorType::fixed(F32, &[]));
        assert_eq!(check_body("body", &values), Ok(()));
        let mut literals = values.clone();
        let mut operands = values.clone();
        values
            .values
            .resize(MOST_WORK + 1, values.values[0].clone());
        refused(&values);
        let literal = (v, Literal::Inline(Tensor::scalar(0f32)));
        literals.literals.resize(MOST_WORK, literal);
        refused(&literals);
        operands.nodes.push(Node {
            name: "n".into(),
            op: "Sum".into(),
            attrs: Attrs::default(),
            inputs: vec![Some(v); MOST_WORK],
            outputs: vec![v],
            runs_at: RunsAt::Step,
        });
        refused(&operands);
    }
}
