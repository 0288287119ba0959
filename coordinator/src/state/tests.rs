use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoke_common::identity::{CaHash, Role};
use convoke_common::world::{Disk, SystemRng};

use super::*;
use crate::filling::FillableDisk;
use crate::service::testing::Scratch;

const NOW: u64 = 1_800_000_000;

#[test]
fn what_was_kept_comes_back_and_nobody_else_may_read_it() {
    let scratch = Scratch::new();
    let disk = Disk::new(Arc::new(SystemRng::default()));
    let (state, kept) = State::open(&disk, scratch.path(), NOW).unwrap();
    assert!(kept.members.is_empty() && kept.tokens.list().is_empty());
    let mut tokens = kept.tokens;
    tokens.create(
        &SystemRng::default(),
        CaHash::from_bytes([1; 32]),
        Role::Worker,
        None,
        5,
    );
    let id = tokens.list()[0].id.clone();
    tokens.set_member_ttl(&id, 3600);
    tokens.set_budget(&id, "j3".parse().unwrap());
    state.put_tokens(&tokens).unwrap();
    state.put_member("w0", &[[1; 32], [2; 32]]).unwrap();
    state.put_member("w1", &[[3; 32]]).unwrap();
    state.remove_member("w1").unwrap();
    state.put_member("w2", &[[4; 32]]).unwrap();
    state.put_member("w3", &[[5; 32]]).unwrap();
    state.put_gone("w2", NOW - 60, true).unwrap();
    state.put_gone("w3", NOW, false).unwrap();
    state.put_member("w3", &[[5; 32]]).unwrap();
    let ca = CaHash::from_bytes([9; 32]);
    state.put_ca(&ca).unwrap();
    state.put_drained("w0", true).unwrap();
    state.put_drained("w1", true).unwrap();
    state.put_drained("w1", false).unwrap();
    let deaths = |node: &str| Record {
        function: FunctionId([7; 32]),
        node: node.into(),
        deaths: vec![],
    };
    for node in ["n", "gone"] {
        state.put_deaths(&deaths(node)).unwrap();
    }
    state.remove_deaths(&FunctionId([7; 32]), "gone").unwrap();
    assert!(matches!(
        State::open(&disk, scratch.path(), NOW),
        Err(StateError::InUse { .. })
    ));
    drop(state);

    let (_state, kept) = State::open(&disk, scratch.path(), NOW).unwrap();
    assert_eq!(kept.tokens.list(), tokens.list());
    assert_eq!(kept.ca, Some(ca));
    let member = |name: &str, fingerprints, gone| KeptMember {
        name: name.into(),
        fingerprints,
        gone,
    };
    let gone = Absence {
        ago: Duration::from_secs(60),
        left: true,
    };
    let members = [
        member("w0", vec![[1; 32], [2; 32]], None),
        member("w2", vec![[4; 32]], Some(gone)),
        member("w3", vec![[5; 32]], None),
    ];
    assert_eq!(kept.members, members);
    assert_eq!(kept.drained, ["w0"]);
    assert_eq!(kept.deaths, [deaths("n")]);
    let mode = std::fs::metadata(scratch.path().join(FILE))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_disk_that_was_full_is_used_again_once_it_has_room() {
    let scratch = Scratch::new();
    let store = FillableDisk::new();
    let is_full = store.is_full.clone();
    let (state, _) = State::open(&store, scratch.path(), NOW).unwrap();
    state.put_member("w0", &[[1; 32]]).unwrap();
    is_full.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let error = state.put_member("w1", &[[2; 32]]).unwrap_err();
        assert!(matches!(error, StateError::Database { .. }), "{error}");
        assert!(state.check().is_err() && state.is_in_trouble());
    }
    is_full.store(false, Ordering::Relaxed);
    assert!(state.is_in_trouble(), "until it is seen to have room");
    state.check().unwrap();
    assert!(!state.is_in_trouble());
    state.put_member("w2", &[[3; 32]]).unwrap();
    // The refused write is absent, and those before and after it are present.
    let names = |kept: StoredState| kept.members.into_iter().map(|m| m.name).collect::<Vec<_>>();
    assert_eq!(names(state.read(NOW).unwrap()), ["w0", "w2"]);
    assert!(matches!(
        State::open(&store, scratch.path(), NOW),
        Err(StateError::InUse { .. })
    ));
    drop(state);
    let (_state, kept) = State::open(&store, scratch.path(), NOW).unwrap();
    assert_eq!(names(kept), ["w0", "w2"]);
}

#[test]
fn the_file_is_as_large_after_hundreds_of_restarts_of_a_worker() {
    let scratch = Scratch::new();
    let disk = Disk::new(Arc::new(SystemRng::default()));
    let (state, _) = State::open(&disk, scratch.path(), NOW).unwrap();
    let restarts = |count: u64| {
        for n in 0..count {
            state.put_gone("w0", NOW + n, false).unwrap();
            state.put_member("w0", &[[n as u8; 32], [1; 32]]).unwrap();
        }
        std::fs::metadata(scratch.path().join(FILE)).unwrap().len()
    };
    state.put_member("w0", &[[1; 32]]).unwrap();
    let few = restarts(20);
    assert_eq!(restarts(300), few);
}
