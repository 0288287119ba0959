//! Workers that are not connected at the moment but may return soon: plans that do not fit without them wait for them.

use convoke_common::ids::Incarnation;

use super::Membership;
use super::interface::Moment;
use super::tables::member::{Life, Member};

impl Membership {
    /// Returns until when it is worth waiting for workers, at most `patience`; `None` if none is expected any more.
    ///
    /// Workers that may return are those that were lost, since a supervisor may start their next process, or it may be
    /// the coordinator that was cut off from them; and those of the incarnations `avoid`, which a client has lost,
    /// whether or not the coordinator noticed that.
    pub fn absent(
        &self,
        now: Moment,
        patience: Moment,
        avoid: &[(String, Incarnation)],
    ) -> Option<Moment> {
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
