//! The reader of a lane: it hands frames to the hub, and what they say about shared memory to the link's own.

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::close;
use convoke_common::world::World;
use quinn::{ReadExactError, RecvStream};

use crate::frame::{EAGER, Frame, HEAD, SharingFrame};
use crate::hub::{Hub, Incoming};
use crate::lease::Peer;
use crate::link::{Link, LinkId};
use crate::refusal::FrameRefusal;
use crate::sharing::LinkSharing;

/// The reason of a link that the peer ended in an orderly way.
pub(super) const LEFT: &str = "it ended the link";

/// Takes what the peer sends on the lane, until it sends no more; returns why.
pub(super) async fn read_lane(
    world: &World,
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    sharing: Option<&LinkSharing>,
    mut recv: RecvStream,
) -> String {
    let mut body = Vec::new();
    loop {
        let mut head = [0; HEAD];
        match recv.read_exact(&mut head).await {
            Ok(()) => {}
            Err(ReadExactError::FinishedEarly(0)) => return LEFT.into(),
            Err(e) => return e.to_string(),
        }
        let (kind, len) = match Frame::head(&head) {
            Ok(x) => x,
            Err(e) => return malformed(hub, &e),
        };
        body.resize(len, 0);
        if let Err(e) = recv.read_exact(&mut body).await {
            return e.to_string();
        }
        let answer = |answer| link.send(answer);
        let taken = take_frame(hub, link.peer(), link.id(), kind, &body, answer);
        let taken = taken.and_then(|told| match told {
            Some(told) => hear(world, hub, link, sharing, told),
            None => Ok(()),
        });
        if let Err(e) = taken {
            refuse(link, &e);
            return malformed(hub, &e);
        }
        if kind == EAGER {
            // One batch may hold thousands of ops, and the next may have arrived already: heartbeats and other tasks
            // run first.
            tokio::task::yield_now().await;
        }
    }
}

/// Takes what the peer says about shared memory; fails if it violates the protocol.
fn hear(
    world: &World,
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    sharing: Option<&LinkSharing>,
    told: SharingFrame,
) -> Result<()> {
    match (sharing, told) {
        (Some(sharing), told) => sharing.frame(world, hub, link, told),
        (None, SharingFrame::Meet { .. }) => {
            link.send(Frame::Sharing(SharingFrame::Apart));
            Ok(())
        }
        (None, SharingFrame::Bring { .. }) => Ok(()),
        (None, _) => Err(Error::new(
            Code::ProtocolViolation,
            "no memory is shared on this link",
        )),
    }
}

/// Takes one frame of a lane, and returns its message about shared memory, if it is one, which concerns the link
/// itself. An answer to the frame is passed to `answer`. Fails if the frame is malformed.
pub(crate) fn take_frame(
    hub: &Hub,
    from: &Peer,
    over: Option<LinkId>,
    kind: u8,
    body: &[u8],
    answer: impl FnMut(Frame),
) -> Result<Option<SharingFrame>> {
    if kind == EAGER {
        hub.batch(from, over, body)?;
        return Ok(None);
    }
    match Frame::decode(kind, body)? {
        (Frame::Tensor(h), payload) => match hub.begin(from, &h) {
            Ok(mut incoming) => {
                incoming.bytes_mut().copy_from_slice(payload);
                finish(hub, incoming);
            }
            Err(why) => hub.count(why),
        },
        (Frame::Sharing(told), _) => return Ok(Some(told)),
        (frame, _) => hub.frame(from, frame).into_iter().for_each(answer),
    }
    Ok(None)
}

/// Counts a malformed frame. The link then ends, since the frames after it cannot be told apart.
fn malformed(hub: &Hub, e: &Error) -> String {
    hub.count(FrameRefusal::Malformed);
    e.to_string()
}

/// Closes the connection with a reason that the peer shows, if `e` says that the peer exceeds a limit; does nothing for
/// any other error.
fn refuse(link: &Link, e: &Error) {
    let code = match e.code {
        Code::OutOfMemory => close::NO_MEMORY,
        Code::Busy => close::REFUSED,
        _ => return,
    };
    if let Some(connection) = link.connection() {
        connection.close(code.into(), e.message.as_bytes());
    }
}

fn finish(hub: &Hub, incoming: Incoming) {
    if let Err(why) = incoming.finish() {
        hub.count(why);
    }
}
