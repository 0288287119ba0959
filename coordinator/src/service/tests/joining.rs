//! Tests of joining: which newcomers are let in, and what members may call.

use std::time::Duration;

use convoke_common::Code;
use convoke_common::admission::{DIAL_BOUND, JoinFailure, bind_towards, call, try_join};
use convoke_common::identity::{JoinToken, OwnIdentity, OwnKey, Role, TlsConfigs, dial};
use convoke_common::ids::{Incarnation, PlanId};
use convoke_common::rpc::{
    JoinAnswer, JoinRequest, MemberState, Registration, StreamKind, answer, close, connect_joining,
    open_stream,
};
use convoke_common::world::EndpointOptions;

use crate::service::testing::*;

fn check(error: convoke_common::Error, code: Code, what: &str) {
    assert_eq!(error.code, code, "{error}");
    assert!(error.to_string().contains(what), "{error}");
    assert!(!error.advice.is_empty(), "{error}");
}

#[tokio::test]
async fn each_wrong_token_is_refused_for_its_own_reason() {
    let rig = rig().await;
    let refused = async |token: &JoinToken, role, what: &str| {
        let error = rig.join(token, role, "").await.unwrap_err();
        check(error, Code::Unauthorized, what);
    };
    let good = rig.token(Role::Worker).await;
    let other = rig.token(Role::Worker).await;
    let forged = JoinToken {
        secret: other.secret.clone(),
        ..good.clone()
    };
    refused(&forged, Role::Worker, "unknown").await;
    refused(&good, Role::Client, "for the role worker, not client").await;
    let expired = rig
        .running
        .create_token(Role::Worker, Some(Duration::ZERO))
        .await
        .unwrap();
    refused(&expired, Role::Worker, "expired").await;
    rig.running.revoke_token(&good.id).await.unwrap();
    refused(&good, Role::Worker, "revoked").await;
    assert_eq!(
        rig.join(&other, Role::Worker, "")
            .await
            .unwrap()
            .peer()
            .name
            .as_str(),
        "w0"
    );
    assert!(
        rig.running
            .create_token(Role::Coordinator, None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn names_are_given_lowest_first_and_guarded_while_their_holder_answers() {
    let rig = rig().await;
    let token = rig.token(Role::Worker).await;
    let names = [
        rig.worker("", Script::default()).await,
        rig.worker("", Script::default()).await,
    ];
    assert_eq!(names.map(|s| s.name), ["w0", "w1"]);
    let living = rig.worker("mine", Script::default()).await;
    check(
        rig.join(&token, Role::Worker, "mine").await.unwrap_err(),
        Code::InvalidArgument,
        "'mine' is in use",
    );
    check(
        rig.join(&token, Role::Worker, "a/b").await.unwrap_err(),
        Code::InvalidArgument,
        "name",
    );
    // A worker that is connected but does not answer loses its name.
    let silent = rig.member(Role::Worker, "silent").await;
    silent.register(1).await.unwrap();
    rig.join(&token, Role::Worker, "silent").await.unwrap();
    assert_eq!(silent.close_code().await, u64::from(close::LOST));
    assert!(living.connection.close_reason().is_none());
    check(
        rig.join(&token, Role::Worker, "client-1")
            .await
            .unwrap_err(),
        Code::InvalidArgument,
        "begins the names of clients",
    );
}

#[tokio::test]
async fn a_client_is_called_as_nobody_else_whatever_it_asks_for() {
    let rig = rig().await;
    let worker = rig.worker("w", Script::default()).await;
    let other = rig.member(Role::Client, "").await;
    let mut names = vec![worker.name, other.name.clone()];
    for asked in ["", "w", &other.name, "a/b"] {
        let client = rig.member(Role::Client, asked).await;
        let random = client.name.strip_prefix("client-").unwrap_or_default();
        assert!(
            u64::from_str_radix(random, 16).is_ok() && random.len() == 16,
            "{}",
            client.name
        );
        assert!(!names.contains(&client.name));
        names.push(client.name);
    }
}

#[tokio::test]
async fn a_restarted_worker_takes_its_own_place() {
    let rig = rig().await;
    let token = rig.token(Role::Worker).await;
    let identity = rig.join(&token, Role::Worker, "a").await.unwrap();
    let first = rig.connect(&identity).await.unwrap();
    first.register(1).await.unwrap();
    let second = rig.connect(&identity).await.unwrap();
    second.register(2).await.unwrap();
    assert_eq!(first.close_code().await, u64::from(close::REPLACED));
    let status = answer(None, second.client.status(call()).await).unwrap();
    let members: Vec<_> = status
        .members
        .iter()
        .map(|m| (m.name.as_str(), m.incarnation, m.state))
        .collect();
    assert_eq!(members, [("a", Incarnation(2), MemberState::Alive)]);
}

#[tokio::test]
async fn roles_bound_what_may_be_called() {
    let rig = rig().await;
    let client = rig.member(Role::Client, "").await;
    let worker = rig.worker("w", Script::default()).await;
    check(
        client.register(1).await.unwrap_err(),
        Code::Unauthorized,
        "only a worker may register",
    );
    let error = answer(None, worker.client.install(call(), PlanId(1)).await).unwrap_err();
    check(error, Code::Unauthorized, "only a client may install");
    let mut foreign = offer(1);
    foreign.profile = "other:1".into();
    let error = answer(None, worker.client.register(call(), foreign).await).unwrap_err();
    check(error, Code::VersionMismatch, "other:1");
    for one in [&client, &worker] {
        let status = answer(None, one.client.status(call()).await).unwrap();
        assert_eq!(status.members.len(), 1);
        assert!(
            status.members[0].status.is_some() && status.members[0].address == "127.0.0.1:7071"
        );
        assert!(status.bytes_received > 0 && status.bytes_sent > 0);
    }
    // A client may not open the streams of other roles.
    for kind in [StreamKind::Join, StreamKind::Worker] {
        let (_send, mut recv) = open_stream(&client.connection, kind).await.unwrap();
        assert!(recv.read_exact(&mut [0; 1]).await.is_err(), "{kind:?}");
    }
}

#[tokio::test]
async fn revocation_reaches_workers_and_closes_connections() {
    let rig = rig().await;
    let worker = rig.worker("w", Script::default()).await;
    let token = rig.token(Role::Client).await;
    let identity = rig.join(&token, Role::Client, "").await.unwrap();
    let client = rig.connect(&identity).await.unwrap();
    answer(None, client.client.status(call()).await).unwrap();
    rig.running.revoke_token(&token.id).await.unwrap();
    assert_eq!(client.close_code().await, u64::from(close::REVOKED));
    worker.saw(&SeenCall::Revoke(vec![token.id.clone()])).await;
    let error = match rig.connect(&identity).await {
        Err(error) => error,
        // TLS refuses a client's certificate only after the client's half of the handshake is done.
        Ok(session) => answer(None, session.client.status(call()).await).unwrap_err(),
    };
    assert!(
        error.to_string().contains("revoked") || error.code == Code::Unreachable,
        "{error}"
    );
    let late = rig.member(Role::Worker, "late").await;
    assert_eq!(late.register(1).await.unwrap().revoked, [token.id]);
}

#[tokio::test]
async fn renewal_keeps_the_name_and_its_place() {
    let rig = rig().await;
    let worker = rig.worker("w", Script::default()).await;
    let key = OwnKey::generate(rig.world.rng.as_ref()).unwrap();
    let joined = answer(None, worker.client.renew(call(), key.csr().unwrap()).await).unwrap();
    assert_eq!(joined.name, "w");
    let renewed = OwnIdentity::issued(key, joined.certificate, joined.authorities).unwrap();
    let again = rig.connect(&renewed).await.unwrap();
    again.register(2).await.unwrap();
    assert_eq!(worker.close_code().await, u64::from(close::REPLACED));
    check_csr(&again).await;
}

#[tokio::test]
async fn renewals_one_after_the_other_are_refused_soon() {
    let rig = rig().await;
    let worker = rig.worker("w", Script::default()).await;
    // Each takes far less than the pace, so that few succeed even on a busy machine.
    for _ in 0..1000 {
        if let Err(error) = renew(&rig, &worker).await {
            return check(error, Code::Busy, "another certificate");
        }
    }
    panic!("a thousand renewals in turn");
}

async fn renew(rig: &Rig, member: &TestMember) -> convoke_common::Result<JoinAnswer> {
    let key = OwnKey::generate(rig.world.rng.as_ref()).unwrap();
    answer(None, member.client.renew(call(), key.csr().unwrap()).await)
}

#[tokio::test]
async fn who_lost_its_name_to_another_gets_no_certificate_for_it() {
    let rig = rig().await;
    let token = rig.token(Role::Worker).await;
    let former = rig.join(&token, Role::Worker, "w").await.unwrap();
    let idle = rig.connect(&former).await.unwrap();
    let registered = rig.connect(&former).await.unwrap();
    registered.register(1).await.unwrap();
    registered.connection.close(0u32.into(), b"leaves");
    let taken = async {
        loop {
            // The name is free once the coordinator has noticed that its holder left.
            match rig.join(&token, Role::Worker, "w").await {
                Ok(holder) => break holder,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let holder = tokio::time::timeout(Duration::from_secs(60), taken)
        .await
        .unwrap();
    let error = renew(&rig, &idle).await.unwrap_err();
    check(error, Code::Unauthorized, "does not hold that name");
    // Its certificate does not take the name back from the newcomer that was just given it.
    let error = idle.register(2).await.unwrap_err();
    check(error, Code::InvalidArgument, "in use");
    let holder = rig.connect(&holder).await.unwrap();
    holder.register(3).await.unwrap();
    renew(&rig, &holder).await.unwrap();
}

#[tokio::test]
async fn a_membership_ends_in_time_and_only_a_token_that_is_good_begins_another() {
    let rig = rig().await;
    // Three seconds are enough to join and to connect. The first token expires before its member's time is over.
    let stay = Duration::from_secs(3);
    let (void, open) = (
        rig.running.create_token(Role::Client, Some(stay)),
        rig.running.create_token(Role::Client, None),
    );
    let tokens = [void.await.unwrap(), open.await.unwrap()];
    let mut members = Vec::new();
    for token in &tokens {
        rig.running.bound_membership(&token.id, stay).await.unwrap();
        let identity = rig.join(token, Role::Client, "").await.unwrap();
        let session = rig.connect(&identity).await.unwrap();
        members.push((identity, session));
    }
    // Occupy as many streams as are served at once: the membership ends nevertheless.
    let mut streams = Vec::new();
    for _ in 0..16 {
        let stream = open_stream(&members[0].1.connection, StreamKind::Coordinator);
        streams.push(stream.await.unwrap());
    }
    let coordinator = rig.running.addr().to_string();
    for ((identity, session), token) in members.iter().zip(&tokens) {
        let over = u64::from(close::MEMBERSHIP_OVER);
        assert_eq!(session.close_code().await, over);
        let former = Some(identity);
        let again = try_join(&rig.world, &coordinator, token, Role::Client, "", former).await;
        match again {
            Err(JoinFailure::Refused(e)) if *token == tokens[0] => {
                check(e, Code::Unauthorized, "expired");
            }
            Ok(again) if *token == tokens[1] => {
                assert_eq!(again.peer().name, identity.peer().name);
                assert!(again.not_after() >= identity.not_after());
            }
            Ok(again) => panic!("{} stays with a token that is void", again.peer().name),
            Err(e) => panic!("{}", e.into_error()),
        }
    }
}

async fn check_csr(session: &TestMember) {
    let error = answer(None, session.client.renew(call(), vec![1, 2, 3]).await).unwrap_err();
    assert_eq!(error.code, Code::Unauthorized, "{error}");
}

#[tokio::test]
async fn a_worker_that_does_not_answer_holds_up_no_revocation() {
    let rig = rig().await;
    let silent = rig.member(Role::Worker, "silent").await;
    silent.register(1).await.unwrap();
    let token = rig.token(Role::Client).await;
    let revoked = rig.running.revoke_token(&token.id);
    // An exchange over the admin socket may take 15 s.
    let revoked = tokio::time::timeout(Duration::from_secs(8), revoked).await;
    revoked.unwrap().unwrap();
}

/// Asks to join as a newcomer of this release does, with a good token.
async fn join_of_release(rig: &Rig, version: &str) -> convoke_common::Result<JoinAnswer> {
    let token = rig.token(Role::Worker).await;
    let tls = TlsConfigs::joining(token.ca, rig.world.wall.clone())?;
    let address = rig.running.addr();
    let options = EndpointOptions::default();
    let endpoint = rig
        .world
        .net
        .endpoint(bind_towards(address), &tls, &options);
    let endpoint = endpoint.await?;
    let dialled = dial(&endpoint, address, Role::Coordinator, DIAL_BOUND).await?;
    let client = connect_joining(&rig.world, &dialled.connection).await?;
    let request = JoinRequest {
        token_id: token.id,
        secret: token.secret,
        role: Role::Worker,
        name: "newcomer".into(),
        csr: OwnKey::generate(rig.world.rng.as_ref())?.csr()?,
        former: vec![],
        version: version.into(),
    };
    answer(None, client.join(call(), request).await)
}

#[tokio::test]
async fn another_release_is_refused_by_name_and_shown() {
    let rig = rig().await;
    let error = join_of_release(&rig, "99.1.0").await.unwrap_err();
    check(
        error,
        Code::VersionMismatch,
        "this worker runs convoke 99.1.0",
    );
    let joined = join_of_release(&rig, convoke_common::VERSION).await;
    assert_eq!(joined.unwrap().name, "newcomer");
    let worker = rig.member(Role::Worker, "w").await;
    let other = Registration {
        version: "99.1.0".into(),
        ..offer(1)
    };
    let error = answer(None, worker.client.register(call(), other).await).unwrap_err();
    assert_eq!(error.code, Code::VersionMismatch);
    let ours = convoke_common::VERSION;
    assert_eq!(
        error.message,
        format!("worker 'w' runs convoke 99.1.0, the coordinator {ours}")
    );
    worker.register(1).await.unwrap();
    let client = rig.member(Role::Client, "").await;
    let resumed = client
        .client
        .resume(call(), Incarnation(9), vec![], "99.1.0\u{1b}".into());
    let error = answer(None, resumed.await).unwrap_err();
    assert_eq!(error.code, Code::VersionMismatch);
    assert!(error.message.contains("99.1.0, the"), "{error}");
    let status = answer(None, client.client.status(call()).await).unwrap();
    assert_eq!(status.members[0].version, ours);
}
