//! Identifiers. Each is a newtype, so that no two kinds can be mixed up.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($t:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $t);
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{:x}"), self.0)
            }
        }
    };
}

id!(
    /// One life of a process: a restarted worker at the same address has another.
    Incarnation(u64), "inc-"
);
id!(
    /// A granted right to run steps of one installed program.
    LeaseId(u64), "lease-"
);
id!(
    /// A plan that the coordinator holds until it is installed or expires.
    PlanId(u64), "plan-"
);

impl LeaseId {
    /// Set in the ids of eager sessions, and in no other: what travels for them is keyed as what travels for steps.
    const SESSION: u64 = 1 << 63;

    /// The lease with these bits.
    pub fn of_lease(bits: u64) -> LeaseId {
        LeaseId(bits & !Self::SESSION)
    }

    /// The eager session of the client with this incarnation.
    pub fn of_session(owner: Incarnation) -> LeaseId {
        LeaseId(owner.0 | Self::SESSION)
    }

    /// Whether it is an eager session's.
    pub fn is_session(self) -> bool {
        self.0 & Self::SESSION != 0
    }
}

/// A step: the `n`th of its lease, counting from 0; of an eager session, its `n`th transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepKey {
    pub lease: LeaseId,
    pub n: u64,
}

impl std::fmt::Display for StepKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.lease, self.n)
    }
}

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub [u8; 32]);
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0[..8].iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

hash!(
    /// Content hash of a program: what workers file it under.
    ProgramId
);
hash!(
    /// Content hash of a function as its caller gave it, whoever calls it and whatever it is named.
    FunctionId
);

/// Index of a participant of a lease; the driver comes after the workers.
pub type ParticipantIx = u16;
