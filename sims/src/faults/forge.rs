//! Frames that their sender may not send: what a worker with a valid certificate and bad intentions could say.
//!
//! Receivers have to refuse and count all of them, and a forgery must change nothing: no result, no outcome and no step
//! of anybody.

use convoke_common::error::{Code, Error};
use convoke_common::ids::{LeaseId, StepKey};
use convoke_graph::Tensor;
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::{Link, Outgoing};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Host};
use crate::draw::Draw;
use crate::steps::{Edge, Lease, Steps};

/// A forged message.
#[derive(Debug, Clone)]
enum Forgery {
    Frame(Frame),
    /// A tensor for a slot of a step. It goes to the worker of this name, or over any link if no name is given.
    Tensor(Option<String>, StepKey, u32, Tensor),
}

/// Sends a few forgeries from a worker's host over its links.
pub fn forge(cluster: &Cluster, steps: &Steps, host: Host, d: &mut Draw) {
    let Host::Worker(i) = host else { return };
    let mut forgeries: Vec<(u64, Forgery)> = (0..3)
        .filter_map(|_| Some((d.word(), forgery(steps, host, d)?)))
        .collect();
    forgeries.extend(again(cluster, steps, host, d).map(|again| (0, again)));
    drop(cluster.on_worker(i, move |worker| async move {
        let links = worker.hub().links();
        for (which, forgery) in forgeries {
            let Some(i) = (which as usize).checked_rem(links.len()) else {
                return;
            };
            let link = match &forgery {
                Forgery::Tensor(Some(to), ..) => links.iter().find(|l| l.peer().name == *to),
                _ => links.get(i),
            };
            if let Some(link) = link {
                send(link, forgery);
            }
        }
    }));
}

fn send(link: &Link, forgery: Forgery) {
    match forgery {
        Forgery::Frame(frame) => link.send(frame),
        Forgery::Tensor(_, key, slot, tensor) => link.send_tensor(Outgoing {
            key,
            slot,
            tensor,
            priority: 0,
            cancel: CancellationToken::new(),
            sent: Box::new(|| {}),
        }),
    }
}

/// Repeats a tensor of a step in flight that `host` has sent to a worker and that has arrived: it has the right type
/// and its true source, but other values.
fn again(cluster: &Cluster, steps: &Steps, host: Host, d: &mut Draw) -> Option<Forgery> {
    let mut there = Vec::new();
    for ((lease, n), step) in steps.live() {
        let participants = steps.leases.get(lease)?;
        if participants.is_of_body() {
            continue;
        }
        for ((to, slot), t) in &step.tensors {
            let mine = t.sent.first().is_some_and(|(from, _)| *from == host);
            let to = participants
                .host(*to)
                .filter(|_| mine && !t.filled.is_empty());
            if let Some(Host::Worker(to)) = to {
                there.push((LeaseId(*lease), *n, to, *slot));
            }
        }
    }
    let (lease, n, to, slot) = *there.get(d.index(there.len())?)?;
    let lease_there = cluster.worker(to)?.hub().lease(lease)?;
    let ty = &lease_there.recvs().get(slot as usize)?.ty;
    let tensor = Tensor::zeros(ty.dtype, &ty.fixed_shape()?).ok()?;
    let key = StepKey { lease, n };
    let to = Some(Host::Worker(to).name());
    Some(Forgery::Tensor(to, key, slot, tensor))
}

/// Draws a message about a present or past step that `host` may send to nobody.
fn forgery(steps: &Steps, host: Host, d: &mut Draw) -> Option<Forgery> {
    // The choice is among the steps in flight and some that may be over.
    let some = steps.steps.iter().rev().take(12);
    let recent: Vec<_> = steps.live().chain(some).collect();
    let (key, step) = *recent.get(d.index(recent.len())?)?;
    // The driver of a partitioned body is a worker, which may say all of this.
    let lease = steps.leases.get(&key.0).filter(|l| !l.is_of_body())?;
    let past = StepKey {
        lease: LeaseId(key.0),
        n: key.1,
    };
    let key = match d.below(4) {
        // This number is far above any window.
        0 => StepKey {
            n: past.n + d.pick(&[1000, u64::from(u32::MAX), u64::MAX >> 1]),
            ..past
        },
        _ => past,
    };
    let takes_part = lease.participants.contains(&host);
    let over = !step.retired.is_empty();
    let error = || Box::new(Error::new(Code::KernelFailed, "forged"));
    Some(match d.below(5) {
        // A worker may not start steps, and only a participant may tell the driver that it is done.
        0 => Forgery::Frame(Frame::Start {
            key,
            axes: vec![1],
            trace: Default::default(),
            partial: false,
        }),
        1 if !takes_part => Forgery::Frame(Frame::Done { key }),
        // Only a participant may abort a step, and nobody may abort one that is over.
        2 if !takes_part || over || key != past => {
            let error = error();
            Forgery::Frame(Frame::Abort { key, error })
        }
        _ => tensor(lease, step, key, host, d)?,
    })
}

/// Draws a tensor that only another participant may send, or one for a slot that does not exist.
fn tensor(
    lease: &Lease,
    step: &crate::steps::Step,
    key: StepKey,
    host: Host,
    d: &mut Draw,
) -> Option<Forgery> {
    let forged = Tensor::from_slice(&[2], &[d.word() as i64, 1]).ok()?;
    let theirs = |t: &crate::steps::Tensor| t.sent.first().is_some_and(|(from, _)| *from != host);
    let edges = step.tensors.iter().filter(|(_, t)| theirs(t));
    let edges: Vec<Edge> = edges.map(|(edge, _)| *edge).collect();
    let Some(i) = d.index(edges.len()) else {
        return Some(Forgery::Tensor(None, key, 1 << 20, forged));
    };
    let (to, slot) = edges[i];
    // At another participant, the same slot number means another edge, which this host may be allowed to fill.
    let to = match lease.participants.contains(&host) {
        true => Some(lease.host(to)?.name()),
        false => None,
    };
    Some(Forgery::Tensor(to, key, slot, forged))
}
