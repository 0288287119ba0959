//! After faults heal, the coordinator keeps what it is told: a token can be made and revoked, and its state is healthy.

use convoke_common::identity::Role;

use crate::cluster::{Cluster, Task};
use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::View;

/// Makes and revokes a token, both of which the coordinator has to keep on its disk, and asks for its health.
pub fn keeps(cluster: &Cluster) -> Task<Result<(), String>> {
    cluster.on_coordinator(|c| async move {
        let kept = async {
            let token = c.create_token(Role::Client, None).await?;
            c.revoke_token(&token.id).await?;
            c.health().await
        };
        kept.await.map_err(|e| e.to_string())
    })
}
pub(in crate::invariants) struct Keeping;

impl Invariant for Keeping {
    fn name(&self) -> &'static str {
        "the coordinator keeps what it is told"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        if let (Stage::Rest, Some(Err(why))) = (stage, view.kept) {
            found.say(why);
        }
    }
}
