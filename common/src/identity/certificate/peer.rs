//! What a certificate says about its holder, as one URI: `convoke:/<role>/<name>/<token id>/<serial>`, followed by
//! `/<budget>` where the token has one.

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::identity::certificate::subject::{BadSubject, PeerName, Role, Serial, TokenId};
use crate::identity::token::budget::Budget;

/// The identity of a peer, as its verified certificate states it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerIdentity {
    /// What the peer may do.
    pub role: Role,
    /// The name of the peer.
    pub name: PeerName,
    /// The token with which the peer joined.
    pub token_id: TokenId,
    /// What the holders of that token may make each process hold and do.
    pub budget: Budget,
    /// The certificate's serial number.
    pub serial: Serial,
    /// BLAKE3 hash of the certificate, which tells two holders of the same name apart.
    pub fingerprint: [u8; 32],
}

const SCHEME: &str = "convoke:/";

/// The URI that a certificate carries for this holder.
pub(in crate::identity) fn to_uri(
    role: Role,
    name: &PeerName,
    token_id: &TokenId,
    budget: &Budget,
    serial: Serial,
) -> String {
    let uri = format!("{SCHEME}{role}/{name}/{token_id}/{serial}");
    match budget.is_default() {
        true => uri,
        false => format!("{uri}/{budget}"),
    }
}

impl PeerIdentity {
    /// The bytes that the holders of this peer's token may use together at a worker that may use `all` bytes.
    pub fn memory_of(&self, all: u64) -> u64 {
        match self.role {
            _ if self.token_id == TokenId::direct() => all,
            Role::Client => self.budget.memory.unwrap_or(Budget::MEMORY).of(all),
            Role::Worker | Role::Coordinator => all,
        }
    }

    /// Reads the identity in a certificate. The caller must have verified that the certificate is genuine.
    pub(in crate::identity) fn from_certificate(
        der: &CertificateDer<'_>,
    ) -> Result<Self, BadSubject> {
        let certificate =
            webpki::EndEntityCert::try_from(der).map_err(|_| BadSubject::Certificate)?;
        let mut uris = certificate.valid_uri_names();
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(BadSubject::Form);
        };
        let path = uri.strip_prefix(SCHEME).ok_or(BadSubject::Form)?;
        let mut parts = path.split('/');
        let (Some(role), Some(name), Some(token_id), Some(serial), budget, None) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            return Err(BadSubject::Form);
        };
        Ok(Self {
            role: role.parse()?,
            name: name.parse()?,
            token_id: token_id.parse()?,
            budget: budget.unwrap_or_default().parse()?,
            serial: serial.parse()?,
            fingerprint: *blake3::hash(der).as_bytes(),
        })
    }
}
