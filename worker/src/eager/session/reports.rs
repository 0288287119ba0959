//! What the session tells its client, in batches that the lane takes when it can send.

use convoke_rendezvous::eager::wire::{Holding, Report};
use convoke_rendezvous::eager::{Batch, Batches};

use super::Session;
use super::state::SessionState;

/// Most entries of an account of handles.
const MOST_HELD: usize = 256;

impl Session {
    fn account(&self, state: &SessionState) -> Vec<Holding> {
        let named = |origin: &u32| state.place(*origin).unwrap_or_default();
        let held = state.core.held().into_iter();
        let mut held: Vec<_> = held
            .map(|(origin, (handles, bytes))| Holding {
                origin: named(&origin),
                handles,
                bytes,
            })
            .collect();
        held.sort_by_key(|h| std::cmp::Reverse(h.bytes));
        held.truncate(MOST_HELD);
        // An account must fit into one report, although its places may have long names.
        let mut room = Batch::MOST / 2;
        held.retain(|h| {
            let least = h.origin.len() + size_of::<Holding>();
            room = room.saturating_sub(least);
            room > 0
        });
        held
    }
}

impl Batches for Session {
    fn take(&self, out: &mut Vec<u8>) {
        let mut state = self.state();
        state.reporting = false;
        for request in std::mem::take(&mut state.asked) {
            let held = self.account(&state);
            state.core.report(Report::Accounted { request, held });
        }
        let reports = state.core.reports();
        drop(state);
        let mut batch = Batch::default();
        for report in reports {
            let mut one = Vec::new();
            match report.encode(&mut one) {
                Ok(()) if one.len() <= Batch::MOST => batch.body().extend(one),
                _ => tracing::error!("a report does not fit its batch"),
            }
        }
        batch.take(out);
    }
}
