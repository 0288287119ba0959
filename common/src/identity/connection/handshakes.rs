//! Handshakes that peers began with an endpoint, bounded so that a flood of them does not shut other peers out.
//!
//! Invariants:
//! 1. A bounded number of handshakes is in progress; a further one pushes out the oldest, see [`Places`].
//! 2. Once half of the places are taken a peer must first show that it receives at its address, by QUIC's retry: that
//!    costs this side one packet and no memory, so that forged addresses never cost a signature.
//! 3. While half of the places are taken, handshakes begin no faster than one in [`PACE`]: each costs a signature on
//!    the thread that also serves all other peers.
//! 4. Every peer that is not let in is counted, by reason.

use std::sync::Arc;
use std::time::Duration;

use crate::admission::chain;
use crate::counters::Counters;
use crate::identity::connection::dial::{
    AcceptError, InboundConnection, TlsCause, alert, greet_first,
};
use crate::places::{Place, Places};
use crate::world::Incoming;
use crate::world::quic::ConnectionError;

/// The pause before each handshake while half of the places are taken: at most 500 begin in a second.
pub const PACE: Duration = Duration::from_millis(2);

/// The handshakes of one endpoint.
#[derive(Debug)]
pub struct Handshakes {
    most: usize,
    places: Places,
    refused: Arc<Counters>,
}

/// A handshake that has a place.
pub struct Handshake {
    incoming: Incoming,
    place: Place,
    refused: Arc<Counters>,
}

impl Handshakes {
    /// Allows at most `most` handshakes at once; `refused` counts the peers that are not let in.
    pub fn new(most: usize, refused: Arc<Counters>) -> Handshakes {
        Handshakes {
            most,
            places: Places::new(most),
            refused,
        }
    }

    /// Gives a peer's handshake a place. While half of the places are taken, a peer whose address is not proven is
    /// asked to prove it, which returns `None`, and the others wait for `PACE`.
    pub async fn begin(&self, incoming: Incoming) -> Option<Handshake> {
        if 2 * self.places.len() >= self.most {
            if !incoming.is_validated() {
                incoming.retry();
                return None;
            }
            tokio::time::sleep(PACE).await;
        }
        let (place, pushed_out) = self.places.take();
        if pushed_out {
            self.refused.count("handshake_pushed_out");
        }
        Some(Handshake {
            incoming,
            place,
            refused: self.refused.clone(),
        })
    }
}

impl Handshake {
    /// Completes the handshake within `bound`; `None` if the peer is not let in. Run one task for each handshake.
    pub async fn greet(self, bound: Duration) -> Option<InboundConnection> {
        let greeting = greet_first(self.incoming, bound);
        match self.place.hold(greeting).await? {
            Ok(greeted) => Some(greeted),
            Err(error) => {
                tracing::debug!("a peer was not let in: {}", chain(&error));
                self.refused.count(reason(&error));
                None
            }
        }
    }
}

fn reason(error: &AcceptError) -> &'static str {
    let (code, by_us) = match error {
        AcceptError::Timeout { .. } => return "handshake_too_slow",
        AcceptError::Hello { .. } => return "handshake_greeting",
        AcceptError::Handshake { source, .. } => match source {
            ConnectionError::TransportError(e) => (e.code, true),
            ConnectionError::ConnectionClosed(e) => (e.error_code, false),
            _ => return "handshake_cut",
        },
    };
    match alert(code).map(|alert| TlsCause::from_alert(alert, by_us)) {
        Some(TlsCause::Revoked) => "handshake_revoked",
        Some(TlsCause::OutOfDate) => "handshake_out_of_date",
        Some(TlsCause::OtherCluster) => "handshake_other_cluster",
        Some(TlsCause::NotCoordinator) => "handshake_not_coordinator",
        Some(TlsCause::NotConvoke) => "handshake_not_convoke",
        Some(TlsCause::Other) | None => "handshake_failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::subject::{Role, TokenId};
    use crate::identity::connection::dial::dial;
    use crate::identity::testing::rig;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_flood_pushes_out_itself_and_is_counted() {
        let rig = rig();
        let server = rig.member(Role::Worker).await;
        let refused = Arc::new(Counters::default());
        let handshakes = Handshakes::new(4, refused.clone());
        let serving = server.clone();
        tokio::spawn(async move {
            let mut greeted = Vec::new();
            while let Some(incoming) = serving.accept().await {
                if let Some(handshake) = handshakes.begin(incoming).await {
                    greeted.push(tokio::spawn(handshake.greet(SOON)));
                }
            }
        });
        // Each of these peers completes TLS, and never greets.
        let flood = rig.member(Role::Client).await;
        let mut idle = Vec::new();
        for _ in 0..12 {
            let connecting = flood.connect(server.local_addr()).expect("dials");
            idle.push(connecting.await.expect("TLS"));
        }
        let honest = rig.member(Role::Client).await;
        let dialled = dial(&honest, server.local_addr(), Role::Worker, SOON).await;
        assert!(dialled.is_ok(), "{dialled:?}");
        let counted = refused.counted();
        assert!(counted["handshake_pushed_out"] >= 8, "{counted:?}");
    }

    #[tokio::test]
    async fn reasons_have_names() {
        let rig = rig();
        let server = rig.member(Role::Worker).await;
        let refused = Arc::new(Counters::default());
        let handshakes = Handshakes::new(4, refused.clone());
        let id: TokenId = "token234".parse().expect("id");
        let identity = rig.identity_of(Role::Client, "c", id.clone());
        rig.revoked.extend([id]);
        let dialler = rig.endpoint(&rig.tls(&identity)).await;
        let accepted = async {
            let incoming = server.accept().await.expect("open");
            handshakes
                .begin(incoming)
                .await
                .expect("a place")
                .greet(SOON)
                .await
        };
        let dialling = dial(&dialler, server.local_addr(), Role::Worker, SOON);
        let (accepted, dialled) = tokio::join!(accepted, dialling);
        assert!(accepted.is_none() && dialled.is_err());
        assert_eq!(
            refused.counted(),
            [("handshake_revoked".to_owned(), 1)].into()
        );
    }
}
