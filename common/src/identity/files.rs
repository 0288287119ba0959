//! A process's own identity, and the one file that keeps it.
//!
//! Key, certificate and CA certificate share a file, so that no crash can leave a key beside another key's
//! certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::ca::{BACKDATE, CERTIFICATE_LIFE, IdentityError};
use super::csr::OwnKey;
use super::subject::{BadSubject, PeerIdentity};
use crate::world::{FileMode, Store};

const IDENTITY_FILE: &str = "identity.pem";

/// Most certificates of authorities that belong to an identity: the one that signed it, and, while that replaces another,
/// its endorsement and the one that it replaces.
pub(super) const AUTHORITIES: usize = 4;

/// Five PEM blocks have about 4 KiB.
const LARGEST_FILE: u64 = 64 << 10;

/// The parts of a PEM file of ours.
pub(super) struct Pem {
    pub(super) key: OwnKey,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// Reads a file of ours, unless others could have changed it or can read it.
pub(super) fn read_pem(store: &dyn Store, path: &Path) -> Result<Option<Pem>, IdentityError> {
    match store.check_private(path) {
        Err(error) if error.is_not_found() => return Ok(None),
        checked => checked?,
    }
    let bytes = match store.read(path, LARGEST_FILE) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    parse_pem(&bytes, path).map(Some)
}

/// What the bytes of the file at `path` hold.
pub(super) fn parse_pem(bytes: &[u8], path: &Path) -> Result<Pem, IdentityError> {
    let damaged = |reason| IdentityError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let key = PrivatePkcs8KeyDer::from_pem_slice(bytes)
        .map_err(|_| damaged("it holds no private key"))?;
    let key = OwnKey::from_pkcs8(key.secret_pkcs8_der())
        .map_err(|_| damaged("its private key is not an Ed25519 key"))?;
    let certificates = CertificateDer::pem_slice_iter(bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| damaged("a certificate in it cannot be read"))?;
    Ok(Pem { key, certificates })
}

fn push_block(text: &mut String, label: &str, der: &[u8]) {
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let encoded = data_encoding::BASE64.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

pub(super) fn pem_text(key: &[u8], certificates: &[CertificateDer<'_>]) -> String {
    let mut text = String::new();
    push_block(&mut text, "PRIVATE KEY", key);
    for certificate in certificates {
        push_block(&mut text, "CERTIFICATE", certificate);
    }
    text
}

pub(super) fn write_pem(
    store: &dyn Store,
    path: &Path,
    key: &[u8],
    certificates: &[CertificateDer<'_>],
) -> Result<(), IdentityError> {
    let text = pem_text(key, certificates);
    if let Some(folder) = path.parent() {
        store.check_private(folder)?;
    }
    store.write_atomic(path, text.as_bytes(), FileMode::Secret)?;
    Ok(())
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| certificate)
        .map_err(|_| IdentityError::BadSubject(BadSubject::Certificate))
}

/// First and last second in which a certificate is valid, since 1970.
pub(super) fn validity(der: &CertificateDer<'_>) -> Result<(u64, u64), IdentityError> {
    let certificate = parse(der)?;
    let seconds = |time: x509_parser::time::ASN1Time| time.timestamp().max(0) as u64;
    let validity = certificate.validity();
    Ok((seconds(validity.not_before), seconds(validity.not_after)))
}

impl OwnKey {
    pub(super) fn check_matches(
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
}

/// This process's key, its certificate, and the CA that signed it.
#[derive(Debug)]
pub struct OwnIdentity {
    key: OwnKey,
    certificate: CertificateDer<'static>,
    ca: CertificateDer<'static>,
    /// Others that are trusted, see [`OwnIdentity::authorities`].
    others: Vec<CertificateDer<'static>>,
    peer: PeerIdentity,
    /// Since 1970.
    not_before: u64,
    not_after: u64,
}

impl OwnIdentity {
    /// Puts together what belongs together. That `ca` is the right one is for the caller to have verified.
    pub fn new(
        key: OwnKey,
        certificate: CertificateDer<'static>,
        ca: CertificateDer<'static>,
    ) -> Result<Self, IdentityError> {
        key.check_matches(&certificate)?;
        let peer =
            PeerIdentity::from_certificate(&certificate).map_err(IdentityError::BadSubject)?;
        let (not_before, not_after) = validity(&certificate)?;
        Ok(Self {
            key,
            certificate,
            ca,
            others: Vec::new(),
            peer,
            not_before,
            not_after,
        })
    }

    /// As [`OwnIdentity::new`], from what the coordinator answered: the authority that signed comes first.
    pub fn issued(
        key: OwnKey,
        certificate: Vec<u8>,
        authorities: Vec<Vec<u8>>,
    ) -> Result<Self, IdentityError> {
        let authorities = authorities.into_iter().take(AUTHORITIES);
        let mut authorities = authorities.map(CertificateDer::from);
        let ca = authorities.next().ok_or(IdentityError::NoAuthority)?;
        let identity = Self::new(key, certificate.into(), ca)?;
        Ok(identity.trusting(authorities.collect()))
    }

    /// Trusts these authorities as well.
    pub(super) fn trusting(mut self, others: Vec<CertificateDer<'static>>) -> Self {
        self.others = others;
        self
    }

    /// The authority that signed the certificate, and, while that replaces another, its endorsement by the other and the
    /// other itself.
    pub fn authorities(&self) -> Vec<CertificateDer<'static>> {
        let mut all = vec![self.ca.clone()];
        all.extend(self.others.iter().cloned());
        all
    }

    /// What peers will see.
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The CA's certificate.
    pub fn ca(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    /// The last second of validity, since 1970.
    pub fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Whether a third of the certificate's life, or of the usual one, is over (unix seconds), or whether it has not begun, since the calendar was
    /// set back: no peer accepts it then.
    pub fn needs_renewal(&self, now: u64) -> bool {
        now >= self.renewal_at() || now < self.not_before
    }

    /// When a third of the certificate's life, or of the usual one where that is shorter, is over (unix seconds).
    pub fn renewal_at(&self) -> u64 {
        let issued = self.not_before.saturating_add(BACKDATE.as_secs());
        // Where membership is bounded, the certificate may live for longer than others. It is renewed as often as they are, so
        // that no more time passes until every member that is connected has one of a new authority.
        let life = self.not_after.saturating_sub(issued);
        issued.saturating_add(life.min(CERTIFICATE_LIFE.as_secs()) / 3)
    }

    /// Whether no peer accepts the certificate (unix seconds), any more or, after the calendar was set back, yet: the
    /// process must join anew.
    pub fn is_expired(&self, now: u64) -> bool {
        now > self.not_after || now < self.not_before
    }

    /// A signing request that this identity's key signs: proof that whoever joins again had this certificate.
    pub fn request_with_same_key(&self) -> Result<(OwnKey, Vec<u8>), IdentityError> {
        Ok((OwnKey::from_pkcs8(self.key.pkcs8())?, self.key.csr()?))
    }

    #[cfg(test)]
    pub(crate) fn private_key(&self) -> &[u8] {
        self.key.pkcs8()
    }

    pub(super) fn key(&self) -> &OwnKey {
        &self.key
    }

    /// What an attacker can do: show somebody else's CA.
    #[cfg(test)]
    pub(super) fn replace_ca(&mut self, ca: CertificateDer<'static>) {
        self.ca = ca;
    }
}

/// Where a process keeps its identity.
pub struct IdentityFiles {
    store: Arc<dyn Store>,
    state_dir: PathBuf,
}

impl IdentityFiles {
    /// In a state folder, which [`IdentityFiles::save`] makes where it is missing.
    pub fn new(store: Arc<dyn Store>, state_dir: PathBuf) -> Self {
        Self { store, state_dir }
    }

    fn path(&self) -> PathBuf {
        self.state_dir.join(IDENTITY_FILE)
    }

    /// The identity kept; `None` where there is none yet.
    pub fn load(&self) -> Result<Option<OwnIdentity>, IdentityError> {
        let path = self.path();
        let Some(pem) = read_pem(self.store.as_ref(), &path)? else {
            return Ok(None);
        };
        let mut certificates = pem.certificates.into_iter();
        let (Some(certificate), Some(ca)) = (certificates.next(), certificates.next()) else {
            return Err(IdentityError::Damaged {
                path,
                reason: "expected a certificate and those of its authorities",
            });
        };
        let identity = OwnIdentity::new(pem.key, certificate, ca)?;
        let others = certificates.take(AUTHORITIES - 1).collect();
        Ok(Some(identity.trusting(others)))
    }

    /// Keeps an identity, over the one before.
    pub fn save(&self, identity: &OwnIdentity) -> Result<(), IdentityError> {
        self.store.create_dir(&self.state_dir, FileMode::Secret)?;
        let mut certificates = vec![identity.certificate.clone()];
        certificates.extend(identity.authorities());
        write_pem(
            self.store.as_ref(),
            &self.path(),
            identity.key.pkcs8(),
            &certificates,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::subject::{Role, TokenId};
    use super::super::testing::rig;
    use super::*;
    use crate::world::testing::Scratch;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn kept_identities_come_back() {
        let (rig, scratch) = (rig(), Scratch::new());
        let files = IdentityFiles::new(rig.world.store.clone(), scratch.path("state"));
        assert!(files.load().expect("readable").is_none());
        for _ in 0..2 {
            let identity = rig.identity(Role::Worker, "w");
            files.save(&identity).expect("kept");
            let back = files.load().expect("readable").expect("there");
            assert_eq!(back.peer(), identity.peer());
            assert_eq!(back.ca(), identity.ca());
            assert_eq!(back.key.pkcs8(), identity.key.pkcs8());
        }
        let mode = std::fs::metadata(files.path())
            .expect("exists")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);

        // A file that others may read, or in whose folder they may put another, is not used.
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("own")
        };
        let refused = |what: &str| match files.load() {
            Err(IdentityError::Store(e)) => assert!(e.to_string().contains(what), "{e}"),
            other => panic!("{other:?}"),
        };
        set(&files.path(), 0o644);
        refused("others may read or write it (mode 0644)");
        set(&files.path(), 0o600);
        set(&scratch.path("state"), 0o777);
        refused("others may write into it (mode 0777)");
        let identity = rig.identity(Role::Worker, "w");
        assert!(matches!(
            files.save(&identity),
            Err(IdentityError::Store(_))
        ));

        let other = rig.identity(Role::Worker, "other");
        let own = rig.identity(Role::Worker, "own");
        let mixed = OwnIdentity::new(own.key, other.certificate, own.ca);
        assert!(matches!(mixed, Err(IdentityError::KeyMismatch)));
    }

    #[test]
    fn renewal_is_due_after_a_third() {
        let rig = rig();
        let identity = rig.identity(Role::Worker, "w");
        let (now, life) = (rig.now(), CERTIFICATE_LIFE.as_secs());
        assert!(!identity.needs_renewal(now));
        assert!(!identity.needs_renewal(now + life / 3 - 1));
        assert!(identity.needs_renewal(now + life / 3));
        assert!(!identity.is_expired(now + life));
        let before = now - 2 * BACKDATE.as_secs();
        assert!(identity.needs_renewal(before) && identity.is_expired(before));
        assert!(identity.is_expired(now + life + 1));
        // Of a membership that is bounded, by less than the usual life or by more.
        for (days, due) in [(3, 86_400), (70, life / 3)] {
            let (token, life) = (TokenId::direct(), Duration::from_secs(days * 86_400));
            let bounded = rig.identity_for(Role::Worker, "w", token, life);
            assert!(!bounded.needs_renewal(now + due - 1), "{days}");
            assert!(bounded.needs_renewal(now + due + 1), "{days}");
        }
    }
}
