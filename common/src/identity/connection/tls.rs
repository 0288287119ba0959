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

use crate::identity::certificate::revocation::RevocationList;
use crate::identity::certificate::subject::{CaHash, Role};
use crate::identity::certificate::verify::{
    ALGORITHMS, TrustedAuthorities, VerifyClient, VerifyServer,
};
use crate::identity::error::IdentityError;
use crate::identity::files::OwnIdentity;
use crate::identity::token::base32;
use crate::world::{WallClock, WallTime};

/// The BLAKE3 context that separates the names of clusters from all other hashes.
const NAME_CONTEXT: &str = "convoke 2026-11-23 server name of a cluster";

/// How many bytes of the hash are in the name for which diallers ask.
const NAME_LENGTH: usize = 20;

/// The server name for which diallers of the cluster with this CA ask. Members and the bearers of tokens know the CA's
/// hash; a dialler that does not know it cannot ask, and is shown no certificate. The name travels in the clear: it
/// keeps out diallers that guess, but not those that have listened to the network.
pub(in crate::identity) fn name_asked_for(ca: &CaHash) -> String {
    let name = blake3::derive_key(NAME_CONTEXT, ca.as_bytes());
    let (name, _) = name.split_at(NAME_LENGTH);
    format!("c{}", base32(name))
}

/// The ALPN protocol, the same for all protocol versions: the greeting compares versions, and reports a mismatch by
/// name.
const ALPN: &[u8] = b"convoke/1";

/// Ed25519 signatures, X25519 key exchange, and AES-128 before AES-256: AES-128 is faster on processors with AES
/// instructions, and every processor that this software runs on has them.
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
struct LiveIdentity {
    certified: RwLock<Arc<CertifiedKey>>,
    /// The names one of which diallers must ask for to see the certificate: there are several while an authority
    /// replaces another.
    names: RwLock<Vec<String>>,
}

/// The names for which a dialler asks, one after the other until the peer knows one; renewal replaces them in place.
#[derive(Debug, Clone)]
pub(crate) struct AskedNames(Arc<RwLock<Vec<Arc<str>>>>);

impl AskedNames {
    pub(crate) fn new(names: Vec<String>) -> AskedNames {
        let asked = AskedNames(Arc::default());
        asked.set(names);
        asked
    }

    fn set(&self, names: Vec<String>) {
        let names = names.into_iter().map(Arc::from).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// The current names.
    pub(crate) fn get(&self) -> Vec<Arc<str>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The names by which a member's cluster is asked for, and by which the member asks: first that of the authority that
/// signed its certificate. While an authority replaces another, some members know only one of the names.
fn names(identity: &OwnIdentity) -> Vec<String> {
    let authorities = identity.authorities();
    let names = authorities.iter().map(|ca| name_asked_for(&CaHash::of(ca)));
    names.collect()
}

impl LiveIdentity {
    fn current(&self) -> Arc<CertifiedKey> {
        self.certified
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesServerCert for LiveIdentity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let asked = hello.server_name()?;
        let known = names.iter().any(|name| name == asked);
        known.then(|| self.current())
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
    // The chain includes the authorities for newcomers, which know only the hash of one, and for members that do not
    // know yet that the authority was replaced.
    let mut chain = vec![identity.certificate().clone()];
    chain.extend(identity.authorities());
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

/// How an endpoint identifies itself, and which peers it accepts. Clones share the identity.
#[derive(Debug, Clone)]
pub struct TlsConfigs {
    /// Settings for dialling.
    pub client: Arc<ClientConfig>,
    /// Settings for listening; `None` for a process whose certificate no dialler would accept as a server's.
    pub server: Option<Arc<ServerConfig>>,
    /// The names for which this endpoint asks when it dials, see [`name_asked_for`].
    pub(crate) asks_for: AskedNames,
    live: Option<(Arc<LiveIdentity>, Arc<TrustedAuthorities>)>,
}

impl TlsConfigs {
    /// Settings of a member: it dials members and, unless it is a client, accepts members and newcomers without a
    /// certificate.
    pub fn cluster(
        identity: &OwnIdentity,
        revoked: Arc<RevocationList>,
        wall: Arc<dyn WallClock>,
    ) -> Result<Self, IdentityError> {
        let live = Arc::new(LiveIdentity {
            certified: RwLock::new(certified(identity)?),
            names: RwLock::new(names(identity)),
        });
        let trusted = TrustedAuthorities::new(identity.authorities());
        let verifier = VerifyServer::member(trusted.clone(), revoked.clone());
        let mut client = client_builder(&wall, verifier)?.with_client_cert_resolver(live.clone());
        finish_client(&mut client);
        let server = match identity.peer().role {
            Role::Client => None,
            Role::Coordinator | Role::Worker => {
                let verifier = VerifyClient::member(trusted.clone(), revoked);
                Some(Arc::new(server_config(&wall, verifier, live.clone())?))
            }
        };
        Ok(Self {
            client: Arc::new(client),
            server,
            asks_for: AskedNames::new(names(identity)),
            live: Some((live, trusted)),
        })
    }

    /// Settings of a newcomer: it dials only the coordinator of the cluster whose CA has this hash, and shows no
    /// certificate.
    pub fn joining(ca: CaHash, wall: Arc<dyn WallClock>) -> Result<Self, IdentityError> {
        let verifier = VerifyServer::coordinator_of(ca);
        let mut client = client_builder(&wall, verifier)?.with_no_client_auth();
        finish_client(&mut client);
        Ok(Self {
            client: Arc::new(client),
            server: None,
            asks_for: AskedNames::new(vec![name_asked_for(&ca)]),
            live: None,
        })
    }

    /// Shows a renewed certificate and trusts its authorities from the next handshake on, at existing endpoints too.
    pub fn renew(&self, identity: &OwnIdentity) -> Result<(), IdentityError> {
        let renewed = certified(identity)?;
        if let Some((live, trusted)) = &self.live {
            trusted.replace(identity.authorities());
            *live.names.write().unwrap_or_else(PoisonError::into_inner) = names(identity);
            self.asks_for.set(names(identity));
            *live
                .certified
                .write()
                .unwrap_or_else(PoisonError::into_inner) = renewed;
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
