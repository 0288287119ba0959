//! Entries of [`crate::fuzzing`] that need private items of this module, under an authority that is always the same.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::identity::authority::ca::{CertificateClaims, ClusterCa};
use crate::identity::certificate::revocation::RevocationList;
use crate::identity::certificate::subject::{CaHash, PeerName, Role, SERVER_NAME, TokenId};
use crate::identity::certificate::validity::CERTIFICATE_LIFE;
use crate::identity::certificate::verify::{TrustedAuthorities, VerifyClient, VerifyServer};
use crate::identity::files::{OwnIdentity, parse_pem};
use crate::world::{NoCompute, Rng, WallClock, World};

/// The time at which everything is verified, in seconds since 1970.
const NOW: u64 = 1_800_000_000;

/// A clock and a random source that always give the same, so that certificates in a corpus stay valid.
#[derive(Debug)]
struct Fixed;

impl Rng for Fixed {
    fn fill(&self, out: &mut [u8]) {
        out.fill(7);
    }
}

impl WallClock for Fixed {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(NOW)
    }
}

pub(crate) fn world() -> World {
    World {
        rng: Arc::new(Fixed),
        wall: Arc::new(Fixed),
        ..World::real(Arc::new(NoCompute))
    }
}

/// The authority that signs the corpus's certificates.
pub(crate) fn authority() -> Option<&'static ClusterCa> {
    static MADE: OnceLock<Option<ClusterCa>> = OnceLock::new();
    MADE.get_or_init(|| ClusterCa::create(&world()).ok())
        .as_ref()
}

fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(NOW))
}

fn accepted_as_server(verifier: &VerifyServer, leaf: &[u8], others: &[&[u8]]) -> bool {
    let Ok(name) = ServerName::try_from(SERVER_NAME) else {
        return false;
    };
    let others: Vec<_> = others
        .iter()
        .map(|der| CertificateDer::from(*der))
        .collect();
    let leaf = CertificateDer::from(leaf);
    let verified = verifier.verify_server_cert(&leaf, &others, &name, &[], now());
    verified.is_ok()
}

/// Verifies a certificate as both ends of a handshake would, shown by their peer.
pub(crate) fn certificate(der: &[u8]) -> bool {
    let Some(authority) = authority() else {
        return false;
    };
    let ca = || TrustedAuthorities::new(vec![authority.certificate().clone()]);
    let revoked = Arc::<RevocationList>::default();
    let server = VerifyServer::member(ca(), revoked.clone());
    let client = VerifyClient::member(ca(), revoked);
    let leaf = CertificateDer::from(der);
    let as_client = client.verify_client_cert(&leaf, &[], now()).is_ok();
    accepted_as_server(&server, der, &[]) | as_client
}

/// Reads `u16 length | CA certificate | certificate`, as a server shows them to a newcomer that knows the hash of the
/// first.
pub(crate) fn stranger(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return false;
    };
    let length = usize::from(u16::from_le_bytes(*length));
    let Some((ca, leaf)) = rest.split_at_checked(length) else {
        return false;
    };
    let hash = CaHash::of(&CertificateDer::from(ca));
    accepted_as_server(&VerifyServer::coordinator_of(hash), leaf, &[ca])
}

/// Issues a certificate for a signing request that came with a valid token.
pub(crate) fn signing_request(der: &[u8]) -> bool {
    let (Some(authority), Ok(name)) = (authority(), PeerName::try_from("w".to_owned())) else {
        return false;
    };
    let claims = CertificateClaims {
        role: Role::Worker,
        name,
        token_id: TokenId::direct(),
        budget: crate::identity::Budget::default(),
        life: CERTIFICATE_LIFE,
    };
    authority.issue(der, &claims, NOW, &Fixed).is_ok()
}

/// Reads a file that should hold a process's own identity.
pub(crate) fn own_file(pem: &[u8]) -> bool {
    let Ok(pem) = parse_pem(pem, Path::new("identity.pem")) else {
        return false;
    };
    let Ok([certificate, ca]) = <[_; 2]>::try_from(pem.certificates) else {
        return false;
    };
    OwnIdentity::new(pem.key, certificate, ca).is_ok()
}
