//! Quarantine of nodes in which workers died.
//!
//! A node that killed two worker processes is refused whenever its function is planned again: the third process would
//! die of it too. A single death may be the machine's fault. Deaths that the owner forgave do not count.
//!
//! Invariant: a death counts once, however often its worker reports it, and only if it may have happened: see
//! [`exposure`](super::tables::exposure).

use convoke_common::rpc::{Death, DeathStatus, QuarantineStatus, signal_name};
use convoke_graph::ids::FunctionId;

use super::Membership;
use super::interface::{Command, MembershipError};
use super::tables::quarantine::Record;

/// Most deaths that a worker may report at once: one for each thread of a process.
const REPORTED: usize = 64;

impl Membership {
    /// Restores the records that were saved before a restart of the coordinator.
    pub(super) fn restore_quarantine(&mut self, records: Vec<Record>) {
        self.quarantine.restore(records);
    }

    /// Fails if a node of the function is quarantined.
    pub fn admit(&self, function: &FunctionId) -> Result<(), MembershipError> {
        self.quarantine.admit(function)
    }

    /// Counts the deaths of its former process that a worker reports.
    pub(super) fn died(&mut self, worker: &str, at: u64, deaths: Vec<Death>) {
        for death in deaths.into_iter().take(REPORTED) {
            let (incarnation, function) = (death.incarnation, &death.function);
            if !self.exposures.explains(worker, incarnation, function) {
                tracing::warn!(
                    worker,
                    %incarnation,
                    %function,
                    "reports a death that does not count: this coordinator granted that process no lease of the function, \
                     or did not see it end"
                );
                continue;
            }
            let Some(record) = self.quarantine.count(worker, at, death) else {
                continue;
            };
            if let (Some(member), Some(last)) = (self.members.get_mut(worker), record.deaths.last())
            {
                let signal = signal_name(last.signal);
                member.remark = format!(
                    "its former process died of {signal} in node '{}'",
                    record.node
                );
            }
            self.commands.push_back(Command::KeepDeaths(record));
            if let Some(Record { function, node, .. }) = self.quarantine.shrink() {
                let forget = Command::ForgetDeaths { function, node };
                self.commands.push_back(forget);
            }
        }
    }

    /// Forgives all deaths in the nodes of this name. Returns the number of functions in which such a node was refused.
    pub(super) fn lift(&mut self, node: &str) -> Result<u32, MembershipError> {
        let mut lifted = 0;
        for record in self.quarantine.of_node_mut(node) {
            lifted += u32::from(record.is_refused());
            record.deaths.iter_mut().for_each(|d| d.forgiven = true);
            let keep = Command::KeepDeaths(record.clone());
            self.commands.push_back(keep);
        }
        match lifted {
            0 => Err(MembershipError::NotQuarantined {
                node: node.to_owned(),
            }),
            n => Ok(n),
        }
    }

    /// Returns the nodes with deaths that count, for the status; `at` is the time in seconds since 1970.
    pub fn quarantine(&self, at: u64) -> Vec<QuarantineStatus> {
        let counting = self.quarantine.each();
        let counting = counting.filter(|r| r.counting().next().is_some());
        counting
            .map(|r| QuarantineStatus {
                node: r.node.clone(),
                function: r.function,
                refused: r.is_refused(),
                deaths: r
                    .counting()
                    .map(|d| DeathStatus {
                        worker: d.worker.clone(),
                        signal: signal_name(d.signal),
                        age: at.saturating_sub(d.at),
                    })
                    .collect(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use convoke_common::actor::Core;
    use convoke_common::grant::Participant;
    use convoke_common::ids::Incarnation;

    use super::super::tables::offer::LONGEST_TEXT;
    use super::super::tables::quarantine::NODES;
    use super::*;

    const F: FunctionId = FunctionId([1; 32]);

    fn death(incarnation: u64, function: FunctionId, node: &str) -> Death {
        Death {
            incarnation: Incarnation(incarnation),
            signal: 11,
            function,
            node: node.into(),
        }
    }

    /// Lets a worker have these incarnations, which were granted leases of these functions and ended.
    fn ended(m: &mut Membership, worker: &str, incarnations: &[u64], functions: &[FunctionId]) {
        for incarnation in incarnations {
            let participant = Participant {
                name: worker.into(),
                incarnation: Incarnation(*incarnation),
                address: String::new(),
            };
            for function in functions {
                m.exposures.granted(&participant, *function);
            }
            m.exposures.lost(worker, Incarnation(*incarnation));
        }
    }

    #[test]
    fn deaths_that_cannot_have_happened_count_for_nothing() {
        let mut m = Membership::new("p");
        // Reports of processes that never existed, of functions that were not granted, and of living processes do not
        // count.
        m.died("a", 1, vec![death(1, F, "n"), death(2, F, "n")]);
        ended(&mut m, "a", &[3, 4], &[FunctionId([2; 32])]);
        m.died("a", 2, vec![death(3, F, "n"), death(4, F, "n")]);
        ended(&mut m, "b", &[5, 6], &[F]);
        m.died("a", 3, vec![death(5, F, "n"), death(6, F, "n")]);
        let living = Participant {
            name: "a".into(),
            incarnation: Incarnation(7),
            address: String::new(),
        };
        m.exposures.granted(&living, F);
        m.died("a", 4, vec![death(7, F, "n")]);
        assert_eq!((m.admit(&F), m.quarantine(4)), (Ok(()), vec![]));
        assert_eq!(m.next_command(), None);
    }

    #[test]
    fn the_second_process_makes_a_node_refused_and_lifting_forgives() {
        let mut m = Membership::new("p");
        let other = FunctionId([2; 32]);
        ended(&mut m, "a", &[1], &[F]);
        ended(&mut m, "b", &[2, 3, 4], &[F, other]);
        m.died("a", 60, vec![death(1, F, "n")]);
        assert_eq!(m.admit(&F), Ok(()));
        // Another report of the same process, another node and another function do not add up to two deaths.
        m.died("a", 61, vec![death(1, F, "n"), death(1, F, "o")]);
        m.died("b", 62, vec![death(2, other, "n")]);
        assert_eq!(m.admit(&F), Ok(()));
        m.died("b", 3600, vec![death(2, F, "n")]);
        assert_eq!(
            m.admit(&F).unwrap_err().to_string(),
            "node 'n' is quarantined: it killed worker 'a' (SIGSEGV, 1970-01-01 00:01 UTC) and \
             worker 'b' (SIGSEGV, 1970-01-01 01:00 UTC)"
        );
        let listed: Vec<_> = m
            .quarantine(3605)
            .into_iter()
            .map(|q| (q.node, q.refused))
            .collect();
        let expected = [("n", true), ("o", false), ("n", false)];
        assert_eq!(listed, expected.map(|(n, r)| (n.to_owned(), r)));

        assert!(m.lift("o").is_err());
        assert_eq!(m.lift("n"), Ok(1));
        assert_eq!(m.admit(&F), Ok(()));
        // Both workers register again: the deaths that were forgiven stay so.
        m.died("a", 4000, vec![death(1, F, "n")]);
        m.died("b", 4000, vec![death(2, F, "n")]);
        m.died("b", 4001, vec![death(3, F, "n")]);
        assert_eq!(m.admit(&F), Ok(()));
        m.died("b", 4002, vec![death(4, F, "n")]);
        assert!(m.admit(&F).is_err());
    }

    #[test]
    fn what_is_kept_comes_back_and_is_bounded() {
        let mut m = Membership::new("p");
        ended(&mut m, "a", &[1, 2, 9, 77], &[F]);
        m.died("a", 1, vec![death(1, F, "deadly")]);
        m.died("a", 2, vec![death(2, F, "deadly")]);
        for n in 0..2 * NODES as u64 {
            m.died("a", 3 + n, vec![death(9, F, &format!("n{n}"))]);
        }
        assert!(m.admit(&F).is_err());
        let mut kept = BTreeMap::new();
        while let Some(command) = m.next_command() {
            match command {
                Command::KeepDeaths(record) => drop(kept.insert(record.key(), record)),
                Command::ForgetDeaths { function, node } => drop(kept.remove(&(function, node))),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(kept.len(), NODES);
        let mut again = Membership::new("p");
        again.restore_quarantine(kept.into_values().collect());
        assert_eq!(again.quarantine(0), m.quarantine(0));
        ended(&mut again, "a", &[77], &[F]);
        for bad in ["", "a\nb", &"x".repeat(LONGEST_TEXT + 1)] {
            again.died("a", 1, vec![death(77, F, bad)]);
        }
        assert_eq!(again.next_command(), None);
    }
}
