//! Entries of [`crate::fuzzing`] that need what is private here: a peer that writes to a socket, and sends files with it,
//! as it likes.

use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Peer;
use std::sync::{Arc, LazyLock};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixStream;

use super::{Giver, Nonce, SharedMemory, Taker, Told, show};
use crate::block::{ALIGN, Block};
use crate::segment::{Lent, PeerSegment};

/// Bytes of each of the files that have some.
const FILE: u64 = 4096;

/// Bytes of one of which hardly any are there.
const SPARSE: u64 = 1 << 40;

/// Most writes of a script: with 255 bytes each they fit in a socket of which nobody reads yet.
const WRITES: u8 = 64;

/// As a segment is sealed.
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

    /// Those that come with a write.
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

/// One end of a socket, and the other.
fn pair() -> Option<(UnixStream, Peer)> {
    let (mine, theirs) = Peer::pair().ok()?;
    mine.set_nonblocking(true).ok()?;
    Some((UnixStream::from_std(mine).ok()?, theirs))
}

/// A socket whose peer has written these bytes, as many as fit, and writes no more.
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

/// What a taker takes from a peer that has written all that it ever will.
pub struct Scripted {
    pub taker: Taker,
    /// That peer's end: what the taker says arrives.
    pub peer: Peer,
}

/// What a script has a peer write, and what follows the script: `writes u8`, and as often
/// `files u8 | length u8 | bytes`.
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

/// What a stranger says to the socket of a process that expects a nonce.
pub(crate) async fn greeting(bytes: &[u8]) -> bool {
    let at = Arc::<SharedMemory>::default();
    let mut expected = at.expect(NONCE);
    let Some((stream, _peer)) = written(bytes) else {
        return false;
    };
    at.greet(stream).await.is_ok() && expected.told.try_recv().is_ok()
}

/// What a socket answers to who shows a nonce there.
pub(crate) async fn greeted(bytes: &[u8]) -> bool {
    match written(bytes) {
        Some((stream, _peer)) => show(stream, &NONCE).await.is_ok(),
        None => false,
    }
}

/// What a taker answers to a segment.
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
        // That it has another one.
        Err(error) => error.kind() == ErrorKind::InvalidData,
    }
}

/// The first byte and the last.
fn ends(of: PeerSegment) -> Option<[u8; 2]> {
    let last = of.len() - 1;
    let lines = (last / ALIGN * ALIGN) as u64;
    let of = Arc::new(of);
    let first = Lent::new(of.clone(), 0, 1, Box::new(()))?;
    let rest = Lent::new(of, lines, last % ALIGN + 1, Box::new(()))?;
    Some([*first.bytes().first()?, *rest.bytes().last()?])
}

/// What a giver gives and forgets.
pub(crate) async fn gifts(script: &[u8]) -> bool {
    let Some((Scripted { mut taker, peer }, _)) = taker(script) else {
        return false;
    };
    let mut told = 0;
    let ended = loop {
        match taker.next().await {
            Ok(Told::Given(number, of)) => {
                std::hint::black_box(ends(of));
                if let Err(error) = taker.has(number).await {
                    break error;
                }
            }
            Ok(Told::Forgotten(_)) => {}
            Err(error) => break error,
        }
        told += 1;
    };
    drop(peer);
    std::hint::black_box(ended.to_string());
    told > 0 && ended.kind() == ErrorKind::UnexpectedEof
}
