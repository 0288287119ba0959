//! The register of one worker's name: what the coordinator promises of a member.
//!
//! ```text
//! Absent <──forget── Gone <──its process is lost, or leaves── Here
//!    └──join──> Claimed ──register──> Here      Gone ──register──> Here
//! ```
//!
//! Invariants
//! 1. A process becomes a member by registering, and by nothing else. Once another process has the name, the former
//!    one never has it again. A member leaves only where it says so.
//! 2. The coordinator may lose sight of a member at any time. [`crate::invariants`] has checkers that ask for a reason.
//! 3. Whether a name is out of service changes only when an operator says so.
//! 4. A restart of the coordinator keeps which names there are and which are out of service. It forgets who is there.

use std::collections::BTreeSet;

use convoke_common::Code;
use convoke_common::ids::Incarnation;
use convoke_common::rpc::MemberState;

use super::checker::Register;

/// How the coordinator answered an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It did what it was asked to. Of a drain, this says whether the worker is there, and of an undrain whether plans use
    /// it.
    Done(bool),
    /// There is no worker of that name.
    NoSuchWorker,
    /// It did nothing.
    Refused,
    /// It failed, or did not answer, and may have done it in memory or on its disk as well.
    Unknown,
}

impl Answer {
    /// Returns what an error says of an operator's request.
    pub fn of_error(code: Code) -> Answer {
        match code {
            Code::NotFound => Answer::NoSuchWorker,
            Code::InvalidArgument | Code::Busy => Answer::Refused,
            _ => Answer::Unknown,
        }
    }
}

/// What happens to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberOp {
    /// A process asks for a certificate of this name.
    Join,
    /// A process becomes the member of this name.
    Register(Incarnation),
    /// A process says that it takes no new work.
    Leave(Incarnation),
    /// An operator takes the name out of service.
    Drain(Answer),
    /// An operator puts the name back into service.
    Undrain(Answer),
    /// An operator frees the name.
    Forget(Answer),
    /// The coordinator's process is replaced by another one.
    Restart,
    /// A status lists the name with this incarnation and state, or does not list it.
    Read(Option<(Incarnation, MemberState)>),
    /// A status lists the name twice.
    ReadTwice,
}

/// What a living member says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    Serving,
    Leaving,
    Wedged,
}

/// Who has the name, as the coordinator knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// The name is free.
    Absent,
    /// The name was given to a process that has yet to register. No status lists it.
    Claimed,
    /// This process is a member.
    Here(Incarnation, Service),
    /// The member is gone. A restarted coordinator does not know which process it was.
    Gone {
        incarnation: Option<Incarnation>,
        /// Whether it had announced that, so that no status lists it.
        left: bool,
    },
}

/// What the coordinator knows of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    life: Life,
    drained: bool,
    /// Whether the name, and that it is out of service, are on the coordinator's disk.
    kept: bool,
    drained_kept: bool,
    /// Whether a process of this name ever left, which the disk may say although it came back since.
    has_left: bool,
    /// The last process that was the member, and those before it.
    latest: Option<Incarnation>,
    former: BTreeSet<Incarnation>,
}

/// The register of a name, under what the faults of a run allow.
#[derive(Debug, Clone, Copy)]
pub struct MemberRegister {
    /// Whether the coordinator's disk takes all writes and gives back what was written.
    pub disk_is_sound: bool,
    /// Whether calendars pass as time does: names of workers that are gone are forgotten after a day.
    pub calendars_hold: bool,
}

impl Member {
    fn with(&self, change: impl FnOnce(&mut Member)) -> Member {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    fn is_here(&self) -> bool {
        matches!(self.life, Life::Here(..))
    }

    /// What a status says of the name.
    fn listed(&self) -> Option<(Incarnation, MemberState)> {
        match self.life {
            Life::Here(incarnation, service) => Some((
                incarnation,
                match service {
                    Service::Wedged => MemberState::Wedged,
                    Service::Leaving => MemberState::Leaving,
                    Service::Serving if self.drained => MemberState::Drained,
                    Service::Serving => MemberState::Alive,
                },
            )),
            Life::Gone { incarnation, left } if self.drained || !left => {
                let state = match self.drained {
                    true => MemberState::Drained,
                    false => MemberState::Lost,
                };
                Some((incarnation.unwrap_or(Incarnation(0)), state))
            }
            Life::Claimed if self.drained => Some((Incarnation(0), MemberState::Drained)),
            Life::Absent | Life::Claimed | Life::Gone { .. } => None,
        }
    }

    fn drained(&self, drained: bool, kept: bool) -> Member {
        self.with(|m| {
            (m.drained, m.drained_kept) = (drained, kept);
            if let (true, Life::Here(_, service @ Service::Serving)) = (drained, &mut m.life) {
                *service = Service::Leaving;
            }
        })
    }

    fn forgotten(&self, kept: bool) -> Member {
        self.with(|m| {
            m.life = Life::Absent;
            (m.drained, m.kept) = (false, kept);
            m.drained_kept &= kept;
        })
    }
}

impl MemberRegister {
    fn join(self, state: &Member) -> Vec<Member> {
        match state.life {
            Life::Absent
            | Life::Gone {
                incarnation: None, ..
            } => [state.kept, true]
                .map(|kept| {
                    state.with(|m| {
                        m.life = Life::Claimed;
                        m.kept = kept;
                    })
                })
                .into(),
            Life::Claimed | Life::Here(..) | Life::Gone { .. } => vec![state.clone()],
        }
    }

    fn register(self, state: &Member, incarnation: Incarnation) -> Vec<Member> {
        if state.former.contains(&incarnation) {
            return vec![];
        }
        let registered = state.with(|m| {
            if m.latest != Some(incarnation) {
                m.former.extend(m.latest);
                m.latest = Some(incarnation);
            }
            if !matches!(m.life, Life::Here(holder, _) if holder == incarnation) {
                m.life = Life::Here(incarnation, Service::Serving);
            }
        });
        let kept = registered.with(|m| m.kept = true);
        // A name is on the disk once a process has a certificate of it. A process that has one of a forgotten name has
        // its answer before the name is written.
        let was_forgotten = state.life == Life::Absent && state.latest.is_some();
        match self.disk_is_sound && !was_forgotten {
            true => vec![kept],
            false => vec![registered, kept],
        }
    }

    fn leave(self, state: &Member, incarnation: Incarnation) -> Vec<Member> {
        let as_said = |service| state.with(|m| m.life = Life::Here(incarnation, service));
        match state.life {
            Life::Here(holder, _) if holder == incarnation => {
                [Service::Leaving, Service::Wedged].map(as_said).into()
            }
            _ => vec![state.clone()],
        }
    }

    fn set_drained(self, state: &Member, drained: bool, answer: Answer) -> Vec<Member> {
        let there = match (drained, state.life) {
            (_, Life::Absent) => None,
            (true, _) => Some(state.is_here()),
            (false, life) => Some(matches!(life, Life::Here(_, Service::Serving))),
        };
        match answer {
            Answer::Done(said) if there == Some(said) => vec![state.drained(drained, drained)],
            Answer::NoSuchWorker if there.is_none() => vec![state.clone()],
            Answer::Done(_) | Answer::NoSuchWorker => vec![],
            Answer::Refused => vec![state.clone()],
            Answer::Unknown if there.is_none() => vec![state.clone()],
            Answer::Unknown => [drained, state.drained_kept]
                .map(|kept| state.drained(drained, kept))
                .into(),
        }
    }

    fn forget(self, state: &Member, answer: Answer) -> Vec<Member> {
        match answer {
            Answer::NoSuchWorker if state.life == Life::Absent => vec![state.clone()],
            Answer::Done(_) if state.life != Life::Absent && !state.is_here() => {
                vec![state.forgotten(false)]
            }
            Answer::Done(_) | Answer::NoSuchWorker => vec![],
            Answer::Refused => vec![state.clone()],
            Answer::Unknown if state.is_here() => vec![state.clone()],
            Answer::Unknown => [false, state.kept].map(|kept| state.forgotten(kept)).into(),
        }
    }

    fn restart(self, state: &Member) -> Vec<Member> {
        let after = |life, drained| {
            state.with(|m| {
                (m.life, m.drained, m.drained_kept) = (life, drained, drained);
            })
        };
        let gone = |left| Life::Gone {
            incarnation: None,
            left,
        };
        let lives = [Life::Absent, gone(false), gone(true)];
        if !self.disk_is_sound {
            let both = [false, true];
            let any = lives.iter().flat_map(|life| both.map(|d| after(*life, d)));
            return any.collect();
        }
        let drained = state.drained_kept;
        let is_possible = |life: &Life| match life {
            Life::Absent => !state.kept && !drained,
            Life::Gone { left: true, .. } => state.kept && state.has_left,
            _ => state.kept || drained,
        };
        let lives = lives.into_iter().filter(is_possible);
        lives.map(|life| after(life, drained)).collect()
    }
}

impl Register for MemberRegister {
    type State = Member;
    type Op = MemberOp;

    fn start(&self) -> Member {
        Member {
            life: Life::Absent,
            drained: false,
            kept: false,
            drained_kept: false,
            has_left: false,
            latest: None,
            former: BTreeSet::new(),
        }
    }

    fn apply(&self, state: &Member, op: &MemberOp) -> Vec<Member> {
        match op {
            MemberOp::Join => self.join(state),
            MemberOp::Register(incarnation) => self.register(state, *incarnation),
            MemberOp::Leave(incarnation) => self.leave(state, *incarnation),
            MemberOp::Drain(answer) => self.set_drained(state, true, *answer),
            MemberOp::Undrain(answer) => self.set_drained(state, false, *answer),
            MemberOp::Forget(answer) => self.forget(state, *answer),
            MemberOp::Restart => self.restart(state),
            MemberOp::Read(listed) if *listed == state.listed() => vec![state.clone()],
            MemberOp::Read(_) | MemberOp::ReadTwice => vec![],
        }
    }

    fn drift(&self, state: &Member) -> Vec<Member> {
        let mut drifted = vec![];
        match state.life {
            Life::Here(incarnation, service) => {
                let left = service == Service::Leaving;
                drifted.push(state.with(|m| {
                    m.has_left |= left;
                    m.life = Life::Gone {
                        incarnation: Some(incarnation),
                        left,
                    };
                }));
            }
            Life::Gone { .. } | Life::Absent if !self.calendars_hold => {
                // The name may have been kept for too long, and a process whose certificate ended joins anew.
                if !state.drained {
                    drifted.push(state.forgotten(false));
                }
                drifted.extend(self.join(state));
            }
            Life::Gone { .. } | Life::Absent | Life::Claimed => {}
        }
        drifted
    }
}
