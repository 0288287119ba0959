//! How long plans are kept, and for which client.

use super::*;

#[test]
fn what_a_plan_was_granted_ends_when_its_driver_gives_it_up() {
    for done in [false, true] {
        let mut rig = rig().workers(2).granted();
        if done {
            rig.core.installed(LEASE).unwrap();
        }
        rig.core
            .resume(
                ConnectionId(77),
                Driver {
                    name: "you".into(),
                    ..me()
                },
                vec![],
            )
            .unwrap();
        rig.core.give_up(ConnectionId(77), PLAN);
        rig.core.give_up(CLIENT, PlanId(PLAN.0 + 1));
        assert_eq!(rig.commands(), []);
        rig.core.give_up(CLIENT, PLAN);
        let at = vec![ConnectionId(0), ConnectionId(1)];
        assert_eq!(rig.commands(), [Command::Release { lease: LEASE, at }]);
        assert!(rig.core.leases().is_empty());
        if !done {
            assert!(rig.core.installed(LEASE).is_err());
        }
    }
}

#[test]
fn one_client_pushes_out_its_own_plans_first() {
    let mut rig = rig().workers(2).granted();
    let plan = rig.core.plan(rig.now, CLIENT, PLAN).unwrap().plan;
    let you = ConnectionId(77);
    rig.core
        .resume(
            you,
            Driver {
                name: "you".into(),
                ..me()
            },
            vec![],
        )
        .unwrap();
    for n in 0..200 {
        rig.now += Duration::from_millis(1);
        rig.core
            .keep_plan(rig.now, you, PlanId(1000 + n), plan.clone(), None, true);
    }
    rig.core.plan(rig.now, CLIENT, PLAN).unwrap();
    rig.core.plan(rig.now, you, PlanId(1199)).unwrap();
    assert!(rig.core.plan(rig.now, you, PlanId(1000)).is_err());
}

#[test]
fn a_plan_of_a_node_that_was_quarantined_since_is_not_installed() {
    let mut rig = rig().workers(2).granted();
    let death = |incarnation| CountedDeath {
        worker: "w0".into(),
        incarnation: Incarnation(incarnation),
        signal: 11,
        at: 0,
        forgiven: false,
    };
    let record = |deaths| Record {
        function: FUNCTION,
        node: "n".into(),
        deaths,
    };
    let grant = |rig: &mut Rig, lease| rig.core.grant(rig.now, CLIENT, PLAN, LeaseId(lease));
    rig.core.restore_quarantine(vec![record(vec![death(1)])]);
    grant(&mut rig, 8).unwrap();
    let twice = vec![death(1), death(2)];
    rig.core.restore_quarantine(vec![record(twice)]);
    let refused = grant(&mut rig, 9).unwrap_err();
    assert!(
        matches!(refused, MembershipError::Quarantined { .. }),
        "{refused}"
    );
    rig.core.lift("n").unwrap();
    grant(&mut rig, 10).unwrap();
}

#[test]
fn a_plan_is_for_the_workers_it_was_made_for() {
    let mut rig = rig().workers(2).granted();
    let what = |rig: &mut Rig| {
        rig.core
            .grant(rig.now, CLIENT, PLAN, LeaseId(8))
            .unwrap_err()
    };
    rig.register(5, "w0", 1, 50).unwrap();
    let outdated = |worker: &str, what| MembershipError::PlanOutdated {
        worker: worker.into(),
        what,
    };
    assert_eq!(what(&mut rig), outdated("w0", "was restarted"));
    rig.core.closed(rig.now, ConnectionId(5));
    assert_eq!(what(&mut rig), outdated("w0", "was lost"));
    rig.now += Duration::from_secs(600);
    assert_eq!(what(&mut rig), MembershipError::NoSuchPlan);
}

#[test]
fn plans_are_bounded() {
    let mut rig = rig().workers(2).granted();
    for n in 0..64 {
        rig.now += Duration::from_millis(1);
        let plan = rig.core.plan(rig.now, CLIENT, PLAN).map(|g| g.plan);
        let plan = plan.unwrap_or_else(|_| panic!("{n}: what is used stays"));
        rig.core
            .keep_plan(rig.now, CLIENT, PlanId(100 + n), plan, None, true);
    }
    assert!(rig.core.plan(rig.now, CLIENT, PlanId(100)).is_err());
    assert!(rig.core.plan(rig.now, CLIENT, PlanId(163)).is_ok());
}

#[test]
fn a_plan_for_a_former_incarnation_is_noticed() {
    convoke_common::mutant_is_killed!(
        "former-incarnation-granted",
        a_plan_is_for_the_workers_it_was_made_for
    );
}

#[test]
fn a_lease_granted_after_it_was_given_up_is_noticed() {
    convoke_common::mutant_is_killed!(
        "given-up-unheeded",
        what_a_plan_was_granted_ends_when_its_driver_gives_it_up
    );
}

#[test]
fn an_installed_node_in_quarantine_is_noticed() {
    convoke_common::mutant_is_killed!(
        "quarantine-unheeded-on-install",
        a_plan_of_a_node_that_was_quarantined_since_is_not_installed
    );
}
