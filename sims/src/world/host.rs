//! The hosts of a cluster.

use std::fmt;

/// A host, by the role of the process that it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// The coordinator.
    Coordinator,
    /// The worker with this number.
    Worker(u16),
    /// The client with this number.
    Client(u16),
}

impl Host {
    /// The host's name on the network; for a worker, it is also the worker's name in the cluster.
    pub fn name(self) -> String {
        match self {
            Host::Coordinator => "coordinator".into(),
            Host::Worker(i) => format!("w{i}"),
            Host::Client(i) => format!("c{i}"),
        }
    }

    /// A number that no other host has.
    pub fn number(self) -> u64 {
        match self {
            Host::Coordinator => 0,
            Host::Worker(i) => 1 << 16 | u64::from(i),
            Host::Client(i) => 2 << 16 | u64::from(i),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
