//! Identity: the cluster's certificate authority, certificates with a role inside, join tokens, and the TLS settings
//! that follow from them.
//!
//! ```text
//! newcomer                                    coordinator (owns ClusterCa and TokenStore)
//!   JoinToken ── TlsConfigs::joining ─────────▶ shows a chain that ends in the CA whose hash the token names
//!   OwnKey::csr + token id and secret ────────▶ TokenStore::check, ClusterCa::issue
//!   OwnIdentity ◀───────────────────────────── certificate
//!   TlsConfigs::cluster ──── dial / greet ───▶ PeerIdentity on both sides
//! ```
//!
//! Invariants:
//! 1. A private key never leaves the process that made it, except into its own 0600 file.
//! 2. A token's secret is sent only over a connection whose server proved to be the coordinator of the cluster that
//!    the token names; the store keeps only its hash; no `Debug` shows it.
//! 3. Every handshake verifies the whole certificate against the wall clock and the revocation list: TLS sessions are
//!    never resumed, for resumption skips both.
//! 4. A peer without a certificate is connected but has no [`PeerIdentity`]; it may use the join service only.
//! 5. Only a coordinator's or worker's certificate can act as a server.

mod authority;
mod certificate;
mod connection;
mod error;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
pub(crate) mod testing;
mod token;

pub use authority::ca::{CertificateClaims, ClusterCa};
pub use authority::csr::OwnKey;
pub use authority::former::former_holder;
pub use certificate::membership::{MEMBERSHIP_OVER, membership_over};
pub use certificate::peer::PeerIdentity;
pub use certificate::revocation::RevocationList;
pub use certificate::subject::{BadSubject, CaHash, PeerName, Role, SERVER_NAME, Serial, TokenId};
pub use certificate::validity::{CA_LIFE, CERTIFICATE_LIFE};
pub use connection::dial::{
    AcceptError, CLOSE_WRONG_ROLE, DIAL_TIMEOUT, DialError, InboundConnection, OutboundConnection,
    Side, TlsCause, dial, greet,
};
pub use connection::handshakes::{Handshake, Handshakes};
pub use connection::peer_certificate::{certified_until, is_certified_by, peer_ca, peer_identity};
pub(crate) use connection::tls::AskedNames;
pub use connection::tls::TlsConfigs;
pub use error::IdentityError;
pub use files::{IdentityFiles, OwnIdentity};
pub use token::budget::{Amount, Budget, Weight};
pub use token::store::{TokenError, TokenInfo, TokenStore};
pub use token::{BadToken, JoinToken, TokenSecret};
