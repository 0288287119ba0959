//! Entries of [`crate::fuzzing`] that need private items of this module: a peer that writes bytes to a socket, and
//! sends files with them, as a script says.

use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Peer;
use std::sync::{Arc, LazyLock};

use convoke_graph::block::Block;
use convoke_graph::offsets::ALIGN;
use convoke_graph::segment::{PeerSegment, SegmentLoan};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixStream;

use super::{Giver, Nonce, SegmentNotice, SharedMemory, Taker, show};

/// Bytes of each ordinary file.
const FILE: u64 = 4096;

/// The length, in bytes, of a file of which hardly any page exists.
const SPARSE: u64 = 1 << 40;

/// The most writes of a script: with 255 bytes each they fit into a socket that nobody reads yet.
const WRITES: u8 = 64;

/// The seals of a segment.
const SEALED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// Files that a peer may send, made once.
struct Files {
    whole: OwnedFd,
    sparse: OwnedFd,
    empty: OwnedFd,
    growing: OwnedFd,
    shrinking: OwnedFd,
    unsealed: OwnedFd,
    no_memory: OwnedFd,
}

fn file(len: u64, seals: SealFlags) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("fuzz", flags).ok()?;
    ftruncate(&file, len).ok()?;
    fcntl_add_seals(&file, seals).ok()?;
    Some(file)
}

impl Files {
    fn made() -> Option<&'static Files> {
        static MADE: LazyLock<Option<Files>> = LazyLock::new(Files::make);
        MADE.as_ref()
    }

    fn make() -> Option<Files> {
        Some(Files {
            whole: file(FILE, SEALED)?,
            sparse: file(SPARSE, SEALED)?,
            empty: file(0, SEALED)?,
            growing: file(FILE, SealFlags::SHRINK)?,
            shrinking: file(FILE, SealFlags::GROW)?,
            unsealed: file(FILE, SealFlags::empty())?,
            no_memory: std::fs::File::open("/dev/zero").ok()?.into(),
        })
    }

    /// The files that accompany a write, by the script's number for them.
    fn of(&self, which: u8) -> Vec<BorrowedFd<'_>> {
        let files = match which {
            1 => vec![&self.whole],
            2 => vec![&self.sparse],
            3 => vec![&self.empty],
            4 => vec![&self.growing],
            5 => vec![&self.shrinking],
            6 => vec![&self.unsealed],
            7 => vec![&self.no_memory],
            8 => vec![&self.unsealed, &self.whole],
            9 => vec![&self.whole; 5],
            _ => vec![],
        };
        files.into_iter().map(AsFd::as_fd).collect()
    }
}

/// A socket pair: an asynchronous end, and the peer's.
fn pair() -> Option<(UnixStream, Peer)> {
    let (mine, theirs) = Peer::pair().ok()?;
    mine.set_nonblocking(true).ok()?;
    Some((UnixStream::from_std(mine).ok()?, theirs))
}

/// A socket whose peer has written up to 256 of these bytes, and writes no more.
fn written(bytes: &[u8]) -> Option<(UnixStream, Peer)> {
    let (mine, theirs) = pair()?;
    let bytes = bytes.get(..256).unwrap_or(bytes);
    write(&theirs, bytes, &[])?;
    theirs.shutdown(Shutdown::Write).ok()?;
    Some((mine, theirs))
}

fn write(to: &Peer, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Option<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        with.push(SendAncillaryMessage::ScmRights(files));
    }
    let bytes = [IoSlice::new(bytes)];
    sendmsg(to, &bytes, &mut with, SendFlags::NOSIGNAL).ok()
}

/// A taker whose peer has already written all that it ever will.
pub struct Scripted {
    pub taker: Taker,
    /// The peer's end of the socket, which receives what the taker says.
    pub peer: Peer,
}

/// Runs a script of the peer's writes, `writes u8` and then for each `files u8 | length u8 | bytes`; returns the taker,
/// and the bytes after the script.
pub fn taker(script: &[u8]) -> Option<(Scripted, &[u8])> {
    let files = Files::made()?;
    let (stream, peer) = pair()?;
    let (writes, mut rest) = script.split_first()?;
    for _ in 0..*writes.min(&WRITES) {
        let (&[which, len], after) = rest.split_first_chunk()?;
        let (bytes, after) = after.split_at_checked(usize::from(len))?;
        write(&peer, bytes, &files.of(which))?;
        rest = after;
    }
    peer.shutdown(Shutdown::Write).ok()?;
    let taker = Taker(stream);
    Some((Scripted { taker, peer }, rest))
}

const NONCE: Nonce = [7; 32];

/// Writes bytes to the socket of a process that expects a nonce, as a stranger would.
pub(crate) async fn greeting(bytes: &[u8]) -> bool {
    let at = Arc::<SharedMemory>::default();
    let mut expected = at.expect(NONCE);
    let Some((stream, _peer)) = written(bytes) else {
        return false;
    };
    at.greet(stream).await.is_ok() && expected.told.try_recv().is_ok()
}

/// Shows a nonce to a socket that answers with these bytes.
pub(crate) async fn greeted(bytes: &[u8]) -> bool {
    match written(bytes) {
        Some((stream, _peer)) => show(stream, &NONCE).await.is_ok(),
        None => false,
    }
}

/// Gives a segment to a taker that answers with these bytes.
pub(crate) async fn has(bytes: &[u8]) -> bool {
    let (Some(block), Some((stream, _peer))) = (Block::shared(FILE as usize), written(bytes))
    else {
        return false;
    };
    let Some((segment, _)) = block.segment() else {
        return false;
    };
    match Giver(stream).give(segment).await {
        Ok(()) => true,
        // The taker confirmed another segment.
        Err(error) => error.kind() == ErrorKind::InvalidData,
    }
}

/// Reads the first byte and the last byte of a segment.
fn ends(of: PeerSegment) -> Option<[u8; 2]> {
    let last = of.len() - 1;
    let lines = (last / ALIGN * ALIGN) as u64;
    let of = Arc::new(of);
    let first = SegmentLoan::new(of.clone(), 0, 1, Box::new(()))?;
    let rest = SegmentLoan::new(of, lines, last % ALIGN + 1, Box::new(()))?;
    Some([*first.bytes().first()?, *rest.bytes().last()?])
}

/// Takes all segments that a scripted giver gives and forgets.
pub(crate) async fn gifts(script: &[u8]) -> bool {
    let Some((Scripted { mut taker, peer }, _)) = taker(script) else {
        return false;
    };
    let mut told = 0;
    let ended = loop {
        match taker.next().await {
            Ok(SegmentNotice::Given(number, of)) => {
                std::hint::black_box(ends(of));
                if let Err(error) = taker.has(number).await {
                    break error;
                }
            }
            Ok(SegmentNotice::Forgotten(_)) => {}
            Err(error) => break error,
        }
        told += 1;
    };
    drop(peer);
    std::hint::black_box(ended.to_string());
    told > 0 && ended.kind() == ErrorKind::UnexpectedEof
}
