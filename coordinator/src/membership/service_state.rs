//! Workers that take no new work: those that leave, those that are wedged, and those that are out of service.

use convoke_common::Error;

use super::Membership;
use super::interface::{Command, ConnectionId, MembershipError, Moment};
use super::tables::member::{Life, Member, ServiceState};
use super::tables::offer::shortened;

impl Membership {
    fn set_service(
        &mut self,
        now: Moment,
        connection: ConnectionId,
        state: ServiceState,
    ) -> Option<String> {
        let name = self.heard(now, connection)?;
        let member = self.members.get_mut(&name)?;
        if let Life::Alive { service, .. } = &mut member.life {
            *service = state;
        }
        self.commands.push_back(Command::Population(self.serving()));
        Some(name)
    }

    /// Notes that the worker on this connection is leaving: it takes no new work, finishes its steps and ends.
    pub(super) fn leave(&mut self, now: Moment, connection: ConnectionId) {
        self.set_service(now, connection, ServiceState::Leaving);
    }

    /// Notes that a kernel of the worker on this connection does not stop. The worker itself ends its steps and its
    /// process.
    pub(super) fn wedged(&mut self, now: Moment, connection: ConnectionId, why: &Error) {
        self.set_service(
            now,
            connection,
            ServiceState::Wedged(shortened(&why.message)),
        );
    }

    /// Marks a living worker as lost: plans do not use it. Its leases go on, since other members may still reach it.
    pub(super) fn lose(&mut self, now: Moment, name: &str) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let Life::Alive { offer, service, .. } = &member.life else {
            return;
        };
        member.remark = match service {
            ServiceState::Wedged(why) => format!("its former process was wedged: {why}"),
            _ => String::new(),
        };
        let incarnation = offer.incarnation;
        self.exposures.lost(name, incarnation);
        member.life = Life::Lost {
            offer: offer.clone(),
            left: *service == ServiceState::Leaving,
        };
        member.seen = now;
    }

    /// Returns whether a name is out of service.
    pub fn is_drained(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|m| m.drained)
    }

    /// Restores the names that were out of service before a restart of the coordinator.
    pub(super) fn restore_drained(&mut self, now: Moment, names: Vec<String>) {
        for name in names {
            let member = self.members.entry(name);
            member.or_insert_with(|| Member::expected(now)).drained = true;
        }
    }

    /// Takes a worker out of service until [`Membership::undrain`]. Returns whether it is connected.
    pub(super) fn drain(&mut self, name: &str) -> Result<bool, MembershipError> {
        let member = self.known(name)?;
        member.drained = true;
        let connection = member.connection();
        if let Life::Alive { service, .. } = &mut member.life
            && *service == ServiceState::Serving
        {
            *service = ServiceState::Leaving;
        }
        if let Some(connection) = connection {
            self.commands.push_back(Command::Drain { connection });
            self.commands.push_back(Command::Population(self.serving()));
        }
        Ok(connection.is_some())
    }

    /// Puts a worker back into service. Returns whether plans use it from now on: it may be gone, or about to end.
    pub(super) fn undrain(&mut self, name: &str) -> Result<bool, MembershipError> {
        let member = self.known(name)?;
        member.drained = false;
        let serves = member.serving().is_some();
        self.commands.push_back(Command::Population(self.serving()));
        Ok(serves)
    }

    fn known(&mut self, name: &str) -> Result<&mut Member, MembershipError> {
        let unknown = || MembershipError::NoSuchWorker {
            name: name.to_owned(),
        };
        self.members.get_mut(name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use convoke_common::Code;
    use convoke_common::rpc::MemberState;

    use super::super::tables::member::KEPT;
    use super::super::tests::{LEASE, Rig, gone, rig};
    use super::*;

    const W0: ConnectionId = ConnectionId(0);

    /// Checks which workers plans may use, and the state and remark of `w0`.
    fn check(rig: &Rig, usable: &[&str], state: MemberState, remark: &str) {
        check_usable(rig, usable);
        let w0 = &rig.core.status(rig.now)[0];
        assert_eq!((&*w0.name, w0.state, &*w0.remark), ("w0", state, remark));
    }

    fn check_usable(rig: &Rig, usable: &[&str]) {
        let model = rig.model(&[]);
        let names: Vec<&str> = model.workers.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, usable);
        assert_eq!(rig.core.serving() as usize, usable.len());
    }

    fn names(rig: &Rig) -> Vec<String> {
        rig.core
            .status(rig.now)
            .into_iter()
            .map(|m| m.name)
            .collect()
    }

    #[test]
    fn who_leaves_is_planned_no_more_while_its_leases_go_on() {
        let mut rig = rig().workers(2).granted();
        rig.core.installed(LEASE).unwrap();
        rig.core.leave(rig.now, W0);
        assert_eq!(rig.commands(), [Command::Population(1)]);
        check(&rig, &["w1"], MemberState::Leaving, "");
        assert_eq!(rig.core.leases().len(), 1);
        rig.core.closed(rig.now, W0);
        assert_eq!(rig.commands(), [gone("w0", true), Command::Population(1)]);
        check_usable(&rig, &["w1"]);
        assert_eq!(names(&rig), ["w1"]);
        // The next process with this name takes new work.
        rig.register(8, "w0", 1, 9).unwrap();
        check(&rig, &["w0", "w1"], MemberState::Alive, "");
    }

    #[test]
    fn who_is_wedged_is_planned_no_more_and_says_so_beyond_its_end() {
        let mut rig = rig().workers(2).granted();
        rig.core.installed(LEASE).unwrap();
        let why = Error::new(Code::Wedged, "node 'n' did not stop");
        rig.core.wedged(rig.now, W0, &why);
        assert_eq!(rig.commands(), [Command::Population(1)]);
        check(&rig, &["w1"], MemberState::Wedged, "node 'n' did not stop");
        rig.core.closed(rig.now, W0);
        let remark = "its former process was wedged: node 'n' did not stop";
        check(&rig, &["w1"], MemberState::Lost, remark);
        rig.register(8, "w0", 1, 9).unwrap();
        check(&rig, &["w0", "w1"], MemberState::Alive, remark);
        // A report on an unknown connection has no effect.
        rig.core.wedged(rig.now, ConnectionId(77), &why);
        check(&rig, &["w0", "w1"], MemberState::Alive, remark);
    }

    #[test]
    fn of_a_long_reason_the_beginning_is_kept() {
        let mut rig = rig().workers(1);
        let why = Error::new(Code::Wedged, format!("n{}", "ä".repeat(1 << 19)));
        rig.core.wedged(rig.now, W0, &why);
        let kept = format!("n{}", "ä".repeat(127));
        check(&rig, &[], MemberState::Wedged, &kept);
        rig.core.closed(rig.now, W0);
        let remark = format!("its former process was wedged: {kept}");
        check(&rig, &[], MemberState::Lost, &remark);
    }

    #[test]
    fn who_is_drained_stays_out_until_it_is_asked_back() {
        let mut rig = rig().workers(2);
        let nobody = rig.core.drain("w7").unwrap_err().to_string();
        assert_eq!(nobody, "there is no worker 'w7'");
        assert_eq!(rig.core.drain("w0"), Ok(true));
        let drain = Command::Drain { connection: W0 };
        assert_eq!(rig.commands(), [drain, Command::Population(1)]);
        check(&rig, &["w1"], MemberState::Leaving, "");
        rig.core.closed(rig.now, W0);
        check(&rig, &["w1"], MemberState::Drained, "");
        // The name stays out of service, after any time and for any process.
        rig.now += KEPT + Duration::from_secs(1);
        rig.core.handle_timeout(rig.now);
        rig.register(8, "w0", 1, 9).unwrap();
        check(&rig, &["w1"], MemberState::Drained, "");
        assert_eq!(rig.core.undrain("w0"), Ok(true));
        check(&rig, &["w0", "w1"], MemberState::Alive, "");

        let mut again = super::super::tests::rig();
        again.core.restore_drained(again.now, vec!["w0".into()]);
        let unheard = "not heard of since the coordinator was started";
        check(&again, &[], MemberState::Drained, unheard);
        assert_eq!(again.core.undrain("w0"), Ok(false));
    }
}
