use super::codec::encode;
use super::*;
use crate::identity::Role;
use crate::identity::testing::{Rig, rig};
use crate::identity::{OutboundConnection, dial, greet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tarpc::client::NewClient;

#[tarpc::service]
trait Echo {
    async fn echo(bytes: bytes::Bytes) -> bytes::Bytes;
    /// Never returns.
    async fn hang();
    async fn fail();
}

#[derive(Clone, Default)]
struct Server {
    running: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);
impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Echo for Server {
    async fn echo(self, _: Context, bytes: bytes::Bytes) -> bytes::Bytes {
        bytes
    }
    async fn hang(self, _: Context) {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(self.running.clone());
        std::future::pending().await
    }
    async fn fail(self, _: Context) {
        panic!("injected")
    }
}

struct Pair {
    client: EchoClient<DeadlineChannel<EchoRequest, EchoResponse>>,
    running: Arc<AtomicUsize>,
    dialled: OutboundConnection,
    _rig: Rig,
}

async fn pair(max_frame: usize) -> Pair {
    charged_pair(max_frame, None).await
}

async fn charged_pair(max_frame: usize, ledger: Option<Ledger>) -> Pair {
    let rig = rig();
    let coordinator = rig.member(Role::Coordinator).await;
    let worker = rig.member(Role::Worker).await;
    let addr = coordinator.local_addr();
    let server = Server::default();
    let running = server.running.clone();
    tokio::spawn(async move {
        let incoming = coordinator.accept().await.expect("open");
        let greeted = greet(incoming, Duration::from_secs(5)).await.expect("in");
        while let Ok((send, recv)) = greeted.connection.accept_bi().await {
            let serve = server.clone().serve();
            serve_charged(send, recv, serve, max_frame, ledger.clone()).await;
        }
    });
    let dialled = dial(&worker, addr, Role::Coordinator, Duration::from_secs(5))
        .await
        .expect("connected");
    let (send, recv) = dialled.connection.open_bi().await.expect("stream");
    let transport = client_transport(send, recv, max_frame);
    let NewClient { client, dispatch } = tarpc::client::new(client_config(), transport);
    tokio::spawn(async move { drop(dispatch.await) });
    Pair {
        client: DeadlineChannel::from(client).into(),
        running,
        dialled,
        _rig: rig,
    }
}

async fn until(running: &AtomicUsize, wanted: usize) {
    let reached = async {
        while running.load(Ordering::SeqCst) != wanted {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(2), reached)
        .await
        .unwrap_or_else(|_| panic!("never {wanted} handlers running"));
}

fn soon() -> Context {
    call_context(Duration::from_secs(10))
}

#[tokio::test]
async fn calls_come_back() {
    let pair = pair(MAX_FRAME).await;
    for size in [0, 1, 10_000, 9 << 20] {
        let sent = bytes::Bytes::from(vec![7; size]);
        let got = pair.client.echo(soon(), sent.clone()).await;
        assert_eq!(got.expect("answered"), sent);
    }
    let calls = (0..100).map(|i| pair.client.echo(soon(), vec![i; 10].into()));
    for (i, got) in futures::future::join_all(calls)
        .await
        .into_iter()
        .enumerate()
    {
        assert_eq!(got.expect("answered"), vec![i as u8; 10]);
    }
}

#[tokio::test]
async fn a_panicking_handler_takes_no_other_with_it() {
    let pair = pair(MAX_FRAME).await;
    let failing = pair.client.fail(call_context(Duration::from_millis(100)));
    assert!(failing.await.is_err());
    let alive = pair.client.echo(soon(), "x".into()).await;
    assert_eq!(alive.expect("the stream goes on"), "x");
}

#[tokio::test]
async fn a_dropped_call_ends_its_handler() {
    let pair = pair(MAX_FRAME).await;
    let client = pair.client.clone();
    let call = tokio::spawn(async move { client.hang(soon()).await });
    until(&pair.running, 1).await;
    call.abort();
    until(&pair.running, 0).await;
    let alive = pair.client.echo(soon(), "x".into()).await;
    assert_eq!(alive.expect("the stream goes on"), "x");
}

#[tokio::test]
async fn a_deadline_ends_both_sides() {
    let pair = pair(MAX_FRAME).await;
    let call = pair.client.hang(call_context(Duration::from_millis(100)));
    assert!(matches!(call.await, Err(RpcError::DeadlineExceeded)));
    until(&pair.running, 0).await;
}

#[tokio::test]
async fn a_lost_connection_ends_handlers_and_calls() {
    let pair = pair(MAX_FRAME).await;
    let client = pair.client.clone();
    let call = tokio::spawn(async move { client.hang(soon()).await });
    until(&pair.running, 1).await;
    pair.dialled.connection.close(0u32.into(), b"bye");
    until(&pair.running, 0).await;
    let error = call.await.expect("no panic").expect_err("lost");
    assert!(
        matches!(error, RpcError::Channel(_) | RpcError::Shutdown),
        "{error:?}"
    );
}

#[tokio::test]
async fn frames_are_bounded() {
    let pair = pair(1 << 10).await;
    let fits = pair.client.echo(soon(), vec![0; 512].into()).await;
    assert_eq!(fits.expect("answered").len(), 512);
    let huge = pair.client.echo(soon(), vec![0; 2048].into()).await;
    assert!(huge.is_err(), "{huge:?}");
}

/// An encoded call of `fail`, as a frame contains it.
fn framed(deadline: Duration) -> Vec<u8> {
    let trace = tarpc::trace::Context::default();
    encode(&(0u32, deadline, trace, 7u64, EchoRequest::Fail {})).expect("fits")
}

#[test]
fn messages_are_read_as_they_are_written() {
    let request = tarpc::Request {
        context: soon(),
        id: 7,
        message: EchoRequest::Fail {},
    };
    let written = encode(&ClientMessage::Request(request)).expect("fits");
    assert_eq!(written.len(), framed(Duration::ZERO).len());
    let read = ClientMessage::<EchoRequest>::decode(&written).expect("whole");
    let ClientMessage::Request(read) = read else {
        panic!("not a request");
    };
    assert!(matches!(read.message, EchoRequest::Fail {}) && read.id == 7);
    let left = read.context.deadline - Instant::now().into_std();
    assert!((Duration::from_secs(5)..Duration::from_secs(11)).contains(&left));
    let cancel = ClientMessage::<EchoRequest>::Cancel {
        trace_context: tarpc::trace::Context::default(),
        request_id: 9,
    };
    let read = ClientMessage::<EchoRequest>::decode(&encode(&cancel).expect("fits"));
    assert!(matches!(
        read,
        Ok(ClientMessage::Cancel { request_id: 9, .. })
    ));
}

#[test]
fn a_deadline_after_the_end_of_time_is_one() {
    for deadline in [Duration::MAX, BACKSTOP * 2] {
        let read = ClientMessage::<EchoRequest>::decode(&framed(deadline)).expect("whole");
        let ClientMessage::Request(read) = read else {
            panic!("not a request");
        };
        assert!(read.context.deadline <= (Instant::now() + BACKSTOP).into_std());
    }
}

#[tokio::test]
async fn a_request_beyond_the_budget_is_refused_by_name_and_the_stream_goes_on() {
    let all = Ledger::new("the coordinator", 1 << 30);
    let ledger = all.of(crate::memory::Owner {
        token: "aaaa".parse().expect("id"),
        member: "client-1".into(),
        limit: 8 << 20,
    });
    let pair = charged_pair(MAX_FRAME, Some(ledger)).await;
    let echo = |size: usize| pair.client.echo(soon(), vec![7; size].into());
    assert_eq!(echo(1 << 20).await.expect("fits").len(), 1 << 20);
    let refused = echo(4 << 20).await.expect_err("too large");
    let RpcError::Server(refused) = refused else {
        panic!("{refused:?}");
    };
    let who = "token aaaa (client-1) has 0.0 of its 8.0 MiB at the coordinator";
    assert!(refused.detail.contains(who), "{refused:?}");
    // A request is charged while it is served.
    let client = pair.client.clone();
    let hanging = tokio::spawn(async move { client.hang(soon()).await });
    until(&pair.running, 1).await;
    assert_eq!(all.total_and_peak().0, 64 << 10);
    hanging.abort();
    until(&pair.running, 0).await;
    assert_eq!(echo(1 << 20).await.expect("fits again").len(), 1 << 20);
    assert_eq!(all.total_and_peak().0, 0);
}

#[tokio::test]
async fn a_frame_that_never_ends_is_charged_and_let_go() {
    let all = Ledger::new("the coordinator", 1 << 30);
    let pair = charged_pair(MAX_FRAME, Some(all.clone())).await;
    pair.client
        .echo(soon(), "x".into())
        .await
        .expect("answered");
    let (mut send, _recv) = pair.dialled.connection.open_bi().await.expect("stream");
    send.write_all(&(8u32 << 20).to_be_bytes())
        .await
        .expect("sent");
    let freed = all.freed().notified();
    tokio::pin!(freed);
    // The server takes one stream at a time: it takes this one once the first has ended.
    drop(pair.client);
    let charged = async {
        while all.total_and_peak().0 != 32 << 20 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), charged)
        .await
        .expect("charged");
    freed.as_mut().enable();
    drop(send.reset(0u32.into()));
    freed.await;
    assert_eq!(all.total_and_peak().0, 0);
}
