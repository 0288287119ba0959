//! Control flow: kernels that run functions, node by node on the calling thread; each node's kernel may use all threads.
//!
//! Invariants
//! 1. A function is checked and its kernels are resolved once, when the op is.
//! 2. Between two nodes the cancel flag is looked at, so that a loop without end can be stopped.
//! 3. A value is moved at its last use, so that a carried tensor may be overwritten.

use std::sync::Arc;

use convoke_common::graph::{Attrs, Function, Literal, Node, TensorType, ValueId};
use convoke_common::memory::Pool;
use convoke_common::ops::{self, OpError};
use convoke_common::{DType, Error, Shape, Site, Tensor};
use convoke_kernels::Exec;
use smallvec::SmallVec;

use super::{Inputs, Kernel, KernelFailure, Launch, Outputs, resolve};

type Values = SmallVec<[Tensor; 4]>;

/// The kernel of an op of control flow; `None` where `op` is another.
pub(super) fn find(
    op: &str,
    attrs: &Attrs,
    operands: &[Option<DType>],
) -> Result<Option<Arc<dyn Kernel>>, OpError> {
    let body = |name: &str| {
        let reason = || OpError::Attr {
            attr: name.into(),
            reason: "is required".into(),
        };
        Body::new(attrs.function(name).ok_or_else(reason)?)
    };
    Ok(Some(match op {
        "If" => {
            ops::check_bodies(attrs)?;
            let [yes, no] = ["then_branch", "else_branch"].map(body);
            let (yes, no) = (yes?, no?);
            for branch in [&yes, &no] {
                branch.takes(operands.len().saturating_sub(1))?;
            }
            if yes.function.results.len() != no.function.results.len() {
                return Err(OpError::shape(
                    "the branches yield different numbers of results",
                ));
            }
            Arc::new(If { yes, no })
        }
        "Loop" => {
            ops::check_bodies(attrs)?;
            let (carried, captured) = ops::split_loop(attrs, operands.len())?;
            let body = body("body")?;
            body.takes(2 + carried + captured)?;
            body.yields(1 + carried)?;
            Arc::new(Loop { body, carried })
        }
        "Scan" => {
            ops::check_bodies(attrs)?;
            let (carried, scanned, captured) = ops::split_scan(attrs, operands.len())?;
            let body = body("body")?;
            body.takes(carried + scanned + captured)?;
            body.yields(carried)?;
            let reversed = |name: &str, n: usize| -> Vec<bool> {
                let given = attrs.ints(name).unwrap_or_default();
                (0..n).map(|i| given.get(i) == Some(&1)).collect()
            };
            let made = body.function.results.len() - carried;
            Arc::new(Scan {
                carried,
                from_last: reversed("scan_input_directions", scanned),
                to_first: reversed("scan_output_directions", made),
                body,
            })
        }
        _ => return Ok(None),
    }))
}

/// A function with its kernels.
struct Body {
    function: Arc<Function>,
    kernels: Vec<Arc<dyn Kernel>>,
    /// By value, the last node that reads it; results have none.
    last: Vec<Option<usize>>,
}

impl Body {
    /// Of a function that was checked.
    fn new(function: &Arc<Function>) -> Result<Body, OpError> {
        let mut last = vec![None; function.values.len()];
        let mut kernels = Vec::with_capacity(function.nodes.len());
        for (at, node) in function.nodes.iter().enumerate() {
            let dtype = |id: &Option<ValueId>| id.map(|id| function.ty(id).dtype);
            let dtypes: Vec<_> = node.inputs.iter().map(dtype).collect();
            kernels.push(resolve(&node.op, &node.attrs, &dtypes, node.outputs.len())?);
            for id in node.inputs.iter().flatten() {
                last[id.ix()] = Some(at);
            }
        }
        for (_, id) in &function.results {
            last[id.ix()] = None;
        }
        Ok(Body {
            function: function.clone(),
            kernels,
            last,
        })
    }

    fn takes(&self, operands: usize) -> Result<(), OpError> {
        let takes = self.function.params.len();
        match takes == operands {
            true => Ok(()),
            false => Err(OpError::shape(format!(
                "the body takes {takes} operands, {operands} are given"
            ))),
        }
    }

    fn yields(&self, least: usize) -> Result<(), OpError> {
        let yields = self.function.results.len();
        match yields >= least {
            true => Ok(()),
            false => Err(OpError::shape(format!(
                "the body yields {yields} results, {least} are needed"
            ))),
        }
    }

    /// Runs it once.
    fn run(&self, params: Values, exec: Exec<'_>, pool: &Pool) -> Result<Values, KernelFailure> {
        let f = &*self.function;
        let mut values: Vec<Option<Tensor>> = vec![None; f.values.len()];
        for (id, tensor) in f.params.iter().zip(params) {
            if tensor.dtype() != f.ty(*id).dtype {
                let (name, ty) = (&f.value(*id).name, f.ty(*id));
                let msg = format!("'{name}' is {}, not {ty}", tensor.signature());
                return Err(KernelFailure::values(msg));
            }
            values[id.ix()] = Some(tensor);
        }
        for (id, literal) in &f.literals {
            if let Literal::Inline(t) = literal {
                values[id.ix()] = Some(t.clone());
            }
        }
        for (at, (node, kernel)) in f.nodes.iter().zip(&self.kernels).enumerate() {
            exec.check()?;
            let mut inputs = Inputs::new();
            for (i, id) in node.inputs.iter().enumerate() {
                inputs.push(match id {
                    None => None,
                    Some(id) => {
                        let again = node.inputs[i + 1..].contains(&Some(*id));
                        let value = &mut values[id.ix()];
                        match self.last[id.ix()] == Some(at) && !again {
                            true => value.take(),
                            false => value.clone(),
                        }
                    }
                });
            }
            let given: SmallVec<[(DType, Shape); 4]> = inputs
                .iter()
                .flatten()
                .map(|t| (t.dtype(), t.shape().into()))
                .collect();
            let made = kernel.launch(Launch { inputs, exec, pool });
            let made = made.map_err(|e| match e {
                KernelFailure::Cancelled => KernelFailure::Cancelled,
                KernelFailure::Error(e) => KernelFailure::Error(e.at(site(node, &given))),
            })?;
            for (id, tensor) in node.outputs.iter().zip(made) {
                values[id.ix()] = Some(tensor);
            }
        }
        let result = |id: &ValueId| {
            let missing = || Error::internal("a function's result has no value");
            Ok(values[id.ix()].clone().ok_or_else(missing)?)
        };
        f.results.iter().map(|(_, id)| result(id)).collect()
    }
}

/// Where a node of a function stands, for errors.
fn site(node: &Node, operands: &[(DType, Shape)]) -> Site {
    let operands = operands.iter();
    Site {
        node: Some(node.name.to_string()),
        op: Some(node.op.to_string()),
        operands: operands
            .map(|(dtype, shape)| TensorType::fixed(*dtype, shape).to_string())
            .collect(),
        ..Site::default()
    }
}

/// The element of a bool scalar.
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

struct If {
    yes: Body,
    no: Body,
}

impl Kernel for If {
    fn launch(&self, launch: Launch<'_>) -> Result<Outputs, KernelFailure> {
        let Launch { inputs, exec, pool } = launch;
        let mut inputs = inputs.into_iter();
        let cond = given(inputs.next().flatten())?;
        let branch = match holds(&cond)? {
            true => &self.yes,
            false => &self.no,
        };
        let params: Result<Values, _> = inputs.map(given).collect();
        let made = branch.run(params?, exec, pool)?;
        Ok(made.into_iter().collect())
    }
}

struct Loop {
    body: Body,
    carried: usize,
}

impl Kernel for Loop {
    fn launch(&self, launch: Launch<'_>) -> Result<Outputs, KernelFailure> {
        let Launch { inputs, exec, pool } = launch;
        let mut inputs = inputs.into_iter();
        let most = match inputs.next().flatten() {
            None => i64::MAX,
            Some(m) => match m.as_slice::<i64>()? {
                [m] => *m,
                _ => return Err(KernelFailure::values("'M' is not one number")),
            },
        };
        let mut going = inputs.next().flatten().as_ref().map_or(Ok(true), holds)?;
        let rest: Result<Values, _> = inputs.map(given).collect();
        let mut carried = rest?;
        let captured: Values = carried.drain(self.carried..).collect();
        let mut made = Collected::new(&self.body, 1 + self.carried, most);
        let mut n = 0;
        while going && n < most {
            let mut params: Values = SmallVec::new();
            let (mut at, mut cond) = (
                pool.tensor(DType::I64, &[])?,
                pool.tensor(DType::Bool, &[])?,
            );
            super::call::write::<i64>(&mut at)?.fill(n);
            if let Some(bytes) = cond.bytes_mut() {
                bytes.fill(1);
            }
            params.extend([at, cond]);
            params.append(&mut carried);
            params.extend(captured.iter().cloned());
            let mut results = self.body.run(params, exec, pool)?.into_iter();
            going = holds(&given(results.next())?)?;
            carried.extend(results.by_ref().take(self.carried));
            made.add(results)?;
            n += 1;
        }
        let mut outputs: Outputs = carried.into_iter().collect();
        outputs.extend(made.finish(pool)?);
        Ok(outputs)
    }
}

struct Scan {
    body: Body,
    carried: usize,
    /// Of each scanned operand, whether its last slice comes first.
    from_last: Vec<bool>,
    /// Of each collected result, whether its last slice stands first.
    to_first: Vec<bool>,
}

impl Kernel for Scan {
    fn launch(&self, launch: Launch<'_>) -> Result<Outputs, KernelFailure> {
        let Launch { inputs, exec, pool } = launch;
        let all: Result<Values, _> = inputs.into_iter().map(given).collect();
        let mut carried = all?;
        let mut over: Values = carried.drain(self.carried..).collect();
        let captured: Values = over.drain(self.from_last.len()..).collect();
        let lengths = || over.iter().map(|t| t.shape().first().copied());
        let length = lengths().next().flatten();
        let Some(length) = length.filter(|n| lengths().all(|l| l == Some(*n))) else {
            return Err(KernelFailure::values("what is scanned differs in length"));
        };
        let most = i64::try_from(length).unwrap_or(i64::MAX);
        let mut made = Collected::new(&self.body, self.carried, most);
        for n in 0..length {
            let mut params: Values = SmallVec::new();
            params.append(&mut carried);
            for (t, from_last) in over.iter().zip(&self.from_last) {
                let at = if *from_last { length - 1 - n } else { n };
                let slice = t.outer_range(at, at + 1);
                let slice = slice.and_then(|s| s.reshape(t.shape().get(1..)?));
                params.push(given(slice)?);
            }
            params.extend(captured.iter().cloned());
            let mut results = self.body.run(params, exec, pool)?.into_iter();
            carried.extend(results.by_ref().take(self.carried));
            made.add(results)?;
        }
        made.reverse(&self.to_first);
        let mut outputs: Outputs = carried.into_iter().collect();
        outputs.extend(made.finish(pool)?);
        Ok(outputs)
    }
}

/// Results of all iterations, each to become one tensor with a new first axis.
struct Collected {
    /// What they are declared as, for none.
    types: Vec<TensorType>,
    /// By result, one of each iteration.
    slices: Vec<Vec<Tensor>>,
}

impl Collected {
    /// Of the results from `first` on, over `most` iterations.
    fn new(body: &Body, first: usize, most: i64) -> Collected {
        let f = &*body.function;
        let results = f.results.iter().skip(first);
        let types: Vec<_> = results.map(|(_, id)| f.ty(*id).clone()).collect();
        let room = usize::try_from(most).unwrap_or(0).min(1024);
        Collected {
            slices: types.iter().map(|_| Vec::with_capacity(room)).collect(),
            types,
        }
    }

    fn add(&mut self, made: impl Iterator<Item = Tensor>) -> Result<(), KernelFailure> {
        for (slices, t) in self.slices.iter_mut().zip(made) {
            if let Some(first) = slices.first()
                && (first.shape(), first.dtype()) != (t.shape(), t.dtype())
            {
                let (a, b) = (first.signature(), t.signature());
                let msg = format!("a collected result is {a} in one iteration, {b} in another");
                return Err(KernelFailure::values(msg));
            }
            slices.push(t);
        }
        Ok(())
    }

    fn reverse(&mut self, which: &[bool]) {
        for (slices, reverse) in self.slices.iter_mut().zip(which) {
            if *reverse {
                slices.reverse();
            }
        }
    }

    fn finish(self, pool: &Pool) -> Result<Values, KernelFailure> {
        let each = self.slices.into_iter().zip(self.types);
        each.map(|(slices, ty)| {
            let mut shape: Shape = SmallVec::from_slice(&[slices.len()]);
            match slices.first() {
                Some(t) => shape.extend_from_slice(t.shape()),
                // Without an iteration, what is not known is nothing.
                None => shape.extend(ty.shape.iter().map(|d| {
                    let known = d.as_const().and_then(|d| usize::try_from(d).ok());
                    known.unwrap_or(0)
                })),
            }
            let mut all = pool.tensor(ty.dtype, &shape)?;
            let shared = || Error::internal("a result's buffer is shared");
            let mut rest = all.bytes_mut().ok_or_else(shared)?;
            for t in slices {
                let (own, after) = rest.split_at_mut(t.byte_len());
                own.copy_from_slice(t.bytes());
                rest = after;
            }
            Ok(all)
        })
        .collect()
    }
}
