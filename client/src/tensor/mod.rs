//! Tensors that live on a device.
//!
//! A [`Tensor`] is a handle: a future with known dtype, shape and device, whose value is on a worker. An error that can
//! be known without the value is reported when an op is issued; a later error fails the handle and everything that
//! depends on it, with the one error that was the cause.

mod apply;
mod args;
mod call;
mod display;
mod donation;
mod index;
mod operand;
mod operators;
mod ops;
mod put;
mod quick;
mod sugar;
mod value;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::TensorType;
use convoke_graph::{DType, Shape};
// This `Arc` has no weak references, which handles do not need.
use triomphe::Arc as Shared;

pub use apply::{issue, op};
pub use args::{Arg, Axes, HostArg, OptArg, OptHostArg, Scalar, Seed};
pub use display::display;
pub use index::{Index, Indices};
pub use operand::Operand;
pub use ops::options;
pub use value::fetch_all;

use crate::device::{Device, DeviceSet};
use crate::eager::direct::UnsentValue;
use crate::eager::{LateShape, SessionOwner};
use crate::trace::SymbolicTensor;

use donation::Donation;

/// Why a tensor lives where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlacedBy {
    /// The program named the device.
    Explicit,
    /// A device scope of the task names one device.
    Scope,
    /// A device scope of the task names several devices. The fields are the operands' bytes on this one, and in all.
    ScopeOperands(u64, u64),
    /// A device scope of the task names several devices, none of which has an operand; this is the fastest of them.
    ScopeFastest,
    /// The device had operands. The fields are the operands' bytes on it, and in all.
    Operands(u64, u64),
    /// No operand's device has a kernel of the op; this is the fastest device that has one.
    Fastest,
    /// The tensor was moved to the device.
    Moved,
    /// The plan of the function that made the tensor names the device.
    Planned,
}

/// A tensor on a device. Clones share it; dropping the last one frees it on the device. A tensor keeps its connection
/// to the cluster, and with it an embedded cluster, until [`Cluster::shutdown`](crate::Cluster::shutdown).
///
/// Inside a function's trace a tensor is a value of the function instead, of the same type in Rust.
#[derive(Clone)]
pub struct Tensor(Repr);

#[derive(Clone)]
enum Repr {
    Remote(Shared<Handle>),
    Traced(Arc<SymbolicTensor>),
}

struct Handle {
    worker: Arc<SessionOwner>,
    value: TensorValue,
    placed: PlacedBy,
    origin: &'static Location<'static>,
    donation: Donation,
}

enum TensorValue {
    /// The value is at the worker, or will be once it is computed.
    There(RemoteValue),
    Here(UnsentValue),
}

struct RemoteValue {
    /// The number of the handle at the worker.
    id: u64,
    dtype: DType,
    dims: Dims,
    /// Whether the worker was told that the tensor is not needed any more.
    freed: AtomicBool,
}

impl RemoteValue {
    fn new(id: u64, dtype: DType, dims: Dims) -> RemoteValue {
        RemoteValue {
            id,
            dtype,
            dims,
            freed: AtomicBool::new(false),
        }
    }
}

enum Dims {
    Known(Shape),
    /// Dimensions that only data decides: they are declared with symbols, and set once they are known.
    Late(Box<(TensorType, LateShape)>),
}

impl Handle {
    fn dtype(&self) -> DType {
        match &self.value {
            TensorValue::There(there) => there.dtype,
            TensorValue::Here(here) => here.tensor().dtype(),
        }
    }

    fn shape(&self) -> Option<&[usize]> {
        match &self.value {
            TensorValue::There(there) => match &there.dims {
                Dims::Known(shape) => Some(shape),
                Dims::Late(late) => late.1.get().map(|shape| &shape[..]),
            },
            TensorValue::Here(here) => Some(here.tensor().shape()),
        }
    }

    /// The declared type, and the cell that its shape is set in, where only data decides the shape.
    fn late(&self) -> Option<(&TensorType, &LateShape)> {
        match &self.value {
            TensorValue::There(there) => match &there.dims {
                Dims::Known(_) => None,
                Dims::Late(late) => Some((&late.0, &late.1)),
            },
            TensorValue::Here(_) => None,
        }
    }

    /// The number of the handle at the worker. A value that the worker does not know yet is sent there first.
    fn id(&self) -> Result<u64> {
        match &self.value {
            TensorValue::There(there) => Ok(there.id),
            TensorValue::Here(here) => here.told(|tensor| self.worker.put(tensor, self.origin)),
        }
    }

    fn free(&self) {
        let id = match &self.value {
            TensorValue::There(there) => {
                let freed = there.freed.swap(true, Ordering::AcqRel);
                (!freed).then_some(there.id)
            }
            TensorValue::Here(here) => here.take_id(),
        };
        if let Some(id) = id {
            self.worker.free(id);
        }
    }
}

/// A value in this process: borrowed from this client, or looked up at the worker.
pub(crate) enum LocalTensor<'a> {
    Here(&'a HostTensor),
    There(HostTensor),
}

impl LocalTensor<'_> {
    #[inline]
    pub(crate) fn tensor(&self) -> &HostTensor {
        match self {
            LocalTensor::Here(tensor) => tensor,
            LocalTensor::There(tensor) => tensor,
        }
    }
}

/// A tensor that is promised to a call. Dropping the promise before it is given or kept leaves the tensor as it is.
pub(crate) struct PendingTensor(Shared<Handle>);

impl PendingTensor {
    /// Takes the tensor from everybody and frees it, since the call has succeeded.
    pub(crate) fn keep(self, at: &'static Location<'static>) {
        self.give(at);
        self.0.free();
    }

    /// Lets the call take the tensor, which is gone for everybody else.
    pub(crate) fn give(&self, at: &'static Location<'static>) {
        self.0.donation.give(at);
    }
}

impl Drop for PendingTensor {
    fn drop(&mut self) {
        self.0.donation.withdraw();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The worker knows nothing of most values in this process, so they need not be freed there.
        let told = match &mut self.value {
            TensorValue::Here(here) => here.was_told(),
            TensorValue::There(_) => true,
        };
        if told {
            self.free();
        }
    }
}

impl Tensor {
    /// A handle of known shape.
    pub(crate) fn remote(
        worker: &Arc<SessionOwner>,
        id: u64,
        (dtype, shape): (DType, Shape),
        placed: PlacedBy,
        origin: &'static Location<'static>,
    ) -> Tensor {
        let dims = Dims::Known(shape);
        let value = TensorValue::There(RemoteValue::new(id, dtype, dims));
        Tensor::handle_of(worker, value, placed, origin)
    }

    /// A handle whose shape only data decides; `shape` is set once it is known.
    pub(crate) fn late(
        worker: &Arc<SessionOwner>,
        id: u64,
        declared: TensorType,
        shape: LateShape,
        placed: PlacedBy,
        origin: &'static Location<'static>,
    ) -> Tensor {
        let dtype = declared.dtype;
        let dims = Dims::Late(Box::new((declared, shape)));
        let value = TensorValue::There(RemoteValue::new(id, dtype, dims));
        Tensor::handle_of(worker, value, placed, origin)
    }

    /// A handle whose value is in this process.
    #[inline]
    pub(crate) fn made_here(
        worker: &Arc<SessionOwner>,
        here: UnsentValue,
        placed: PlacedBy,
        origin: &'static Location<'static>,
    ) -> Tensor {
        Tensor::handle_of(worker, TensorValue::Here(here), placed, origin)
    }

    #[inline]
    fn handle_of(
        worker: &Arc<SessionOwner>,
        value: TensorValue,
        placed: PlacedBy,
        origin: &'static Location<'static>,
    ) -> Tensor {
        Tensor(Repr::Remote(Shared::new(Handle {
            worker: worker.clone(),
            value,
            placed,
            origin,
            donation: Donation::none(),
        })))
    }

    /// A value of a function's trace.
    pub(crate) fn symbolic(symbolic: SymbolicTensor) -> Tensor {
        Tensor(Repr::Traced(Arc::new(symbolic)))
    }

    /// The value of a trace that the tensor stands for, if it is in a trace.
    pub(crate) fn traced(&self) -> Option<&SymbolicTensor> {
        match &self.0 {
            Repr::Remote(_) => None,
            Repr::Traced(symbolic) => Some(symbolic),
        }
    }

    fn handle(&self) -> Option<&Handle> {
        match &self.0 {
            Repr::Remote(handle) => Some(handle),
            Repr::Traced(_) => None,
        }
    }

    /// Returns the handle, for a use that is not possible inside a trace. `what` names the use in errors.
    fn remote_for(&self, what: &str) -> Result<&Shared<Handle>> {
        match &self.0 {
            Repr::Remote(handle) => match handle.donation.given() {
                None => Ok(handle),
                Some(at) => {
                    let to = format!("{}:{}", at.file(), at.line());
                    let msg = format!("{} was donated to the call at {to}", self.ty());
                    Err(Error::new(Code::StateLost, msg).advise(
                        "use the result of that call, or call a function that does not donate it",
                    ))
                }
            },
            Repr::Traced(_) => {
                let msg = format!("a value of a function's trace cannot be {what}");
                Err(Error::new(Code::InvalidArgument, msg)
                    .advise("return it as a result of the function"))
            }
        }
    }

    /// Fails where the tensor cannot be an operand, since it was donated.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.traced() {
            Some(_) => Ok(()),
            None => self.remote_for("used").map(drop),
        }
    }

    /// Promises the tensor to a call. If two calls take it at once, the second one fails.
    pub(crate) fn promise(&self) -> Result<PendingTensor> {
        let handle = self.remote_for("donated")?;
        if handle.donation.promise() {
            return Ok(PendingTensor(handle.clone()));
        }
        self.remote_for("donated")?;
        let msg = format!("{} is promised to a call that runs", self.ty());
        Err(Error::new(Code::InvalidArgument, msg).advise("await that call before"))
    }

    /// Whether both are the same handle, or the same value of a trace.
    pub(crate) fn same(&self, other: &Tensor) -> bool {
        match (&self.0, &other.0) {
            (Repr::Remote(a), Repr::Remote(b)) => Shared::ptr_eq(a, b),
            (Repr::Traced(a), Repr::Traced(b)) => {
                a.value == b.value && Arc::ptr_eq(&a.trace, &b.trace)
            }
            _ => false,
        }
    }

    pub(crate) fn worker(&self) -> Option<&Arc<SessionOwner>> {
        self.handle().map(|h| &h.worker)
    }

    /// The number of the handle at its worker. A value that was made on the caller's thread is sent there for that,
    /// once.
    pub(crate) fn id(&self) -> Result<u64> {
        let none = || Error::internal("a value of a trace has no handle");
        self.handle().ok_or_else(none)?.id()
    }

    /// Returns the value where it belongs to this worker, is in this process, and is there already.
    pub(crate) fn here_on(&self, worker: &Arc<SessionOwner>) -> Option<LocalTensor<'_>> {
        let of = |h: &&Handle| Arc::ptr_eq(&h.worker, worker) && h.donation.given().is_none();
        let h = self.handle().filter(of)?;
        match &h.value {
            TensorValue::Here(here) => Some(LocalTensor::Here(here.tensor())),
            TensorValue::There(there) => h.worker.line()?.value(there.id).map(LocalTensor::There),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Remote(h) => h.dtype(),
            Repr::Traced(s) => s.ty.dtype,
        }
    }

    /// The dimensions, or `None` as long as they are not known. They are known at once, except for the results of ops
    /// whose data decides them, such as `nonzero`: those are known once [`Tensor::ready`] has returned. Inside a
    /// function's trace they are known where the operands' shapes decide them.
    pub fn shape(&self) -> Option<&[usize]> {
        match &self.0 {
            Repr::Remote(h) => h.shape(),
            Repr::Traced(s) => s.shape.as_deref(),
        }
    }

    /// The dtype and shape, with symbols for dimensions that are not known yet.
    pub fn ty(&self) -> TensorType {
        match &self.0 {
            Repr::Remote(h) => match (h.late(), h.shape()) {
                (Some((declared, _)), None) => declared.clone(),
                (_, shape) => TensorType::fixed(h.dtype(), shape.unwrap_or_default()),
            },
            Repr::Traced(s) => s.ty.clone(),
        }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        match &self.0 {
            Repr::Remote(h) => match h.late() {
                None => h.shape().map_or(0, <[usize]>::len),
                Some((declared, _)) => declared.shape.len(),
            },
            Repr::Traced(s) => s.ty.shape.len(),
        }
    }

    /// The device that the tensor lives on. Inside a function's trace it is `None`: the placement decides it, once for
    /// each plan.
    pub fn device(&self) -> Option<Device> {
        self.worker().map(|w| Device(w.clone()))
    }

    /// Places the tensor on one of these devices. Inside a function's trace, the op that makes the tensor runs on one
    /// of them, which the plan chooses; an operand of the function is where it was put, and is refused. Elsewhere, this
    /// is the tensor itself where it is on one of them, else the tensor moved to the fastest, as by [`Tensor::to`].
    #[track_caller]
    pub fn on(&self, devices: impl Into<DeviceSet>) -> Result<Tensor> {
        let (devices, at) = (devices.into(), Location::caller());
        if let Some(symbolic) = self.traced() {
            symbolic.trace.pin(symbolic.value, &devices)?;
            return Ok(self.clone());
        }
        let h = self.remote_for("moved")?;
        if devices.at(&h.worker).is_some() {
            return Ok(self.clone());
        }
        let none = || Error::internal("a set of devices without a device");
        let sessions = h.worker.sessions()?;
        let fastest = devices.fastest(&sessions, None);
        self.moved(&fastest.ok_or_else(none)?, at)
    }

    /// Tells in words why the tensor lives on its device.
    pub fn explain(&self) -> String {
        let Some(h) = self.handle() else {
            return format!("{} is a value of a function's trace", self.ty());
        };
        let why = match h.placed {
            PlacedBy::Explicit => "the program names the device".to_owned(),
            PlacedBy::Scope => "the task's device scope names it".to_owned(),
            PlacedBy::ScopeOperands(there, all) => {
                format!("of the devices that the task's device scope names, {there} of {all} operand bytes were on this one")
            }
            PlacedBy::ScopeFastest => {
                "it is the fastest that the task's device scope names, and none of those has an operand".to_owned()
            }
            PlacedBy::Operands(there, all) => {
                format!("{there} of {all} operand bytes were there")
            }
            PlacedBy::Fastest => {
                "it is the fastest that has a kernel of the op, which no operand's device has"
                    .to_owned()
            }
            PlacedBy::Moved => "it was moved there".to_owned(),
            PlacedBy::Planned => "the plan of the function that made it says so".to_owned(),
        };
        let (device, at) = (Device(h.worker.clone()), h.origin);
        format!(
            "{} lives on {device}: {why} ({}:{})",
            self.ty(),
            at.file(),
            at.line()
        )
    }

    /// Moves the tensor to another device, from worker to worker and never through this client. On its own device it is
    /// the tensor itself. Inside a function's trace this has no effect: see [`Tensor::on`].
    #[track_caller]
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        match self.traced() {
            Some(_) => Ok(self.clone()),
            None => self.moved(device, Location::caller()),
        }
    }

    pub(crate) fn moved(&self, device: &Device, at: &'static Location<'static>) -> Result<Tensor> {
        let h = self.remote_for("moved")?;
        let (from, to) = (&h.worker, &device.0);
        if Arc::ptr_eq(from, to) {
            return Ok(self.clone());
        }
        to.knows(from)?;
        // The worker has to know the tensor before it is moved; telling the worker may fail.
        h.id()?;
        let known = h.shape().map(Shape::from_slice);
        let late = h.late().map(|(_, late)| late);
        let late = late.filter(|_| known.is_none());
        let (id, transfer) = to.take(from, h.dtype(), known.clone(), late, at)?;
        // The destination has to be linked, so that it can tell the tensor from a stranger's. Until then the tensor is
        // held.
        let (tensor, source, there) = (self.clone(), from.session().clone(), to.session().clone());
        to.when_linked(move || source.give(tensor.id(), &there, transfer));
        let ty = (h.dtype(), known.unwrap_or_default());
        Ok(match late {
            None => Tensor::remote(to, id, ty, PlacedBy::Moved, at),
            Some(late) => Tensor::late(to, id, self.ty(), late.clone(), PlacedBy::Moved, at),
        })
    }
}

/// Writes the tensor's type and device; its value is elsewhere.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device() {
            Some(device) => write!(f, "{} on {device}", self.ty()),
            None => write!(f, "{} of a function", self.ty()),
        }
    }
}
