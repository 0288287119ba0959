//! Functions of tensors: traced, planned and leased once per signature of their operands, then called.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::rpc::{Numerics, PlanSummary};
use convoke_graph::Dim;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::TensorType;

use crate::calls::axes::{self, DynamicAxis};
use crate::calls::function::Inner;
use crate::calls::options::{CallOptions, FunctionOptions};
use crate::calls::result::CallResult;
use crate::calls::step::{Call, CompiledFunction};
use crate::cluster::Cluster;
use crate::cluster::callbacks;
use crate::device::scope::unscoped;
use crate::tensor::Tensor;
use crate::trace::Trace;
use crate::trace::nesting;

/// How many signatures a function keeps traces for. Beyond that, the trace that was not used for longest is dropped.
const SIGNATURES: usize = 32;
/// How many calls of one function and signature run at once; further calls wait.
const IN_FLIGHT: u32 = 4;

type FunctionBody = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// A function of tensors, made by [`Cluster::function`]. Clones share its traces.
#[derive(Clone)]
pub struct Function {
    cluster: Cluster,
    shared: Arc<FunctionState>,
}

struct FunctionState {
    name: String,
    body: Box<FunctionBody>,
    donated: Vec<usize>,
    retained: Vec<usize>,
    dynamic: Vec<DynamicAxis>,
    options: CallOptions,
    /// The compiled function of each signature, in the order of their last use.
    known: Mutex<Vec<(Signature, Arc<CompiledFunction>)>>,
}

/// The signature of a call: each operand's type, and the worker process that it is on.
#[derive(Clone, PartialEq)]
struct Signature(Vec<(TensorType, Participant)>);

impl Signature {
    fn is_of(&self, operands: &[Tensor]) -> bool {
        let same = |((ty, at), t): (&(TensorType, Participant), &Tensor)| {
            let shape = t.shape().unwrap_or_default();
            let dims = ty.shape.iter().map(Dim::as_const);
            ty.dtype == t.dtype()
                && t.shape().is_some()
                && dims.eq(shape.iter().map(|d| i64::try_from(*d).ok()))
                && t.worker().is_some_and(|w| w.participant == *at)
        };
        self.0.len() == operands.len() && self.0.iter().zip(operands).all(same)
    }
}

impl Cluster {
    /// Makes a function that is traced once for each signature of its operands, which is their dtypes, shapes and
    /// devices: `f` is called with symbolic tensors, and the ops that it issues are optimised, placed and partitioned
    /// as one graph. The results have the same bits as when the ops are issued one by one. Rust control flow unrolls;
    /// tensors of devices that `f` uses are read anew at each call; all other Rust code in `f` runs when the function
    /// is traced.
    ///
    /// `f` runs on the thread that calls the function, or awaits its call. A closure that takes long holds up that
    /// thread, and causes a warning after a second. A panic in it is the call's error.
    #[track_caller]
    pub fn function(
        &self,
        f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Function {
        let at = Location::caller();
        let name = format!("function at {}:{}", at.file(), at.line());
        Function::new(self.clone(), name, f)
    }
}

impl Function {
    pub(crate) fn new(
        cluster: Cluster,
        name: String,
        body: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Function {
        Function {
            cluster,
            shared: Arc::new(FunctionState {
                name,
                body: Box::new(body),
                donated: vec![],
                retained: vec![],
                dynamic: vec![],
                options: CallOptions::default(),
                known: Mutex::default(),
            }),
        }
    }

    /// Lets the function reuse the buffer of its `index`th operand for a result: the tensor that it is called with is
    /// gone then, whether the call succeeds or not. Fails where the function has clones.
    pub fn donate(mut self, index: usize) -> Result<Function> {
        self.not_donated(index)?.donated.push(index);
        Ok(self)
    }

    /// Donates an operand like [`Function::donate`], but keeps the tensor until the call has succeeded. So the call
    /// runs again where a worker is lost meanwhile, and after a call that failed the tensor can be used as before. The
    /// call takes memory for the old and the new tensor at once.
    pub fn donate_retain(mut self, index: usize) -> Result<Function> {
        self.not_donated(index)?.retained.push(index);
        Ok(self)
    }

    /// Lets the `index`th operand have any size along `axis`: the function is traced once for all sizes. A negative
    /// axis counts from the end. Axes of one name are of one size in each call. In the trace the size is a symbol, and
    /// `shape()` of a tensor that depends on it is `None`. Fails where the function has clones.
    ///
    /// A plan holds for sizes up to a bound, since it reserves memory: twice the size of the call that it is made for,
    /// or less where that does not fit. A call beyond the bound plans anew.
    pub fn dynamic(mut self, index: usize, axis: i64, name: &str) -> Result<Function> {
        let axis = DynamicAxis::new(index, axis, name)?;
        self.own()?.dynamic.push(axis);
        Ok(self)
    }

    /// Sets the deadline of the function's calls, and whether they run again where a worker is lost. A function with
    /// operands of [`Function::donate`] does not run again. Fails where the function has clones.
    pub fn options(mut self, options: CallOptions) -> Result<Function> {
        self.own()?.options = options;
        Ok(self)
    }

    /// Returns the shared part to change, and forgets all traces. Fails where the function has clones.
    fn own(&mut self) -> Result<&mut FunctionState> {
        let own = Arc::get_mut(&mut self.shared);
        let shared = own.ok_or_else(|| {
            let msg =
                "what a function donates and which axes are dynamic is said before it is cloned";
            Error::new(Code::InvalidArgument, msg)
        })?;
        // The traces depend on the settings that are about to change.
        shared.known = Mutex::default();
        Ok(shared)
    }

    fn not_donated(&mut self, index: usize) -> Result<&mut FunctionState> {
        let shared = self.own()?;
        match shared.donated.contains(&index) || shared.retained.contains(&index) {
            false => Ok(shared),
            true => {
                let msg = format!("operand {index} is donated already");
                Err(Error::new(Code::InvalidArgument, msg))
            }
        }
    }

    /// Calls the function with these operands. The results stay on the workers that compute them, until they are
    /// fetched. Returns once all results are there. Dropping the future cancels the step everywhere.
    #[track_caller]
    pub fn call(&self, operands: &[Tensor]) -> impl Future<Output = Result<Vec<Tensor>>> + use<> {
        self.start::<HostTensor>(operands, Location::caller())
    }

    /// Starts a call, whose results have the form that this kind of call gives.
    pub(crate) fn start<R: CallResult>(
        &self,
        operands: &[Tensor],
        at: &'static Location<'static>,
    ) -> impl Future<Output = Result<Vec<R::Handle>>> + use<R> {
        let (me, operands) = (self.clone(), operands.to_vec());
        async move {
            if let Some(made) = me.here(&operands, at) {
                return Ok(R::handles(made));
            }
            // Tracing runs the closure, which has to happen on this thread.
            let (compiled, axes) = me.compiled(&operands)?;
            let cluster = me.cluster.clone();
            // Boxed, so that every move of the future moves only a pointer.
            let run = Box::pin(async move { me.run::<R>(&compiled, &axes, &operands, at).await });
            cluster.compute(run).await
        }
    }

    /// Runs the call on this thread. Returns `None` where the signature is new, or the call cannot run here.
    fn here(&self, operands: &[Tensor], at: &'static Location<'static>) -> Option<Vec<Tensor>> {
        let shared = &self.shared;
        let plain = shared.donated.is_empty() && shared.retained.is_empty();
        if !plain || !shared.dynamic.is_empty() {
            return None;
        }
        let compiled = self.remembered(|signature| signature.is_of(operands))?;
        compiled.here(&self.cluster, operands, at)
    }

    /// Issues the function's ops here. In the closure of another function they become a part of that function:
    /// functions are composed this way, and errors and names of nodes keep the lines that they come from. With tensors
    /// of devices the ops are issued one by one, and nothing is donated.
    pub fn apply(&self, operands: &[Tensor]) -> Result<Vec<Tensor>> {
        let _within = nesting::enter(&self.shared.name)?;
        (self.shared.body)(operands)
    }

    /// Returns the function's graph as readable text, for operands of these types on these devices.
    pub fn graph(&self, operands: &[Tensor]) -> Result<String> {
        let (compiled, _) = self.compiled(operands)?;
        Ok(compiled.inner.function.to_string())
    }

    /// Plans the function for these operands, and makes it ready to be called. Returns how it is split.
    pub async fn plan(&self, operands: &[Tensor]) -> Result<PlanSummary> {
        let (compiled, axes) = self.compiled(operands)?;
        let ready = self.cluster.net.run(async move {
            let mut attempts = compiled.inner.load_attempts();
            let held = compiled.inner.ready(&axes, &mut attempts).await;
            Ok(held?.lease.planned.summary.clone())
        });
        ready.await
    }

    /// The number of signatures that the function is traced for.
    pub fn traces(&self) -> usize {
        self.known().len()
    }

    fn known(&self) -> MutexGuard<'_, Vec<(Signature, Arc<CompiledFunction>)>> {
        let known = self.shared.known.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the compiled function of a signature that `is` accepts, and notes its use.
    fn remembered(&self, is: impl Fn(&Signature) -> bool) -> Option<Arc<CompiledFunction>> {
        let mut known = self.known();
        let i = known.iter().rposition(|(s, _)| is(s))?;
        let last = known.len() - 1;
        known[i..=last].rotate_left(1);
        Some(known[last].1.clone())
    }

    /// Returns the function compiled for operands of this signature, and the sizes of its dynamic axes.
    fn compiled(&self, operands: &[Tensor]) -> Result<(Arc<CompiledFunction>, Bindings)> {
        let shared = &self.shared;
        let (types, sizes) = axes::symbolic(&shared.dynamic, operands)?;
        let mut signature = Signature(vec![]);
        for (t, ty) in operands.iter().zip(&types) {
            let worker = t.worker().map(|w| w.participant.clone());
            let symbolic = || {
                let msg = "a function is called with tensors of devices";
                Error::new(Code::InvalidArgument, msg)
            };
            signature.0.push((ty.clone(), worker.ok_or_else(symbolic)?));
        }
        if let Some(compiled) = self.remembered(|s| *s == signature) {
            return Ok((compiled, sizes));
        }
        // The lock is not held here: the closure may use the function itself.
        let within = nesting::enter(&shared.name)?;
        let (donated, body) = (&shared.donated, &*shared.body);
        // The trace serves all calls, so the device scopes of the first caller do not apply to it.
        let run = || Trace::run(&shared.name, operands, &types, donated, body);
        let what = format!("the closure of {}", shared.name);
        let mut traced = callbacks::run(&self.cluster.net, &what, || unscoped(run))??;
        drop(within);
        let function = Arc::new(std::mem::take(&mut traced.function));
        let verified = function.verify();
        verified.map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))?;
        let options = FunctionOptions {
            pins: std::mem::take(&mut traced.pins),
            numerics: Numerics::Exact,
            in_flight: IN_FLIGHT,
            retry: shared.options.retry,
            ..FunctionOptions::default()
        };
        let sources = &self.cluster.session.sources;
        let served = sources.serve(std::mem::take(&mut traced.sources));
        let inner = Inner::new(&self.cluster, function, served, options)?;
        let compiled = Arc::new(CompiledFunction { traced, inner });
        let mut known = self.known();
        if known.len() >= SIGNATURES {
            known.remove(0);
        }
        known.push((signature, compiled.clone()));
        Ok((compiled, sizes))
    }

    async fn run<R: CallResult>(
        &self,
        compiled: &CompiledFunction,
        axes: &Bindings,
        operands: &[Tensor],
        at: &'static Location<'static>,
    ) -> Result<Vec<R::Handle>> {
        let call = Call {
            options: &self.shared.options,
            retained: &self.shared.retained,
            axes,
            fed: &[],
            at,
        };
        compiled.call::<R>(&self.cluster, operands, call).await
    }
}
