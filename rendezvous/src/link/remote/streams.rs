//! The receiving end of large tensors, each of which has a stream of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::world::World;
use quinn::{RecvStream, VarInt};

use super::link_end::Remote;
use super::stall::{STALL_BOUND, stalled};
use crate::frame::TensorHeader;
use crate::hub::Hub;
use crate::link::Link;
use crate::refusal::FrameRefusal;

/// Receives the tensors whose streams the peer opens, until the connection ends; returns why.
pub(super) async fn accept_streams(
    world: &World,
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    remote: &Remote,
) -> String {
    loop {
        match remote.connection().accept_uni().await {
            Ok(stream) => {
                world.spawn(receive_stream(hub.clone(), link.clone(), stream));
            }
            Err(e) => return e.to_string(),
        }
    }
}

/// Why a tensor did not arrive.
enum ArrivalFailure {
    /// The stream was reset, or the connection was lost.
    Ended,
    /// The sender stalled.
    Stalled,
}

/// Fills `out` from the stream; fails if the stream ends or the sender stalls.
async fn fill(
    stream: &mut RecvStream,
    out: &mut [u8],
    link: &AtomicU64,
) -> Result<(), ArrivalFailure> {
    let stalled = stalled(link);
    tokio::pin!(stalled);
    let mut at = 0;
    while at < out.len() {
        tokio::select! {
            biased;
            read = stream.read(&mut out[at..]) => match read {
                Ok(Some(n)) => {
                    at += n;
                    link.fetch_add(n as u64, Ordering::Relaxed);
                }
                Ok(None) | Err(_) => return Err(ArrivalFailure::Ended),
            },
            () = &mut stalled => return Err(ArrivalFailure::Stalled),
        }
    }
    Ok(())
}

async fn read_header(
    stream: &mut RecvStream,
    link: &AtomicU64,
) -> Result<TensorHeader, FrameRefusal> {
    let missing = |m| match m {
        ArrivalFailure::Ended => FrameRefusal::Malformed,
        ArrivalFailure::Stalled => FrameRefusal::Stalled,
    };
    let mut fixed = [0; TensorHeader::FIXED];
    fill(stream, &mut fixed, link).await.map_err(missing)?;
    let rank = TensorHeader::rank(&fixed).map_err(|_| FrameRefusal::Malformed)?;
    let mut all = fixed.to_vec();
    all.resize(TensorHeader::FIXED + rank * 8 + 8, 0);
    let rest = fill(stream, &mut all[TensorHeader::FIXED..], link);
    rest.await.map_err(missing)?;
    TensorHeader::decode_all(&all).map_err(|_| FrameRefusal::Malformed)
}

async fn receive_stream(hub: Arc<Hub>, link: Arc<Link>, mut stream: RecvStream) {
    let Link::Remote(remote) = &*link else { return };
    let received = async {
        let h = read_header(&mut stream, &remote.received).await?;
        hub.foreseen(remote.peer(), &h).await?;
        let mut incoming = hub.begin(remote.peer(), &h)?;
        match fill(&mut stream, incoming.bytes_mut(), &remote.received).await {
            Ok(()) => incoming.finish(),
            // Dropping `incoming` gives the claim back; the abort that caused the reset arrives on the lane.
            Err(ArrivalFailure::Ended) => Ok(()),
            Err(ArrivalFailure::Stalled) => {
                incoming.stalled(remote.peer(), STALL_BOUND);
                Err(FrameRefusal::Stalled)
            }
        }
    };
    if let Err(why) = received.await {
        hub.count(why);
        let _ = stream.stop(VarInt::from_u32(1));
    }
}
