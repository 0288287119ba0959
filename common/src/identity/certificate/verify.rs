//! Certificate verification in both directions.
//!
//! Invariants:
//! 1. A chain is one leaf under an authority of the cluster, or under one that such an authority endorsed when it was
//!    replaced. No other certificate can stand in between: leaf certificates say that they are no authority.
//! 2. A leaf certificate that does not say who its holder is, is refused.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, PeerIncompatible,
    SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::identity::certificate::peer::PeerIdentity;
use crate::identity::certificate::revocation::RevocationList;
use crate::identity::certificate::subject::{CaHash, Role, SERVER_NAME};
use crate::identity::certificate::validity::validity;

/// The most authorities' certificates that belong to an identity: the one of the authority that signed it, and, while
/// that authority replaces another, its endorsement by the other and the other's own.
pub(in crate::identity) const AUTHORITIES: usize = 4;

/// Ed25519 is the only signature algorithm that this cluster accepts.
pub(in crate::identity) static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ED25519],
    mapping: &[(SignatureScheme::ED25519, &[webpki::ring::ED25519])],
};

fn refuse(error: webpki::Error) -> rustls::Error {
    use webpki::Error as E;
    let error = match error {
        E::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        E::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        E::UnknownIssuer | E::InvalidSignatureForPublicKey => CertificateError::UnknownIssuer,
        E::BadDer | E::BadDerTime => CertificateError::BadEncoding,
        E::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        E::CertNotValidForName(_) => CertificateError::NotValidForName,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    error.into()
}

pub(in crate::identity) fn verify_leaf(
    leaf: &CertificateDer<'_>,
    ca: &CertificateDer<'_>,
    shown: &[CertificateDer<'_>],
    now: UnixTime,
    usage: KeyUsage,
) -> Result<PeerIdentity, rustls::Error> {
    // The `webpki` library does not check the validity period of a trust anchor.
    let (not_before, not_after) = validity(ca).map_err(|_| CertificateError::BadEncoding)?;
    if now.as_secs() < not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > not_after {
        return Err(CertificateError::Expired.into());
    }
    let anchor = anchor_from_trusted_cert(ca).map_err(refuse)?;
    let shown = shown.get(..AUTHORITIES).unwrap_or(shown);
    let certificate = EndEntityCert::try_from(leaf).map_err(refuse)?;
    let anchors = std::slice::from_ref(&anchor);
    certificate
        .verify_for_usage(ALGORITHMS.all, anchors, shown, now, usage, None, None)
        .map_err(refuse)?;
    PeerIdentity::from_certificate(leaf)
        .map_err(|error| CertificateError::Other(OtherError(Arc::new(error))).into())
}

/// How members verify each other, whichever side dialled.
#[derive(Debug)]
struct Membership {
    trusted: Arc<TrustedAuthorities>,
    revoked: Arc<RevocationList>,
}

/// The authorities that a member trusts; renewal replaces them in place.
#[derive(Debug)]
pub(in crate::identity) struct TrustedAuthorities(RwLock<Vec<CertificateDer<'static>>>);

impl TrustedAuthorities {
    pub(in crate::identity) fn new(authorities: Vec<CertificateDer<'static>>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(authorities)))
    }

    pub(in crate::identity) fn replace(&self, authorities: Vec<CertificateDer<'static>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = authorities;
    }

    /// Verifies a leaf certificate under any of the authorities, and returns its holder. If none accepts it, the error
    /// is that of the authority that signed it.
    pub(in crate::identity) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        shown: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<PeerIdentity, rustls::Error> {
        let unknown = rustls::Error::from(CertificateError::UnknownIssuer);
        let mut refusal = unknown.clone();
        for ca in self.0.read().unwrap_or_else(PoisonError::into_inner).iter() {
            match verify_leaf(leaf, ca, shown, now, usage) {
                Ok(identity) => return Ok(identity),
                Err(error) if refusal == unknown => refusal = error,
                Err(_) => {}
            }
        }
        Err(refusal)
    }
}

impl Membership {
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        shown: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<PeerIdentity, rustls::Error> {
        let identity = self.trusted.verify(leaf, shown, now, usage)?;
        if self.revoked.contains(&identity.token_id) {
            return Err(CertificateError::Revoked.into());
        }
        Ok(identity)
    }
}

/// Checks that the certificate is a server's. The name for which the dialler asked only makes the listener answer, see
/// [`name_asked_for`](crate::identity::connection::tls::name_asked_for).
fn verify_server_name(leaf: &CertificateDer<'_>) -> Result<(), rustls::Error> {
    let name = ServerName::try_from(SERVER_NAME)
        .map_err(|_| rustls::Error::General("the name of servers is none".to_owned()))?;
    EndEntityCert::try_from(leaf)
        .and_then(|certificate| certificate.verify_is_valid_for_subject_name(&name))
        .map_err(refuse)
}

/// The servers that a dialler accepts.
enum Servers {
    /// Members of the cluster.
    Members(Membership),
    /// The coordinator of the cluster whose CA has this hash.
    CoordinatorOf(CaHash),
}

/// The dialler's verifier of a server's certificate.
pub(in crate::identity) struct VerifyServer(Servers);

impl VerifyServer {
    pub(in crate::identity) fn member(
        trusted: Arc<TrustedAuthorities>,
        revoked: Arc<RevocationList>,
    ) -> Self {
        Self(Servers::Members(Membership { trusted, revoked }))
    }

    pub(in crate::identity) fn coordinator_of(hash: CaHash) -> Self {
        Self(Servers::CoordinatorOf(hash))
    }
}

impl fmt::Debug for VerifyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Servers::Members(_) => f.write_str("VerifyServer::member"),
            Servers::CoordinatorOf(hash) => write!(f, "VerifyServer::coordinator_of({hash:?})"),
        }
    }
}

impl ServerCertVerifier for VerifyServer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usage = KeyUsage::server_auth();
        match &self.0 {
            Servers::Members(members) => {
                members.verify(leaf, others, now, usage)?;
            }
            Servers::CoordinatorOf(hash) => {
                let ca = others
                    .iter()
                    .find(|shown| CaHash::of(shown) == *hash)
                    .ok_or(CertificateError::UnknownIssuer)?;
                let identity = verify_leaf(leaf, ca, others, now, usage)?;
                // A worker of the right cluster must not be able to collect the secrets of tokens.
                if identity.role != Role::Coordinator {
                    return Err(CertificateError::ApplicationVerificationFailure.into());
                }
            }
        }
        verify_server_name(leaf)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

/// The listener's verifier of a dialler's certificate. A dialler without one is let in, for the join service alone.
#[derive(Debug)]
pub(in crate::identity) struct VerifyClient(Membership);

impl VerifyClient {
    pub(in crate::identity) fn member(
        trusted: Arc<TrustedAuthorities>,
        revoked: Arc<RevocationList>,
    ) -> Self {
        Self(Membership { trusted, revoked })
    }
}

impl ClientCertVerifier for VerifyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.verify(leaf, others, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}
