//! Corpus inputs with what members and newcomers of a cluster bring.

use super::{Seed, chosen};
use crate::identity::fuzzing::{authority, own_file, world};
use crate::identity::{JoinToken, OwnIdentity, OwnKey, Role, TokenStore};

fn member(role: Role) -> OwnIdentity {
    let ca = authority().expect("an authority");
    let name = role.as_str().parse().expect("a name");
    ca.issue_own(&world(), role, name).expect("an identity")
}

fn token() -> JoinToken {
    let ca = authority().expect("an authority").hash();
    let world = world();
    TokenStore::default().create(world.rng.as_ref(), ca, Role::Worker, None, 5)
}

/// The file that stores an identity.
fn kept() -> Vec<u8> {
    let member = member(Role::Client);
    let block = |label: &str, der: &[u8]| {
        let text = data_encoding::BASE64.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    let key = member.private_key();
    let pem = [
        block("PRIVATE KEY", key),
        block("CERTIFICATE", member.certificate()),
        block("CERTIFICATE", member.ca()),
    ]
    .concat();
    assert!(own_file(pem.as_bytes()));
    pem.into_bytes()
}

pub(super) fn seeds() -> Vec<Seed> {
    let seed = |name: &str, input| ("identity", name.to_owned(), input);
    let key = OwnKey::generate(world().rng.as_ref()).expect("a key");
    let coordinator = member(Role::Coordinator);
    let mut shown = (coordinator.ca().len() as u16).to_le_bytes().to_vec();
    shown.extend_from_slice(coordinator.ca());
    shown.extend_from_slice(coordinator.certificate());
    vec![
        seed("token", chosen(0, token().to_string().as_bytes())),
        seed("name", chosen(0, b"worker-1.rack_B")),
        seed("worker", chosen(1, member(Role::Worker).certificate())),
        seed("client", chosen(1, member(Role::Client).certificate())),
        seed("coordinator", chosen(2, &shown)),
        seed("request", chosen(3, &key.csr().expect("a request"))),
        seed("file", chosen(4, &kept())),
    ]
}
