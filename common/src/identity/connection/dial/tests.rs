use super::*;
use crate::identity::certificate::subject::CaHash;
use crate::identity::certificate::validity::CERTIFICATE_LIFE;
use crate::identity::connection::peer_certificate::peer_ca;
use crate::identity::connection::tls::TlsConfigs;
use crate::identity::connection::tls::{AskedNames, name_asked_for};
use crate::identity::testing::{Rig, START, rig};
use crate::world::NetError;
use std::sync::atomic::Ordering;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(5);

/// Accepts one connection, and returns its outcome.
fn serve(endpoint: &Endpoint) -> JoinHandle<Result<InboundConnection, AcceptError>> {
    let endpoint = endpoint.clone();
    tokio::spawn(async move {
        let incoming = endpoint.accept().await.expect("open");
        greet(incoming, SOON).await
    })
}

/// Dials a server of `role` at `server`, and returns the outcome at both ends.
async fn meet(
    server: &Endpoint,
    dialler: &Endpoint,
    role: Role,
) -> (
    Result<OutboundConnection, DialError>,
    Result<InboundConnection, AcceptError>,
) {
    let serving = serve(server);
    let dialled = dial(dialler, server.local_addr(), role, SOON).await;
    (dialled, serving.await.expect("no panic"))
}

fn rejected(result: Result<OutboundConnection, DialError>) -> (Side, TlsCause) {
    match result {
        Err(DialError::TlsRejected { side, cause, .. }) => (side, cause),
        other => panic!("expected a TLS rejection, got {other:?}"),
    }
}

fn joining(rig: &Rig, hash: CaHash) -> TlsConfigs {
    TlsConfigs::joining(hash, rig.world.wall.clone()).expect("usable")
}

#[tokio::test]
async fn members_know_each_other() {
    let rig = rig();
    let server = rig.member(Role::Coordinator).await;
    let identity = rig.identity_of(Role::Worker, "w-7", "token234".parse().expect("id"));
    let worker = rig.endpoint(&rig.tls(&identity)).await;
    let (dialled, greeted) = meet(&server, &worker, Role::Coordinator).await;
    let dialled = dialled.expect("connected");
    let greeted = greeted.expect("greeted");
    assert_eq!(dialled.identity.role, Role::Coordinator);
    assert_eq!(greeted.identity.as_ref(), Some(identity.peer()));
    for connection in [&dialled.connection, &greeted.connection] {
        assert_eq!(connection.stats().path.current_mtu, 6500, "loopback");
    }

    // Either side can open streams in either direction.
    let (mut send, _recv) = greeted.connection.open_bi().await.expect("open");
    send.write_all(b"hello").await.expect("write");
    let (_send, mut recv) = dialled.connection.accept_bi().await.expect("accept");
    let mut got = [0; 5];
    recv.read_exact(&mut got).await.expect("read");
    assert_eq!(&got, b"hello");
}

#[tokio::test]
async fn a_peer_without_a_certificate_has_no_identity() {
    let rig = rig();
    let server = rig.member(Role::Coordinator).await;
    let newcomer = rig.endpoint(&joining(&rig, rig.ca.hash())).await;
    let (dialled, greeted) = meet(&server, &newcomer, Role::Coordinator).await;
    let dialled = dialled.expect("connected");
    assert_eq!(greeted.expect("greeted").identity, None);
    let ca = peer_ca(&dialled.connection, &rig.ca.hash());
    assert_eq!(ca.as_ref(), Some(rig.ca.certificate()));
    let other = CaHash::from_bytes([0; 32]);
    assert_eq!(peer_ca(&dialled.connection, &other), None);
}

#[tokio::test]
async fn a_newcomer_refuses_another_cluster_and_any_worker() {
    let rig = rig();
    let coordinator = rig.member(Role::Coordinator).await;
    let wrong = rig
        .endpoint(&joining(&rig, CaHash::from_bytes([1; 32])))
        .await;
    let (dialled, greeted) = meet(&coordinator, &wrong, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Peer, TlsCause::OtherCluster));
    assert!(greeted.is_err(), "nothing was sent to it");

    let worker = rig.member(Role::Worker).await;
    let right = rig.endpoint(&joining(&rig, rig.ca.hash())).await;
    let (dialled, _) = meet(&worker, &right, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Us, TlsCause::NotCoordinator));
}

/// The chain shown ends in the right CA, whose hash is no secret, but the leaf is not signed by it.
#[tokio::test]
async fn a_newcomer_refuses_a_leaf_under_a_borrowed_ca() {
    let (rig, attacker) = (rig(), crate::identity::testing::rig());
    let mut forged = attacker.identity(Role::Coordinator, "c");
    forged.replace_ca(rig.ca.certificate().clone());
    let server = rig.endpoint(&rig.tls(&forged)).await;
    let newcomer = rig.endpoint(&joining(&rig, rig.ca.hash())).await;
    let (dialled, _) = meet(&server, &newcomer, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Us, TlsCause::OtherCluster));
}

#[tokio::test]
async fn another_cluster_is_refused_on_both_sides() {
    let (here, there) = (rig(), rig());
    let server = here.member(Role::Coordinator).await;
    let stranger = there.member(Role::Worker).await;
    let (dialled, greeted) = meet(&server, &stranger, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Peer, TlsCause::OtherCluster));
    assert!(matches!(greeted, Err(AcceptError::Handshake { .. })));

    // A dialler that would accept the server is refused by the server.
    let mut half = there.identity(Role::Worker, "w");
    half.replace_ca(here.ca.certificate().clone());
    let half = here.endpoint(&here.tls(&half)).await;
    let (dialled, greeted) = meet(&server, &half, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Peer, TlsCause::OtherCluster));
    assert!(greeted.is_err());
}

/// A dialler that knows neither a member's CA nor a token learns that something listens, and no more.
#[tokio::test]
async fn who_does_not_know_the_cluster_is_shown_no_certificate() {
    let (rig, other) = (rig(), crate::identity::testing::rig());
    for role in [Role::Coordinator, Role::Worker] {
        let server = rig.member(role).await;
        for name in ["convoke", "localhost", "c"] {
            let mut tls = other.tls(&other.identity(Role::Client, "c"));
            tls.asks_for = AskedNames::new(vec![name.to_owned()]);
            // A verifier that is called has been shown a certificate.
            let asked = crate::identity::testing::accept_any(&mut tls);
            let stranger = other.endpoint(&tls).await;
            let (dialled, greeted) = meet(&server, &stranger, role).await;
            assert_eq!(rejected(dialled), (Side::Peer, TlsCause::OtherCluster));
            assert!(
                greeted.is_err() && !asked.load(Ordering::Relaxed),
                "{role} {name}"
            );
        }
        let mut tls = other.tls(&other.identity(Role::Client, "c"));
        tls.asks_for = AskedNames::new(vec![name_asked_for(&rig.ca.hash())]);
        let asked = crate::identity::testing::accept_any(&mut tls);
        let informed = other.endpoint(&tls).await;
        let (_, greeted) = meet(&server, &informed, role).await;
        assert!(greeted.is_err() && asked.load(Ordering::Relaxed), "{role}");
    }
}

#[tokio::test]
async fn certificates_have_their_time() {
    let rig = rig();
    let server_tls = rig.tls(&rig.identity(Role::Coordinator, "c"));
    let server = rig.endpoint(&server_tls).await;
    let worker_tls = rig.tls(&rig.identity(Role::Worker, "w"));
    let worker = rig.endpoint(&worker_tls).await;
    let life = CERTIFICATE_LIFE.as_secs();
    for (now, welcome) in [
        (START - 3601, false),
        (START - 3600, true),
        (START + life, true),
        (START + life + 1, false),
    ] {
        rig.wall.set(now);
        let (dialled, _) = meet(&server, &worker, Role::Coordinator).await;
        if welcome {
            dialled.expect("valid");
        } else {
            assert_eq!(rejected(dialled), (Side::Us, TlsCause::OutOfDate));
        }
    }

    // The server renews its certificate: now the worker's is too old. Neither endpoint was rebuilt.
    let renewed = rig.identity(Role::Coordinator, "c");
    server_tls.renew(&renewed).expect("renewed");
    let (dialled, _) = meet(&server, &worker, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Peer, TlsCause::OutOfDate));
    worker_tls
        .renew(&rig.identity(Role::Worker, "w"))
        .expect("renewed");
    let (dialled, _) = meet(&server, &worker, Role::Coordinator).await;
    assert_eq!(dialled.expect("valid").identity, *renewed.peer());
}

#[tokio::test]
async fn an_expired_authority_is_refused() {
    let rig = rig();
    rig.wall
        .set(START + crate::identity::certificate::validity::CA_LIFE.as_secs() - 60);
    let server = rig.member(Role::Coordinator).await;
    let worker = rig.member(Role::Worker).await;
    let (dialled, _) = meet(&server, &worker, Role::Coordinator).await;
    dialled.expect("a minute is left");
    rig.wall
        .set(START + crate::identity::certificate::validity::CA_LIFE.as_secs() + 60);
    let (dialled, _) = meet(&server, &worker, Role::Coordinator).await;
    assert_eq!(rejected(dialled), (Side::Us, TlsCause::OutOfDate));
}

#[tokio::test]
async fn revocation_takes_effect_on_the_next_handshake() {
    let rig = rig();
    let server = rig.member(Role::Coordinator).await;
    let identity = rig.identity_of(Role::Worker, "w", "badtoken".parse().expect("id"));
    let worker = rig.endpoint(&rig.tls(&identity)).await;
    let (dialled, greeted) = meet(&server, &worker, Role::Coordinator).await;
    let standing = (dialled.expect("not yet revoked"), greeted);

    rig.revoked.extend(["badtoken".parse().expect("id")]);
    assert_eq!(rig.revoked.list().len(), 1);
    let (dialled, greeted) = meet(&server, &worker, Role::Coordinator).await;
    assert!(dialled.as_ref().is_err_and(DialError::is_revocation));
    assert_eq!(rejected(dialled), (Side::Peer, TlsCause::Revoked));
    assert!(greeted.is_err());
    assert!(standing.0.connection.close_reason().is_none());

    // The same holds for a server whose token was revoked.
    let client = rig.member(Role::Client).await;
    let (dialled, _) = meet(&worker, &client, Role::Worker).await;
    assert!(!dialled.as_ref().is_err_and(DialError::is_revocation));
    assert_eq!(rejected(dialled), (Side::Us, TlsCause::Revoked));
}

#[tokio::test]
async fn roles_bind() {
    let rig = rig();
    let worker = rig.member(Role::Worker).await;
    let client = rig.member(Role::Client).await;
    let (dialled, _) = meet(&worker, &client, Role::Coordinator).await;
    let error = dialled.expect_err("a worker");
    let (expected, found) = (Role::Coordinator, Role::Worker);
    assert!(
        matches!(error, DialError::WrongRole { expected: e, found: f, .. } if e == expected && f == found)
    );

    // A client's certificate cannot serve: a client's endpoint refuses diallers.
    let dialled = dial(
        &worker,
        client.local_addr(),
        Role::Client,
        Duration::from_millis(300),
    )
    .await;
    assert!(matches!(
        dialled,
        Err(DialError::Refused { .. } | DialError::Unreachable { .. })
    ));
}

#[tokio::test]
async fn versions_are_named_on_both_sides() {
    let rig = rig();
    let server = rig.member(Role::Coordinator).await;
    let worker = rig.member(Role::Worker).await;
    let serving = serve(&server);
    let addr = server.local_addr();
    let error = dial_as(9, &worker, addr, Role::Coordinator, SOON).await;
    assert!(matches!(
        error,
        Err(DialError::VersionMismatch {
            ours: 9,
            theirs: hello::PROTOCOL_VERSION,
            ..
        })
    ));
    let error = serving.await.expect("no panic").expect_err("mismatch");
    let AcceptError::Hello { source, .. } = error else {
        panic!("{error}");
    };
    let expected = HelloError::VersionMismatch {
        ours: hello::PROTOCOL_VERSION,
        theirs: 9,
    };
    assert_eq!(source, expected);
}

#[tokio::test]
async fn silence_ends_in_time() {
    let rig = rig();
    let worker = rig.member(Role::Worker).await;
    let short = Duration::from_millis(200);
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let addr = nobody.local_addr().expect("bound");
    let error = dial(&worker, addr, Role::Coordinator, short).await;
    assert!(
        matches!(error, Err(DialError::Unreachable { .. })),
        "{error:?}"
    );

    // This peer completes TLS and then does not greet; both sides see that.
    let server = rig.member(Role::Coordinator).await;
    let silent = tokio::spawn({
        let server = server.clone();
        async move {
            let incoming = server.accept().await.expect("open");
            let connection = incoming.accept().expect("starts").await.expect("connects");
            connection.closed().await
        }
    });
    let error = dial(&worker, server.local_addr(), Role::Coordinator, short).await;
    assert!(matches!(error, Err(DialError::Timeout { .. })), "{error:?}");
    silent.await.expect("closed");
    let serving = tokio::spawn({
        let server = server.clone();
        async move { greet(server.accept().await.expect("open"), short).await }
    });
    let connecting = worker.connect(server.local_addr()).expect("starts");
    let _silent = connecting.await.expect("connects");
    let error = serving.await.expect("no panic").expect_err("silence");
    let source = HelloError::Timeout;
    assert!(matches!(error, AcceptError::Hello { source: s, .. } if s == source));
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let rig = rig();
    let first = rig.member(Role::Worker).await;
    let tls = rig.tls(&rig.identity(Role::Worker, "w"));
    let addr = first.local_addr();
    let error = rig.bind(&addr.to_string(), &tls).await.expect_err("taken");
    assert!(error.to_string().contains(&addr.to_string()));
    assert!(matches!(error, NetError::PortTaken { addr: a, protocol: "UDP" } if a == addr));
    let elsewhere = rig.bind("203.0.113.7:0", &tls).await.expect_err("not ours");
    assert!(matches!(elsewhere, NetError::Bind { .. }));
}

#[test]
fn an_address_of_the_other_family_does_not_hide_why_a_host_was_not_reached() {
    let addr = |text: &str| text.parse::<SocketAddr>().expect("address");
    let (v4, v6) = (addr("127.0.0.1:7070"), addr("[::1]:7070"));
    let unreachable = || DialError::Unreachable { addr: v4 };
    let local = || DialError::Local {
        addr: v6,
        source: quinn::ConnectError::InvalidRemoteAddress(v6),
    };
    let said = |before, later| DialError::telling(before, later).to_string();
    assert_eq!(
        said(Some(unreachable()), local()),
        unreachable().to_string()
    );
    assert_eq!(
        said(Some(local()), unreachable()),
        unreachable().to_string()
    );
    assert_eq!(said(None, local()), local().to_string());
}

#[tokio::test]
async fn a_peer_without_memory_for_the_connection_is_not_out_of_reach() {
    use crate::error::{Code, Error};
    use crate::rpc::close;

    let rig = rig();
    let code_after = async |closed: u32| {
        let server = rig.member(Role::Worker).await;
        let client = rig.member(Role::Client).await;
        let serving = server.clone();
        let serving = tokio::spawn(async move {
            let incoming = serving.accept().await.expect("open");
            let connecting = incoming.accept().expect("open");
            let connection = connecting.await.expect("connected");
            connection.close(closed.into(), b"its token has 0 B left");
            connection.closed().await
        });
        let dialled = dial(&client, server.local_addr(), Role::Worker, SOON).await;
        serving.await.expect("no panic");
        let error = Error::from(dialled.expect_err("refused"));
        assert!(error.message.contains("its token has 0 B left"), "{error}");
        error.code
    };
    assert_eq!(code_after(close::NO_MEMORY).await, Code::OutOfMemory);
    assert_eq!(code_after(close::STOPPING).await, Code::Unreachable);
}

#[test]
fn only_a_peer_that_saw_the_certificate_can_say_that_it_was_revoked() {
    let rejected = |side, cause| DialError::TlsRejected {
        addr: ([127, 0, 0, 1], 7).into(),
        side,
        cause,
        reason: String::new(),
    };
    assert!(rejected(Side::Peer, TlsCause::Revoked).is_revocation());
    assert!(!rejected(Side::Us, TlsCause::Revoked).is_revocation());
    let early = rejected(Side::Peer, TlsCause::Revoked).unproven();
    assert!(!early.is_revocation());
    let early = rejected(Side::Us, TlsCause::Revoked).unproven();
    assert_eq!(
        early.to_string(),
        rejected(Side::Us, TlsCause::Revoked).to_string()
    );
}
