//! Issuing an op: everything that can be checked without values is checked here, by the registry's rules.

use std::cell::Cell;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use convoke_common::error::{Code, Error, Result, Site};
use convoke_graph::graph::{Attrs, TensorType};
use convoke_graph::ops::{self, ConcreteOperand, HostValue, InferredOutput, OpDef, OpError};
use convoke_graph::{DType, Dim, Shape};
use convoke_rendezvous::eager::wire::{self, INLINE};
use smallvec::SmallVec;

use super::operand::{OpResults, Operand};
use super::{PlacedBy, Tensor, quick};
use crate::device::scope::scope;
use crate::device::{Device, DeviceSet};
use crate::eager::{Issue, Key, LateShape, SessionOwner, WorkerSession};
use crate::trace::Trace;

fn rejected(op: &str, operands: &[Operand<'_>], why: &OpError, at: &Location<'_>) -> Error {
    let code = match why {
        OpError::Unknown { .. } => Code::UnsupportedOp,
        OpError::Attr { .. } => Code::InvalidArgument,
        _ => Code::InvalidInput,
    };
    let error = Error::new(code, why.to_string()).at(site(op, operands, at));
    match why {
        OpError::DType { .. } => error.advise("cast it to one of these with `cast`"),
        OpError::DTypeMismatch { .. } => error.advise("bring them to one dtype with `cast`"),
        _ => error,
    }
}

/// The site of an error: an op, its operands, and the line that issues it.
fn site(op: &str, operands: &[Operand<'_>], at: &Location<'_>) -> Site {
    let operands = operands.iter().filter_map(|o| match o {
        Operand::Tensor(t) => Some(t.ty().to_string()),
        Operand::Value(t) => Some(t.signature()),
        Operand::None => None,
    });
    Site {
        op: Some(op.to_owned()),
        operands: operands.collect(),
        origin: Some(format!("{}:{}", at.file(), at.line())),
        ..Site::default()
    }
}

/// Issues an op of the registry by its name, with `outputs` results, as the methods of [`Tensor`] do. The op's rule for
/// dtypes and shapes is checked here; the op runs where a device scope says, else where most bytes of its operands are.
#[track_caller]
pub fn issue(
    op: &str,
    attrs: Attrs,
    operands: &[Operand<'_>],
    outputs: usize,
) -> Result<Vec<Tensor>> {
    Ok(apply(op, attrs, operands, outputs)?.into_vec())
}

/// Issues a custom op with one result, otherwise like [`issue`]. The op's definition is made known to the process: see
/// [`crate::ops::register`].
#[track_caller]
pub fn op<'a, O: Into<Operand<'a>>>(
    def: &'static OpDef,
    attrs: Attrs,
    operands: impl IntoIterator<Item = O>,
) -> Result<Tensor> {
    if !ops::lookup(def.name).is_some_and(|known| std::ptr::eq(known, def)) {
        ops::register(def)?;
    }
    let operands: SmallVec<[Operand<'_>; 4]> = operands.into_iter().map(Into::into).collect();
    let made = apply(def.name, attrs, &operands, 1)?.into_iter().next();
    made.ok_or_else(|| Error::internal("an op without outputs"))
}

/// The error of an op that is to have more outputs than an op can have.
#[cold]
pub(super) fn too_many(outputs: usize) -> Error {
    let msg = format!("an op has at most {} outputs, not {outputs}", u8::MAX);
    Error::new(Code::InvalidArgument, msg)
}

/// The definition of an op by its name. Programs repeat ops, so the one that this thread found last comes first.
fn definition(op: &str) -> Option<&'static OpDef> {
    thread_local! {
        static LAST: Cell<Option<&'static OpDef>> = const { Cell::new(None) };
    }
    if let Some(last) = LAST.get().filter(|last| last.name == op) {
        return Some(last);
    }
    let found = ops::lookup(op)?;
    LAST.set(Some(found));
    Some(found)
}

/// Issues an op, like [`issue`].
#[track_caller]
pub(crate) fn apply(
    op: &str,
    attrs: Attrs,
    operands: &[Operand<'_>],
    outputs: usize,
) -> Result<OpResults> {
    let at = Location::caller();
    let reject = |why: OpError| rejected(op, operands, &why, at);
    let def = definition(op).ok_or_else(|| reject(OpError::Unknown { op: op.into() }))?;
    // A tensor of a trace that is used outside of its closure leads to its trace, which reports that it is over.
    let mut traced = None;
    for operand in operands {
        if let Operand::Tensor(t) = operand {
            t.usable()?;
            traced = traced.or_else(|| t.traced());
        }
    }
    let trace = crate::trace::current().or_else(|| traced.map(|s| s.trace.clone()));
    if let Some(trace) = trace {
        let inferred =
            infer_general(def, &attrs, operands, outputs, Some(&trace)).map_err(reject)?;
        if let Some(devices) = scope() {
            able(&devices, def).map_err(|e| e.at(site(op, operands, at)))?;
        }
        let made = trace.node(def, attrs, operands, inferred, at)?;
        return Ok(made.into());
    }
    if let Some(made) = quick::run(def, &attrs, operands, outputs, at) {
        return Ok(made);
    }
    let Ok(count) = u8::try_from(outputs) else {
        return Err(too_many(outputs).at(site(op, operands, at)));
    };
    let made = infer(def, &attrs, operands, outputs).map_err(reject)?;
    let placed = place(def, operands).map_err(|e| e.at(site(op, operands, at)))?;
    let (worker, placed) = placed.ok_or_else(|| {
        let msg = format!("nothing says on which device {op} is to run");
        Error::new(Code::InvalidArgument, msg)
            .advise("issue it in `with_device`, or on a tensor of a device")
    })?;
    let device = Device(worker);
    // Moved operands are held until the op is issued: dropping one frees it.
    let mut here: SmallVec<[Tensor; 4]> = SmallVec::new();
    for operand in operands {
        if let Operand::Tensor(t) = operand {
            here.push(t.moved(&device, at)?);
        }
    }
    let mut moved = here.iter();
    let mut given: SmallVec<[wire::Operand<'_>; 4]> = SmallVec::new();
    let mut dtypes: SmallVec<[Option<DType>; 4]> = SmallVec::new();
    let mut large: SmallVec<[Tensor; 1]> = SmallVec::new();
    for operand in operands {
        dtypes.push(match operand {
            Operand::Tensor(t) => Some(t.dtype()),
            Operand::Value(t) => Some(t.dtype()),
            Operand::None => None,
        });
        given.push(match operand {
            Operand::Tensor(_) => match moved.next() {
                Some(t) => wire::Operand::Handle(t.id()?),
                None => wire::Operand::Absent,
            },
            Operand::Value(t) if t.byte_len() <= INLINE => wire::Operand::Borrowed(t),
            Operand::Value(t) => {
                let id = device.0.put(t, at)?;
                let ty = (t.dtype(), t.shape().into());
                large.push(Tensor::remote(&device.0, id, ty, PlacedBy::Explicit, at));
                wire::Operand::Handle(id)
            }
            Operand::None => wire::Operand::Absent,
        });
    }
    let shapes: Option<SmallVec<[Shape; 2]>> = made.iter().map(concrete).collect();
    let late: SmallVec<[Option<LateShape>; 2]> = match &shapes {
        Some(_) => SmallVec::new(),
        None => made
            .iter()
            .map(|ty| concrete(ty).is_none().then(LateShape::default))
            .collect(),
    };
    let key = Key {
        op: def,
        attrs,
        operands: dtypes,
        outputs: count,
        report: shapes.is_none(),
        origin: at,
    };
    let first = device.0.issue(&Issue {
        key: &key,
        slot: None,
        operands: &given,
        late: &late,
    })?;
    let ids = first..;
    let made = made.into_iter().zip(ids).enumerate();
    Ok(made
        .map(|(i, (ty, id))| match &shapes {
            Some(shapes) => {
                let ty = (ty.dtype, shapes[i].clone());
                Tensor::remote(&device.0, id, ty, placed, at)
            }
            None => {
                let shape = match concrete(&ty) {
                    Some(shape) => Arc::new(OnceLock::from(shape)),
                    None => late.get(i).cloned().flatten().unwrap_or_default(),
                };
                Tensor::late(&device.0, id, ty, shape, placed, at)
            }
        })
        .collect())
}

fn concrete(ty: &TensorType) -> Option<Shape> {
    let dim = |d: &Dim| usize::try_from(d.as_const()?).ok();
    ty.shape.iter().map(dim).collect()
}

/// Infers the types of the results.
fn infer(
    def: &OpDef,
    attrs: &Attrs,
    operands: &[Operand<'_>],
    outputs: usize,
) -> Result<SmallVec<[TensorType; 2]>, OpError> {
    // Concrete operands have a rule of their own, which is quicker and needs the values that decide sizes.
    let known: Option<SmallVec<[Option<ConcreteOperand<'_>>; 4]>> = operands
        .iter()
        .map(|o| match o {
            Operand::Tensor(t) => Some(Some(ConcreteOperand {
                dtype: t.dtype(),
                shape: t.shape()?,
                host: None,
            })),
            Operand::Value(t) => Some(Some(ConcreteOperand {
                dtype: t.dtype(),
                shape: t.shape(),
                host: Some(t),
            })),
            Operand::None => Some(None),
        })
        .collect();
    if let Some(known) = known
        && let Ok(out) = ops::infer_concrete(def, attrs, &known, outputs)
    {
        let ty = |(dtype, shape): &(DType, Shape)| TensorType::fixed(*dtype, shape);
        return Ok(out.iter().map(ty).collect());
    }
    let inferred = infer_general(def, attrs, operands, outputs, None)?;
    Ok(inferred.into_iter().map(|i| i.ty).collect())
}

/// Infers the results like [`infer`], by the rule for symbolic dimensions.
fn infer_general(
    def: &OpDef,
    attrs: &Attrs,
    operands: &[Operand<'_>],
    outputs: usize,
    trace: Option<&Trace>,
) -> Result<Vec<InferredOutput>, OpError> {
    let types: Vec<Option<TensorType>> = operands
        .iter()
        .map(|o| match o {
            Operand::Tensor(t) => Some(t.ty()),
            Operand::Value(t) => Some(TensorType::fixed(t.dtype(), t.shape())),
            Operand::None => None,
        })
        .collect();
    let values: Vec<Option<HostValue>> = operands
        .iter()
        .map(|o| match o {
            Operand::Value(t) => ops::host_value(t),
            Operand::Tensor(t) => t.traced().and_then(|s| s.host.clone()),
            Operand::None => None,
        })
        .collect();
    let inputs: Vec<_> = types
        .iter()
        .zip(&values)
        .zip(operands)
        .map(|((ty, value), o)| {
            Some(ops::Operand {
                ty: ty.as_ref()?,
                value: value.as_ref(),
                tensor: match o {
                    Operand::Value(t) => Some(t),
                    _ => None,
                },
            })
        })
        .collect();
    let count = Cell::new(0u32);
    let fresh = |output: usize, axis: usize| {
        count.set(count.get() + 1);
        match trace {
            Some(trace) => trace.symbol(def.name),
            None => Dim::sym(&format!("{}#{output}.{axis}.{}", def.name, count.get())),
        }
    };
    ops::infer_op(def, attrs, &inputs, outputs, &fresh)
}

/// Fails where the worker is known to have no kernel of an op. Every worker has kernels of the registry's own ops.
fn has_kernel(worker: &WorkerSession, def: &OpDef) -> Result<()> {
    match ops::is_custom(def.name) {
        true => worker.has_op(def),
        false => Ok(()),
    }
}

/// Fails where none of the devices has a kernel of an op.
fn able(devices: &DeviceSet, def: &OpDef) -> Result<()> {
    let mut refusals = devices.devices().iter().map(|d| has_kernel(&d.0, def));
    match refusals.next() {
        Some(Err(e)) => refusals.find(Result::is_ok).unwrap_or(Err(e)),
        _ => Ok(()),
    }
}

/// Chooses where an op runs: on the device with a kernel that has most bytes of its operands, among the devices of the
/// task's scope, or without a scope those of the operands. Where there is none, the op runs on the fastest device that
/// has a kernel, in the scope, or without one anywhere. Returns `None` where there is neither a scope nor an operand.
fn place(def: &OpDef, operands: &[Operand<'_>]) -> Result<Option<(Arc<SessionOwner>, PlacedBy)>> {
    let scope = scope();
    if let Some(device) = scope.as_ref().and_then(DeviceSet::only) {
        has_kernel(&device.0, def)?;
        return Ok(Some((device.0.clone(), PlacedBy::Scope)));
    }
    let mut there: SmallVec<[(&Arc<SessionOwner>, u64); 4]> = SmallVec::new();
    for operand in operands {
        let Operand::Tensor(t) = operand else {
            continue;
        };
        let elements: usize = t.shape().map_or(0, |s| s.iter().product());
        let bytes = t.dtype().bytes_for(elements).unwrap_or(usize::MAX) as u64;
        let Some(worker) = t.worker() else {
            return Ok(None);
        };
        match there.iter_mut().find(|(w, _)| Arc::ptr_eq(w, worker)) {
            Some((_, sum)) => *sum += bytes,
            None => there.push((worker, bytes)),
        }
    }
    let all = there.iter().map(|(_, bytes)| bytes).sum();
    let in_scope = |worker: &Arc<SessionOwner>| match &scope {
        Some(devices) => devices.at(worker).is_some(),
        None => true,
    };
    // If several devices have equally many bytes, it is the first operand's.
    let able = there.iter().rev();
    let able = able.filter(|(worker, _)| in_scope(worker) && has_kernel(worker, def).is_ok());
    if let Some((worker, bytes)) = able.max_by_key(|(_, bytes)| *bytes) {
        let placed = match scope.is_some() {
            true => PlacedBy::ScopeOperands(*bytes, all),
            false => PlacedBy::Operands(*bytes, all),
        };
        return Ok(Some(((*worker).clone(), placed)));
    }
    if let Some(devices) = &scope {
        let Some(first) = devices.devices().first() else {
            return Ok(None);
        };
        let sessions = first.0.sessions()?;
        return match devices.fastest(&sessions, Some(def)) {
            Some(device) => Ok(Some((device.0, PlacedBy::ScopeFastest))),
            None => has_kernel(&first.0, def).map(|()| None),
        };
    }
    let Some((worker, _)) = there.first() else {
        return Ok(None);
    };
    match worker.sessions()?.fastest_with(def) {
        Some(fastest) => Ok(Some((fastest, PlacedBy::Fastest))),
        None => worker.has_op(def).map(|()| None),
    }
}
