//! Workers that are not there at the moment and may be about to return: plans that do not fit without them wait for them.

use convoke_common::ids::Incarnation;
use tokio::time::Instant;

use super::Membership;
use super::member::{Life, Member};

impl Membership {
    /// Until when workers are worth waiting for, at most `patience`: those that were lost, since a supervisor may start
    /// their next process, and it may have been this coordinator that was cut off from them; and those that a client has
    /// lost by one of the incarnations `avoid`, whether or not that was noticed here. `None` where there is nobody to wait
    /// for any more.
    pub fn absent(
        &self,
        now: Instant,
        patience: Instant,
        avoid: &[(String, Incarnation)],
    ) -> Option<Instant> {
        let until = |name: &str, m: &Member| match &m.life {
            _ if m.drained => None,
            Life::Lost { left: false, .. } => Some(patience),
            Life::Alive { offer, .. } => {
                let is = |(n, i): &(String, Incarnation)| n == name && *i == offer.incarnation;
                avoid.iter().any(is).then_some(patience)
            }
            Life::Lost { left: true, .. } | Life::Left | Life::Expected => None,
        };
        let members = self.members.iter();
        let until = members.filter_map(|(name, m)| until(name, m)).max()?;
        let until = until.min(patience);
        (until > now).then_some(until)
    }
}
