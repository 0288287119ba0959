//! Installs that meet the release of their lease.

use std::sync::Arc;

use convoke_common::error::Code;
use convoke_common::grant::{Grant, Participant};
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::rpc::InstallAnswer;
use convoke_graph::ids::FunctionId;
use convoke_graph::program::{Axes, HashedProgram, Program};

use crate::node::testing::Rig;

/// A grant of a program without nodes at the worker, which the client drives.
fn grant(rig: &Rig, lease: LeaseId) -> (Grant, Vec<Arc<Program>>) {
    let program = Arc::new(Program {
        name: "m".into(),
        function: FunctionId([1; 32]),
        profile: rig.holdings.engine.profile().into(),
        values: vec![],
        literals: vec![],
        artifacts: vec![],
        nodes: vec![],
        init_nodes: 0,
        recvs: vec![],
        sends: vec![],
    });
    let participants = [&rig.holdings.me, &rig.client.me].map(|peer| Participant {
        name: peer.name.clone(),
        incarnation: peer.incarnation,
        address: String::new(),
    });
    let grant = Grant {
        lease,
        plan: PlanId(1),
        program: HashedProgram::new(program.clone()).unwrap().id().to_owned(),
        me: 0,
        participants: participants.into(),
        axes: Axes::default(),
        in_flight: 1,
        step_bytes: 0,
        bodies: vec![],
    };
    (grant, vec![program])
}

#[tokio::test]
async fn a_lease_that_is_released_during_its_install_is_not_held() {
    let rig = Rig::new().await;
    let holdings = &rig.holdings;
    let lease = LeaseId(1);
    let (asked, programs) = grant(&rig, lease);
    // It waits for its driver to link itself.
    let mut install = Box::pin(holdings.install(asked, programs));
    assert!(futures::poll!(install.as_mut()).is_pending());
    holdings.release(lease);
    let _link = rig.link().await;
    let refused = install.await.unwrap_err();
    assert_eq!(refused.code, Code::LeaseRetired, "{refused}");
    assert!(holdings.held().is_empty() && holdings.hub.lease(lease).is_none());

    let lease = LeaseId(2);
    let (asked, programs) = grant(&rig, lease);
    let installed = holdings.install(asked, programs).await;
    assert_eq!(installed.unwrap(), InstallAnswer::Installed);
    assert!(holdings.hub.lease(lease).is_some());
}

#[test]
fn a_release_that_is_forgotten_during_an_install_is_noticed() {
    convoke_common::mutant_is_killed!(
        "release-outrun",
        a_lease_that_is_released_during_its_install_is_not_held
    );
}
