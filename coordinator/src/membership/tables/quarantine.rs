//! The records of nodes in which workers died.
//!
//! Invariant: the number of records is bounded; nodes that are not refused are forgotten first.

use std::collections::BTreeMap;

use convoke_common::ids::Incarnation;
use convoke_common::mutant;
use convoke_common::rpc::{Death, signal_name};
use convoke_graph::ids::FunctionId;
use serde::{Deserialize, Serialize};

use super::offer::LONGEST_TEXT;
use crate::calendar::Utc;
use crate::membership::interface::MembershipError;

/// Number of deaths from which on a node is refused.
const DEADLY: usize = 2;

/// Most nodes that are kept.
pub const NODES: usize = 1024;

/// Most deaths that are kept of one node, the latest ones.
const DEATHS: usize = 8;

/// One death in a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedDeath {
    pub worker: String,
    pub incarnation: Incarnation,
    pub signal: i32,
    /// When it was reported, in seconds since 1970.
    pub at: u64,
    /// Whether the owner lifted the quarantine after this death.
    pub forgiven: bool,
}

/// A node and its deaths, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub function: FunctionId,
    pub node: String,
    pub deaths: Vec<CountedDeath>,
}

impl Record {
    /// Returns the deaths that the owner did not forgive.
    pub fn counting(&self) -> impl Iterator<Item = &CountedDeath> {
        self.deaths.iter().filter(|d| !d.forgiven)
    }

    /// Returns whether functions with the node are refused.
    pub fn is_refused(&self) -> bool {
        self.counting().count() >= DEADLY
    }

    /// Returns how important it is to keep the record: refused nodes before others, later deaths before earlier ones.
    fn worth(&self) -> (bool, u64) {
        (self.is_refused(), self.deaths.last().map_or(0, |d| d.at))
    }

    /// Returns the key of the record.
    pub fn key(&self) -> (FunctionId, String) {
        (self.function, self.node.clone())
    }
}

/// The records of all nodes, by function and node.
#[derive(Debug, Default)]
pub struct Quarantine(BTreeMap<(FunctionId, String), Record>);

impl Quarantine {
    /// Restores the records that were saved before a restart of the coordinator.
    pub fn restore(&mut self, records: Vec<Record>) {
        let records = records.into_iter().take(NODES);
        self.0 = records.map(|r| (r.key(), r)).collect();
    }

    /// Returns all records.
    pub fn each(&self) -> impl Iterator<Item = &Record> {
        self.0.values()
    }

    /// Returns the records of the nodes of this name, to change them.
    pub fn of_node_mut(&mut self, node: &str) -> impl Iterator<Item = &mut Record> {
        self.0.values_mut().filter(move |r| r.node == node)
    }

    /// Fails if a node of the function is quarantined.
    pub fn admit(&self, function: &FunctionId) -> Result<(), MembershipError> {
        let first = (*function, String::new());
        let of_function = self.0.range(first..).take_while(|(k, _)| k.0 == *function);
        match of_function
            .map(|(_, r)| r)
            .find(|r| r.is_refused() && !mutant!("quarantine-unheeded"))
        {
            None => Ok(()),
            Some(record) => {
                let death = |d: &CountedDeath| {
                    let signal = signal_name(d.signal);
                    format!("worker '{}' ({signal}, {})", d.worker, utc(d.at))
                };
                let deaths: Vec<String> = record.counting().map(death).collect();
                Err(MembershipError::Quarantined {
                    node: record.node.clone(),
                    deaths: deaths.join(" and "),
                })
            }
        }
    }

    /// Counts one death. Returns the updated record, or `None` if the death was known or is not valid.
    pub fn count(&mut self, worker: &str, at: u64, death: Death) -> Option<Record> {
        let Death {
            incarnation,
            signal,
            function,
            node,
        } = death;
        if node.is_empty() || node.len() > LONGEST_TEXT || node.chars().any(char::is_control) {
            return None;
        }
        let record = self.0.entry((function, node.clone())).or_insert(Record {
            function,
            node,
            deaths: vec![],
        });
        let known = |d: &CountedDeath| d.worker == worker && d.incarnation == incarnation;
        if record.deaths.iter().any(known) {
            return None;
        }
        if record.deaths.len() >= DEATHS {
            record.deaths.remove(0);
        }
        record.deaths.push(CountedDeath {
            worker: worker.to_owned(),
            incarnation,
            signal,
            at,
            forgiven: false,
        });
        Some(record.clone())
    }

    /// If there are too many records, removes and returns the least important one.
    pub fn shrink(&mut self) -> Option<Record> {
        let worth = |r: &Record| (r.worth(), r.key());
        let least = self.0.values().min_by_key(|r| worth(r))?.key();
        (self.0.len() > NODES).then(|| self.0.remove(&least))?
    }
}

/// Formats seconds since 1970 as a date and a time of day.
fn utc(seconds: u64) -> String {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        ..
    } = Utc::of(seconds);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}
