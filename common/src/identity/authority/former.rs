//! Members that join again: they show their former certificate, and prove that they have its key.

use rcgen::{CertificateSigningRequestParams, PublicKeyData};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, UnixTime};
use webpki::KeyUsage;
use x509_parser::prelude::{FromDer, X509Certificate};

use std::time::Duration;

use crate::identity::certificate::peer::PeerIdentity;
use crate::identity::certificate::validity::validity;
use crate::identity::certificate::verify::verify_leaf;

/// A bound for certificates: a member's has about 600 bytes.
const LARGEST_CERTIFICATE: usize = 4096;

/// Returns the holder of `certificate` if this CA signed the certificate and `request` was made with its key. The
/// certificate may have expired; whether its token is still valid is for the caller to judge.
pub fn former_holder(
    ca: &CertificateDer<'_>,
    certificate: &[u8],
    request: &[u8],
) -> Option<PeerIdentity> {
    if certificate.len().max(request.len()) > LARGEST_CERTIFICATE {
        return None;
    }
    let der = CertificateDer::from(certificate);
    let (_, not_after) = validity(&der).ok()?;
    // The certificate may have expired: that is why its holder joins again.
    let then = UnixTime::since_unix_epoch(Duration::from_secs(not_after));
    let holder = verify_leaf(&der, ca, &[], then, KeyUsage::client_auth()).ok()?;
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    // Reading the request verifies that its own key signed it.
    let request = CertificateSigningRequestDer::from(request);
    let request = CertificateSigningRequestParams::from_der(&request).ok()?;
    let same = *parsed.public_key().subject_public_key.data == *request.public_key.der_bytes();
    same.then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::csr::OwnKey;
    use crate::identity::certificate::subject::Role;
    use crate::identity::testing::rig;

    #[test]
    fn only_who_has_the_key_of_a_genuine_certificate_was_its_holder() {
        let rig = rig();
        let own = rig.identity(Role::Client, "client-1");
        let request = own.key().csr().expect("request");
        let ca = rig.ca.certificate();
        let holder = former_holder(ca, own.certificate(), &request).expect("its own");
        assert_eq!(holder, *own.peer());
        // A request with another key, a certificate of another cluster, and bytes that are no certificate are refused.
        let other = OwnKey::generate(rig.world.rng.as_ref()).expect("key");
        assert_eq!(
            former_holder(ca, own.certificate(), &other.csr().expect("request")),
            None
        );
        let stranger = crate::identity::testing::rig();
        let stranger = stranger.ca.certificate();
        assert_eq!(former_holder(stranger, own.certificate(), &request), None);
        assert_eq!(former_holder(ca, b"", &request), None);
        assert_eq!(former_holder(ca, own.certificate(), b""), None);
        assert_eq!(former_holder(ca, ca, &request), None);
    }
}
