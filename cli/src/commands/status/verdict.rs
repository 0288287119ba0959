//! Whether a cluster is well, by its status.

use convoke::{ClusterStatus, Code, Error};
use convoke_common::rpc::{MemberState, MemberStatus};

use super::text::{ago, state};

/// Lists what is wrong with the cluster; if a member is given, with the coordinator or that worker alone.
pub fn verdict(status: &ClusterStatus, member: Option<&str>) -> Result<(), Error> {
    if let Some(why) = &status.state_failure {
        let msg = format!("the coordinator cannot write its state: {why}");
        return Err(Error::new(Code::Io, msg));
    }
    let is_wanted = |m: &&MemberStatus| member.is_none_or(|name| m.name == name);
    let mut wanted = status.members.iter().filter(is_wanted).peekable();
    if let (None, Some(name)) = (wanted.peek(), member) {
        return Err(Error::new(
            Code::NotFound,
            format!("there is no worker {name}"),
        ));
    }
    let well = |m: &MemberStatus| match m.state {
        MemberState::Alive => m.status.is_some(),
        // Taken out of service on purpose: that is no fault of the cluster's.
        MemberState::Drained | MemberState::Leaving => member.is_none(),
        MemberState::Wedged | MemberState::Lost => false,
    };
    match wanted.find(|m| !well(m)) {
        None => Ok(()),
        Some(m) => {
            let (state, seen) = (state(m), ago(m.last_seen_ms));
            let msg = format!("worker {} is {state}, last seen {seen}", m.name);
            Err(Error::new(Code::PeerLost, msg).advise(
                "`convoke status` shows all; `convoke forget NAME` where it will not return",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A status as it is told in JSON. A worker of the state `silent` is alive and did not answer.
    fn cluster(state_failure: Option<&str>, workers: &[(&str, &str)]) -> ClusterStatus {
        let account = json!({
            "incarnation": "inc-1", "memory_budget_bytes": 1, "memory_used_bytes": {}, "memory_peak_bytes": 0,
            "resident_bytes": 0, "resident_peak_bytes": 0, "programs": [], "live_steps": 0, "steps_done": 0,
            "steps_failed": {}, "live_handles": 0, "handle_bytes": 0, "links": [], "refused": {}, "cache_bytes": 0,
            "loaded_bytes": {"shared_path": 0, "cache": 0, "clients": 0},
            "weights": {"held_bytes": 0, "shared_bytes": 0, "unused_bytes": 0},
            "rendezvous": {"leases": 0, "open_steps": 0, "waiting_receives": 0, "arriving_tensors": 0, "waiting_tensors": 0, "aborts": 0},
            "program_store": {"held_programs": 0, "held_bytes": 0, "unused_programs": 0, "received_programs": 0, "received_bytes": 0},
            "holdings": [], "connections": [], "compute": [],
        });
        let member = |(name, state): &(&str, &str)| {
            let (state, account) = match *state {
                "silent" => ("alive", None),
                "alive" => ("alive", Some(&account)),
                state => (state, None),
            };
            json!({
                "name": name, "incarnation": "inc-1", "address": "", "host": "", "version": "", "device": "cpu:0", "device_profile": "",
                "threads": 1,
                "memory_bytes": 1, "device_memory_bytes": 1, "host_flops_per_second": 1.0, "flops_per_second": 1.0, "memory_bandwidth_bytes_per_second": 1.0, "last_seen_ms": 4000, "state": state, "remark": "",
                "tripwire": true, "ops": [], "status": account,
            })
        };
        let members: Vec<_> = workers.iter().map(member).collect();
        let status = json!({
            "version": "", "profile": "", "state_failure": state_failure, "members": members, "links": [],
            "leases": [], "quarantine": [], "refused": {}, "relayed_weight_bytes": 0, "received_bytes": 0,
            "sent_bytes": 0, "holdings": [], "connections": [],
        });
        serde_json::from_value(status).unwrap()
    }

    fn wrong(status: &ClusterStatus, member: Option<&str>) -> (Code, String) {
        let e = verdict(status, member).unwrap_err();
        (e.code, e.message)
    }

    #[test]
    fn a_coordinator_that_cannot_write_its_state_is_not_well() {
        let full = cluster(Some("no space left on device"), &[("w0", "alive")]);
        let said = "the coordinator cannot write its state: no space left on device".to_owned();
        for member in [None, Some("w0"), Some("w9")] {
            assert_eq!(wrong(&full, member), (Code::Io, said.clone()));
        }
    }

    #[test]
    fn a_cluster_is_as_well_as_its_workers() {
        assert_eq!(verdict(&cluster(None, &[]), None), Ok(()));
        for (state, well, alone) in [
            ("alive", true, true),
            ("drained", true, false),
            ("leaving", true, false),
            ("silent", false, false),
            ("wedged", false, false),
            ("lost", false, false),
        ] {
            let status = cluster(None, &[("w0", "alive"), ("w1", state)]);
            assert_eq!(verdict(&status, None).is_ok(), well, "{state}");
            assert_eq!(verdict(&status, Some("w1")).is_ok(), alone, "{state}");
            assert_eq!(verdict(&status, Some("w0")), Ok(()), "{state}");
        }
        let lost = cluster(None, &[("w0", "alive"), ("w1", "lost")]);
        let said = "worker w1 is lost, last seen 4 s ago".to_owned();
        assert_eq!(wrong(&lost, None), (Code::PeerLost, said));
        let none = "there is no worker w9".to_owned();
        assert_eq!(wrong(&lost, Some("w9")), (Code::NotFound, none));
    }
}
