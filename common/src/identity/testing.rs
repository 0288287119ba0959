//! A cluster for tests: an authority on a calendar that tests move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::identity::authority::ca::{CertificateClaims, ClusterCa};
use crate::identity::authority::csr::OwnKey;
use crate::identity::certificate::revocation::RevocationList;
use crate::identity::certificate::subject::{Role, TokenId};
use crate::identity::certificate::validity::CERTIFICATE_LIFE;
use crate::identity::connection::tls::TlsConfigs;
use crate::identity::files::OwnIdentity;
use crate::world::testing::FakeWall;
use crate::world::{Endpoint, EndpointOptions, NetError, NoCompute, RealNet, World};

pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) wall: Arc<FakeWall>,
    pub(crate) ca: ClusterCa,
    pub(crate) revoked: Arc<RevocationList>,
}

pub(crate) const START: u64 = 1_800_000_000;

pub(crate) fn rig() -> Rig {
    let wall = Arc::new(FakeWall::at(START));
    let mut world = World::real(Arc::new(NoCompute));
    world.wall = wall.clone();
    world.net = Arc::new(RealNet::new(wall.clone(), world.rng.clone()));
    Rig {
        ca: ClusterCa::create(&world).expect("an authority"),
        revoked: Arc::default(),
        world,
        wall,
    }
}

impl Rig {
    pub(crate) fn now(&self) -> u64 {
        self.world.wall.unix_seconds()
    }

    pub(crate) fn identity(&self, role: Role, name: &str) -> OwnIdentity {
        self.identity_of(role, name, TokenId::direct())
    }

    pub(crate) fn identity_of(&self, role: Role, name: &str, token_id: TokenId) -> OwnIdentity {
        self.identity_for(role, name, token_id, CERTIFICATE_LIFE)
    }

    pub(crate) fn identity_for(
        &self,
        role: Role,
        name: &str,
        token_id: TokenId,
        life: Duration,
    ) -> OwnIdentity {
        let rng = self.world.rng.as_ref();
        let key = OwnKey::generate(rng).expect("key");
        let claims = CertificateClaims {
            role,
            name: name.parse().expect("name"),
            token_id,
            budget: crate::identity::Budget::default(),
            life,
        };
        let request = key.csr().expect("request");
        let certificate = self.ca.issue(&request, &claims, self.now(), rng);
        let ca = self.ca.certificate().clone();
        OwnIdentity::new(key, certificate.expect("issued"), ca).expect("belongs")
    }

    pub(crate) fn tls(&self, identity: &OwnIdentity) -> TlsConfigs {
        let (revoked, wall) = (self.revoked.clone(), self.world.wall.clone());
        TlsConfigs::cluster(identity, revoked, wall).expect("usable")
    }

    pub(crate) async fn bind(&self, addr: &str, tls: &TlsConfigs) -> Result<Endpoint, NetError> {
        let addr = addr.parse().expect("address");
        let options = EndpointOptions::default();
        self.world.net.endpoint(addr, tls, &options).await
    }

    pub(crate) async fn endpoint(&self, tls: &TlsConfigs) -> Endpoint {
        self.bind("127.0.0.1:0", tls).await.expect("a port")
    }

    pub(crate) async fn member(&self, role: Role) -> Endpoint {
        let identity = self.identity(role, role.as_str());
        self.endpoint(&self.tls(&identity)).await
    }
}

/// A verifier that accepts any server, and records that it was shown a certificate.
#[derive(Debug)]
struct Anybody(Arc<AtomicBool>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.store(true, Ordering::Relaxed);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// Makes a dialler accept any certificate; the returned flag is set when a server shows one.
pub(crate) fn accept_any(tls: &mut TlsConfigs) -> Arc<AtomicBool> {
    let shown = Arc::<AtomicBool>::default();
    let verifier = Arc::new(Anybody(shown.clone()));
    let client = Arc::make_mut(&mut tls.client);
    client.dangerous().set_certificate_verifier(verifier);
    shown
}
