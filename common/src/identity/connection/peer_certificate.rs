//! What the certificates say that the other end of a connection showed.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::KeyUsage;

use crate::identity::certificate::peer::PeerIdentity;
use crate::identity::certificate::subject::CaHash;
use crate::identity::certificate::validity::validity;
use crate::identity::certificate::verify::verify_leaf;

fn chain(connection: &quinn::Connection) -> Option<Vec<CertificateDer<'static>>> {
    let any = connection.peer_identity()?;
    any.downcast().ok().map(|chain| *chain)
}

/// The identity that the other end of a connection proved; `None` for a peer that showed no certificate.
pub fn peer_identity(connection: &quinn::Connection) -> Option<PeerIdentity> {
    let chain = chain(connection)?;
    PeerIdentity::from_certificate(chain.first()?).ok()
}

/// The last second, since 1970, in which the certificate is valid that the other end of a connection showed.
pub fn certified_until(connection: &quinn::Connection) -> Option<u64> {
    let chain = chain(connection)?;
    validity(chain.first()?).ok().map(|(_, end)| end)
}

/// Whether one of these authorities itself signed the certificate that the other end of a connection showed. The
/// certificate may have expired meanwhile; whether its token is still valid is for the caller to judge.
pub fn is_certified_by(
    connection: &quinn::Connection,
    authorities: &[CertificateDer<'static>],
) -> bool {
    let Some(leaf) = chain(connection).and_then(|chain| chain.into_iter().next()) else {
        return false;
    };
    let signed = |ca: &CertificateDer<'static>| {
        let (_, end) = validity(&leaf).ok()?;
        let (_, last) = validity(ca).ok()?;
        let then = UnixTime::since_unix_epoch(Duration::from_secs(end.min(last)));
        verify_leaf(&leaf, ca, &[], then, KeyUsage::client_auth()).ok()
    };
    authorities.iter().any(|ca| signed(ca).is_some())
}

/// The CA certificate with this hash that a server showed: a newcomer keeps it after joining.
pub fn peer_ca(connection: &quinn::Connection, hash: &CaHash) -> Option<CertificateDer<'static>> {
    let chain = chain(connection)?;
    chain.into_iter().find(|ca| CaHash::of(ca) == *hash)
}
