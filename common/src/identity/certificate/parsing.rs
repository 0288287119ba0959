//! How a certificate is read from its encoding.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::certificate::subject::BadSubject;
use crate::identity::error::IdentityError;

/// Parses a certificate.
pub(in crate::identity) fn parse<'a>(
    der: &'a CertificateDer<'_>,
) -> Result<X509Certificate<'a>, IdentityError> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| certificate)
        .map_err(|_| IdentityError::BadSubject(BadSubject::Certificate))
}
