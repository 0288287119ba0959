//! Functions of tensors: traced, planned and leased once per signature of their operands, then called.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::dim::Bindings;
use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::TensorType;
use convoke_common::program::Participant;
use convoke_common::rpc::PlanSummary;
use convoke_common::{Dim, Tensor as HostTensor};

use crate::axes::{self, DynamicAxis};
use crate::builder::{ModelBuilder, Origin};
use crate::callbacks;
use crate::cluster::Cluster;
use crate::device::unscoped;
use crate::function::Inner;
use crate::model::CallOptions;
use crate::nesting;
use crate::partial::Given;
use crate::step::{Call, Compiled};
use crate::tensor::Tensor;
use crate::trace::Trace;

/// Signatures that a function is kept for; beyond them the one not used for longest is traced anew.
const SIGNATURES: usize = 32;
/// Calls of one function that run at once; further ones wait.
const IN_FLIGHT: u32 = 4;

type Body = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// A function of tensors, made by [`Cluster::function`]. Cloning shares it.
#[derive(Clone)]
pub struct Function {
    cluster: Cluster,
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    body: Box<Body>,
    donated: Vec<usize>,
    retained: Vec<usize>,
    dynamic: Vec<DynamicAxis>,
    options: CallOptions,
    /// The latest use last.
    known: Mutex<Vec<(Signature, Arc<Compiled>)>>,
}

/// Of each operand: type, and the process that it is on.
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
    /// A function that is traced once for each signature of its operands, which is their dtypes, shapes and devices:
    /// `f` is called with symbolic tensors, and what it issues is optimised, placed and partitioned as one. What it
    /// computes has the same bits as when it is issued op by op. Rust control flow unrolls; tensors of devices that
    /// `f` uses are read anew at each call; everything else of Rust in `f` happens when it is traced.
    ///
    /// `f` runs on the thread that calls the function, or awaits its call: one that takes long holds up that thread, which
    /// is warned of after a second. A panic in it is the call's error.
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
            shared: Arc::new(Shared {
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

    /// The function, which may reuse the buffer of its `index`th operand for a result: the tensor that it is called
    /// with is gone then, whether the call succeeds or not. Said before the function is cloned.
    pub fn donate(mut self, index: usize) -> Result<Function> {
        self.not_donated(index)?.donated.push(index);
        Ok(self)
    }

    /// As [`Function::donate`], but the tensor is kept until the call has succeeded, and only then gone. So the call
    /// runs again where a worker is lost over it, and after one that failed the tensor can be used as before. It takes
    /// memory for the old and the new at once.
    pub fn donate_retain(mut self, index: usize) -> Result<Function> {
        self.not_donated(index)?.retained.push(index);
        Ok(self)
    }

    /// The function, whose `index`th operand may have any size along `axis`: it is traced once for all of them. A
    /// negative axis counts from the end. Axes of one name are of one size in each call. In the trace the size is a
    /// symbol, and `shape()` of what depends on it is `None`. Said before the function is cloned.
    ///
    /// A plan holds for sizes up to a bound, since it reserves memory: twice the size of the call that it is made for.
    /// A call beyond it plans anew, for twice its own size.
    pub fn dynamic(mut self, index: usize, axis: i64, name: &str) -> Result<Function> {
        let axis = DynamicAxis::new(index, axis, name)?;
        self.own()?.dynamic.push(axis);
        Ok(self)
    }

    /// The function, whose calls have this deadline, and run again or not where a worker is lost. One that donates does
    /// not run again. Said before the function is cloned.
    pub fn options(mut self, options: CallOptions) -> Result<Function> {
        self.own()?.options = options;
        Ok(self)
    }

    /// What can be changed as long as nobody else has it.
    fn own(&mut self) -> Result<&mut Shared> {
        let own = Arc::get_mut(&mut self.shared);
        let shared = own.ok_or_else(|| {
            let msg =
                "what a function donates and which axes are dynamic is said before it is cloned";
            Error::new(Code::InvalidArgument, msg)
        })?;
        // Traces say both.
        shared.known = Mutex::default();
        Ok(shared)
    }

    fn not_donated(&mut self, index: usize) -> Result<&mut Shared> {
        let shared = self.own()?;
        match shared.donated.contains(&index) || shared.retained.contains(&index) {
            false => Ok(shared),
            true => {
                let msg = format!("operand {index} is donated already");
                Err(Error::new(Code::InvalidArgument, msg))
            }
        }
    }

    /// The function called with these operands: results stay on the workers that compute them, until they are fetched.
    /// Returns once all are there. Dropping the future cancels the step everywhere.
    #[track_caller]
    pub fn call(&self, operands: &[Tensor]) -> impl Future<Output = Result<Vec<Tensor>>> + use<> {
        self.start::<HostTensor>(operands, Location::caller())
    }

    /// A call; results as the kind of call gives them.
    pub(crate) fn start<R: Given>(
        &self,
        operands: &[Tensor],
        at: &'static Location<'static>,
    ) -> impl Future<Output = Result<Vec<R::Handle>>> + use<R> {
        let (me, operands) = (self.clone(), operands.to_vec());
        async move {
            if let Some(made) = me.here(&operands, at) {
                return Ok(R::handles(made));
            }
            // The trace runs the closure, and that on this thread.
            let (compiled, axes) = me.compiled(&operands)?;
            let cluster = me.cluster.clone();
            // One that is boxed is not moved from hand to hand.
            let run = Box::pin(async move { me.run::<R>(&compiled, &axes, &operands, at).await });
            cluster.compute(run).await
        }
    }

    /// A call on this thread, where it was called before and can be done so.
    fn here(&self, operands: &[Tensor], at: &'static Location<'static>) -> Option<Vec<Tensor>> {
        let shared = &self.shared;
        let plain = shared.donated.is_empty() && shared.retained.is_empty();
        if !plain || !shared.dynamic.is_empty() {
            return None;
        }
        let compiled = self.remembered(|signature| signature.is_of(operands))?;
        compiled.here(&self.cluster, operands, at)
    }

    /// What the function issues, issued here. In the closure of another function that becomes a part of it: functions
    /// are put together this way, and errors and names of nodes keep the lines that they come from. With tensors of
    /// devices it is issued op by op, and nothing is donated.
    pub fn apply(&self, operands: &[Tensor]) -> Result<Vec<Tensor>> {
        let _within = nesting::enter(&self.shared.name)?;
        (self.shared.body)(operands)
    }

    /// The function as readable text, for operands of these types on these devices.
    pub fn graph(&self, operands: &[Tensor]) -> Result<String> {
        let (compiled, _) = self.compiled(operands)?;
        Ok(compiled.inner.function.to_string())
    }

    /// How the function is split for these operands. Plans it, and makes it ready to be called.
    pub async fn plan(&self, operands: &[Tensor]) -> Result<PlanSummary> {
        let (compiled, axes) = self.compiled(operands)?;
        let ready = self.cluster.net.run(async move {
            let mut attempts = compiled.inner.load_attempts();
            let held = compiled.inner.ready(&axes, &mut attempts).await;
            Ok(held?.lease.planned.summary.clone())
        });
        ready.await
    }

    /// For how many signatures it is traced.
    pub fn traces(&self) -> usize {
        self.known().len()
    }

    fn known(&self) -> MutexGuard<'_, Vec<(Signature, Arc<Compiled>)>> {
        let known = self.shared.known.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// What it was compiled to for a signature.
    fn remembered(&self, is: impl Fn(&Signature) -> bool) -> Option<Arc<Compiled>> {
        let mut known = self.known();
        let i = known.iter().rposition(|(s, _)| is(s))?;
        let last = known.len() - 1;
        known[i..=last].rotate_left(1);
        Some(known[last].1.clone())
    }

    /// The function for operands as these, and the sizes of its dynamic axes.
    fn compiled(&self, operands: &[Tensor]) -> Result<(Arc<Compiled>, Bindings)> {
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
        // Without the lock: the closure may use the function itself.
        let within = nesting::enter(&shared.name)?;
        let (donated, body) = (&shared.donated, &*shared.body);
        // The trace is for all calls: whoever is the first to need it is in scopes of its own.
        let run = || Trace::run(&shared.name, operands, &types, donated, body);
        let what = format!("the closure of {}", shared.name);
        let mut traced = callbacks::run(&self.cluster.net, &what, || unscoped(run))??;
        drop(within);
        let function = Arc::new(std::mem::take(&mut traced.function));
        let verified = function.verify();
        verified.map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))?;
        let origin = Origin::Function(function.clone(), vec![]);
        let mut builder = ModelBuilder::new(self.cluster.clone(), origin)
            .exact(true)
            .in_flight(IN_FLIGHT)
            .retry(shared.options.retry);
        builder.pins = std::mem::take(&mut traced.pins);
        let session = self.cluster.session.clone();
        let served = session.sources.serve(std::mem::take(&mut traced.sources));
        let inner = Inner::new(session, function, served, &builder)?;
        let compiled = Arc::new(Compiled { traced, inner });
        let mut known = self.known();
        if known.len() >= SIGNATURES {
            known.remove(0);
        }
        known.push((signature, compiled.clone()));
        Ok((compiled, sizes))
    }

    async fn run<R: Given>(
        &self,
        compiled: &Compiled,
        axes: &Bindings,
        operands: &[Tensor],
        at: &'static Location<'static>,
    ) -> Result<Vec<R::Handle>> {
        let call = Call {
            options: &self.shared.options,
            retained: &self.shared.retained,
            axes,
            at,
        };
        compiled.call::<R>(&self.cluster, operands, call).await
    }
}
