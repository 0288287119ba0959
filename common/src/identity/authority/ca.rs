//! The cluster's certificate authority.
//!
//! Invariants:
//! 1. The CA signs leaf certificates, and nothing below them: its path length is zero.
//! 2. The CA takes only the public key from a signing request; the caller grants role, name and validity.
//! 3. A state file that cannot be read is an error; a second CA is never made over it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
    PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

use crate::identity::authority::csr::OwnKey;
use crate::identity::certificate::peer::to_uri;
use crate::identity::certificate::subject::{CaHash, PeerName, Role, SERVER_NAME, Serial, TokenId};
use crate::identity::certificate::validity::{BACKDATE, CA_LIFE, CERTIFICATE_LIFE, validity};
use crate::identity::error::IdentityError;
use crate::identity::files::{OwnIdentity, Pem, parse_pem, pem_text, read_pem, write_pem};
use crate::identity::token::budget::Budget;
use crate::world::{FileMode, Rng, Store, World};

/// A bound for signing requests: one with an Ed25519 key has about 200 bytes.
const LARGEST_REQUEST: usize = 4096;

const CA_FILE: &str = "cluster-ca.pem";

/// What a certificate is to say about its holder.
#[derive(Debug, Clone)]
pub struct CertificateClaims {
    /// What the holder may do.
    pub role: Role,
    /// The name of the holder.
    pub name: PeerName,
    /// The token with which the holder joined.
    pub token_id: TokenId,
    /// The budget of that token.
    pub budget: Budget,
    /// How long the certificate is valid; usually [`CERTIFICATE_LIFE`].
    pub life: Duration,
}

/// The cluster's authority: its certificate and its private key.
pub struct ClusterCa {
    certificate: CertificateDer<'static>,
    /// The endorsement of this authority by the one that it replaces, and that one's certificate, until it is retired.
    replaces: Option<[CertificateDer<'static>; 2]>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for ClusterCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClusterCa").field(&self.hash()).finish()
    }
}

fn set_validity(params: &mut CertificateParams, now: u64, life: Duration) {
    // The date type of rcgen comes from a crate that nothing else here needs; it can add `std` durations.
    let date = |unix_seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_seconds);
    params.not_before = date(now.saturating_sub(BACKDATE.as_secs()));
    params.not_after = date(now.saturating_add(life.as_secs()));
}

/// The parameters of a new authority's certificate.
fn authority(world: &World) -> CertificateParams {
    let serial = Serial::from_random(world.rng.bytes());
    let mut params = CertificateParams::default();
    // Every cluster's CA has its own name, so that a peer of another cluster fails with "unknown issuer" rather than
    // with "bad signature".
    let short = &serial.to_string()[..8];
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("convoke cluster {short}"));
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&serial.to_bytes()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, world.wall.unix_seconds(), CA_LIFE);
    params
}

impl ClusterCa {
    /// Makes a new authority, valid from now for [`CA_LIFE`].
    pub fn create(world: &World) -> Result<Self, IdentityError> {
        let key = OwnKey::generate(world.rng.as_ref())?;
        let params = authority(world);
        let certificate = params
            .self_signed(key.pair())
            .map_err(IdentityError::crypto("sign the CA certificate"))?
            .der()
            .clone();
        Self::new(certificate, key)
    }

    /// Makes a new authority in place of this one, which endorses it: members and tokens of this one stay valid until
    /// it is [`retired`](ClusterCa::without_former). The private key of this one is not needed any more.
    pub fn rotated(&self, world: &World) -> Result<Self, IdentityError> {
        if self.replaces.is_some() {
            return Err(IdentityError::AlreadyRotated);
        }
        let key = OwnKey::generate(world.rng.as_ref())?;
        let params = authority(world);
        let sign = IdentityError::crypto;
        let certificate = params.self_signed(key.pair());
        let certificate = certificate.map_err(sign("sign the CA certificate"))?;
        // The endorsement has the new authority's name and key, and this one's signature: members that trust this one
        // also trust the new one.
        let endorsement = params.signed_by(key.pair(), &self.issuer);
        let endorsement = endorsement.map_err(sign("endorse the CA certificate"))?;
        let mut next = Self::new(certificate.der().clone(), key)?;
        next.replaces = Some([endorsement.der().clone(), self.certificate.clone()]);
        Ok(next)
    }

    /// This authority without the one that it replaced: what that one signed is valid no longer.
    pub fn without_former(&self) -> Result<Self, IdentityError> {
        let key = OwnKey::from_pkcs8(self.issuer.key().serialized_der())?;
        Self::new(self.certificate.clone(), key)
    }

    /// The certificates that members trust: this authority's, and, while it replaces another, its endorsement by the
    /// other and the other's.
    pub fn authorities(&self) -> Vec<CertificateDer<'static>> {
        let mut all = vec![self.certificate.clone()];
        all.extend(self.replaces.iter().flatten().cloned());
        all
    }

    /// The hashes of [`ClusterCa::authorities`].
    pub fn hashes(&self) -> Vec<CaHash> {
        self.authorities().iter().map(CaHash::of).collect()
    }

    /// Whether a token or a stored state that names this CA hash belongs to this cluster.
    pub fn answers_to(&self, hash: &CaHash) -> bool {
        self.hashes().contains(hash)
    }

    /// When this authority was made, in seconds since 1970, if it replaces another that is still accepted.
    pub fn replacing_since(&self) -> Option<u64> {
        self.replaces.as_ref()?;
        let (not_before, _) = validity(&self.certificate).ok()?;
        Some(not_before.saturating_add(BACKDATE.as_secs()))
    }

    fn new(certificate: CertificateDer<'static>, key: OwnKey) -> Result<Self, IdentityError> {
        let issuer = Issuer::from_ca_cert_der(&certificate, key.into_pair())
            .map_err(IdentityError::crypto("read the CA certificate"))?;
        Ok(Self {
            certificate,
            replaces: None,
            issuer,
        })
    }

    /// The path of the authority's file in a state folder, whether or not the file exists.
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(CA_FILE)
    }

    /// Loads the authority from a state folder; `None` if the folder has none yet.
    pub fn load(store: &dyn Store, state_dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = Self::path(state_dir);
        match read_pem(store, &path)? {
            Some(pem) => Self::from_parts(pem, &path).map(Some),
            None => Ok(None),
        }
    }

    /// Parses the text of an authority's file, for restoring a backup; `path` is for error messages.
    pub fn from_pem(text: &str, path: &Path) -> Result<Self, IdentityError> {
        Self::from_parts(parse_pem(text.as_bytes(), path)?, path)
    }

    /// The text of the authority's file, which includes the private key.
    pub fn to_pem(&self) -> String {
        let key = self.issuer.key().serialized_der();
        pem_text(key, &self.authorities())
    }

    fn from_parts(pem: Pem, path: &Path) -> Result<Self, IdentityError> {
        let mut certificates = pem.certificates.into_iter();
        let parts = (certificates.next(), Vec::from_iter(certificates));
        let (Some(certificate), others) = parts else {
            return Err(IdentityError::Damaged {
                path: path.to_owned(),
                reason: "it holds no certificate",
            });
        };
        let replaces = match others.len() {
            0 => None,
            _ => Some(others.try_into().map_err(|_| IdentityError::Damaged {
                path: path.to_owned(),
                reason: "expected one certificate, or three",
            })?),
        };
        pem.key.check_matches(&certificate)?;
        let mut ca = Self::new(certificate, pem.key)?;
        ca.replaces = replaces;
        Ok(ca)
    }

    /// Stores the authority in a state folder, which is made if it is missing, as one file with mode 0600.
    pub fn save(&self, store: &dyn Store, state_dir: &Path) -> Result<(), IdentityError> {
        store.create_dir(state_dir, FileMode::Secret)?;
        let key = self.issuer.key().serialized_der();
        write_pem(store, &Self::path(state_dir), key, &self.authorities())
    }

    /// Loads the authority from a state folder, or makes a new one and stores it there.
    pub fn load_or_create(world: &World, state_dir: &Path) -> Result<Self, IdentityError> {
        if let Some(kept) = Self::load(world.store.as_ref(), state_dir)? {
            return Ok(kept);
        }
        let created = Self::create(world)?;
        created.save(world.store.as_ref(), state_dir)?;
        Ok(created)
    }

    /// The certificate that members verify each other against.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The hash of this CA, by which join tokens name the cluster.
    pub fn hash(&self) -> CaHash {
        CaHash::of(&self.certificate)
    }

    /// Signs the public key of a request (DER, from [`OwnKey::csr`]); the certificate is valid from an hour before
    /// `now` (Unix seconds).
    pub fn issue(
        &self,
        request: &[u8],
        claims: &CertificateClaims,
        now: u64,
        rng: &dyn Rng,
    ) -> Result<CertificateDer<'static>, IdentityError> {
        if request.len() > LARGEST_REQUEST {
            return Err(IdentityError::BadRequest {
                reason: "it is too large",
            });
        }
        // This verifies the request's signature, which proves possession of the private key.
        let request =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
                .map_err(|_| IdentityError::BadRequest {
                    reason: "it is malformed or not signed by its own key",
                })?;
        if PublicKeyData::algorithm(&request.public_key) != &PKCS_ED25519 {
            return Err(IdentityError::BadRequest {
                reason: "its key is not Ed25519",
            });
        }
        let params = leaf(claims, now, Serial::from_random(rng.bytes()))?;
        let certificate = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(IdentityError::crypto("sign the certificate"))?;
        Ok(certificate.der().clone())
    }

    /// Makes a key and its certificate in this process, for the coordinator itself and for the members of an embedded
    /// cluster.
    pub fn issue_own(
        &self,
        world: &World,
        role: Role,
        name: PeerName,
    ) -> Result<OwnIdentity, IdentityError> {
        let key = OwnKey::generate(world.rng.as_ref())?;
        let claims = CertificateClaims {
            role,
            name,
            token_id: TokenId::direct(),
            budget: Budget::default(),
            life: CERTIFICATE_LIFE,
        };
        let now = world.wall.unix_seconds();
        let certificate = self.issue(&key.csr()?, &claims, now, world.rng.as_ref())?;
        OwnIdentity::of_chain(key, certificate, self.authorities().into_iter())
    }
}

fn leaf(
    claims: &CertificateClaims,
    now: u64,
    serial: Serial,
) -> Result<CertificateParams, IdentityError> {
    let text = |text: String| {
        text.try_into()
            .map_err(IdentityError::crypto("write the certificate's subject"))
    };
    let uri = to_uri(
        claims.role,
        &claims.name,
        &claims.token_id,
        &claims.budget,
        serial,
    );
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, claims.name.as_str());
    params.serial_number = Some(SerialNumber::from_slice(&serial.to_bytes()));
    params.subject_alt_names = vec![SanType::URI(text(uri)?)];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    match claims.role {
        // Other members dial coordinators and workers.
        Role::Coordinator | Role::Worker => {
            let name = SanType::DnsName(text(SERVER_NAME.to_owned())?);
            params.subject_alt_names.push(name);
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        Role::Client => {}
    }
    set_validity(&mut params, now, claims.life);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::peer::PeerIdentity;
    use crate::identity::testing::rig;
    use crate::world::testing::Scratch;

    fn claims(role: Role) -> CertificateClaims {
        CertificateClaims {
            role,
            name: "w-1".parse().expect("name"),
            token_id: "abc234".parse().expect("id"),
            budget: Budget::default(),
            life: CERTIFICATE_LIFE,
        }
    }

    #[test]
    fn a_certificate_says_what_was_granted() {
        let rig = rig();
        for role in [Role::Coordinator, Role::Worker, Role::Client] {
            let key = OwnKey::generate(rig.world.rng.as_ref()).expect("key");
            let csr = key.csr().expect("request");
            let issue = || {
                rig.ca
                    .issue(&csr, &claims(role), rig.now(), rig.world.rng.as_ref())
            };
            let certificate = issue().expect("issued");
            let identity = PeerIdentity::from_certificate(&certificate).expect("readable");
            assert_eq!(identity.role, role);
            assert_eq!(identity.name.as_str(), "w-1");
            assert_eq!(identity.token_id.as_str(), "abc234");
            let again = PeerIdentity::from_certificate(&issue().expect("issued"));
            assert_ne!(identity.serial, again.expect("readable").serial);
            OwnIdentity::new(key, certificate, rig.ca.certificate().clone()).expect("belongs");
        }
    }

    #[test]
    fn forged_requests_are_refused() {
        let rig = rig();
        let rng = rig.world.rng.as_ref();
        let csr = OwnKey::generate(rng)
            .and_then(|key| key.csr())
            .expect("request");
        let refused = |request: &[u8]| {
            let error = rig.ca.issue(request, &claims(Role::Worker), rig.now(), rng);
            assert!(matches!(error, Err(IdentityError::BadRequest { .. })));
        };
        let mut flipped = csr.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        refused(&flipped);
        refused(&csr[..csr.len() - 1]);
        refused(b"");
        refused(&vec![0; LARGEST_REQUEST + 1]);
        let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("key");
        let params = CertificateParams::default();
        refused(params.serialize_request(&other).expect("request").der());
    }

    #[test]
    fn members_of_either_authority_trust_each_other_until_the_former_is_retired() {
        use crate::identity::certificate::verify::TrustedAuthorities;
        use rustls::pki_types::UnixTime;
        use webpki::KeyUsage;

        let (rig, scratch) = (rig(), Scratch::new());
        let (store, dir) = (rig.world.store.as_ref(), scratch.path("state"));
        let name = || "w".parse().expect("name");
        let made = |ca: &ClusterCa| {
            ca.issue_own(&rig.world, Role::Worker, name())
                .expect("made")
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(rig.now()));
        let accepts = |who: &OwnIdentity, other: &OwnIdentity| {
            let trusted = TrustedAuthorities::new(who.authorities());
            let usage = KeyUsage::client_auth();
            let shown = other.authorities();
            trusted
                .verify(other.certificate(), &shown, now, usage)
                .is_ok()
        };
        let old = made(&rig.ca);
        rig.ca
            .rotated(&rig.world)
            .expect("rotated")
            .save(store, &dir)
            .expect("kept");
        let next = ClusterCa::load(store, &dir)
            .expect("readable")
            .expect("there");
        assert!(matches!(
            next.rotated(&rig.world),
            Err(IdentityError::AlreadyRotated)
        ));
        let new = made(&next);
        // The old member does not know of the new authority; the new member trusts both authorities.
        assert!(accepts(&old, &new) && accepts(&new, &old) && accepts(&new, &new));
        assert!(next.answers_to(&rig.ca.hash()) && next.answers_to(&next.hash()));
        let last = next.without_former().expect("retired");
        let late = made(&last);
        assert!(accepts(&late, &new) && !accepts(&late, &old));
        assert!(!accepts(&old, &late) && !last.answers_to(&rig.ca.hash()));
        // A member is no authority: nobody accepts a certificate that it signed.
        let thief = ClusterCa::new(
            old.certificate().clone(),
            old.request_with_same_key().expect("key").0,
        );
        if let Ok(thief) = thief {
            let forged = made(&thief).trusting(vec![old.certificate().clone()]);
            assert!(!accepts(&old, &forged) && !accepts(&new, &forged));
        }
    }

    #[test]
    fn the_authority_survives_a_restart() {
        let (rig, scratch) = (rig(), Scratch::new());
        let dir = scratch.path("state");
        let first = ClusterCa::load_or_create(&rig.world, &dir).expect("created");
        let second = ClusterCa::load_or_create(&rig.world, &dir).expect("loaded");
        assert_eq!(first.hash(), second.hash());
        let signed = second.issue_own(&rig.world, Role::Worker, "w".parse().expect("name"));
        assert_eq!(signed.expect("issued").ca(), first.certificate());

        let file = dir.join(CA_FILE);
        std::fs::write(&file, "-----BEGIN NONSENSE-----").expect("write");
        let error = ClusterCa::load_or_create(&rig.world, &dir).expect_err("damaged");
        assert!(matches!(error, IdentityError::Damaged { .. }), "{error}");
    }
}
