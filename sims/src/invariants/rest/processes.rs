//! Processes end only when a scenario ends them, or because of a kernel that hangs, a calendar that jumps, a
//! revocation, a request to leave service, a coordinator that a starting process does not reach, a disk that a
//! starting process cannot use and complains of, or could not use when it joined, or one that gives a starting process
//! wrong bits. Nothing panics except the kernels that a scenario picked.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cluster::{Host, faults::DIED_IN};
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;

/// Texts by which an error says that a disk is full or fails.
const UNUSABLE: [&str; 3] = [
    "no storage space",
    "Input/output error",
    "is the disk full?",
];

/// How long a name is kept for a worker that joined and did not register.
const NAMELESS: Duration = Duration::from_secs(11);

#[derive(Default)]
pub(in crate::invariants) struct Processes {
    ends: usize,
    panics: usize,
    /// The last process of each host that was ready, as the number of those that the host had run.
    ready: BTreeMap<Host, u64>,
}

impl Invariant for Processes {
    fn name(&self) -> &'static str {
        "processes live"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for panic in view.cluster.panics().iter().skip(self.panics) {
            found.say(format!("panic: {panic}"));
        }
        self.panics = view.cluster.panics().len();
        for (at, host, why) in view.cluster.ends().iter().skip(self.ends) {
            let from = at.saturating_sub(Duration::from_secs(20));
            let mut injuries = view.injuries(from, *at).filter(|i| i.host == *host);
            let meant = injuries.any(|i| {
                matches!(
                    i.harm,
                    Harm::Hang | Harm::Clock(_) | Harm::PowerCut | Harm::Revoke | Harm::Expire
                )
            });
            // A process that starts may find its identity damaged. One that is a member reads it no more.
            let started = self.ready.get(host) == Some(&view.cluster.boots(*host));
            let flips = |i: &Injury| i.host == *host && matches!(i.harm, Harm::DiskFlips(_));
            let damaged = !started && view.injuries(from, *at).any(flips);
            // A worker that was taken out of service ends once its work is done.
            let drained = |i: &Injury| i.host == *host && matches!(i.harm, Harm::Drain);
            let drained = why == "stopped" && view.injuries(from, *at).any(drained);
            let alone = (why.starts_with("nobody answers")
                || why.starts_with("lost contact with the coordinator")
                || why.contains("did not greet in time"))
                && view.separated(from, *at);
            // A certificate looks expired when either end's calendar is off.
            let clock = |i: &Injury| matches!(i.harm, Harm::Clock(_));
            let expired = why.contains("out of date") && view.injuries(from, *at).any(clock);
            let disk = |i: &Injury| {
                let fails = matches!(i.harm, Harm::DiskFull | Harm::DiskFails);
                fails && (i.host == *host || i.host == Host::Coordinator)
            };
            // A process that starts may be unable to read or write what it has to keep.
            let said = UNUSABLE.iter().any(|text| why.contains(text));
            let unkept = said && view.injuries(from, *at).any(disk);
            // A process that could not keep its certificate when it joined left its name to nobody for a while.
            let since = at.saturating_sub(NAMELESS);
            let mut lately = view.injuries(since, *at).filter(|i| i.host == *host);
            let nameless = why.contains("is in use by another worker") && lately.any(disk);
            // A node that ends its process ends that of every worker that runs it.
            let deadly = |i: &Injury| matches!(i.harm, Harm::Deadly);
            let died = why.starts_with(DIED_IN) && view.injuries(from, *at).any(deadly);
            let explained = meant || died || drained || alone || expired;
            let explained = explained || unkept || nameless || damaged;
            if !explained && !view.left.contains_key(host) {
                found.say(format!("the process of {host} ended by itself: {why}"));
            }
        }
        self.ends = view.cluster.ends().len();
        let ready = view.cluster.hosts().into_iter();
        let ready = ready.filter(|host| view.cluster.is_ready(*host));
        self.ready
            .extend(ready.map(|host| (host, view.cluster.boots(host))));
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::ids::FunctionId;

    use super::*;
    use crate::cluster::{Cluster, Setup};
    use crate::faults::Row;
    use crate::invariants::testing::FeignedRun;

    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn wrong_bits_end_a_process_that_starts_and_no_other() {
        let mut cluster = Cluster::new(Setup {
            workers: 1,
            clients: 0,
            ..Setup::default()
        });
        assert!(cluster.settle(BOUND));
        let (host, mut run) = (Host::Worker(0), FeignedRun::new(cluster));
        let (mut checker, mut says) = (Processes::default(), vec![]);
        let mut look = |run: &FeignedRun| run.shows(&mut checker, run.cluster.elapsed(), &[]);
        says.extend(look(&run));
        run.injured.push(Injury {
            harm: Harm::DiskFlips(1_000_000),
            row: Row::DiskFlips,
            host,
            other: None,
            at: run.cluster.elapsed(),
            until: None,
            answered: None,
        });
        run.cluster.knobs(host).set_disk_flips(1_000_000);
        run.cluster.kill(host);
        run.cluster.start(host);
        // Which bit is wrong is drawn anew for each process.
        let damaged = |(_, _, why): &(Duration, Host, String)| why.contains("damaged");
        let ended = |c: &Cluster| c.ends().iter().any(damaged);
        let found = run.cluster.run_until(BOUND, ended);
        assert!(found, "{:?}", run.cluster.ends());
        says.extend(look(&run));
        assert_eq!(says, [""; 0]);

        run.cluster.knobs(host).set_disk_flips(0);
        assert!(run.cluster.settle(BOUND));
        assert_eq!(look(&run), [""; 0]);
        run.cluster.die(0, FunctionId([0; 32]), "n0");
        let says = look(&run);
        assert!(
            matches!(&says[..], [one] if one.contains("ended by itself")),
            "{says:?}"
        );
    }
}
