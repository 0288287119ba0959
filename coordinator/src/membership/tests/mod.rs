//! Tests of the core: a clock that tests move, and the commands that the core gives.

mod joining;
mod leases;
mod plans;
mod replaying;
mod restarting;
mod room;

use std::sync::Arc;
use std::time::Duration;

use convoke_common::device_spec::DeviceId;
use convoke_common::identity::{Budget, PeerIdentity, Role, Serial, TokenId};
use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::memory::SharedBlocks;
use convoke_common::rpc::{HeldLease, RETURN_BOUND, Registration, Speed, WorkerKernels};
use convoke_graph::ids::FunctionId;
use convoke_graph::ops::KernelSet;
use convoke_graph::program::{Axes, HashedProgram, Program};

use super::events::Newcomer;
use super::*;
use crate::plan::{MemoryNeed, PartMemory};

const CLIENT: ConnectionId = ConnectionId(90);
pub(super) const LEASE: LeaseId = LeaseId(7);
const PLAN: PlanId = PlanId(5);
const FUNCTION: FunctionId = FunctionId([3; 32]);

/// A core with a clock that tests move by hand.
pub(super) struct Rig {
    pub(super) core: Membership,
    pub(super) now: Moment,
    /// The function that the client of [`Rig::model_for`] wants to install.
    wants: Option<FunctionId>,
}

pub(super) fn rig() -> Rig {
    Rig {
        core: Membership::new("p1"),
        now: Moment::START,
        wants: None,
    }
}

/// The measured speed of every worker.
const SPEED: Speed = Speed {
    flops: 1e9,
    memory_bandwidth: 1e9,
};

fn newcomer(connection: u64, name: &str, key: u8, incarnation: u64) -> Newcomer {
    Newcomer {
        connection: ConnectionId(connection),
        name: name.into(),
        fingerprint: [key; 32],
        address: format!("host:{connection}"),
        register: Registration {
            incarnation: Incarnation(incarnation),
            advertise: String::new(),
            host: "host".into(),
            version: "1.2.3".into(),
            profile: "p1".into(),
            device: DeviceId::default(),
            device_profile: "p1".into(),
            threads: 2,
            memory: 1 << 30,
            device_memory: 1 << 30,
            device_blocks: SharedBlocks::default(),
            load_buffer: 8 << 20,
            host_speed: SPEED,
            device_speed: SPEED,
            leases: vec![],
            deaths: vec![],
            ops: vec![],
            kernels: WorkerKernels {
                host: KernelSet::all(),
                device: KernelSet::all(),
            },
        },
        at: 0,
    }
}

/// The worker `wN` on connection N, which holds a lease of this incarnation of the client.
fn holder(n: u64, driver: u64) -> Newcomer {
    let mut worker = newcomer(n, &format!("w{n}"), n as u8 + 1, 7);
    worker.register.leases.push(HeldLease {
        lease: LEASE,
        model: "m".into(),
        driver: ("me".into(), Incarnation(driver)),
    });
    worker
}

fn participant(name: &str, incarnation: u64, connection: u64) -> Participant {
    let address = if connection == 0 {
        String::new()
    } else {
        format!("host:{connection}")
    };
    Participant {
        name: name.into(),
        incarnation: Incarnation(incarnation),
        address,
    }
}

/// The command to save that the holder of a name is gone.
pub(super) fn gone(name: &str, left: bool) -> Command {
    Command::Gone {
        name: name.into(),
        left,
    }
}

/// A saved name with its certificate, of a worker that was connected.
fn kept(n: u8) -> KeptMember {
    KeptMember {
        name: format!("w{n}"),
        fingerprints: vec![[n + 1; 32]],
        gone: None,
    }
}

impl Rig {
    pub(super) fn commands(&mut self) -> Vec<Command> {
        self.core.commands()
    }

    pub(super) fn register(
        &mut self,
        connection: u64,
        name: &str,
        key: u8,
        incarnation: u64,
    ) -> Result<Vec<Participant>, MembershipError> {
        self.core
            .register(self.now, newcomer(connection, name, key, incarnation))
    }

    /// The workers that a client of this token may use.
    pub(super) fn model_for(
        &self,
        token: &TokenId,
        avoid: &[(String, Incarnation)],
    ) -> ClusterModel {
        let identity = PeerIdentity {
            role: Role::Client,
            name: "me".parse().unwrap(),
            token_id: token.clone(),
            budget: Budget::default(),
            serial: Serial::from_random([1; 16]),
            fingerprint: [0; 32],
        };
        let wants = self.wants.map(|function| (me(), function));
        let asker = Asker { identity, wants };
        self.core.model(self.now, avoid, &asker)
    }

    pub(super) fn model(&self, avoid: &[(String, Incarnation)]) -> ClusterModel {
        self.model_for(&TokenId::direct(), avoid)
    }

    /// Registers `w0`, `w1`, … on connections 0, 1, …; the key and the incarnation of `wN` are N + 1.
    pub(super) fn workers(mut self, count: u64) -> Rig {
        for n in 0..count {
            self.register(n, &format!("w{n}"), n as u8 + 1, n + 1)
                .unwrap();
        }
        self.commands();
        self
    }

    /// Grants a plan of the client over `w0` and `w1`.
    pub(super) fn granted(mut self) -> Rig {
        self.core.resume(CLIENT, me(), vec![]).unwrap();
        self.core
            .keep_plan(self.now, CLIENT, PLAN, Arc::new(plan()), None, true);
        let granted = self.core.grant(self.now, CLIENT, PLAN, LEASE).unwrap();
        assert_eq!(granted.connections, [ConnectionId(0), ConnectionId(1)]);
        assert_eq!(self.commands(), []);
        self
    }
}

/// Returns the leases that the worker on connection 0 is told to drop.
fn dropped(rig: &mut Rig) -> Vec<LeaseId> {
    let commands = rig.commands().into_iter();
    let lease = |c| match c {
        Command::Release { lease, at, .. } if at == [ConnectionId(0)] => Some(lease),
        _ => None,
    };
    commands.filter_map(lease).collect()
}

/// The client, as a driver.
fn me() -> Driver {
    Driver {
        name: "me".into(),
        incarnation: Incarnation(9),
    }
}

/// A plan of the client over `w0` and `w1`.
fn plan() -> Plan {
    Plan {
        model: "m".into(),
        function: FUNCTION,
        token: TokenId::direct(),
        parts: [1, 2].map(part).into(),
        participants: vec![
            participant("w0", 1, 0),
            participant("w1", 2, 1),
            participant("me", 9, 0),
        ],
        bodies: vec![],
        axes: Axes::default(),
        in_flight: 1,
    }
}

/// A part of a plan whose steps need this many bytes. It needs as many MiB as there are steps in flight.
fn part(step_bytes: u64) -> PlanPart {
    PlanPart {
        program: HashedProgram::new(Arc::new(program())).unwrap(),
        step_bytes,
        needed: PartMemory {
            host: MemoryNeed::new(step_bytes << 20, BTreeMap::new()),
            device: MemoryNeed::default(),
        },
    }
}

fn program() -> Program {
    Program {
        name: "m".into(),
        function: FUNCTION,
        profile: "p1".into(),
        values: vec![],
        literals: vec![],
        artifacts: vec![],
        nodes: vec![],
        init_nodes: 0,
        recvs: vec![],
        sends: vec![],
    }
}

fn keep(name: &str, keys: &[u8]) -> Command {
    Command::Keep {
        name: name.into(),
        fingerprints: keys.iter().map(|k| [*k; 32]).collect(),
    }
}

fn release(at: &[u64]) -> Command {
    Command::Release {
        lease: LEASE,
        at: at.iter().map(|c| ConnectionId(*c)).collect(),
    }
}
