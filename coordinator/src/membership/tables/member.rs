//! One worker's name, and all that the coordinator knows of it.

use std::collections::VecDeque;
use std::time::Duration;

use convoke_common::ids::Incarnation;
use convoke_common::mutant;
use convoke_common::rpc::MemberState;
use serde::{Deserialize, Serialize};

use super::known_use::KnownUse;
use super::offer::Offer;
use crate::membership::interface::{ConnectionId, Fingerprint, Moment};

/// How long the name of a worker that is gone is kept for its return. The status lists the worker for as long, unless
/// it had announced that it would leave.
pub const KEPT: Duration = Duration::from_secs(86_400);

/// Most names that are kept, of living and lost workers together: far more than one coordinator serves well.
pub const MEMBERS: usize = 1024;

/// Most certificates that hold a name: the one in use and the one before it.
const FINGERPRINTS: usize = 2;

/// How many former processes of a name are remembered. A former process may return: it was cut off while others came
/// and went.
const SUPERSEDED: usize = 8;

/// Whether a living worker takes new work, as it reported, or as the owner decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceState {
    /// It takes new work.
    Serving,
    /// It takes no new work and will end.
    Leaving,
    /// It takes no new work because one of its kernels does not stop; the text is the worker's explanation.
    Wedged(String),
}

/// The stage of a worker's life.
#[derive(Debug)]
pub enum Life {
    /// A certificate was issued, but the worker has not registered with this process of the coordinator.
    Expected,
    /// The worker is registered on this connection.
    Alive {
        connection: ConnectionId,
        offer: Offer,
        service: ServiceState,
    },
    /// The worker's connection ended.
    Lost {
        offer: Offer,
        /// Whether the worker had announced that it would leave.
        left: bool,
    },
    /// The worker left as it had announced, before this process of the coordinator was started.
    Left,
}

impl Life {
    /// Returns the offer of the process that has the name, or had it last.
    pub fn offer(&self) -> Option<&Offer> {
        match self {
            Life::Alive { offer, .. } | Life::Lost { offer, .. } => Some(offer),
            Life::Expected | Life::Left => None,
        }
    }
}

/// The record of one name.
#[derive(Debug)]
pub struct Member {
    /// Hashes of the certificates that hold the name, the newest last.
    pub fingerprints: Vec<Fingerprint>,
    /// Until when a newcomer that was just given the name may register.
    pub reserved_until: Option<Moment>,
    /// When the worker was last heard from, or when its certificate was issued.
    pub seen: Moment,
    pub life: Life,
    /// Incarnations that had the name before, the latest last: none of them gets the name back.
    pub superseded: VecDeque<Incarnation>,
    /// Whether the name is out of service until the owner undoes that, whichever process has it.
    pub drained: bool,
    /// A remark for the status on how the former process ended.
    pub remark: String,
    /// The worker's last report of its memory, and the leases that it had no room for.
    pub memory: KnownUse,
}

impl Member {
    /// Returns the record of a name whose worker has not registered yet.
    pub fn expected(now: Moment) -> Member {
        Member {
            fingerprints: vec![],
            reserved_until: None,
            seen: now,
            life: Life::Expected,
            superseded: VecDeque::new(),
            drained: false,
            remark: String::new(),
            memory: KnownUse::default(),
        }
    }

    /// Adds a certificate that holds the name, in place of the oldest if there are too many.
    pub fn add_fingerprint(&mut self, fingerprint: Fingerprint) {
        if self.fingerprints.len() >= FINGERPRINTS {
            self.fingerprints.remove(0);
        }
        self.fingerprints.push(fingerprint);
    }

    /// Notes that another process has the name now.
    pub fn supersede(&mut self, former: Incarnation) {
        if self.superseded.len() == SUPERSEDED {
            self.superseded.pop_front();
        }
        self.superseded.push_back(former);
    }

    pub fn is_alive(&self) -> bool {
        self.living().is_some()
    }

    /// Returns whether the process takes new work although its name is out of service.
    pub fn is_to_drain(&self) -> bool {
        let serves = |service: &ServiceState| *service == ServiceState::Serving;
        self.drained && matches!(&self.life, Life::Alive { service, .. } if serves(service))
    }

    pub fn living(&self) -> Option<&Offer> {
        match &self.life {
            Life::Alive { offer, .. } => Some(offer),
            _ => None,
        }
    }

    /// Returns the offer if plans may use the worker.
    pub fn serving(&self) -> Option<&Offer> {
        match &self.life {
            Life::Alive {
                offer,
                service: ServiceState::Serving,
                ..
            } if !self.drained => {
                let barred = mutant!("wedged-once-unused-forever") && !self.remark.is_empty();
                (!barred).then_some(offer)
            }
            _ => None,
        }
    }

    pub fn state(&self) -> MemberState {
        match &self.life {
            Life::Alive { service, .. } => match service {
                ServiceState::Wedged(_) => MemberState::Wedged,
                ServiceState::Leaving => MemberState::Leaving,
                ServiceState::Serving if self.drained => MemberState::Drained,
                ServiceState::Serving => MemberState::Alive,
            },
            _ if self.drained => MemberState::Drained,
            Life::Lost { .. } | Life::Left | Life::Expected => MemberState::Lost,
        }
    }

    /// Returns whether the worker left as it had announced. Its name is kept for its return, and the status omits it.
    pub fn has_left(&self) -> bool {
        matches!(self.life, Life::Left | Life::Lost { left: true, .. }) && !self.drained
    }

    /// Returns the remark that the status shows with the worker's state.
    pub fn remark(&self) -> &str {
        match &self.life {
            Life::Alive {
                service: ServiceState::Wedged(why),
                ..
            } => why,
            Life::Expected if self.reserved_until.is_none() => {
                "not heard of since the coordinator was started"
            }
            _ => &self.remark,
        }
    }

    pub fn offer(&self) -> Option<&Offer> {
        self.life.offer()
    }

    pub fn connection(&self) -> Option<ConnectionId> {
        match &self.life {
            Life::Alive { connection, .. } => Some(*connection),
            _ => None,
        }
    }

    /// Returns when the name is forgotten, unless the worker returns; `None` while it is connected or out of service.
    pub fn forgotten_at(&self) -> Option<Moment> {
        (!self.is_alive() && !self.drained).then(|| self.seen + KEPT)
    }
}

/// A name as it is saved over a restart of the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMember {
    pub name: String,
    /// Hashes of the certificates that hold the name.
    pub fingerprints: Vec<Fingerprint>,
    /// Set if the holder of the name is gone.
    pub gone: Option<Absence>,
}

/// When and how a worker went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The time since then, by the coordinator's calendar.
    pub ago: Duration,
    /// Whether the worker had announced that it would leave.
    pub left: bool,
}
