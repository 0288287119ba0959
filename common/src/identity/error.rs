//! Why a key or certificate could not be made, read or stored.

use std::path::PathBuf;

use crate::identity::certificate::subject::BadSubject;
use crate::world::StoreError;

/// Why a key or certificate could not be made, read or stored.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The disk refused to read or write a file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The certificate library failed.
    #[error("cannot {what}")]
    Crypto {
        /// What could not be done, beginning with a verb.
        what: &'static str,
        /// The library's error.
        #[source]
        source: rcgen::Error,
    },
    /// The CA does not serve this signing request.
    #[error("the signing request is refused: {reason}")]
    BadRequest {
        /// Why the request is refused.
        reason: &'static str,
    },
    /// The certificate does not say who its holder is.
    #[error("the certificate cannot be used")]
    BadSubject(#[source] BadSubject),
    /// The file does not hold a certificate or key as it should.
    #[error(
        "{} is damaged: {reason}; restore it from a backup, or remove it to start anew \
         (every member must then join again)", path.display()
    )]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: &'static str,
    },
    /// The key and the certificate do not belong together.
    #[error("the certificate was not made for this key")]
    KeyMismatch,
    /// The certificate came without the certificate of its authority.
    #[error("the coordinator did not say which authority signed the certificate")]
    NoAuthority,
    /// The authority already replaces another one that was not retired.
    #[error("the authority that was replaced last is still accepted: retire it first")]
    AlreadyRotated,
    /// TLS refuses the key or the certificate.
    #[error("the identity cannot be used for TLS")]
    Tls(#[source] rustls::Error),
}

impl IdentityError {
    pub(in crate::identity) fn crypto(what: &'static str) -> impl FnOnce(rcgen::Error) -> Self {
        move |source| Self::Crypto { what, source }
    }
}
