//! One worker's record.

use std::collections::VecDeque;
use std::time::Duration;

use convoke_common::ids::Incarnation;
use convoke_common::mutant;
use convoke_common::ops::{CustomOp, is_custom_name};
use convoke_common::rpc::{MemberState, Register};
use tokio::time::Instant;

use super::{ConnectionId, Fingerprint, MembershipError};

/// How long a worker that is gone keeps its name, and one that did not say that it would leave its line in the status.
pub const KEPT: Duration = Duration::from_secs(86_400);

/// The certificate in use and the one before it.
const FINGERPRINTS: usize = 2;

/// How many former processes of a name are remembered. One of them that returns was cut off while others came and went.
const SUPERSEDED: usize = 8;

/// Longest text that a worker may say of itself.
pub(super) const LONGEST_TEXT: usize = 256;

/// Most custom ops that a worker may have kernels for.
const MOST_OPS: usize = 1024;

/// A registration as it arrives.
#[derive(Debug, Clone)]
pub struct Newcomer {
    pub connection: ConnectionId,
    /// From its certificate, as the fingerprint is.
    pub name: String,
    pub fingerprint: Fingerprint,
    /// Where the others will reach it.
    pub address: String,
    pub register: Register,
    /// Seconds since 1970, by the coordinator's calendar.
    pub at: u64,
}

/// What a worker offers, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    pub incarnation: Incarnation,
    pub address: String,
    pub host: String,
    pub version: String,
    pub threads: u32,
    pub memory: u64,
    pub window: u64,
    pub flops: f64,
    pub memory_bandwidth: f64,
    /// By name.
    pub ops: Vec<CustomOp>,
}

impl Offer {
    /// Nothing in it may upset arithmetic or a person's terminal later on.
    pub fn check(
        name: &str,
        address: String,
        register: Register,
    ) -> Result<Offer, MembershipError> {
        let Register {
            incarnation,
            host,
            version,
            threads,
            memory,
            window,
            flops,
            memory_bandwidth,
            mut ops,
            ..
        } = register;
        let text = |t: &str| t.len() <= LONGEST_TEXT && !t.chars().any(char::is_control);
        let speed = |s: f64| s.is_finite() && s > 0.0;
        let what = if !text(&address) {
            "an address that cannot be one"
        } else if !text(&host) {
            "a host name that cannot be one"
        } else if !text(&version) {
            "a release that cannot be one"
        } else if threads == 0 {
            "no threads"
        } else if !speed(flops) || !speed(memory_bandwidth) {
            "a speed that is not a positive number"
        } else if ops.len() > MOST_OPS || !ops.iter().all(|op| is_custom_name(&op.name)) {
            "custom ops that cannot be ones"
        } else {
            ops.sort();
            return Ok(Offer {
                incarnation,
                address,
                host,
                version,
                threads,
                memory,
                window,
                flops,
                memory_bandwidth,
                ops,
            });
        };
        Err(MembershipError::BadRegister {
            name: name.to_owned(),
            what,
        })
    }
}

/// What a living worker takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// New work.
    Serving,
    /// Nothing new: it will end.
    Leaving,
    /// Nothing new: a kernel of it does not stop, as it says here.
    Wedged(String),
}

/// Where a worker is in its life.
#[derive(Debug)]
pub enum Life {
    /// Its certificate went out; it has not registered with this coordinator process.
    Expected,
    /// Registered on this connection.
    Alive {
        connection: ConnectionId,
        offer: Offer,
        standing: Standing,
    },
    /// Its connection ended.
    Lost {
        offer: Offer,
        /// Whether it had said that it would.
        left: bool,
    },
    /// It said that it would leave, and did, before this coordinator process was started.
    Left,
}

impl Life {
    /// What the process offers or offered that had the name last.
    pub fn offer(&self) -> Option<&Offer> {
        match self {
            Life::Alive { offer, .. } | Life::Lost { offer, .. } => Some(offer),
            Life::Expected | Life::Left => None,
        }
    }
}

/// The record behind a name.
#[derive(Debug)]
pub struct Member {
    /// Of the certificates that hold the name, the newest last.
    pub fingerprints: Vec<Fingerprint>,
    /// A newcomer to whom the name was just given has until then to register.
    pub reserved_until: Option<Instant>,
    /// When it was last heard, or its certificate went out.
    pub seen: Instant,
    pub life: Life,
    /// Processes that had the name before, the latest ones: none of them gets it back.
    pub superseded: VecDeque<Incarnation>,
    /// Out of service until it is asked back, whichever process has the name.
    pub drained: bool,
    /// What is to be said of how its former process ended.
    pub remark: String,
}

impl Member {
    /// A name that is only known.
    pub fn expected(now: Instant) -> Member {
        Member {
            fingerprints: vec![],
            reserved_until: None,
            seen: now,
            life: Life::Expected,
            superseded: VecDeque::new(),
            drained: false,
            remark: String::new(),
        }
    }

    /// A certificate more that holds the name.
    pub fn add_fingerprint(&mut self, fingerprint: Fingerprint) {
        if self.fingerprints.len() >= FINGERPRINTS {
            self.fingerprints.remove(0);
        }
        self.fingerprints.push(fingerprint);
    }

    /// Another process has the name now.
    pub fn supersede(&mut self, former: Incarnation) {
        if self.superseded.len() == SUPERSEDED {
            self.superseded.pop_front();
        }
        self.superseded.push_back(former);
    }

    pub fn is_alive(&self) -> bool {
        self.living().is_some()
    }

    /// Whether its process still takes new work although the name is out of service.
    pub fn is_to_drain(&self) -> bool {
        let serves = |standing: &Standing| *standing == Standing::Serving;
        self.drained && matches!(&self.life, Life::Alive { standing, .. } if serves(standing))
    }

    pub fn living(&self) -> Option<&Offer> {
        match &self.life {
            Life::Alive { offer, .. } => Some(offer),
            _ => None,
        }
    }

    /// The offer of a worker that plans may use.
    pub fn serving(&self) -> Option<&Offer> {
        match &self.life {
            Life::Alive {
                offer,
                standing: Standing::Serving,
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
            Life::Alive { standing, .. } => match standing {
                Standing::Wedged(_) => MemberState::Wedged,
                Standing::Leaving => MemberState::Leaving,
                Standing::Serving if self.drained => MemberState::Drained,
                Standing::Serving => MemberState::Alive,
            },
            _ if self.drained => MemberState::Drained,
            Life::Lost { .. } | Life::Left | Life::Expected => MemberState::Lost,
        }
    }

    /// Whether it is gone as it said that it would. Its name is kept for its return; nobody needs to hear of it.
    pub fn has_left(&self) -> bool {
        matches!(self.life, Life::Left | Life::Lost { left: true, .. }) && !self.drained
    }

    /// What a person should know besides.
    pub fn remark(&self) -> &str {
        match &self.life {
            Life::Alive {
                standing: Standing::Wedged(why),
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

    /// When it is forgotten, unless it comes back: never while somebody wants it to stay out of service.
    pub fn forgotten_at(&self) -> Option<Instant> {
        (!self.is_alive() && !self.drained).then(|| self.seen + KEPT)
    }
}
