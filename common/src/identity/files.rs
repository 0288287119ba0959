//! A process's own identity, and the one file that keeps it.
//!
//! Key, certificate and CA certificate share a file, so that no crash can leave a key beside another key's
//! certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::identity::authority::csr::OwnKey;
use crate::identity::certificate::peer::PeerIdentity;
use crate::identity::certificate::validity::{BACKDATE, CERTIFICATE_LIFE, validity};
use crate::identity::certificate::verify::AUTHORITIES;
use crate::identity::error::IdentityError;
use crate::world::{FileMode, Store};

const IDENTITY_FILE: &str = "identity.pem";

/// A bound for identity files: five PEM blocks have about 4 KiB.
const LARGEST_FILE: u64 = 64 << 10;

/// The contents of a PEM file that this process wrote: a private key and certificates.
pub(super) struct Pem {
    pub(super) key: OwnKey,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// Reads a PEM file of this process; fails if others can read the file or could have changed it.
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

/// Parses the contents of a PEM file; `path` is for error messages.
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

/// This process's key, its certificate, and the CA that signed it.
#[derive(Debug)]
pub struct OwnIdentity {
    key: OwnKey,
    certificate: CertificateDer<'static>,
    ca: CertificateDer<'static>,
    /// The further authorities that this process trusts, see [`OwnIdentity::authorities`].
    others: Vec<CertificateDer<'static>>,
    peer: PeerIdentity,
    /// When the certificate becomes valid, in seconds since 1970.
    not_before: u64,
    not_after: u64,
}

impl OwnIdentity {
    /// Makes an identity of a key, its certificate and the CA that signed it. The caller must have verified that `ca`
    /// is the right one.
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

    /// Like [`OwnIdentity::new`], from the coordinator's answer: the authority that signed the certificate comes first.
    pub fn issued(
        key: OwnKey,
        certificate: Vec<u8>,
        authorities: Vec<Vec<u8>>,
    ) -> Result<Self, IdentityError> {
        let authorities = authorities.into_iter().map(CertificateDer::from);
        Self::of_chain(key, certificate.into(), authorities)
    }

    /// An identity with its certificate and the authorities to trust, of which at most [`AUTHORITIES`] are taken. The
    /// first signed the certificate.
    pub(super) fn of_chain(
        key: OwnKey,
        certificate: CertificateDer<'static>,
        authorities: impl Iterator<Item = CertificateDer<'static>>,
    ) -> Result<Self, IdentityError> {
        let mut authorities = authorities.take(AUTHORITIES);
        let ca = authorities.next().ok_or(IdentityError::NoAuthority)?;
        let identity = Self::new(key, certificate, ca)?;
        Ok(identity.trusting(authorities.collect()))
    }

    /// Adds authorities that this process trusts besides the one that signed its certificate.
    pub(super) fn trusting(mut self, others: Vec<CertificateDer<'static>>) -> Self {
        self.others = others;
        self
    }

    /// The authority that signed the certificate, and, while that authority replaces another, its endorsement by the
    /// other and the other itself.
    pub fn authorities(&self) -> Vec<CertificateDer<'static>> {
        let mut all = vec![self.ca.clone()];
        all.extend(self.others.iter().cloned());
        all
    }

    /// The identity that peers read from this certificate.
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// This process's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate of the CA that signed this process's certificate.
    pub fn ca(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    /// The last second in which the certificate is valid, since 1970.
    pub fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Whether the certificate is to be renewed at `now` (Unix seconds): [`OwnIdentity::renewal_at`] has passed, or the
    /// certificate is not valid yet because the calendar was set back, in which case no peer accepts it.
    pub fn needs_renewal(&self, now: u64) -> bool {
        now >= self.renewal_at() || now < self.not_before
    }

    /// When a third of the certificate's life, or of the usual life where that is shorter, is over (Unix seconds).
    pub fn renewal_at(&self) -> u64 {
        let issued = self.not_before.saturating_add(BACKDATE.as_secs());
        // Where membership is bounded, the certificate may live longer than others. It is renewed as often as they are,
        // so that every connected member has a certificate of a new authority after the same time.
        let life = self.not_after.saturating_sub(issued);
        issued.saturating_add(life.min(CERTIFICATE_LIFE.as_secs()) / 3)
    }

    /// Whether no peer accepts the certificate at `now` (Unix seconds): it is valid no longer, or, since the calendar
    /// was set back, not yet. The process must then join anew.
    pub fn is_expired(&self, now: u64) -> bool {
        now > self.not_after || now < self.not_before
    }

    /// A signing request that is signed by this identity's key: it proves that the process that joins again owned this
    /// certificate.
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

    /// Shows another cluster's CA, as an attacker would.
    #[cfg(test)]
    pub(super) fn replace_ca(&mut self, ca: CertificateDer<'static>) {
        self.ca = ca;
    }
}

/// The file in a state folder in which a process keeps its identity.
pub struct IdentityFiles {
    store: Arc<dyn Store>,
    state_dir: PathBuf,
}

impl IdentityFiles {
    /// Uses this state folder, which [`IdentityFiles::save`] makes if it is missing.
    pub fn new(store: Arc<dyn Store>, state_dir: PathBuf) -> Self {
        Self { store, state_dir }
    }

    fn path(&self) -> PathBuf {
        self.state_dir.join(IDENTITY_FILE)
    }

    /// Loads the stored identity; `None` if there is none yet.
    pub fn load(&self) -> Result<Option<OwnIdentity>, IdentityError> {
        let path = self.path();
        let Some(pem) = read_pem(self.store.as_ref(), &path)? else {
            return Ok(None);
        };
        let mut certificates = pem.certificates.into_iter();
        let damaged = || IdentityError::Damaged {
            path: path.clone(),
            reason: "expected a certificate and those of its authorities",
        };
        let certificate = certificates.next().ok_or_else(damaged)?;
        match OwnIdentity::of_chain(pem.key, certificate, certificates) {
            Err(IdentityError::NoAuthority) => Err(damaged()),
            identity => identity.map(Some),
        }
    }

    /// Stores an identity in place of the former one.
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

    use super::*;
    use crate::identity::certificate::subject::{Role, TokenId};
    use crate::identity::testing::rig;
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

        // A file that others may read, or in whose folder others may write, is not used.
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
        // A bounded membership is shorter than the usual life in one case, and longer in the other.
        for (days, due) in [(3, 86_400), (70, life / 3)] {
            let (token, life) = (TokenId::direct(), Duration::from_secs(days * 86_400));
            let bounded = rig.identity_for(Role::Worker, "w", token, life);
            assert!(!bounded.needs_renewal(now + due - 1), "{days}");
            assert!(bounded.needs_renewal(now + due + 1), "{days}");
        }
    }
}
