//! Identifiers of processes, plans, leases and steps. Each is a newtype, so that no two kinds can be mixed up.
//! [`convoke_graph::ids`] has those of content, and says how all are written.

use std::str::FromStr;

use convoke_graph::Printable;
use convoke_graph::ids::{read, write};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($t:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $t);
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                write(to, self, &self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                read(from, $name)
            }
        }
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let digits = text.strip_prefix($prefix);
                let bits = digits.and_then(|d| <$t>::from_str_radix(d, 16).ok());
                bits.map($name).ok_or_else(|| {
                    format!(concat!("'{}' does not read ", $prefix, "HEX"), Printable(text))
                })
            }
        }
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
    /// The right of one driver to run steps of one installed plan.
    LeaseId(u64), "lease-"
);
id!(
    /// A plan that the coordinator holds until it is installed or expires.
    PlanId(u64), "plan-"
);

impl LeaseId {
    /// The bit that is set in the ids of eager sessions, and in no others. Sessions have ids of this type because their
    /// tensors travel under the same keys as tensors of steps.
    const SESSION: u64 = 1 << 63;

    /// The bit that is set in the id under which the driver of a partitioned body knows the body's lease, and in no other
    /// id of a lease. The driver is a worker and may run a part of the body as well, so that its two ends need two ids.
    const DRIVER: u64 = 1 << 62;

    /// The id of the lease with these bits, of which those of sessions and of drivers are cleared.
    pub fn of_lease(bits: u64) -> LeaseId {
        LeaseId(bits & !(Self::SESSION | Self::DRIVER))
    }

    /// The id of the lease of a partitioned body within this lease, by the number of the body in its plan.
    pub fn of_body(self, number: u32) -> LeaseId {
        // Multiples of an odd number differ in all bits that follow from the lowest ones.
        let apart = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        LeaseId::of_lease(self.0.wrapping_add(apart))
    }

    /// The id under which the driver of a partitioned body knows the body's lease.
    pub fn at_driver(self) -> LeaseId {
        LeaseId(self.0 | Self::DRIVER)
    }

    /// The id under which workers know the lease.
    pub fn at_workers(self) -> LeaseId {
        LeaseId(self.0 & !Self::DRIVER)
    }

    /// Whether the driver of a partitioned body knows the body's lease under this id.
    pub fn is_at_driver(self) -> bool {
        self.0 & (Self::DRIVER | Self::SESSION) == Self::DRIVER
    }

    /// The id of the eager session of the client with this incarnation.
    pub fn of_session(owner: Incarnation) -> LeaseId {
        LeaseId(owner.0 | Self::SESSION)
    }

    /// Whether this is the id of an eager session.
    pub fn is_session(self) -> bool {
        self.0 & Self::SESSION != 0
    }
}

/// The key of a step, which is the `n`th of its lease, counting from 0. In an eager session, it is the key of the `n`th
/// transfer.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T>(id: T, json: &str)
    where
        T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(&id).unwrap(), json);
        assert_eq!(serde_json::from_str::<T>(json).unwrap(), id);
    }

    #[test]
    fn json_has_the_strings_that_logs_show() {
        check(Incarnation(u64::MAX), "\"inc-ffffffffffffffff\"");
        check(LeaseId(0xab), "\"lease-ab\"");
        for bad in [
            "7",
            "\"plan-7\"",
            "\"lease-\"",
            "\"lease-12345678901234567\"",
        ] {
            assert!(serde_json::from_str::<LeaseId>(bad).is_err(), "{bad}");
        }
    }
}
