//! The serving side of a stream: each request is paid for before its bytes are kept.
//!
//! ```text
//! length ──charge──> bytes ──decode──> request ──handler──> response ──encode──> the charge ends
//!           └ refused: the bytes are dropped as they arrive, and the answer says who holds the memory
//! ```
//!
//! Invariants
//! 1. Nothing of a frame except its length is kept before its charge is granted.
//! 2. A charge lasts until the response is encoded, or until the handler and every holder of a shared charge are gone.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use bincode::Options;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{Sink, Stream};
use serde::{Deserialize, Serialize, Serializer};
use tarpc::context::Context;
use tarpc::server::Serve;
use tarpc::{ClientMessage, RequestName, Response, ServerError, trace};
use tokio_util::codec::{Decoder, Encoder, Framed};

use super::{BiStream, InboundMessage, codec, invalid};
use crate::error::{Error, Result};
use crate::memory::{Ledger, Purpose, Reservation};
use crate::telemetry;

/// Bytes of the length before a frame.
const LENGTH: usize = 4;

/// The most memory of a decoded request that an honest peer sends, in frame lengths: nodes and names of a graph take
/// three to four times as much memory as bytes on the wire.
const EXPANSION: u64 = 4;

/// The least charge of a request, in bytes, for its handler and for the answer until it is written.
const LEAST: u64 = 64 << 10;

/// How many first bytes of a refused frame are kept, to learn which call it was.
const PREFIX: usize = 128;

/// The charge of a request; tasks that go on with its work share it.
pub type Charge = Option<Arc<Reservation>>;

tokio::task_local! {
    static CHARGE: Charge;
}

/// The charge of the request that the current task serves; `None` outside of a request.
pub fn current_charge() -> Charge {
    CHARGE.try_with(Clone::clone).unwrap_or_default()
}

/// A request or a response, with its charge.
#[derive(Debug)]
pub(super) struct ChargedMessage<T> {
    value: T,
    charge: Charge,
}

impl<T: RequestName> RequestName for ChargedMessage<T> {
    fn name(&self) -> &str {
        self.value.name()
    }
}

impl<T: Serialize> Serialize for ChargedMessage<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// A server that keeps each request's charge while its handler runs.
#[derive(Clone)]
pub(super) struct ChargingServer<S>(pub S);

impl<S: Serve> Serve for ChargingServer<S> {
    type Req = ChargedMessage<S::Req>;
    type Resp = ChargedMessage<S::Resp>;

    async fn serve(
        self,
        context: Context,
        request: ChargedMessage<S::Req>,
    ) -> std::result::Result<ChargedMessage<S::Resp>, ServerError> {
        telemetry::name_current_span(request.name());
        let charge = request.charge.clone();
        let served = CHARGE.scope(request.charge, self.0.serve(context, request.value));
        let value = served.await?;
        Ok(ChargedMessage { value, charge })
    }
}

enum ReadState {
    Length,
    Body { len: usize, charge: Charge },
    Refused { left: usize, error: Error },
}

/// A frame that arrived on the stream.
pub(super) enum Arrival {
    Frame(BytesMut, Charge),
    /// The first bytes of a frame that was refused, and the error to answer.
    Refused(BytesMut, Error),
}

/// A decoder of length-delimited frames, which charges them to a ledger if there is one.
pub(super) struct Frames {
    most: usize,
    ledger: Option<Ledger>,
    state: ReadState,
    prefix: BytesMut,
}

impl Frames {
    pub fn new(most: usize, ledger: Option<Ledger>) -> Frames {
        Frames {
            most,
            ledger,
            state: ReadState::Length,
            prefix: BytesMut::new(),
        }
    }

    fn charge(&self, len: usize) -> Result<Charge> {
        let bytes = (len as u64).saturating_mul(EXPANSION).max(LEAST);
        let reserve = |ledger: &Ledger| ledger.reserve(Purpose::Requests, bytes).map(Arc::new);
        self.ledger.as_ref().map(reserve).transpose()
    }
}

fn too_long(len: usize, most: usize) -> io::Error {
    invalid(format!("a frame of {len} bytes, of at most {most}"))
}

impl Decoder for Frames {
    type Item = Arrival;
    type Error = io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> io::Result<Option<Arrival>> {
        loop {
            match &mut self.state {
                ReadState::Length => {
                    if src.len() < LENGTH {
                        return Ok(None);
                    }
                    let len = src.get_u32() as usize;
                    if len > self.most {
                        return Err(too_long(len, self.most));
                    }
                    self.state = match self.charge(len) {
                        Ok(charge) => {
                            src.reserve(len.saturating_sub(src.len()));
                            ReadState::Body { len, charge }
                        }
                        Err(error) => ReadState::Refused { left: len, error },
                    };
                }
                ReadState::Body { len, charge } => {
                    if src.len() < *len {
                        return Ok(None);
                    }
                    let (frame, charge) = (src.split_to(*len), charge.take());
                    self.state = ReadState::Length;
                    return Ok(Some(Arrival::Frame(frame, charge)));
                }
                ReadState::Refused { left, error } => {
                    let part = src.len().min(*left);
                    let keep = part.min(PREFIX - self.prefix.len().min(PREFIX));
                    self.prefix.extend_from_slice(&src[..keep]);
                    src.advance(part);
                    *left -= part;
                    if *left > 0 {
                        return Ok(None);
                    }
                    let (prefix, error) = (self.prefix.split(), error.clone());
                    self.state = ReadState::Length;
                    return Ok(Some(Arrival::Refused(prefix, error)));
                }
            }
        }
    }
}

impl Encoder<Bytes> for Frames {
    type Error = io::Error;

    fn encode(&mut self, frame: Bytes, out: &mut BytesMut) -> io::Result<()> {
        let len = u32::try_from(frame.len())
            .ok()
            .filter(|_| frame.len() <= self.most);
        let len = len.ok_or_else(|| too_long(frame.len(), self.most))?;
        out.reserve(LENGTH + frame.len());
        out.put_u32(len);
        out.extend_from_slice(&frame);
        Ok(())
    }
}

/// The beginning of a message, which holds the number of the request to answer.
#[derive(Deserialize)]
#[allow(dead_code, reason = "the layout of what is read")]
enum MessageHead {
    Request {
        deadline: Duration,
        trace_context: trace::Context,
        id: u64,
    },
    Cancel {
        trace_context: trace::Context,
        request_id: u64,
    },
}

fn request_of(prefix: &[u8]) -> Option<u64> {
    let read = codec::bincode().allow_trailing_bytes().deserialize(prefix);
    match read {
        Ok(MessageHead::Request { id, .. }) => Some(id),
        Ok(MessageHead::Cancel { .. }) | Err(_) => None,
    }
}

/// The server's side of a stream: a stream of requests and a sink of responses.
pub(super) struct ServedStream<Req, Resp> {
    framed: Framed<BiStream, Frames>,
    /// The answer to a refused request; it is written before more is read.
    refusal: Option<Bytes>,
    types: PhantomData<fn(Req) -> Resp>,
}

impl<Req, Resp> ServedStream<Req, Resp> {
    pub fn new(stream: BiStream, frames: Frames) -> Self {
        ServedStream {
            framed: Framed::new(stream, frames),
            refusal: None,
            types: PhantomData,
        }
    }

    /// Writes the answer to a refused request, if there is one.
    fn poll_refusal(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if self.refusal.is_none() {
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.framed).poll_ready(task))?;
        if let Some(answer) = self.refusal.take() {
            Pin::new(&mut self.framed).start_send(answer)?;
            // Bytes that are not written now are written with the next answer, or when the channel flushes.
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.framed).poll_flush(task) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn refusal(id: u64, error: &Error) -> io::Result<Bytes> {
    let response: Response<()> = Response {
        request_id: id,
        message: Err(ServerError::new(
            io::ErrorKind::WouldBlock,
            error.to_string(),
        )),
    };
    Ok(codec::bincode()
        .serialize(&response)
        .map_err(invalid)?
        .into())
}

fn charged<T>(message: ClientMessage<T>, charge: Charge) -> ClientMessage<ChargedMessage<T>> {
    match message {
        ClientMessage::Request(tarpc::Request {
            context,
            id,
            message,
        }) => ClientMessage::Request(tarpc::Request {
            context,
            id,
            message: ChargedMessage {
                value: message,
                charge,
            },
        }),
        ClientMessage::Cancel {
            trace_context,
            request_id,
        } => ClientMessage::Cancel {
            trace_context,
            request_id,
        },
        // The library may add kinds of messages; this release sends none of them.
        _ => ClientMessage::Cancel {
            trace_context: trace::Context::default(),
            request_id: u64::MAX,
        },
    }
}

impl<Req, Resp> Stream for ServedStream<Req, Resp>
where
    ClientMessage<Req>: InboundMessage,
{
    type Item = io::Result<ClientMessage<ChargedMessage<Req>>>;

    fn poll_next(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Self::Item>> {
        let me = self.get_mut();
        loop {
            if let Err(error) = ready!(me.poll_refusal(task)) {
                return Poll::Ready(Some(Err(error)));
            }
            let next = ready!(Pin::new(&mut me.framed).poll_next(task));
            return Poll::Ready(match next {
                None => None,
                Some(Err(error)) => Some(Err(error)),
                Some(Ok(Arrival::Frame(frame, charge))) => {
                    let message = ClientMessage::<Req>::decode(&frame).map_err(invalid);
                    Some(message.map(|message| charged(message, charge)))
                }
                Some(Ok(Arrival::Refused(prefix, error))) => {
                    tracing::debug!(%error, "a request was refused");
                    match request_of(&prefix).map(|id| refusal(id, &error)) {
                        None => {}
                        Some(Ok(answer)) => me.refusal = Some(answer),
                        Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    }
                    continue;
                }
            });
        }
    }
}

impl<Req, Resp: Serialize> Sink<Response<ChargedMessage<Resp>>> for ServedStream<Req, Resp> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().framed).poll_ready(task)
    }

    fn start_send(
        self: Pin<&mut Self>,
        response: Response<ChargedMessage<Resp>>,
    ) -> io::Result<()> {
        let bytes = codec::bincode().serialize(&response).map_err(invalid)?;
        Pin::new(&mut self.get_mut().framed).start_send(bytes.into())
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().framed).poll_flush(task)
    }

    fn poll_close(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().framed).poll_close(task)
    }
}

impl<Req, Resp> fmt::Debug for ServedStream<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}
