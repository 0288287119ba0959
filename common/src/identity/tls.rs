//! The TLS settings of a member and of a newcomer.

use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group, sign::any_eddsa_type};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, SignatureScheme};

use super::ca::IdentityError;
use super::files::OwnIdentity;
use super::revocation::RevocationList;
use super::subject::{CaHash, Role};
use super::verify::{ALGORITHMS, VerifyClient, VerifyServer};
use crate::world::{WallClock, WallTime};

/// The name in every server certificate. Addresses are not in certificates: members are known by role and key.
pub const SERVER_NAME: &str = "convoke";

/// Constant for ever, whatever the protocol version: versions are compared, and named, by the greeting.
const ALPN: &[u8] = b"convoke/1";

/// Ed25519 signatures, X25519 exchange, and AES-128 before AES-256: it is the faster where AES is in hardware, which
/// every processor that this software runs on has.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = default_provider();
    provider.cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider.kx_groups = vec![kx_group::X25519];
    provider.signature_verification_algorithms = ALGORITHMS;
    Arc::new(provider)
});

/// The certificate that handshakes show; renewal replaces it in place.
#[derive(Debug)]
struct LiveIdentity(RwLock<Arc<CertifiedKey>>);

impl LiveIdentity {
    fn current(&self) -> Arc<CertifiedKey> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesServerCert for LiveIdentity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for LiveIdentity {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let certified = self.current();
        certified
            .key
            .choose_scheme(schemes)
            .is_some()
            .then_some(certified)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn certified(identity: &OwnIdentity) -> Result<Arc<CertifiedKey>, IdentityError> {
    let der = PrivatePkcs8KeyDer::from(identity.key().pkcs8());
    let key = any_eddsa_type(&der).map_err(IdentityError::Tls)?;
    // The CA goes along for newcomers, who know only its hash.
    let chain = vec![identity.certificate().clone(), identity.ca().clone()];
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

/// How an endpoint shows itself and whom it accepts. Clones share the identity.
#[derive(Debug, Clone)]
pub struct TlsConfigs {
    /// For dialling.
    pub client: Arc<ClientConfig>,
    /// For listening; absent where there is nothing to show that a dialler would accept.
    pub server: Option<Arc<ServerConfig>>,
    live: Option<Arc<LiveIdentity>>,
}

impl TlsConfigs {
    /// A member: dials members, and unless it is a client lets members in, and newcomers without a certificate.
    pub fn cluster(
        identity: &OwnIdentity,
        revoked: Arc<RevocationList>,
        wall: Arc<dyn WallClock>,
    ) -> Result<Self, IdentityError> {
        let live = Arc::new(LiveIdentity(RwLock::new(certified(identity)?)));
        let verifier = VerifyServer::member(identity.ca().clone(), revoked.clone());
        let mut client = client_builder(&wall, verifier)?.with_client_cert_resolver(live.clone());
        finish_client(&mut client);
        let server = match identity.peer().role {
            Role::Client => None,
            Role::Coordinator | Role::Worker => {
                let verifier = VerifyClient::member(identity.ca().clone(), revoked);
                Some(Arc::new(server_config(&wall, verifier, live.clone())?))
            }
        };
        Ok(Self {
            client: Arc::new(client),
            server,
            live: Some(live),
        })
    }

    /// A newcomer: dials only the coordinator of the cluster whose CA has this hash, and shows nothing.
    pub fn joining(ca: CaHash, wall: Arc<dyn WallClock>) -> Result<Self, IdentityError> {
        let verifier = VerifyServer::coordinator_of(ca);
        let mut client = client_builder(&wall, verifier)?.with_no_client_auth();
        finish_client(&mut client);
        Ok(Self {
            client: Arc::new(client),
            server: None,
            live: None,
        })
    }

    /// Shows a renewed certificate from the next handshake on, on endpoints already built too.
    pub fn renew(&self, identity: &OwnIdentity) -> Result<(), IdentityError> {
        let renewed = certified(identity)?;
        if let Some(live) = &self.live {
            *live.0.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        }
        Ok(())
    }
}

fn client_builder(
    wall: &Arc<dyn WallClock>,
    verifier: VerifyServer,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, IdentityError> {
    let time = Arc::new(WallTime(wall.clone()));
    Ok(ClientConfig::builder_with_details(PROVIDER.clone(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(IdentityError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

fn finish_client(config: &mut ClientConfig) {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
}

fn server_config(
    wall: &Arc<dyn WallClock>,
    verifier: VerifyClient,
    live: Arc<LiveIdentity>,
) -> Result<ServerConfig, IdentityError> {
    let time = Arc::new(WallTime(wall.clone()));
    let mut config = ServerConfig::builder_with_details(PROVIDER.clone(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(IdentityError::Tls)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(live);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
