//! One call of a function on handles: a step of the function's lease reads its operands, and fills its results, where
//! they live.

use std::panic::Location;
use std::sync::Arc;

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::TensorType;
use convoke_graph::program::FetchFrom;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::calls::attempts::{Attempts, FailedAttempt};
use crate::calls::function::Inner;
use crate::calls::lease::Lease;
use crate::calls::options::CallOptions;
use crate::calls::result::CallResult;
use crate::calls::worker_process::named;
use crate::cluster::Cluster;
use crate::eager::{LateShape, SessionOwner, WorkerSession, stranger};
use crate::tensor::{LocalTensor, PendingTensor, PlacedBy, Tensor};
use crate::trace::TracedFunction;

/// A function that is traced for operands of certain types on certain devices.
pub(crate) struct CompiledFunction {
    pub traced: TracedFunction,
    pub inner: Inner,
}

/// How a function is called.
pub(crate) struct Call<'a> {
    pub options: &'a CallOptions,
    /// Indices of the operands that are given up once the call has succeeded with all results.
    pub retained: &'a [usize],
    /// Sizes of the dynamic axes.
    pub axes: &'a Bindings,
    /// Tensors that the driver feeds to the last parameters, the ones that no handle is bound to.
    pub fed: &'a [HostTensor],
    pub at: &'static Location<'static>,
}

impl CompiledFunction {
    /// Runs the function on the calling thread. Returns `None` unless it is brief, and installed at one worker of this
    /// process that has all operands.
    pub fn here(
        &self,
        cluster: &Cluster,
        operands: &[Tensor],
        at: &'static Location<'static>,
    ) -> Option<Vec<Tensor>> {
        let traced = &self.traced;
        // The call needs no permit: a function whose lease has ended does not run here, and the call becomes a step.
        let lease = self.inner.lease()?;
        let worker = operands.iter().chain(&traced.captured).next()?.worker()?;
        let line = worker.line()?;
        let direct = lease.direct(&worker.participant, line)?;
        if !worker.is_in(&cluster.eager) || !lease.holds(&Bindings::new()) {
            return None;
        }
        let mut near: SmallVec<[LocalTensor<'_>; 4]> = SmallVec::new();
        for t in operands.iter().chain(&traced.captured) {
            near.push(t.here_on(worker)?);
        }
        let given: SmallVec<[&HostTensor; 4]> = near.iter().map(LocalTensor::tensor).collect();
        let (function, results) = (&*direct.function, traced.results.len());
        let made = line.call(function, &direct.numbers, &given, results, at)?;
        let handle = |here| Tensor::made_here(worker, here, PlacedBy::Planned, at);
        Some(made.into_iter().map(handle).collect())
    }

    /// Runs a step whose results are all handles, and runs it again where a worker is lost meanwhile.
    pub async fn call<R: CallResult>(
        &self,
        cluster: &Cluster,
        operands: &[Tensor],
        call: Call<'_>,
    ) -> Result<Vec<R::Handle>> {
        let done = self.step::<R>(cluster, operands, call).await;
        done.map(|(handles, _)| handles)
    }

    /// Runs a step like [`CompiledFunction::call`]. Returns the handles, and the values of the results after those.
    pub async fn step<R: CallResult>(
        &self,
        cluster: &Cluster,
        operands: &[Tensor],
        call: Call<'_>,
    ) -> Result<(Vec<R::Handle>, Vec<R>)> {
        let traced = &self.traced;
        let all: Vec<&Tensor> = operands.iter().chain(&traced.captured).collect();
        all.iter().try_for_each(|t| t.usable())?;
        let (donated, retained) = (&traced.donated, call.retained);
        for index in donated.iter().chain(retained) {
            let none = || {
                let msg = format!("operand {index} is donated, of {}", operands.len());
                Error::new(Code::InvalidArgument, msg)
            };
            let t = operands.get(*index).ok_or_else(none)?;
            if all.iter().filter(|o| o.same(t)).count() > 1 {
                let msg = format!("operand {index} is donated, and an operand besides");
                return Err(Error::new(Code::InvalidArgument, msg));
            }
        }
        if all
            .iter()
            .filter_map(|t| t.worker())
            .any(|w| !w.is_in(&cluster.eager))
        {
            return Err(stranger());
        }
        let promise = |of: &[usize]| -> Result<Vec<PendingTensor>> {
            of.iter().map(|i| operands[*i].promise()).collect()
        };
        let (given, promised) = (promise(donated)?, promise(retained)?);
        let mut attempts = Attempts::new(call.options);
        loop {
            lives(&all)?;
            let held = tokio::select! {
                biased;
                // No plan brings a lost operand back, so the call does not wait for a plan.
                () = gone(&all) => {
                    lives(&all)?;
                    return Err(Error::internal("a session that was lost is not"));
                }
                held = self.inner.ready(call.axes, &mut attempts) => held?,
            };
            let deadline = attempts.deadline();
            let results = match self.reserve(cluster, &held.lease, &call, deadline).await {
                Ok(results) => results,
                Err(failed) => {
                    attempts.failed(failed)?;
                    continue;
                }
            };
            let numbers = all.iter().map(|t| t.id());
            let numbers = numbers.chain(results.iter().map(|r| Ok(r.id)));
            let inputs = numbers.map(|n| n.map(HostTensor::scalar));
            let inputs: Vec<_> = inputs
                .chain(call.fed.iter().cloned().map(Ok))
                .collect::<Result<_>>()?;
            // From here on the step may have taken the donated operands, and cannot run again without them.
            given.iter().for_each(|p| p.give(call.at));
            if !given.is_empty() {
                attempts.end_with_this();
            }
            let step = held.lease.step::<R>(inputs, call.axes, deadline);
            let outcome = tokio::select! {
                biased;
                outcome = step => outcome,
                () = gone(&all) => {
                    lives(&all)?;
                    return Err(Error::internal("a session that was lost is not"));
                }
            };
            match outcome {
                Ok(mut given) => {
                    let values = given.split_off(results.len().min(given.len()));
                    if given.iter().all(R::is_there) {
                        promised.into_iter().for_each(|p| p.keep(call.at));
                    }
                    let handle =
                        |(reserved, r): (HandleReservation, R)| r.handle(|| reserved.keep(call.at));
                    let handles = results.into_iter().zip(given).map(handle);
                    return Ok((handles.collect(), values));
                }
                Err(failed) => {
                    drop(results);
                    let failed = attempts.failed(failed);
                    failed.map_err(|e| match donated.is_empty() {
                        true => e,
                        false => without_donated(e),
                    })?;
                }
            }
        }
    }

    /// Reserves a handle for each result, at the worker where the plan computes the result.
    async fn reserve(
        &self,
        cluster: &Cluster,
        lease: &Lease,
        call: &Call<'_>,
        deadline: Option<Instant>,
    ) -> Result<Vec<HandleReservation>, FailedAttempt> {
        let planned = &lease.planned;
        let mut reserved = Vec::new();
        for (fetch, ty) in planned.driver.fetches.iter().zip(&self.traced.results) {
            let worker = match fetch.from {
                FetchFrom::Worker { from, .. } => planned.participants.get(usize::from(from)),
                FetchFrom::Param(_) => None,
            };
            let worker = worker.ok_or_else(|| Error::internal("a result without a worker"))?;
            let session = cluster.eager.at(worker);
            let mut id = session.reserve(call.at);
            while id.as_ref().is_err_and(|e| e.code == Code::WouldBlock) {
                let room = session.room(WorkerSession::HALF);
                let _timer = deadline.map(|at| Timer::arm(TimerKind::Deadline, at));
                let room = match deadline {
                    None => room.await,
                    Some(deadline) => match tokio::time::timeout_at(deadline, room).await {
                        Ok(room) => room,
                        Err(_) => {
                            let worker = &worker.name;
                            let msg = format!(
                                "the deadline passed while the call waited for room at {worker}"
                            );
                            return Err(Error::new(Code::DeadlineExceeded, msg).into());
                        }
                    },
                };
                id = room.and_then(|()| session.reserve(call.at));
            }
            let id = id.map_err(|e| FailedAttempt::of_step(e, vec![named(worker)]))?;
            let dims = ty.shape.iter().map(|d| d.substitute(call.axes));
            let ty = TensorType::new(ty.dtype, dims.collect());
            // The worker reports the shape when the step has filled the handle.
            let late = ty.fixed_shape().is_none().then(|| session.late(id));
            reserved.push(HandleReservation {
                session,
                id,
                ty,
                late,
                kept: false,
            });
        }
        Ok(reserved)
    }
}

/// Returns once the session of an operand is lost. The worker may not have noticed, and may wait for the operand.
async fn gone(operands: &[&Tensor]) {
    let mut sessions: Vec<&Arc<SessionOwner>> = Vec::new();
    for session in operands.iter().filter_map(|t| t.worker()) {
        if !sessions.iter().any(|s| Arc::ptr_eq(s, session)) {
            sessions.push(session);
        }
    }
    let mut all: FuturesUnordered<_> = sessions.iter().map(|s| s.gone()).collect();
    if all.next().await.is_none() {
        std::future::pending().await
    }
}

/// Fails where an operand was lost with its worker, or where its worker has refused it.
fn lives(operands: &[&Tensor]) -> Result<()> {
    for (i, t) in operands.iter().enumerate() {
        if let Some(error) = t.worker().and_then(|w| w.lost_because()) {
            return Err(unavailable(i, &t.ty(), error));
        }
    }
    Ok(())
}

/// The error of an operand whose session ended with `error`. A worker that lacks memory or places, or does not trust
/// this client, refuses the session: the refusal is then the cause, and no state is lost that the worker had taken.
fn unavailable(index: usize, ty: &TensorType, error: Error) -> Error {
    let refused = matches!(
        error.code,
        Code::OutOfMemory | Code::Busy | Code::Unauthorized | Code::VersionMismatch
    );
    let (code, what) = match refused {
        true => (error.code, "was not taken"),
        false => (Code::StateLost, "is lost"),
    };
    let msg = format!("operand {index}, {ty}, {what}: {}", error.message);
    Error::new(code, msg)
        .at(error.site.map(|s| *s).unwrap_or_default())
        .advise("put it, or compute it, on another device again")
}

/// Adds to the advice of a failed step's error that the step took the donated operands.
fn without_donated(error: Error) -> Error {
    let gone = "the donated operands are gone with the call";
    let advice = match error.advice.as_str() {
        "" => gone.to_owned(),
        known => format!("{known}; {gone}"),
    };
    error.advise(advice)
}

/// A handle that a step is to fill. Dropping it before it is kept gives it up.
struct HandleReservation {
    session: Arc<SessionOwner>,
    id: u64,
    ty: TensorType,
    late: Option<LateShape>,
    kept: bool,
}

impl HandleReservation {
    fn keep(mut self, at: &'static Location<'static>) -> Tensor {
        self.kept = true;
        let (session, id) = (&self.session, self.id);
        match self.ty.fixed_shape() {
            Some(shape) => {
                let ty = (self.ty.dtype, shape.as_slice().into());
                Tensor::remote(session, id, ty, PlacedBy::Planned, at)
            }
            None => {
                let (ty, shape) = (self.ty.clone(), self.late.clone().unwrap_or_default());
                Tensor::late(session, id, ty, shape, PlacedBy::Planned, at)
            }
        }
    }
}

impl Drop for HandleReservation {
    fn drop(&mut self) {
        if !self.kept {
            self.session.abandon(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::DType;

    use super::*;

    #[test]
    fn an_error_keeps_its_advice_where_donated_operands_are_gone() {
        let error = || Error::new(Code::KernelFailed, "index 9 is out of range");
        let gone = "the donated operands are gone with the call";
        assert_eq!(without_donated(error()).advice, gone);
        let advised = without_donated(error().advise("feed indices below 4"));
        assert_eq!(advised.advice, format!("feed indices below 4; {gone}"));
    }

    #[test]
    fn an_operand_that_was_refused_is_not_called_lost() {
        let ty = TensorType::fixed(DType::F32, &[2]);
        let check = |code, expected, text: &str| {
            let error = Error::new(code, "w1 refused the connection").about("w1");
            let e = unavailable(1, &ty, error);
            assert_eq!((e.code, e.message.as_str()), (expected, text));
            assert_eq!(e.site.unwrap().worker.as_deref(), Some("w1"));
        };
        let refused = "operand 1, f32[2], was not taken: w1 refused the connection";
        for code in [Code::OutOfMemory, Code::Busy, Code::Unauthorized] {
            check(code, code, refused);
        }
        let lost = "operand 1, f32[2], is lost: w1 refused the connection";
        for code in [Code::PeerLost, Code::Unreachable, Code::Cancelled] {
            check(code, Code::StateLost, lost);
        }
    }
}
