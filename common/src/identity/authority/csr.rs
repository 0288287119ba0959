//! A private key that is made in the process that uses it, and the request that carries its public half to the CA.

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::identity::certificate::parsing::parse;
use crate::identity::error::IdentityError;
use crate::world::Rng;

/// The DER bytes before the seed of an Ed25519 key in PKCS #8 (RFC 8410, section 7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// This process's private Ed25519 key.
pub struct OwnKey(KeyPair);

impl OwnKey {
    /// Makes a new random key.
    pub fn generate(rng: &dyn Rng) -> Result<Self, IdentityError> {
        let seed: [u8; 32] = rng.bytes();
        Self::from_pkcs8(&[&PKCS8_PREFIX[..], &seed].concat())
    }

    pub(in crate::identity) fn from_pkcs8(der: &[u8]) -> Result<Self, IdentityError> {
        KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ED25519)
            .map(Self)
            .map_err(IdentityError::crypto("read the private key"))
    }

    pub(in crate::identity) fn pkcs8(&self) -> &[u8] {
        self.0.serialized_der()
    }

    pub(in crate::identity) fn public_key(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    pub(in crate::identity) fn pair(&self) -> &KeyPair {
        &self.0
    }

    pub(in crate::identity) fn into_pair(self) -> KeyPair {
        self.0
    }

    /// Fails if a certificate was not made for this key.
    pub(in crate::identity) fn check_matches(
        &self,
        certificate: &CertificateDer<'_>,
    ) -> Result<(), IdentityError> {
        let certificate = parse(certificate)?;
        if *certificate.public_key().subject_public_key.data == *self.public_key() {
            Ok(())
        } else {
            Err(IdentityError::KeyMismatch)
        }
    }

    /// A certificate signing request in DER. It proves possession of the key and asks for nothing else: the CA decides
    /// what the certificate says.
    pub fn csr(&self) -> Result<Vec<u8>, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params
            .serialize_request(&self.0)
            .map_err(IdentityError::crypto("make a signing request"))?;
        Ok(request.der().to_vec())
    }
}

impl std::fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnKey(private)")
    }
}
