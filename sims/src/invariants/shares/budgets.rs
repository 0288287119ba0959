//! Budgets are kept: no token ever has more of a worker's memory than its budget allows, every byte reserved for
//! somebody's work is charged to a token, and what a client holds is charged to its token. A client that asks for more
//! gets the error that says so, and no other.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::error::Code;
use convoke_common::identity::Budget;
use convoke_common::memory::{Purpose, TokenHolding};

use crate::cluster::Host;
use crate::faults::{Harm, Hog, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;

/// How long a fault between two members affects either: the loss is noticed, the session is freed, and a new one
/// begins.
const LINGER: Duration = Duration::from_secs(15);

/// Accounts of which every byte is charged to a token.
const CHARGED: [Purpose; 3] = [Purpose::Weights, Purpose::Leases, Purpose::Handles];

/// The workers, or pairs of worker and hog, that a violation was already reported for.
#[derive(Default)]
pub(in crate::invariants) struct Budgets(BTreeSet<(Host, Option<Host>)>);

impl Invariant for Budgets {
    fn name(&self) -> &'static str {
        "budgets are kept"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        // Apart from hogs, nothing is reserved or freed without an event, and a wrong charge that lasts is seen at the
        // next one.
        if view.events.is_empty() && view.hogs.is_empty() {
            return;
        }
        for host in view.cluster.hosts() {
            let Host::Worker(i) = host else { continue };
            let Some(worker) = view.cluster.worker(i) else {
                continue;
            };
            let ledger = worker.ledger();
            let holdings = ledger.holdings();
            for holding in &holdings {
                let limit = limit(view, holding, ledger.limit());
                if holding.total() > limit && self.0.insert((host, None)) {
                    let (token, has) = (&holding.token, holding.total());
                    found.say(format!("{host}: token {token} has {has} bytes, of {limit}"));
                }
            }
            let taken = |i: &&Injury| i.host == host && i.harm == Harm::Memory;
            let used = ledger.used();
            for account in CHARGED {
                let of = |h: &TokenHolding| h.used.get(&account).copied().unwrap_or(0);
                let charged: u64 = holdings.iter().map(of).sum();
                let used = used.get(&account).copied().unwrap_or(0);
                let whole = view.injuries(view.now, view.now).any(|i| taken(&i));
                // Each token is charged in full for the weights that it shares with others.
                let sharing = holdings.iter().filter(|h| of(h) > 0).count() > 1;
                let shares = account == Purpose::Weights && sharing && charged > used;
                if charged != used && !shares && !whole && self.0.insert((host, None)) {
                    let account = account.as_str();
                    found.say(format!(
                        "{host}: {used} bytes of {account}, {charged} of them charged"
                    ));
                }
            }
            // The values of a hog lie on the worker's device where it has one, or on the host until an op reads them there.
            let mut of_handles = holdings;
            of_handles.extend(worker.memory().device.holdings);
            for hog in view.hogs.iter().filter(|hog| hog.worker == host) {
                self.look(view, hog, &of_handles, found);
            }
        }
    }
}

/// The bytes that a token may have at a worker whose memory limit is `all`.
fn limit(view: &View<'_>, holding: &TokenHolding, all: u64) -> u64 {
    let own = view.cluster.setup().own.iter();
    let own =
        own.filter(|(host, _)| view.cluster.own_token(**host).as_ref() == Some(&holding.token));
    let memory = own.map(|(_, budget)| budget.memory).next().flatten();
    memory.unwrap_or(Budget::MEMORY).of(all)
}

impl Budgets {
    fn look(
        &mut self,
        view: &View<'_>,
        hog: &Hog,
        holdings: &[TokenHolding],
        found: &mut Findings,
    ) {
        let from = view.now.saturating_sub(LINGER);
        let ours = |host: Host| host == hog.client || host == hog.worker;
        let hurt = |i: &Injury| {
            let kernels = matches!(i.harm, Harm::Panic(_) | Harm::Refuse | Harm::Memory);
            i.harm.separates() || kernels
        };
        let hurt = view
            .injuries(from, view.now)
            .any(|i| hurt(i) && (ours(i.host) || i.other.is_some_and(ours)))
            || [hog.client, hog.worker].map(|h| view.moves(h, from, view.now)) != [false; 2];
        let refused = hog.refused();
        if hurt {
            return;
        }
        let token = view.cluster.own_token(hog.client);
        let of = |h: &&TokenHolding| Some(&h.token) == token.as_ref();
        let charged = holdings.iter().filter(of);
        let charged = charged.filter_map(|h| h.used.get(&Purpose::Handles));
        let (has, charged) = (hog.bytes(), charged.sum::<u64>());
        if has > charged && self.0.insert((hog.worker, Some(hog.client))) {
            let (client, worker) = (hog.client, hog.worker);
            found.say(format!(
                "{worker}: {client} has {has} bytes, and is charged for {charged}"
            ));
        }
        // A coordinator that is away cannot be asked, and one that was away lists a worker only once that has registered anew.
        let coordinators = |i: &Injury| {
            i.harm.separates()
                && (i.host == Host::Coordinator || i.other == Some(Host::Coordinator))
        };
        let away = view.injuries(from, view.now).any(coordinators);
        for e in refused {
            let explained = match e.code {
                Code::OutOfMemory => true,
                Code::NoWorkers | Code::Unreachable => away,
                _ => false,
            };
            if !explained && self.0.insert((hog.worker, Some(hog.client))) {
                let (client, worker) = (hog.client, hog.worker);
                found.say(format!("{client} wants more of {worker} and is told {e}"));
            }
        }
    }
}
