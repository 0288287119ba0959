//! A client that is back on another link before its worker has noticed the end of the former one.

use std::sync::Arc;

use convoke_graph::Tensor;
use convoke_rendezvous::Link;
use convoke_rendezvous::eager::EagerService;
use convoke_rendezvous::eager::wire::Command;

use crate::node::testing::Rig;

impl Rig {
    /// Has the client begin a session over a link, whose handles are numbered from `first` on, and make a handle in it.
    fn make(&self, over: &Arc<Link>, first: u64) {
        let mut batch = vec![];
        if first > 0 {
            Command::Begin { first }.encode(&mut batch, 0).unwrap();
        }
        let tensor = Tensor::scalar(1.0f32);
        let origin = 0;
        let literal = Command::Literal { tensor, origin };
        literal.encode(&mut batch, first).unwrap();
        let eager = &self.holdings.eager;
        eager.batch(&self.client.me, over.id(), &batch).unwrap();
    }

    /// Checks how many handles the client's only session has, and that it belongs to this link.
    #[track_caller]
    fn check(&self, link: &Arc<Link>, handles: u64) {
        let session = self.holdings.eager.of_driver(&self.client.me).unwrap();
        assert!(Arc::ptr_eq(&session.link, link));
        let eager = &self.holdings.eager;
        assert_eq!((eager.count(), eager.live().0), (1, handles));
    }
}

#[tokio::test]
async fn a_client_that_is_back_on_another_link_has_a_session_of_its_own_there() {
    let rig = Rig::new().await;
    let former = rig.link().await;
    rig.make(&former, 0);
    rig.make(&former, 0);
    rig.check(&former, 2);
    // The worker still takes the former link for one that lives.
    let link = rig.link().await;
    assert!(!former.is_closed());
    rig.make(&link, 2);
    rig.check(&link, 1);
    // A batch that was on its way over the former link belongs to a session that its client has given up.
    rig.make(&former, 0);
    rig.check(&link, 1);
    // The end of the former link, when it is noticed, changes nothing.
    former.close("silent");
    rig.holdings.hub.link_lost(&former, "silent");
    rig.check(&link, 1);
}

#[tokio::test]
async fn what_others_send_to_a_client_that_is_back_reaches_its_new_session() {
    let rig = Rig::new().await;
    let former = rig.link().await;
    rig.make(&former, 0);
    let link = rig.link().await;
    // A transfer may come before the client's first batch: it asks for the session, as a step does.
    rig.check(&link, 0);
    rig.make(&link, 1);
    rig.check(&link, 1);
}

#[test]
fn a_session_of_a_former_link_is_noticed() {
    convoke_common::mutant_is_killed!(
        "former-session-served",
        a_client_that_is_back_on_another_link_has_a_session_of_its_own_there
    );
}
