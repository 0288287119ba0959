//! A lease at one participant: the participants, the tensors that may arrive, and the step table.

use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::memory::Pool;
use convoke_common::mutant;
use convoke_common::telemetry::TraceIds;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::TensorType;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::{Axes, most_elements};
use convoke_graph::tensor::element_count;

use crate::frame::TensorHeader;
use crate::step::table::StepTable;

/// A process that takes part: its role and name are from its certificate, its incarnation from its hello.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    pub role: Role,
    pub name: String,
    pub incarnation: Incarnation,
}

impl Peer {
    /// The peer that this participant is, in this role.
    pub fn of(p: &Participant, role: Role) -> Peer {
        Peer {
            role,
            name: p.name.clone(),
            incarnation: p.incarnation,
        }
    }
}

/// The owner of a lease's steps: a worker's executor, or a driver.
///
/// Calls come from network tasks and, over local links, from the sender's thread; none may block.
pub trait StepHandler: Send + Sync {
    /// The driver starts step `n`; if the step is partial, an error ends only what depends on it. Returns `false` if
    /// the step was started before.
    fn start(&self, n: u64, axes: Vec<i64>, trace: TraceIds, partial: bool) -> bool;
    /// A slot for which a consumer is registered was filled.
    fn arrived(&self, n: u64, slot: u32);
    /// A participant ended step `n` with an error.
    fn abort(&self, n: u64, error: Error, from: ParticipantIx);
    /// A participant has quiesced step `n`.
    fn done(&self, n: u64, from: ParticipantIx);
    /// The driver is done with the lease and all its steps have ended: the lease is to be dropped.
    fn released(&self);
    /// A participant cannot be reached any more.
    fn peer_lost(&self, peer: ParticipantIx, error: &Error);
}

/// The source and the type of the tensors of a slot.
#[derive(Debug, Clone)]
pub struct RecvSpec {
    pub from: ParticipantIx,
    pub ty: TensorType,
}

/// Everything that a lease consists of at one participant.
pub struct Lease {
    pub id: LeaseId,
    pub me: ParticipantIx,
    /// The workers, then the driver.
    pub participants: Vec<Participant>,
    pub axes: Axes,
    pub table: StepTable,
    pub handler: Arc<dyn StepHandler>,
    /// The pool in which arriving tensors are allocated.
    pub pool: Pool,
    /// Whether the driver is a worker, as that of a partitioned body is. It may be one of the other participants as
    /// well.
    worker_drives: bool,
    recvs: Vec<RecvSpec>,
    /// The bound axes of each step in flight, by window entry.
    bindings: Box<[Mutex<Option<(u64, Arc<Bindings>)>>]>,
    at_bounds: Bindings,
}

impl Lease {
    /// Makes a lease of which no step has started.
    pub fn new(
        id: LeaseId,
        me: ParticipantIx,
        participants: Vec<Participant>,
        axes: Axes,
        in_flight: u32,
        recvs: Vec<RecvSpec>,
        pool: Pool,
        handler: Arc<dyn StepHandler>,
    ) -> Lease {
        let table = StepTable::new(in_flight, recvs.len());
        let bindings = (0..table.in_flight()).map(|_| Mutex::new(None)).collect();
        let at_bounds = axes.at_bounds();
        Lease {
            id,
            me,
            participants,
            axes,
            table,
            handler,
            pool,
            worker_drives: false,
            recvs,
            bindings,
            at_bounds,
        }
    }

    /// Makes it the lease of a partitioned body, whose driver is a worker.
    pub fn driven_by_worker(self) -> Lease {
        Lease {
            worker_drives: true,
            ..self
        }
    }

    /// Whether it is the lease of a partitioned body.
    pub fn is_of_body(&self) -> bool {
        self.worker_drives
    }

    /// The index of the driver.
    pub fn driver(&self) -> ParticipantIx {
        (self.participants.len() - 1) as ParticipantIx
    }

    /// The index of `peer`, if this incarnation takes part: a client as the driver, a worker as a worker. A worker that
    /// drives a lease counts as its driver for the others, and as a worker for itself.
    pub fn index_of(&self, peer: &Peer) -> Option<ParticipantIx> {
        let is = |p: &Participant| p.name == peer.name && p.incarnation == peer.incarnation;
        let (driver, workers) = self.participants.split_last()?;
        let drives = |role| match self.worker_drives {
            true => role == Role::Worker && self.me != self.driver() && is(driver),
            false => role == Role::Client && is(driver),
        };
        let at = match peer.role {
            role if drives(role) => Some(self.driver()),
            Role::Worker => workers.iter().position(is).map(|i| i as ParticipantIx),
            Role::Client | Role::Coordinator => None,
        };
        assert!(at.is_some() || !mutant!("stranger-panics"), "a stranger");
        at
    }

    /// Whether two participants are one process: themselves, or a worker and the driver that it is as well.
    pub(crate) fn is_same(&self, a: ParticipantIx, b: ParticipantIx) -> bool {
        let at = |ix: ParticipantIx| self.participants.get(usize::from(ix));
        a == b || self.worker_drives && at(a).is_some() && at(a) == at(b)
    }

    /// The key of step `n` in frames for a participant.
    pub fn key_at(&self, to: ParticipantIx, n: u64) -> StepKey {
        let lease = match self.worker_drives && to == self.driver() {
            true => self.id.at_driver(),
            false => self.id.at_workers(),
        };
        StepKey { lease, n }
    }

    /// The name of a participant.
    pub fn name_of(&self, ix: ParticipantIx) -> &str {
        self.participants
            .get(usize::from(ix))
            .map_or("?", |p| p.name.as_str())
    }

    /// The recv slots, by index.
    pub fn recvs(&self) -> &[RecvSpec] {
        &self.recvs
    }

    fn cell(&self, n: u64) -> &Mutex<Option<(u64, Arc<Bindings>)>> {
        &self.bindings[(n % self.table.in_flight()) as usize]
    }

    /// Records the axes of step `n`, after checking them against the lease's bounds.
    pub fn bind(&self, n: u64, axes: &[i64]) -> Result<Arc<Bindings>> {
        let b = Arc::new(self.axes.bind(axes)?);
        *self.cell(n).lock().unwrap_or_else(PoisonError::into_inner) = Some((n, b.clone()));
        Ok(b)
    }

    /// The axes of step `n`, if they are known.
    pub fn bindings(&self, n: u64) -> Option<Arc<Bindings>> {
        let cell = self.cell(n).lock().unwrap_or_else(PoisonError::into_inner);
        let (of, bindings) = cell.as_ref()?;
        (*of == n).then(|| bindings.clone())
    }

    /// Checks that a tensor has the dtype and the shape that its slot declares. Before the step's axes are known,
    /// dynamic sizes are checked against their bounds.
    pub fn check(&self, h: &TensorHeader) -> Result<()> {
        let violation = |why: String| Err(Error::new(Code::ProtocolViolation, why));
        let Some(spec) = self.recvs.get(h.slot as usize) else {
            return violation(format!("slot {} does not exist", h.slot));
        };
        let declared = &spec.ty;
        let mismatch = || {
            violation(format!(
                "{}{:?} arrived where {declared} is declared",
                h.dtype, h.shape
            ))
        };
        if h.dtype != declared.dtype || h.shape.len() != declared.shape.len() {
            return mismatch();
        }
        if let Some(fixed) = declared.fixed_shape() {
            return if fixed[..] == h.shape[..] {
                Ok(())
            } else {
                mismatch()
            };
        }
        let known = self
            .cell(h.key.n)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match known {
            Some((n, b)) if n == h.key.n => {
                for (d, got) in declared.shape.iter().zip(&h.shape) {
                    if d.eval(&b).is_some_and(|want| want != *got as i64) {
                        return mismatch();
                    }
                }
            }
            _ => {
                // The number of elements is compared, since the bytes of strings are not known in advance.
                let most = most_elements(declared, &self.at_bounds);
                let got = element_count(&h.shape).map(|n| n as u64);
                if most.is_some_and(|m| got.is_none_or(|g| g > m)) {
                    return mismatch();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use convoke_common::memory::{Ledger, Purpose};
    use convoke_graph::{DType, Dim};

    use super::*;

    struct Nobody;

    impl StepHandler for Nobody {
        fn start(&self, _: u64, _: Vec<i64>, _: TraceIds, _: bool) -> bool {
            false
        }
        fn arrived(&self, _: u64, _: u32) {}
        fn abort(&self, _: u64, _: Error, _: ParticipantIx) {}
        fn done(&self, _: u64, _: ParticipantIx) {}
        fn released(&self) {}
        fn peer_lost(&self, _: ParticipantIx, _: &Error) {}
    }

    #[test]
    fn a_worker_that_drives_a_body_counts_as_its_driver_for_the_others() {
        let participant = |name: &str| Participant {
            name: name.into(),
            incarnation: Incarnation(1),
            address: String::new(),
        };
        let check = |me: ParticipantIx, from: (Role, &str), want: Option<ParticipantIx>| {
            let ledger = Ledger::new("me", 1 << 20);
            let pool = Pool::new(&ledger, Purpose::Leases, 0).unwrap();
            let all = ["w0", "w1", "w0"].map(participant).into();
            let axes = Axes { bounds: vec![] };
            let (id, handler) = (LeaseId::of_lease(7).of_body(1), Arc::new(Nobody));
            let lease = Lease::new(id, me, all, axes, 1, vec![], pool, handler);
            let lease = lease.driven_by_worker();
            let peer = Peer::of(&participant(from.1), from.0);
            assert_eq!(lease.index_of(&peer), want, "{me} {from:?}");
            assert!(lease.is_same(0, 2) && !lease.is_same(0, 1));
            let [at_worker, at_driver] = [1, 2].map(|to| lease.key_at(to, 3).lease);
            assert_eq!((at_worker, at_driver), (id, id.at_driver()));
        };
        check(0, (Role::Worker, "w0"), Some(2));
        check(1, (Role::Worker, "w0"), Some(2));
        check(0, (Role::Worker, "w1"), Some(1));
        check(2, (Role::Worker, "w0"), Some(0));
        check(2, (Role::Worker, "w1"), Some(1));
        check(1, (Role::Client, "w0"), None);
        check(1, (Role::Worker, "w2"), None);
    }

    #[test]
    fn no_more_elements_arrive_than_the_bounds_allow() {
        let of = |rows: Dim, dtype, elements: usize| {
            let ty = TensorType::new(dtype, vec![rows, Dim::from(2usize)]);
            let axes = Axes {
                bounds: vec![("n".into(), 4)],
            };
            let ledger = Ledger::new("me", 1 << 20);
            let pool = Pool::new(&ledger, Purpose::Leases, 0).unwrap();
            let recvs = vec![RecvSpec { from: 0, ty }];
            let handler = Arc::new(Nobody);
            let lease = Lease::new(LeaseId(1), 0, vec![], axes, 1, recvs, pool, handler);
            lease.check(&TensorHeader {
                key: StepKey {
                    lease: LeaseId(1),
                    n: 0,
                },
                slot: 0,
                dtype,
                shape: [elements, 2].as_slice().into(),
                bytes: 0,
            })
        };
        // What is cut off an axis is longer where the axis' bound is not reached.
        let rest = &Dim::Const(6) - &Dim::sym("n");
        assert!(of(rest.clone(), DType::F32, 6).is_ok());
        assert!(of(rest, DType::F32, 7).is_err());
        let check = |dtype, elements| of(Dim::sym("n"), dtype, elements);
        for dtype in [DType::F32, DType::Str, DType::I4] {
            assert!(check(dtype, 4).is_ok());
            assert!(check(dtype, 5).is_err());
            assert!(check(dtype, usize::MAX).is_err());
        }
    }
}
