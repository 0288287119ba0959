//! Tensors that live on a device.
//!
//! A [`Tensor`] is a handle: a future with known dtype, shape and device, whose value is on a worker. What can be known
//! without the value is checked when an op is issued; what happens later fails the handle and everything that depends
//! on it, with the one error that was the cause.

mod apply;
mod args;
mod call;
mod display;
mod index;
mod operators;
mod ops;
mod sugar;

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::TensorType;
use convoke_common::{DType, Shape, Tensor as HostTensor};

pub(crate) use apply::apply;
pub use apply::{Operand, issue, op};
pub use args::{Arg, Axes, HostArg, OptArg, OptHostArg, Scalar, Seed};
pub use display::display;
pub use index::{Index, Indices};
pub use ops::options;

use crate::device::{Device, enter};
use crate::eager::{Fetching, WorkerSession};
use crate::host::FromHost;
use crate::trace::Symbolic;

/// Why a tensor lives where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The program named the device.
    Explicit,
    /// A device scope of the task.
    Scope,
    /// So many bytes of the operands were there, of so many in all.
    Operands(u64, u64),
    /// It was moved there.
    Moved,
    /// The plan of the function that made it.
    Planned,
}

/// A tensor on a device. Cloning shares it; dropping the last clone frees it there.
///
/// Inside a function's trace it is a value of the function instead, of the same type in Rust.
#[derive(Clone)]
pub struct Tensor(Repr);

#[derive(Clone)]
enum Repr {
    Remote(Arc<Handle>),
    Traced(Arc<Symbolic>),
}

struct Handle {
    worker: Arc<WorkerSession>,
    id: u64,
    dtype: DType,
    /// With symbols where only data decides.
    declared: Option<TensorType>,
    shape: Arc<OnceLock<Shape>>,
    placed: Placed,
    origin: &'static Location<'static>,
    /// Whether a call has it, or is to have it.
    promised: AtomicBool,
    /// The call that it was donated to.
    donated: OnceLock<&'static Location<'static>>,
    /// Whether the worker was told that it is not needed any more.
    freed: AtomicBool,
}

impl Handle {
    fn free(&self) {
        if !self.freed.swap(true, Ordering::AcqRel) {
            self.worker.free(self.id);
        }
    }
}

/// A tensor that a call is to have once it has succeeded. Dropped before, it stays as it is.
pub(crate) struct Promised(Arc<Handle>);

impl Promised {
    /// The call has succeeded: the tensor is gone for everybody.
    pub(crate) fn keep(self, at: &'static Location<'static>) {
        self.give(at);
        self.0.free();
    }

    /// The call may take the tensor: it is gone for everybody else.
    pub(crate) fn give(&self, at: &'static Location<'static>) {
        // Nobody else has the promise; of a call that runs again it was given before.
        let _ = self.0.donated.set(at);
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        if self.0.donated.get().is_none() {
            self.0.promised.store(false, Ordering::Release);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.free();
    }
}

impl Tensor {
    /// A handle of known shape.
    pub(crate) fn remote(
        worker: &Arc<WorkerSession>,
        id: u64,
        (dtype, shape): (DType, Shape),
        placed: Placed,
        origin: &'static Location<'static>,
    ) -> Tensor {
        Tensor(Repr::Remote(Arc::new(Handle {
            worker: worker.clone(),
            id,
            dtype,
            declared: None,
            shape: Arc::new(OnceLock::from(shape)),
            placed,
            origin,
            promised: AtomicBool::new(false),
            donated: OnceLock::new(),
            freed: AtomicBool::new(false),
        })))
    }

    /// A handle whose shape only data decides; `shape` is set once it is known.
    pub(crate) fn late(
        worker: &Arc<WorkerSession>,
        id: u64,
        declared: TensorType,
        shape: Arc<OnceLock<Shape>>,
        placed: Placed,
        origin: &'static Location<'static>,
    ) -> Tensor {
        Tensor(Repr::Remote(Arc::new(Handle {
            worker: worker.clone(),
            id,
            dtype: declared.dtype,
            declared: Some(declared),
            shape,
            placed,
            origin,
            promised: AtomicBool::new(false),
            donated: OnceLock::new(),
            freed: AtomicBool::new(false),
        })))
    }

    /// A value of a function's trace.
    pub(crate) fn symbolic(symbolic: Symbolic) -> Tensor {
        Tensor(Repr::Traced(Arc::new(symbolic)))
    }

    /// What it is in a trace, where it is in one.
    pub(crate) fn traced(&self) -> Option<&Symbolic> {
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

    /// The handle, for what is not possible inside a trace.
    fn remote_for(&self, what: &str) -> Result<&Arc<Handle>> {
        match &self.0 {
            Repr::Remote(handle) => match handle.donated.get() {
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

    /// That it can be an operand.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.traced() {
            Some(_) => Ok(()),
            None => self.remote_for("used").map(drop),
        }
    }

    /// Promises it to a call. Of two calls at once the second finds it given.
    pub(crate) fn promise(&self) -> Result<Promised> {
        let handle = self.remote_for("donated")?;
        if !handle.promised.swap(true, Ordering::AcqRel) {
            return Ok(Promised(handle.clone()));
        }
        self.remote_for("donated")?;
        let msg = format!("{} is promised to a call that runs", self.ty());
        Err(Error::new(Code::InvalidArgument, msg).advise("await that call before"))
    }

    /// Whether it is the same handle.
    pub(crate) fn same(&self, other: &Tensor) -> bool {
        match (&self.0, &other.0) {
            (Repr::Remote(a), Repr::Remote(b)) => Arc::ptr_eq(a, b),
            (Repr::Traced(a), Repr::Traced(b)) => {
                a.value == b.value && Arc::ptr_eq(&a.trace, &b.trace)
            }
            _ => false,
        }
    }

    pub(crate) fn worker(&self) -> Option<&Arc<WorkerSession>> {
        self.handle().map(|h| &h.worker)
    }

    pub(crate) fn id(&self) -> Option<u64> {
        self.handle().map(|h| h.id)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Remote(h) => h.dtype,
            Repr::Traced(s) => s.ty.dtype,
        }
    }

    /// The dimensions, where they are known already: always, but for the results of ops whose data decides them, as
    /// `nonzero`; those are known once [`Tensor::ready`] has returned. Inside a function's trace, where the operands'
    /// shapes decide them.
    pub fn shape(&self) -> Option<&[usize]> {
        match &self.0 {
            Repr::Remote(h) => h.shape.get().map(|s| &s[..]),
            Repr::Traced(s) => s.shape.as_deref(),
        }
    }

    /// dtype and shape, with symbols for dimensions that are not known yet.
    pub fn ty(&self) -> TensorType {
        match &self.0 {
            Repr::Remote(h) => match (&h.declared, h.shape.get()) {
                (Some(declared), None) => declared.clone(),
                (_, shape) => TensorType::fixed(h.dtype, shape.map_or(&[], |s| &s[..])),
            },
            Repr::Traced(s) => s.ty.clone(),
        }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        match &self.0 {
            Repr::Remote(h) => match (h.shape.get(), &h.declared) {
                (Some(shape), _) => shape.len(),
                (None, Some(declared)) => declared.shape.len(),
                (None, None) => 0,
            },
            Repr::Traced(s) => s.ty.shape.len(),
        }
    }

    /// Where it lives. Inside a function's trace `None`: the placer decides that, once for each plan.
    pub fn device(&self) -> Option<Device> {
        self.worker().map(|w| Device(w.clone()))
    }

    /// Inside a function's trace: the op that makes it runs on this device; an operand of the function is where it was
    /// put, and cannot be. Elsewhere as [`Tensor::to`].
    #[track_caller]
    pub fn on(&self, device: &Device) -> Result<Tensor> {
        match self.traced() {
            Some(symbolic) => {
                symbolic.trace.pin(symbolic.value, device)?;
                Ok(self.clone())
            }
            None => self.moved(device, Location::caller()),
        }
    }

    /// Why it lives there, in words.
    pub fn explain(&self) -> String {
        let Some(h) = self.handle() else {
            return format!("{} is a value of a function's trace", self.ty());
        };
        let why = match h.placed {
            Placed::Explicit => "the program names the device".to_owned(),
            Placed::Scope => "the task's device scope names it".to_owned(),
            Placed::Operands(there, all) => {
                format!("{there} of {all} operand bytes were there")
            }
            Placed::Moved => "it was moved there".to_owned(),
            Placed::Planned => "the plan of the function that made it says so".to_owned(),
        };
        let (device, at) = (Device(h.worker.clone()), h.origin);
        format!(
            "{} lives on {device}: {why} ({}:{})",
            self.ty(),
            at.file(),
            at.line()
        )
    }

    /// The tensor on another device: moved from worker to worker, never through this client. On its own device it is
    /// itself. Inside a function's trace what follows is not moved by it: see [`Tensor::on`].
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
        let known = h.shape.get().cloned();
        let late = known.is_none().then_some(&h.shape);
        let (id, transfer) = to.take(from, h.dtype, known.clone(), late, at)?;
        from.give(self, to, transfer);
        Ok(match known {
            Some(shape) => Tensor::remote(to, id, (h.dtype, shape), Placed::Moved, at),
            None => Tensor::late(to, id, self.ty(), h.shape.clone(), Placed::Moved, at),
        })
    }

    /// The value. One round trip; an error names the op that failed and the line that issued it.
    pub async fn fetch<T: FromHost>(&self) -> Result<T> {
        T::from_host(self.value().await?)
    }

    async fn value(&self) -> Result<HostTensor> {
        let fetching = self.ask()?;
        self.told(fetching).await
    }

    /// Asks for the value.
    fn ask(&self) -> Result<Fetching> {
        let h = self.remote_for("fetched")?;
        h.worker.fetch(h.id)
    }

    /// The value that was asked for.
    async fn told(&self, mut fetching: Fetching) -> Result<HostTensor> {
        let answer = (&mut fetching.answer).await;
        let shut = || Error::new(Code::Cancelled, "the cluster's connection was closed");
        let tensor = answer.unwrap_or_else(|_| Err(shut()))?;
        if let Some(h) = self.handle() {
            // Of a shape that only data decides it is the first to say.
            let _ = h.shape.set(tensor.shape().into());
        }
        Ok(tensor)
    }

    /// Returns once the value is there; fails as it did.
    pub async fn ready(&self) -> Result<()> {
        // An element, or none, says it with the least bytes.
        let rank = self.rank();
        if rank == 0 {
            return self.value().await.map(drop);
        }
        let zeros = HostTensor::from_slice(&[rank], &vec![0i64; rank])?;
        let ones = HostTensor::from_slice(&[rank], &vec![1i64; rank])?;
        let operands = [
            Operand::Tensor(self),
            Operand::Value(zeros),
            Operand::Value(ones),
        ];
        let first = {
            // Where it is: a scope of the task would have all of it moved.
            let _here = self.device().map(|d| enter(&d));
            apply("Slice", Default::default(), &operands, 1)?
        };
        for t in first {
            t.value().await?;
        }
        if self.shape().is_none() {
            self.value().await?;
        }
        Ok(())
    }
}

/// The values of tensors, all asked for at once: so they take one round trip, whichever devices they are on. Fails as
/// the first that failed.
pub async fn fetch_all<'a, T: FromHost>(
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<Vec<T>> {
    let asked = tensors.into_iter().map(|t| Ok((t, t.ask()?)));
    let asked: Vec<(&Tensor, Fetching)> = asked.collect::<Result<_>>()?;
    let mut values = Vec::with_capacity(asked.len());
    for (t, fetching) in asked {
        values.push(T::from_host(t.told(fetching).await?)?);
    }
    Ok(values)
}

/// Its type and device; the value is elsewhere.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device() {
            Some(device) => write!(f, "{} on {device}", self.ty()),
            None => write!(f, "{} of a function", self.ty()),
        }
    }
}
