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
    /// Its name on the network, which is also the name of a worker in the cluster.
    pub fn name(self) -> String {
        match self {
            Host::Coordinator => "coordinator".into(),
            Host::Worker(i) => format!("w{i}"),
            Host::Client(i) => format!("c{i}"),
        }
    }

    /// A number of its own.
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
