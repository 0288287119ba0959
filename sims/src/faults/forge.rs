//! Frames that nobody may send: what a worker with a valid certificate and bad intentions could say.
//!
//! All of them are to be refused and counted, and to change nothing: no result, no outcome, no step of anybody.

use convoke_common::Tensor;
use convoke_common::error::{Code, Error};
use convoke_common::ids::{LeaseId, StepKey};
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::{Link, Outgoing};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Host};
use crate::draw::Draw;
use crate::steps::{Lease, Steps};

/// What is forged.
#[derive(Debug, Clone)]
enum Forgery {
    Frame(Frame),
    Tensor(StepKey, u32, Tensor),
}

/// Sends a few forgeries from a worker's host over its links.
pub fn forge(cluster: &Cluster, steps: &Steps, host: Host, d: &mut Draw) {
    let Host::Worker(i) = host else { return };
    let forgeries: Vec<(u64, Forgery)> = (0..3)
        .filter_map(|_| Some((d.word(), forgery(steps, host, d)?)))
        .collect();
    drop(cluster.on_worker(i, move |worker| async move {
        let links = worker.hub().links();
        for (which, forgery) in forgeries {
            let Some(i) = (which as usize).checked_rem(links.len()) else {
                return;
            };
            send(&links[i], forgery);
        }
    }));
}

fn send(link: &Link, forgery: Forgery) {
    match forgery {
        Forgery::Frame(frame) => link.send(frame),
        Forgery::Tensor(key, slot, tensor) => link.send_tensor(Outgoing {
            key,
            slot,
            tensor,
            priority: 0,
            cancel: CancellationToken::new(),
            sent: Box::new(|| {}),
        }),
    }
}

/// Something about a step that is or was there which `host` may not say to anybody.
fn forgery(steps: &Steps, host: Host, d: &mut Draw) -> Option<Forgery> {
    // Recent steps: those in flight, and those just over.
    let recent: Vec<_> = steps.steps.iter().rev().take(12).collect();
    let (key, step) = *recent.get(d.index(recent.len())?)?;
    let lease = steps.leases.get(&key.0)?;
    let past = StepKey {
        lease: LeaseId(key.0),
        n: key.1,
    };
    let key = match d.below(4) {
        // Far above any window.
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
        // A worker starts nothing, and a driver is not told that something is done by one that has no part in it.
        0 => Forgery::Frame(Frame::Start {
            key,
            axes: vec![1],
            trace: Default::default(),
        }),
        1 if !takes_part => Forgery::Frame(Frame::Done { key }),
        // A stranger ends nothing, and nobody ends what is over.
        2 if !takes_part || over || key != past => {
            let error = error();
            Forgery::Frame(Frame::Abort { key, error })
        }
        _ => tensor(lease, step, key, host, d)?,
    })
}

/// A tensor that is somebody else's to send, comes again, or belongs to no slot.
fn tensor(
    lease: &Lease,
    step: &crate::steps::Step,
    key: StepKey,
    host: Host,
    d: &mut Draw,
) -> Option<Forgery> {
    let forged = Tensor::from_slice(&[2], &[d.word() as i64, 1]).ok()?;
    // Where it goes the slot is full already, or this host is not its source.
    let fits = |t: &crate::steps::Tensor| {
        !t.filled.is_empty() || t.sent.first().is_some_and(|(from, _)| *from != host)
    };
    let edges: Vec<u32> = step
        .tensors
        .iter()
        .filter(|(_, t)| fits(t))
        .map(|((_, slot), _)| *slot)
        .collect();
    let others = step.tensors.iter().any(|(_, t)| !fits(t));
    match d.index(edges.len()) {
        // A slot number means another edge at another participant: only where none of them is this host's to fill.
        Some(i) if !others || !lease.participants.contains(&host) => {
            Some(Forgery::Tensor(key, edges[i], forged))
        }
        _ => Some(Forgery::Tensor(key, 1 << 20, forged)),
    }
}
