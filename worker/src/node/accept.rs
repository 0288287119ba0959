//! Accepting the connections of peers that dial a worker: handshakes and connections are bounded.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::identity::{Handshakes, Role};
use convoke_common::members::NoPlace;
use convoke_common::rpc::close;

use crate::node::holdings::Holdings;
use crate::node::records::account_of_member;
use crate::node::service;

/// Handshakes that run at once; each costs a signature and a little memory.
const HANDSHAKES: usize = 128;
/// How long a handshake may take.
const GREET_BOUND: Duration = Duration::from_secs(5);

/// Accepts connections until the endpoint closes.
pub async fn run(holdings: Arc<Holdings>) {
    let handshakes = Handshakes::new(HANDSHAKES, holdings.refused.clone());
    while let Some(incoming) = holdings.endpoint.accept().await {
        let Some(handshake) = handshakes.begin(incoming).await else {
            continue;
        };
        let holdings = holdings.clone();
        // The task ends with its bound, or with the endpoint.
        holdings.world.clone().spawn(async move {
            let Some(greeted) = handshake.greet(GREET_BOUND).await else {
                return;
            };
            let connection = greeted.connection;
            let Some(peer) = greeted.identity.filter(|p| p.role != Role::Coordinator) else {
                holdings.refused.count("connection_wrong_role");
                connection.close(close::REFUSED.into(), b"a certificate is needed");
                return;
            };
            let charged =
                (peer.role == Role::Client).then(|| account_of_member(&holdings.ledger, &peer));
            let entered = match holdings.members.enter(&peer, &connection, charged) {
                Ok(entered) => entered,
                Err(why) => {
                    holdings.refused.count("connection_too_many");
                    let code = match why {
                        NoPlace::Memory(_) => close::NO_MEMORY,
                        _ => close::REFUSED,
                    };
                    connection.close(code.into(), why.to_string().as_bytes());
                    return;
                }
            };
            let name = peer.name.as_str().to_owned();
            let watched = holdings.detector.watch(connection);
            service::serve_connection(&holdings, watched, peer.role, name, Some(entered));
        });
    }
}
