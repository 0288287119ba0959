//! tarpc over one QUIC bidirectional stream: length-delimited bincode frames.
//!
//! Invariants:
//! 1. A frame is at most `max_frame` bytes, on the way out and on the way in, and no more is buffered for one.
//! 2. Integers have fixed width: the length of a message does not depend on ids or deadlines, so a simulated run
//!    sends the same packets each time.
//! 3. The codec is in [`convoke_graph::codec`] alone.
//! 4. When the stream ends, the requests in flight on it are aborted; when the client drops a call, or its bound is
//!    over, the server's handler is dropped.
//! 5. Every bound is measured by tokio's clock, so that a paused clock governs it.
//! 6. No frame, whatever is in it, makes its receiver panic.
//! 7. Where a server has a ledger, a request's memory is charged by its declared length before a byte of it is kept.

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use bincode::Options;
use bytes::{Bytes, BytesMut};
use convoke_graph::codec;
use futures::{FutureExt, StreamExt};
use quinn::{RecvStream, SendStream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tarpc::client::RpcError;
use tarpc::client::stub::Stub;
use tarpc::context::Context;
use tarpc::server::{BaseChannel, Channel, Serve};
use tarpc::trace;
use tarpc::{ClientMessage, RequestName, Response};
use tokio::io::{Join, join};
use tokio::time::{Instant, timeout_at};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::memory::Ledger;

mod served;

pub use served::{Charge, current_charge};

use served::{ChargingServer, Frames as ServedFrames, ServedStream};

/// The most bytes of a frame, where the caller has no tighter bound.
pub const MAX_FRAME: usize = codec::MAX_MESSAGE;

/// The most requests that one stream may have in flight; further ones are answered "throttled".
const MAX_IN_FLIGHT: usize = 4096;

/// The most responses that wait to be written; beyond that, handlers wait.
const PENDING_RESPONSES: usize = 1024;

/// A message that may arrive on a stream.
pub trait InboundMessage: Sized {
    /// Decodes the message that exactly these bytes hold.
    fn decode(bytes: &[u8]) -> Result<Self, codec::CodecError>;
}

impl<T: DeserializeOwned> InboundMessage for Response<T> {
    fn decode(bytes: &[u8]) -> Result<Self, codec::CodecError> {
        codec::decode(bytes)
    }
}

/// [`ClientMessage`] as it travels. tarpc's own decoding adds the deadline to the time of day unchecked, which panics.
#[derive(Deserialize)]
enum Message<T> {
    Request {
        /// How long the call may take, from its arrival on.
        deadline: Duration,
        trace_context: trace::Context,
        id: u64,
        message: T,
    },
    Cancel {
        trace_context: trace::Context,
        request_id: u64,
    },
}

/// A deadline later than `BACKSTOP` from now is brought forward to that.
impl<T: DeserializeOwned> InboundMessage for ClientMessage<T> {
    fn decode(bytes: &[u8]) -> Result<Self, codec::CodecError> {
        Ok(match codec::decode(bytes)? {
            Message::Request {
                deadline,
                trace_context,
                id,
                message,
            } => {
                let mut context = tarpc::context::current();
                context.deadline = (Instant::now() + deadline.min(BACKSTOP)).into_std();
                context.trace_context = trace_context;
                ClientMessage::Request(tarpc::Request {
                    context,
                    id,
                    message,
                })
            }
            Message::Cancel {
                trace_context,
                request_id,
            } => ClientMessage::Cancel {
                trace_context,
                request_id,
            },
        })
    }
}

/// The codec of a stream, as tarpc takes it: it decodes `In` and encodes `Out`.
pub struct Frames<In, Out>(PhantomData<fn(In) -> Out>);

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<In: InboundMessage, Out> tokio_serde::Deserializer<In> for Frames<In, Out> {
    type Error = io::Error;

    fn deserialize(self: Pin<&mut Self>, frame: &BytesMut) -> io::Result<In> {
        In::decode(frame).map_err(invalid)
    }
}

impl<In, Out: Serialize> tokio_serde::Serializer<Out> for Frames<In, Out> {
    type Error = io::Error;

    fn serialize(self: Pin<&mut Self>, message: &Out) -> io::Result<Bytes> {
        let bytes = codec::bincode().serialize(message).map_err(invalid)?;
        Ok(bytes.into())
    }
}

/// Both directions of a QUIC stream as one object.
pub type BiStream = Join<RecvStream, SendStream>;

/// A transport that receives `In` and sends `Out`.
pub type RpcTransport<In, Out> =
    tarpc::serde_transport::Transport<BiStream, In, Out, Frames<In, Out>>;

/// Makes a transport of one stream, whose frames have at most `max_frame` bytes.
pub fn transport<In, Out>(
    send: SendStream,
    recv: RecvStream,
    max_frame: usize,
) -> RpcTransport<In, Out>
where
    In: InboundMessage + for<'de> Deserialize<'de>,
    Out: Serialize,
{
    let frames = LengthDelimitedCodec::builder()
        .max_frame_length(max_frame)
        .new_codec();
    tarpc::serde_transport::new(Framed::new(join(recv, send), frames), Frames(PhantomData))
}

/// The calling side of a stream, for [`tarpc::client::new`]. Its dispatch future must be spawned:
///
/// ```text
/// let transport = client_transport(send, recv, MAX_FRAME);
/// let NewClient { client, dispatch } = tarpc::client::new(client_config(), transport);
/// world.spawn(async move { drop(dispatch.await) });
/// let client: EchoClient<_> = Bounded::from(client).into();
/// ```
pub fn client_transport<Req, Resp>(
    send: SendStream,
    recv: RecvStream,
    max_frame: usize,
) -> RpcTransport<Response<Resp>, ClientMessage<Req>>
where
    Req: Serialize,
    Resp: for<'de> Deserialize<'de>,
{
    transport(send, recv, max_frame)
}

/// The settings of a client, which bound its requests in flight.
pub fn client_config() -> tarpc::client::Config {
    let mut config = tarpc::client::Config::default();
    config.max_in_flight_requests = MAX_IN_FLIGHT;
    config
}

/// The deadline of tarpc's own timers, which read the operating system's clock. No bound is as long as this:
/// [`DeadlineChannel`] ends calls by tokio's clock.
const BACKSTOP: Duration = Duration::from_secs(24 * 3600);

/// A client's channel that ends each call at its deadline. Dropping the call tells the server, which drops its handler.
#[derive(Debug)]
pub struct DeadlineChannel<Req, Resp>(tarpc::client::Channel<Req, Resp>);

impl<Req, Resp> From<tarpc::client::Channel<Req, Resp>> for DeadlineChannel<Req, Resp> {
    fn from(channel: tarpc::client::Channel<Req, Resp>) -> Self {
        DeadlineChannel(channel)
    }
}

impl<Req, Resp> Clone for DeadlineChannel<Req, Resp> {
    fn clone(&self) -> Self {
        DeadlineChannel(self.0.clone())
    }
}

impl<Req: RequestName, Resp> Stub for DeadlineChannel<Req, Resp> {
    type Req = Req;
    type Resp = Resp;

    async fn call(&self, mut context: Context, request: Req) -> Result<Resp, RpcError> {
        let deadline = Instant::from_std(context.deadline);
        context.deadline = (Instant::now() + BACKSTOP).into_std();
        let answer = timeout_at(deadline, self.0.call(context, request)).await;
        answer.unwrap_or(Err(RpcError::DeadlineExceeded))
    }
}

/// The context of a call that may take `timeout`. It carries the trace context of the current span to the server.
pub fn call_context(timeout: Duration) -> Context {
    let mut context = tarpc::context::current();
    context.deadline = (Instant::now() + timeout).into_std();
    context
}

/// Serves one stream until it ends. `serve` is a generated server's `.serve()`. All handlers run inside this future,
/// so none outlives it.
pub async fn serve_stream<S>(send: SendStream, recv: RecvStream, serve: S, max_frame: usize)
where
    S: Serve + Clone,
    S::Req: RequestName + for<'de> Deserialize<'de> + Debug,
    S::Resp: Serialize + Debug,
{
    serve_charged(send, recv, serve, max_frame, None).await;
}

/// As [`serve_stream`], with each request charged to `ledger` from its first bytes until its answer is written. A
/// request that the ledger refuses is answered with an error that says which tokens have how much.
pub async fn serve_charged<S>(
    send: SendStream,
    recv: RecvStream,
    serve: S,
    max_frame: usize,
    ledger: Option<Ledger>,
) where
    S: Serve + Clone,
    S::Req: RequestName + for<'de> Deserialize<'de> + Debug,
    S::Resp: Serialize + Debug,
{
    let frames = ServedFrames::new(max_frame, ledger);
    let transport = ServedStream::<S::Req, S::Resp>::new(join(recv, send), frames);
    let config = tarpc::server::Config {
        pending_response_buffer: PENDING_RESPONSES,
    };
    // The channel has the bound, and answers the requests beyond it. A bound on `for_each_concurrent` would stop
    // polling the channel, which also writes the responses: the two would wait for each other.
    BaseChannel::new(config, transport)
        .max_concurrent_requests(MAX_IN_FLIGHT)
        .execute(ChargingServer(serve))
        .for_each_concurrent(None, |request| async {
            // A handler that panics takes no other with it; its caller's deadline ends the wait.
            if AssertUnwindSafe(request).catch_unwind().await.is_err() {
                tracing::error!("the handler of a control call panicked");
            }
        })
        .await;
}

#[cfg(test)]
mod tests;
