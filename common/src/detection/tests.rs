//! Detection over real sockets. Times are printed; the tests only assert ten times the bounds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::bounds::{FIRST_BYTES, IDLE_TIMEOUT, LOST, PROCESS_KILLED, UNNAMED};
use super::testing::{Listening, Pair, WAIT, dialled, until};
use super::tripwire::{ExpectedNonces, NONCE};
use super::{CLOSE_LOST, Verdict, WatchedConnection};
use crate::identity::testing::rig;
use crate::identity::{Role, dial};
use crate::rpc::{StreamKind, open_stream};
use crate::world::quic::ConnectionError;

/// Waits until a connection ended, and returns the reason; prints how long that took since `from`.
async fn ended(what: &str, watched: &WatchedConnection, from: Instant, bound: Duration) -> String {
    let closed = timeout(bound * 10, watched.connection().closed()).await;
    assert!(closed.is_ok(), "{what}: still open");
    let why = watched.ended().unwrap_or_default();
    println!("{what}: {why}, after {:?}", from.elapsed());
    why
}

#[tokio::test]
async fn a_killed_process_is_noticed_by_its_tripwire() {
    let rig = rig();
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (tell, addr) = tokio::sync::oneshot::channel();
    let world = rig.world.clone();
    let identity = rig.identity(Role::Coordinator, "coordinator");
    let tls = rig.tls(&identity);
    doomed.spawn(async move {
        let any = "127.0.0.1:0".parse().expect("address");
        let server = Listening::bind(&world, any, &tls).await;
        tell.send(server.endpoint.local_addr()).expect("awaited");
        let _there = server.accept().await;
        std::future::pending::<()>().await;
    });
    let (_endpoint, here) = dialled(&rig, addr.await.expect("an address")).await;
    until("armed", || here.tripwire()).await;
    let from = Instant::now();
    // The process's sockets close without telling anyone.
    doomed.shutdown_background();
    let why = ended("killed process", &here, from, PROCESS_KILLED).await;
    assert_eq!(why, "its process ended");
    assert_eq!(here.verdict(), Some(Verdict::ProcessEnded));
}

/// Cuts one direction, or both: both ends notice.
async fn check_cut(what: &str, there: bool, back: bool) {
    let rig = rig();
    let pair = Pair::connect(&rig).await;
    let from = Instant::now();
    pair.relay.there.store(there, Ordering::Relaxed);
    pair.relay.back.store(back, Ordering::Relaxed);
    let (here, other) = tokio::join!(
        ended(what, &pair.here, from, LOST),
        ended(what, &pair.there, from, LOST)
    );
    // An end whose packets still arrive may tell the other end first.
    let own = "no answer for 2s";
    let told = "it lost contact with this process first, no answer for 2s";
    let given_up = Verdict::GivenUp.to_string();
    let may_be_told = [(here, back), (other, there)];
    for (why, heard) in may_be_told {
        assert!(
            why == own || why == given_up || heard && why == told,
            "{why}"
        );
    }
    assert!(pair.here.verdict().is_some() || pair.there.verdict().is_some());
}

#[tokio::test]
async fn a_cut_is_noticed_at_both_ends() {
    check_cut("cut", false, false).await;
}

#[tokio::test]
async fn a_cut_of_the_way_there_is_noticed_at_both_ends() {
    check_cut("one-way cut, there", false, true).await;
}

#[tokio::test]
async fn a_cut_of_the_way_back_is_noticed_at_both_ends() {
    check_cut("one-way cut, back", true, false).await;
}

#[tokio::test]
async fn a_living_process_that_gives_up_is_not_called_dead() {
    let rig = rig();
    for here_first in [true, false] {
        let pair = Pair::connect(&rig).await;
        pair.relay.there.store(false, Ordering::Relaxed);
        pair.relay.back.store(false, Ordering::Relaxed);
        let (first, other) = match here_first {
            true => (&pair.here, &pair.there),
            false => (&pair.there, &pair.here),
        };
        let from = Instant::now();
        first.lose(Verdict::NoAnswer);
        let why = ended("given up", other, from, PROCESS_KILLED).await;
        assert_eq!(
            why,
            "it gave the connection up, and its packets do not arrive"
        );
    }
}

#[tokio::test]
async fn an_idle_connection_stands_without_keep_alive() {
    let rig = rig();
    let pair = Pair::connect(&rig).await;
    let before = pair.here.connection().stats().udp_tx.datagrams;
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(1)).await;
    assert!(pair.here.ended().is_none() && pair.there.ended().is_none());
    // The connection sends two heartbeats a second, and their acknowledgements.
    let sent = pair.here.connection().stats().udp_tx.datagrams - before;
    assert!(sent < 40, "{sent} packets in 4 s");
}

#[tokio::test]
async fn a_forged_reset_kills_nothing_and_the_tripwire_returns() {
    let rig = rig();
    let pair = Pair::connect(&rig).await;
    for _ in 0..3 {
        pair.relay.cut_tcp();
        until("noticed", || {
            !pair.here.tripwire() && !pair.there.tripwire()
        })
        .await;
        until("armed again", || {
            pair.here.tripwire() && pair.there.tripwire()
        })
        .await;
    }
    assert!(pair.here.ended().is_none() && pair.there.ended().is_none());
}

#[tokio::test]
async fn without_the_port_there_is_no_tripwire_and_all_else_works() {
    let rig = rig();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let taken = taken.expect("a port");
    let addr = taken.local_addr().expect("address");
    let tls = rig.tls(&rig.identity(Role::Coordinator, "coordinator"));
    let server = Listening::bind(&rig.world, addr, &tls).await;
    let ((_endpoint, here), there) = tokio::join!(dialled(&rig, addr), server.accept());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!here.tripwire() && !there.tripwire());
    assert!(here.ended().is_none() && there.ended().is_none());
}

#[tokio::test]
async fn a_connection_that_is_closed_gives_its_reason_and_no_verdict() {
    let rig = rig();
    let pair = Pair::connect(&rig).await;
    let from = Instant::now();
    pair.there
        .connection()
        .close(7u32.into(), b"worker leaving");
    let why = ended("closed", &pair.here, from, LOST).await;
    assert_eq!(why, "worker leaving");
    assert_eq!(pair.here.verdict(), None);
    assert_eq!(pair.there.ended(), None);
}

#[tokio::test]
async fn a_peer_that_was_lost_in_error_is_told() {
    let rig = rig();
    let pair = Pair::connect(&rig).await;
    pair.there.lose(Verdict::NoAnswer);
    let why = ended("told", &pair.here, Instant::now(), LOST).await;
    assert_eq!(
        why,
        "it lost contact with this process first, no answer for 2s"
    );
    let closed = pair.here.connection().close_reason();
    assert!(
        matches!(closed, Some(ConnectionError::ApplicationClosed(c)) if c.error_code == CLOSE_LOST)
    );
}

#[tokio::test]
async fn datagrams_of_another_kind_or_length_are_ignored_and_counted() {
    let rig = rig();
    let pair = Pair::connect(&rig).await;
    for bad in [vec![], vec![3; 17], vec![1; 16], vec![0; 1000]] {
        let sent = pair.here.connection().send_datagram(bad.into());
        sent.expect("room");
    }
    let refused = || pair.server.detector.refused();
    until("counted", || refused().get("datagram_unknown") == Some(&4)).await;
    assert!(pair.there.ended().is_none());
}

#[tokio::test]
async fn strangers_on_the_tcp_port_are_dropped_and_counted() {
    let rig = rig();
    let server = Listening::start(&rig).await;
    let addr = server.endpoint.local_addr();
    let stranger = async |says: &[u8]| {
        let mut tcp = TcpStream::connect(addr).await.expect("accepted");
        tcp.write_all(says).await.expect("sent");
        // The connection is dropped, which shows as the end of the stream or as a reset.
        let read = timeout(WAIT, tcp.read(&mut [0])).await.expect("dropped");
        assert!(matches!(read, Ok(0) | Err(_)));
    };
    let from = Instant::now();
    stranger(&[7; NONCE]).await;
    stranger(b"GET / HTTP/1.1\r\n\r\n").await;
    // A connection that sends too little is dropped at the deadline.
    stranger(b"GET").await;
    assert!(from.elapsed() >= FIRST_BYTES);
    assert_eq!(server.detector.refused().get("tripwire_unknown"), Some(&3));
}

#[tokio::test]
async fn a_flood_of_tcp_connections_pushes_out_only_itself() {
    let rig = rig();
    let server = Listening::start(&rig).await;
    let addr = server.endpoint.local_addr();
    let mut flood = vec![];
    for _ in 0..=UNNAMED {
        flood.push(TcpStream::connect(addr).await.expect("accepted"));
    }
    let (mut first, mut last) = ([0], [0]);
    let [oldest, .., newest] = &mut flood[..] else {
        panic!("a flood of one");
    };
    tokio::select! {
        biased;
        ended = oldest.read(&mut first) => assert!(matches!(ended, Ok(0) | Err(_))),
        _ = newest.read(&mut last) => panic!("the newest was pushed out"),
    }
    let ((_endpoint, here), there) = tokio::join!(dialled(&rig, addr), server.accept());
    until("armed", || here.tripwire() && there.tripwire()).await;
}

#[tokio::test]
async fn a_peer_announces_one_tripwire_at_a_time() {
    let rig = rig();
    let server = Listening::start(&rig).await;
    let endpoint = rig.member(Role::Worker).await;
    let addr = server.endpoint.local_addr();
    let (dialled, _there) = tokio::join!(
        dial(&endpoint, addr, Role::Coordinator, WAIT),
        server.accept()
    );
    let connection = dialled.expect("connected").connection;
    let announce = async |nonce: u8| {
        let opened = open_stream(&connection, StreamKind::Tripwire).await;
        let (mut send, mut recv) = opened.expect("a stream");
        send.write_all(&[nonce; NONCE]).await.expect("sent");
        let mut answer = [0];
        recv.read_exact(&mut answer).await.expect("an answer");
        (answer, send, recv)
    };
    let first = announce(1).await;
    assert_eq!(first.0, [1], "expected");
    assert_eq!(announce(2).await.0, [0], "refused");
}

#[tokio::test]
async fn a_nonce_counts_once_and_is_forgotten() {
    let rig = rig();
    let server = Listening::start(&rig).await;
    let Some(table) = &server.detector.0.expected else {
        panic!("no port");
    };
    let addr = server.endpoint.local_addr();
    let (first, second) = ([1; NONCE], [2; NONCE]);
    {
        let (_announced, arrival) = table.announce(first).expect("room");
        assert!(table.announce(first).is_none(), "announced twice");
        let mut tcp = TcpStream::connect(addr).await.expect("accepted");
        tcp.write_all(&first).await.expect("sent");
        let matched = timeout(WAIT, arrival).await.expect("in time");
        let _matched = matched.expect("matched");
        let mut again = TcpStream::connect(addr).await.expect("accepted");
        again.write_all(&first).await.expect("sent");
        until("a second use is refused", || {
            server.detector.refused().get("tripwire_unknown") == Some(&1)
        })
        .await;
        let _second = table.announce(second).expect("room");
        assert_eq!(table.len(), 1);
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn nonces_expected_are_bounded() {
    let table = ExpectedNonces::default();
    let nonce = |i: u32| {
        let mut nonce = [0; NONCE];
        nonce[..4].copy_from_slice(&i.to_le_bytes());
        nonce
    };
    let most = super::bounds::EXPECTED as u32;
    let all: Vec<_> = (0..most).map(|i| table.announce(nonce(i))).collect();
    assert!(all.iter().all(Option::is_some));
    assert!(table.announce(nonce(most)).is_none());
    drop(all);
    assert_eq!(table.len(), 0);
}

#[tokio::test]
async fn a_connection_that_is_given_up_keeps_the_reason_of_a_peer_that_ended_it_first() {
    let rig = rig();
    for first in [true, false] {
        let pair = Pair::connect(&rig).await;
        if first {
            let expelled = pair.there.connection();
            expelled.close(7u32.into(), b"you are expelled");
            ended("expelled", &pair.here, Instant::now(), LOST).await;
        }
        pair.here.give_up("no calls pass");
        let why = pair.here.connection().closed().await;
        let kept =
            matches!(why, ConnectionError::ApplicationClosed(c) if c.error_code == 7u32.into());
        assert_eq!(kept, first);
        let told = pair.there.connection().closed().await;
        let lost =
            matches!(told, ConnectionError::ApplicationClosed(c) if c.error_code == CLOSE_LOST);
        assert_eq!(lost, !first);
    }
}
