//! Tests of starting and stopping, and of the state that is kept in between.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use convoke_common::Code;
use convoke_common::admission::call;
use convoke_common::identity::{Budget, JoinToken, OwnKey, Role};
use convoke_common::rpc::{MemberState, answer, close};

use crate::admin::{AdminClient, socket_in};
use crate::service::testing::*;
use crate::{CoordinatorConfig, token_file};

#[tokio::test]
async fn a_taken_port_and_a_taken_folder_are_said_so() {
    let scratch = Scratch::new();
    let kept = || CoordinatorConfig {
        state_dir: Some(scratch.path().into()),
        ..config()
    };
    let first = rig_with(kept()).await.unwrap();
    let listen = first.running.addr();
    for config in [CoordinatorConfig { listen, ..config() }, kept()] {
        let error = rig_with(config).await.map(|_| ()).unwrap_err();
        assert_eq!(error.code, Code::AddressInUse, "{error}");
    }
    first.running.shutdown(Duration::from_secs(5)).await;
    // The address and the state folder are free again at once.
    rig_with(CoordinatorConfig { listen, ..kept() })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_restart_keeps_authority_tokens_and_names() {
    let scratch = Scratch::new();
    let state = scratch.path().join("state");
    let tokens = scratch.path().join("tokens");
    let kept = CoordinatorConfig {
        state_dir: Some(state.clone()),
        token_dir: Some(tokens.clone()),
        ..config()
    };
    let read = |role| {
        let path = token_file(&tokens, role);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        std::fs::read_to_string(path).unwrap()
    };
    let first = rig_with(kept.clone()).await.unwrap();
    let hash = first.running.ca_hash();
    let lines = [read(Role::Worker), read(Role::Client)];
    let left: JoinToken = lines[0].parse().unwrap();
    let revoked = first.token(Role::Worker).await;
    first.running.revoke_token(&revoked.id).await.unwrap();
    let identity = first.join(&left, Role::Worker, "").await.unwrap();
    let worker = first.connect(&identity).await.unwrap();
    worker.register(1).await.unwrap();
    first.running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(worker.close_code().await, u64::from(close::STOPPING));

    let second = rig_with(kept).await.unwrap();
    assert_eq!(second.running.ca_hash(), hash);
    assert_eq!([read(Role::Worker), read(Role::Client)], lines);
    let error = second.join(&revoked, Role::Worker, "").await.unwrap_err();
    assert!(error.message.contains("revoked"), "{error}");
    // The name of the worker that has not returned yet is not given to another.
    assert_eq!(
        second
            .join(&left, Role::Worker, "")
            .await
            .unwrap()
            .peer()
            .name
            .as_str(),
        "w1"
    );
    second
        .connect(&identity)
        .await
        .unwrap()
        .register(1)
        .await
        .unwrap();
}

#[tokio::test]
async fn who_was_given_a_forgotten_name_keeps_it_over_a_restart() {
    let scratch = Scratch::new();
    let settings = || CoordinatorConfig {
        state_dir: Some(scratch.path().join("state")),
        ..config()
    };
    let rig = rig_with(settings()).await.unwrap();
    let token = rig.token(Role::Worker).await;
    let first = rig.join(&token, Role::Worker, "w0").await.unwrap();
    let first = rig.connect(&first).await.unwrap();
    first.register(1).await.unwrap();
    first.connection.close(0u32.into(), b"leaves");
    let lost = async {
        while rig.running.known().await.unwrap().0[0].state != MemberState::Lost {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), lost)
        .await
        .unwrap();
    let mut forgetting = Box::pin(rig.running.forget("w0"));
    assert!(futures::poll!(&mut forgetting).is_pending());
    // The name is free before whoever forgot it is told so.
    assert!(rig.running.known().await.unwrap().0.is_empty());
    let second = rig.join(&token, Role::Worker, "w0").await.unwrap();
    let second = rig.connect(&second).await.unwrap();
    second.register(2).await.unwrap();
    forgetting.await.unwrap();
    rig.running.shutdown(Duration::from_secs(5)).await;

    let rig = rig_with(settings()).await.unwrap();
    let other = rig.join(&token, Role::Worker, "").await.unwrap();
    assert_eq!(other.peer().name.as_str(), "w1");
}

#[tokio::test]
async fn the_owner_creates_lists_and_revokes_tokens() {
    let scratch = Scratch::new();
    let rig = rig_with(CoordinatorConfig {
        run_dir: Some(scratch.path().into()),
        ..config()
    })
    .await
    .unwrap();
    let socket = socket_in(scratch.path());
    assert_eq!(
        std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let admin = AdminClient::new(&socket);
    let line = admin
        .create_token(
            Role::Client,
            Some(Duration::from_secs(60)),
            Budget::default(),
            None,
        )
        .await
        .unwrap();
    let token: JoinToken = line.parse().unwrap();
    let listed = admin.list_tokens().await.unwrap();
    assert_eq!(
        (listed.len(), listed[0].expires),
        (1, Some(listed[0].created + 60))
    );
    let identity = rig.join(&token, Role::Client, "").await.unwrap();
    let client = rig.connect(&identity).await.unwrap();
    admin.revoke_token(token.id.as_str()).await.unwrap();
    assert_eq!(client.close_code().await, u64::from(close::REVOKED));
    assert!(admin.list_tokens().await.unwrap()[0].revoked);
    for (id, code) in [("nosuch", Code::NotFound), ("NO/ID", Code::InvalidArgument)] {
        assert_eq!(admin.revoke_token(id).await.unwrap_err().code, code);
    }
    assert_eq!(
        admin
            .create_token(Role::Coordinator, None, Budget::default(), None)
            .await
            .unwrap_err()
            .code,
        Code::InvalidArgument
    );
    rig.running.shutdown(Duration::from_secs(5)).await;
    assert!(!socket.exists());
    assert_eq!(
        admin.list_tokens().await.unwrap_err().code,
        Code::Unreachable
    );
}

#[tokio::test]
async fn members_and_tokens_of_both_authorities_are_served_until_the_former_is_retired() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("state");
    let settings = || CoordinatorConfig {
        state_dir: Some(dir.clone()),
        run_dir: Some(dir.clone()),
        ..config()
    };
    let admin = AdminClient::new(&socket_in(&dir));
    let rig = rig_with(settings()).await.unwrap();
    let error = admin.retire_ca(true).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    let former = rig.running.ca_hash();
    let old_token = rig.token(Role::Worker).await;
    let old = rig.join(&old_token, Role::Worker, "old").await.unwrap();
    let token = rig.token(Role::Client).await;
    let driver = rig.join(&token, Role::Client, "driver").await.unwrap();
    admin.rotate_ca().await.unwrap();
    assert_ne!(rig.running.ca_hash(), former);
    let again = admin.rotate_ca().await.unwrap_err();
    assert_eq!(again.code, Code::InvalidArgument, "{again}");

    let new_token = rig.token(Role::Worker).await;
    assert_ne!(new_token.ca, old_token.ca);
    let by_old = rig.join(&old_token, Role::Worker, "a").await.unwrap();
    let by_new = rig.join(&new_token, Role::Worker, "b").await.unwrap();
    for member in [&old, &by_old, &by_new] {
        rig.connect(member).await.unwrap();
    }
    rig.running.shutdown(Duration::from_secs(5)).await;

    // Both authorities were kept. The old member, which was not informed, trusts the new one because the old one
    // endorsed it.
    let rig = rig_with(settings()).await.unwrap();
    for member in [&old, &by_old, &by_new] {
        rig.connect(member).await.unwrap();
    }
    rig.join(&old_token, Role::Worker, "c").await.unwrap();
    let early = admin.retire_ca(false).await.unwrap_err();
    assert_eq!(early.code, Code::Busy, "{early}");
    assert!(early.message.contains("168 h"), "{early}");
    let connected = [&old, &by_old, &by_new].map(|member| rig.connect(member));
    let connected = futures::future::try_join_all(connected).await.unwrap();
    // Over its connection, this one still shows the certificate that it had before it renewed it.
    let renewed = rig.connect(&driver).await.unwrap();
    let csr = OwnKey::generate(rig.world.rng.as_ref()).unwrap().csr();
    answer(None, renewed.client.renew(call(), csr.unwrap()).await).unwrap();
    admin.retire_ca(true).await.unwrap();
    answer(None, renewed.client.status(call()).await).unwrap();
    // Whoever shows a certificate of the former authority is connected no longer; the others are.
    assert_eq!(connected[0].close_code().await, u64::from(close::REFUSED));
    for member in &connected[1..] {
        answer(None, member.client.status(call()).await).unwrap();
    }
    assert!(rig.connect(&old).await.is_err());
    assert!(rig.join(&old_token, Role::Worker, "d").await.is_err());
    rig.connect(&by_old).await.unwrap();
    rig.connect(&by_new).await.unwrap();
    rig.join(&new_token, Role::Worker, "e").await.unwrap();
}
