//! The times between which certificates are valid.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

use crate::identity::certificate::parsing::parse;
use crate::identity::error::IdentityError;

/// How long the CA's certificate is valid.
pub const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How long a member's certificate is valid; it is renewed after a third of that.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// Certificates are valid from this long before they are made, because clocks differ.
pub(in crate::identity) const BACKDATE: Duration = Duration::from_secs(3600);

/// The first and the last second in which a certificate is valid, since 1970.
pub(in crate::identity) fn validity(der: &CertificateDer<'_>) -> Result<(u64, u64), IdentityError> {
    let certificate = parse(der)?;
    let seconds = |time: x509_parser::time::ASN1Time| time.timestamp().max(0) as u64;
    let validity = certificate.validity();
    Ok((seconds(validity.not_before), seconds(validity.not_after)))
}
