//! What the network does to packets on their way from one host to another.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The behaviour of a directed link. Rates are in packets of a million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wire {
    /// Packets that are lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets that arrive with a bit flipped.
    pub corrupt: u32,
    /// The range of milliseconds from which a packet's delay is drawn, besides the one tick that every packet takes.
    /// Packets overtake each other if the range is wide.
    pub delay: (u16, u16),
}

/// The directed links of a cluster.
#[derive(Debug, Default)]
pub struct Wires(Mutex<BTreeMap<(IpAddr, IpAddr), Wire>>);

impl Wires {
    /// The link from one address to another.
    pub fn get(&self, from: IpAddr, to: IpAddr) -> Wire {
        let wires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wires.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Sets the behaviour of the link from one address to another.
    pub fn set(&self, from: IpAddr, to: IpAddr, wire: Wire) {
        let mut wires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wires.insert((from, to), wire);
    }
}
