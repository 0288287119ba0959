//! Prepared ops, which are resolved once and issued often.
//!
//! [`crate::issue`] determines the op's rule, its attributes, its operands' types and its device for every op that it
//! issues. A prepared op determines them once; issuing it then only checks that the operands are of these types.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use convoke_common::error::{Code, Error, Result, Site};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::{Function, Literal, ValueId};
use convoke_graph::{DType, Shape, ops};
use convoke_rendezvous::eager::wire;
use smallvec::SmallVec;

use crate::device::Device;
use crate::device::scope::enter;
use crate::eager::direct::{OpQuery, RememberedOp};
use crate::eager::{Issue, Key, RememberedPlace};
use crate::tensor::{LocalTensor, Operand, PlacedBy, Tensor, issue};
use crate::trace::{self, ControlFlowBody, Trace};

/// Where an operand of the op comes from.
enum Source {
    /// The operand of this index among those that the op is issued with.
    Given(usize),
    /// A tensor that the closure uses, on the op's device.
    Bound(Tensor),
    Value(HostTensor),
    Absent,
}

/// An op that [`Device::prepare`] has resolved: issuing it again costs the least. It shares the worker's cache with ops
/// that are issued otherwise; where they evict it, it is defined again.
pub struct PreparedOp {
    device: Device,
    key: Key,
    slot: RememberedPlace,
    /// How the op runs on the caller's thread, where the worker is in this process.
    known: OnceLock<Arc<RememberedOp>>,
    /// The dtype and shape of each operand that the op is issued with.
    operands: Vec<(DType, Shape)>,
    sources: Vec<Source>,
    made: (DType, Shape),
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message.into())
}

/// Returns the dtype and shape of an operand. Fails where the shape is not known yet.
fn known(i: usize, t: &Tensor) -> Result<(DType, Shape)> {
    let shape = t.shape().ok_or_else(|| {
        let msg = format!("the shape of operand {i}, {}, is not known yet", t.ty());
        wrong(msg).advise("await `ready()` on it before")
    })?;
    Ok((t.dtype(), shape.into()))
}

/// Returns where the only op of a body gets its operands from. Tensors that the body captures are moved to `device`.
fn sources(
    body: ControlFlowBody,
    device: &Device,
    at: &'static Location<'static>,
) -> Result<Vec<Source>> {
    let ControlFlowBody {
        function: f,
        captured,
    } = body;
    let given = f.params.len() - captured.len();
    let literal = |v: ValueId| f.literals.iter().find(|(of, _)| *of == v).map(|(_, l)| l);
    let source = |v: &Option<ValueId>| {
        let Some(v) = v else {
            return Ok(Source::Absent);
        };
        match (f.params.iter().position(|p| p == v), literal(*v)) {
            (Some(i), _) if i < given => Ok(Source::Given(i)),
            (Some(i), _) => Ok(Source::Bound(captured[i - given].moved(device, at)?)),
            (None, Some(Literal::Inline(t))) => Ok(Source::Value(t.clone())),
            _ => Err(Error::internal(
                "an operand of a prepared op is nothing known",
            )),
        }
    };
    f.nodes.iter().flat_map(|n| &n.inputs).map(source).collect()
}

/// Fails unless the function issues one op of one result, and returns that result.
fn single(f: &Function) -> Result<()> {
    let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
    match (&f.nodes[..], &f.results[..]) {
        ([node], [(_, result)]) if node.outputs[..] == [*result] => Ok(()),
        ([node], _) if node.outputs.len() > 1 => {
            let msg = format!("{} has {} results", node.op, node.outputs.len());
            Err(wrong(msg).advise("issue it as it is: only ops of one result are prepared"))
        }
        ([], _) => Err(wrong("the closure issues no op")),
        ([_], _) => Err(wrong("the closure does not return the result of its op")),
        _ => Err(wrong(format!(
            "the closure issues {}: {}",
            ops.len(),
            ops.join(", ")
        ))
        .advise("prepare one op, with operands of one dtype; several make a function")),
    }
}

impl Device {
    /// Resolves the op that `f` issues, for tensors of the dtypes and shapes of `operands`, so that issuing it often
    /// costs the least. `f` is called once, with symbolic tensors that stand for the operands, and issues one op of one
    /// result. Other tensors that `f` uses stay operands of the op; those on other devices are copied to this one.
    ///
    /// ```no_run
    /// # fn run(a: &convoke::Device, x: &convoke::Tensor, y: &convoke::Tensor) -> convoke::Result<()> {
    /// let add = a.prepare(&[x, y], |t| t[0].add(&t[1]))?;
    /// let z = add.issue(&[x, y])?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn prepare(
        &self,
        operands: &[&Tensor],
        f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    ) -> Result<PreparedOp> {
        let at = Location::caller();
        let given = operands.iter().enumerate();
        let types: Result<Vec<_>> = given.map(|(i, t)| known(i, t)).collect();
        let symbolic: Vec<_> = operands.iter().map(|t| t.ty()).collect();
        let body = Trace::body("prepared", &symbolic, Some(self.clone()), |t| {
            Ok(vec![f(t)?])
        })?;
        single(&body.function)?;
        let node = &body.function.nodes[0];
        let def = ops::lookup(&node.op)
            .ok_or_else(|| Error::internal("an op was traced that is not registered"))?;
        if ops::is_custom(def.name) {
            self.0.has_op(def)?;
        }
        let ty = body.function.ty(node.outputs[0]).clone();
        let shape = ty.fixed_shape().ok_or_else(|| {
            let msg = format!(
                "only data decides the shape of the result of {}, {ty}",
                def.name
            );
            wrong(msg).advise("issue it as it is")
        })?;
        let dtypes = node
            .inputs
            .iter()
            .map(|v| Some(body.function.ty((*v)?).dtype));
        let key = Key {
            op: def,
            attrs: node.attrs.clone(),
            operands: dtypes.collect(),
            outputs: 1,
            report: false,
            origin: at,
        };
        Ok(PreparedOp {
            device: self.clone(),
            key,
            slot: RememberedPlace::default(),
            known: OnceLock::new(),
            operands: types?,
            sources: sources(body, self, at)?,
            made: (ty.dtype, shape.as_slice().into()),
        })
    }
}

impl PreparedOp {
    /// Issues the op on operands of the dtypes and shapes that it was prepared for; operands on other devices are moved
    /// to the op's device. A later failure names the line that prepared the op. In a function's trace it is an op of
    /// the function.
    #[track_caller]
    pub fn issue(&self, operands: &[&Tensor]) -> Result<Tensor> {
        self.fits(operands, Location::caller())?;
        if trace::current().is_some() || operands.iter().any(|t| t.traced().is_some()) {
            return self.trace(operands);
        }
        if let Some(made) = self.here(operands) {
            return Ok(made);
        }
        let at = self.key.origin;
        // Moved operands are held until the op is issued: dropping one frees it.
        let mut here: SmallVec<[Tensor; 4]> = SmallVec::new();
        let mut given: SmallVec<[wire::Operand<'_>; 4]> = SmallVec::new();
        for source in &self.sources {
            let tensor = match source {
                Source::Given(i) => operands[*i],
                Source::Bound(t) => t,
                Source::Value(t) => {
                    given.push(wire::Operand::Borrowed(t));
                    continue;
                }
                Source::Absent => {
                    given.push(wire::Operand::Absent);
                    continue;
                }
            };
            let moved = tensor.moved(&self.device, at)?;
            given.push(wire::Operand::Handle(moved.id()?));
            here.push(moved);
        }
        let id = self.device.0.issue(&Issue {
            key: &self.key,
            slot: Some(&self.slot),
            operands: &given,
            late: &[],
        })?;
        let made = self.made.clone();
        Ok(Tensor::remote(
            &self.device.0,
            id,
            made,
            PlacedBy::Explicit,
            at,
        ))
    }

    /// Runs the op on this thread, and returns its result; `None` where the op has to be issued.
    fn here(&self, operands: &[&Tensor]) -> Option<Tensor> {
        let line = self.device.0.line()?;
        let mut near: SmallVec<[Option<LocalTensor<'_>>; 2]> = SmallVec::new();
        for source in &self.sources {
            near.push(match source {
                Source::Given(i) => Some(operands[*i].here_on(&self.device.0)?),
                Source::Bound(t) => Some(t.here_on(&self.device.0)?),
                Source::Value(t) => Some(LocalTensor::Here(t)),
                Source::Absent => None,
            });
        }
        let inputs: SmallVec<[Option<&HostTensor>; 4]> = near
            .iter()
            .map(|n| n.as_ref().map(LocalTensor::tensor))
            .collect();
        let known = match self.known.get() {
            Some(known) => known,
            None => {
                let issued = OpQuery {
                    op: self.key.op,
                    attrs: &self.key.attrs,
                    outputs: 1,
                    origin: self.key.origin,
                };
                let found = line.find(&issued, &self.key.operands)?;
                self.known.get_or_init(|| found)
            }
        };
        let made = line.run(known, &inputs)?.into_iter().next()?;
        let here = line.keep(known, made);
        let (device, at) = (&self.device.0, self.key.origin);
        Some(Tensor::made_here(device, here, PlacedBy::Explicit, at))
    }

    /// Issues the op as one of the function that is being traced.
    #[track_caller]
    fn trace(&self, operands: &[&Tensor]) -> Result<Tensor> {
        let given = self.sources.iter().map(|source| match source {
            Source::Given(i) => Operand::Tensor(operands[*i]),
            Source::Bound(t) => Operand::Tensor(t),
            Source::Value(t) => Operand::Value(t.clone()),
            Source::Absent => Operand::None,
        });
        let given: Vec<Operand<'_>> = given.collect();
        let _entered = enter(&self.device);
        let made = issue(self.key.op.name, self.key.attrs.clone(), &given, 1)?;
        let none = || Error::internal("an op without outputs");
        made.into_iter().next().ok_or_else(none)
    }

    /// The device that the op runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Fails unless the operands have the dtypes and shapes that the op was prepared for.
    fn fits(&self, operands: &[&Tensor], at: &Location<'_>) -> Result<()> {
        let fits = |(t, (dtype, shape)): (&&Tensor, &(DType, Shape))| {
            t.dtype() == *dtype && t.shape() == Some(&shape[..])
        };
        let same = operands.len() == self.operands.len();
        if same && operands.iter().zip(&self.operands).all(fits) {
            return Ok(());
        }
        let wanted = self.operands.iter().map(|(dtype, shape)| {
            let ty = convoke_graph::graph::TensorType::fixed(*dtype, shape);
            ty.to_string()
        });
        let wanted: Vec<String> = wanted.collect();
        let given: Vec<String> = operands.iter().map(|t| t.ty().to_string()).collect();
        let msg = format!(
            "{} was prepared for {}, not for {}",
            self.key.op.name,
            wanted.join(", "),
            given.join(", ")
        );
        Err(Error::new(Code::InvalidInput, msg).at(Site {
            op: Some(self.key.op.name.to_owned()),
            operands: given,
            origin: Some(format!("{}:{}", at.file(), at.line())),
            ..Site::default()
        }))
    }
}

impl fmt::Debug for PreparedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} prepared on {}", self.key.op.name, self.device)
    }
}
