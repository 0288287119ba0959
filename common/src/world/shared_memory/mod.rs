//! How segments get from process to process on one host: over a Unix socket, through which a process can pass files.
//!
//! ```text
//! giver                                                taker
//! giver                                                taker
//! a nonce and its address, by QUIC ─────────────────>  connects to the address, unless it is this very process
//!                        <───────────────────────────  the nonce
//! that the nonce was expected ──────────────────────>
//! number, length, and the file ─────────────────────>  maps the segment
//!                        <───────────────────────────  the number
//! number, 0 ────────────────────────────────────────>  releases the segment
//! ```
//! Where only the taker has an address, the giver connects to the taker's socket and shows the nonce there.
//!
//! Invariants
//! 1. Only a peer that knows the nonce gets a segment; the nonce was told to one authenticated peer, once.
//! 2. A socket that does not answer, or answers wrongly, costs a bounded time and nothing else.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use std::collections::HashMap;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use convoke_graph::segment::{PeerSegment, Segment};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::socket::bind_private;

/// The secret that identifies one meeting of giver and taker; nobody can guess it.
pub type Nonce = [u8; 32];

/// How long one side waits for an answer of the other.
const BOUND: Duration = Duration::from_secs(2);
/// How many connections may be open that have not shown a nonce yet.
const GREETING: usize = 16;
/// Bytes of the message that accompanies a file: a number and a length.
const MESSAGE: usize = 16;
/// The answer to a nonce that is expected; any other nonce gets no answer.
const EXPECTED: u8 = 1;
/// The file name of the socket: this process connects to no socket of another name, whatever address a peer gives.
const SOCKET: &str = "memory.sock";

/// The place where this process and other processes of its host meet to exchange segments.
#[derive(Default)]
pub struct SharedMemory {
    expected: Mutex<HashMap<Nonce, oneshot::Sender<UnixStream>>>,
    address: OnceLock<PathBuf>,
}

impl SharedMemory {
    fn expected(&self) -> MutexGuard<'_, HashMap<Nonce, oneshot::Sender<UnixStream>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at a socket in this folder, which no other user should be able to enter, until the returned future is
    /// dropped. Without a socket, segments can only be passed within this process.
    pub fn listen(self: &Arc<Self>, folder: &Path) -> Result<impl Future<Output = ()> + use<>> {
        let path = &folder.join(SOCKET);
        let listener = bind_private(path)?;
        let socket = Socket(path.into());
        let again = || Error::new(ErrorKind::AddrInUse, "it listens already");
        self.address.set(path.into()).map_err(|_| again())?;
        let me = self.clone();
        Ok(async move {
            let _socket = socket;
            let greeting = Arc::new(Semaphore::new(GREETING));
            let mut greeted = tokio::task::JoinSet::new();
            while let Ok(permit) = greeting.clone().acquire_owned().await {
                let Ok((stream, _)) = listener.accept().await else {
                    // Accepting fails for want of file descriptors, for example.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                while greeted.try_join_next().is_some() {}
                let me = me.clone();
                greeted.spawn(async move {
                    // A connection that shows no expected nonce in time is dropped.
                    let _ = timeout(BOUND, me.greet(stream)).await;
                    drop(permit);
                });
            }
        })
    }

    async fn greet(&self, mut stream: UnixStream) -> Result<()> {
        let mut nonce = [0; 32];
        stream.read_exact(&mut nonce).await?;
        let expects = self.expected().remove(&nonce);
        if let Some(expects) = expects {
            stream.write_all(&[EXPECTED]).await?;
            // The task that expected the nonce may have given up.
            drop(expects.send(stream));
        }
        Ok(())
    }

    /// The path of this process's socket; empty if it does not listen.
    pub fn address(&self) -> &Path {
        self.address.get().map_or(Path::new(""), |a| a)
    }

    /// Expects a peer that shows this nonce, until the returned value is dropped.
    pub fn expect(self: &Arc<Self>, nonce: Nonce) -> ExpectedPeer {
        let (tell, told) = oneshot::channel();
        self.expected().insert(nonce, tell);
        let at = self.clone();
        ExpectedPeer { at, nonce, told }
    }

    /// Connects to the process at `address` that expects this nonce, to take segments from it.
    pub async fn meet(&self, address: &Path, nonce: &Nonce) -> Result<Taker> {
        self.met(address, nonce).await.map(Taker)
    }

    /// Connects like [`SharedMemory::meet`], but to give the peer segments of this process.
    pub async fn bring(&self, address: &Path, nonce: &Nonce) -> Result<Giver> {
        self.met(address, nonce).await.map(Giver)
    }

    async fn met(&self, address: &Path, nonce: &Nonce) -> Result<UnixStream> {
        let here = self.expected().remove(nonce);
        if let Some(expects) = here {
            let (mine, theirs) = UnixStream::pair()?;
            drop(expects.send(theirs));
            return Ok(mine);
        }
        if address.file_name() != Some(SOCKET.as_ref()) {
            return Err(ErrorKind::NotFound.into());
        }
        let meet = async { show(UnixStream::connect(address).await?, nonce).await };
        timeout(BOUND, meet).await?
    }
}

/// Shows a nonce to the process that listens at the other end.
async fn show(mut stream: UnixStream, nonce: &Nonce) -> Result<UnixStream> {
    // A process of another user is not shown the nonce.
    if stream.peer_cred()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    stream.write_all(nonce).await?;
    // In another container the same path may lead to another process's socket.
    match stream.read_u8().await? {
        EXPECTED => Ok(stream),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// The file of a socket; it is removed when this value is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // This fails if somebody else removed the file.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A meeting with a peer that was told a nonce and may show it.
pub struct ExpectedPeer {
    at: Arc<SharedMemory>,
    nonce: Nonce,
    told: oneshot::Receiver<UnixStream>,
}

impl ExpectedPeer {
    /// Waits until the peer has shown the nonce, to give it segments of this process.
    pub async fn came(&mut self) -> Option<Giver> {
        self.showed().await.map(Giver)
    }

    /// Waits until the peer has shown the nonce, to take segments from it.
    pub async fn brought(&mut self) -> Option<Taker> {
        self.showed().await.map(Taker)
    }

    async fn showed(&mut self) -> Option<UnixStream> {
        timeout(BOUND, &mut self.told).await.ok()?.ok()
    }
}

impl Drop for ExpectedPeer {
    fn drop(&mut self) {
        self.at.expected().remove(&self.nonce);
    }
}

fn message(number: u64, len: u64) -> [u8; MESSAGE] {
    let mut out = [0; MESSAGE];
    out[..8].copy_from_slice(&number.to_le_bytes());
    out[8..].copy_from_slice(&len.to_le_bytes());
    out
}

/// The giving end of a meeting: passes segments to a peer.
pub struct Giver(UnixStream);

impl Giver {
    /// Passes a segment to the peer; returns once the peer has confirmed it.
    pub async fn give(&mut self, segment: &Segment) -> Result<()> {
        let message = message(segment.number(), segment.len() as u64);
        let written = self.0.async_io(Interest::WRITABLE, || {
            let files = [segment.file()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = SendAncillaryBuffer::new(&mut space);
            with.push(SendAncillaryMessage::ScmRights(&files));
            let bytes = [IoSlice::new(&message)];
            Ok(sendmsg(
                self.0.as_fd(),
                &bytes,
                &mut with,
                SendFlags::NOSIGNAL,
            )?)
        });
        let written = timeout(BOUND, written).await??;
        let rest = &message[written..];
        timeout(BOUND, self.0.write_all(rest)).await??;
        let has = timeout(BOUND, self.0.read_u64_le()).await??;
        if has != segment.number() {
            return Err(Error::new(ErrorKind::InvalidData, "another segment"));
        }
        Ok(())
    }

    /// Tells the peer that the segment with this number no longer exists.
    pub async fn forget(&mut self, number: u64) -> Result<()> {
        let message = message(number, 0);
        timeout(BOUND, self.0.write_all(&message)).await?
    }
}

/// The message of a giver to the taker.
pub enum SegmentNotice {
    /// A segment with this number can be read.
    Given(u64, PeerSegment),
    /// The segment with this number no longer exists.
    Forgotten(u64),
}

/// The taking end of a meeting: receives segments from a peer.
pub struct Taker(UnixStream);

impl Taker {
    /// Receives the giver's next message.
    pub async fn next(&mut self) -> Result<SegmentNotice> {
        let (mut bytes, mut at, mut file) = ([0; MESSAGE], 0, None);
        while at < MESSAGE {
            let rest = &mut bytes[at..];
            let (n, came) = {
                let stream = &self.0;
                stream
                    .async_io(Interest::READABLE, || receive(stream, rest))
                    .await?
            };
            if n == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            at += n;
            file = came.or(file);
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (number, len) = (word(0), word(8));
        match (file, len) {
            (None, 0) => Ok(SegmentNotice::Forgotten(number)),
            (Some(file), _) => {
                let segment = PeerSegment::map(&file, len)
                    .map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
                Ok(SegmentNotice::Given(number, segment))
            }
            (None, _) => Err(Error::new(ErrorKind::InvalidData, "no file came")),
        }
    }

    /// Confirms to the giver that this segment can be used.
    pub async fn has(&mut self, number: u64) -> Result<()> {
        timeout(BOUND, self.0.write_u64_le(number)).await?
    }
}

fn receive(stream: &UnixStream, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(into)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let read = recvmsg(stream.as_fd(), &mut bytes, &mut with, flags)?.bytes;
    let mut file = None;
    for message in with.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            // The last file is used; dropping the others closes them.
            file = files.last();
        }
    }
    Ok((read, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_graph::block::Block;
    use convoke_graph::segment::SegmentLoan;

    /// A folder of the test's own, which is removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("convoke-shared-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Gives a segment, and checks that the taker can read it.
    async fn check_given(giver: &mut Giver, taker: &mut Taker) {
        let mut block = Block::shared(5000).unwrap();
        block.bytes_mut()[..3].copy_from_slice(b"abc");
        let segment = block.segment().unwrap().0;
        let take = async {
            let SegmentNotice::Given(number, of) = taker.next().await.unwrap() else {
                panic!("nothing was given");
            };
            taker.has(number).await.unwrap();
            (number, Arc::new(of))
        };
        let (gave, (number, of)) = tokio::join!(giver.give(segment), take);
        gave.unwrap();
        assert_eq!(number, segment.number());
        let lent = SegmentLoan::new(of, 0, 3, Box::new(())).unwrap();
        assert_eq!(lent.bytes(), b"abc");
        giver.forget(number).await.unwrap();
        let told = taker.next().await.unwrap();
        assert!(matches!(told, SegmentNotice::Forgotten(n) if n == number));
    }

    #[tokio::test]
    async fn segments_pass_a_socket() {
        let (a, b) = (
            Arc::<SharedMemory>::default(),
            Arc::<SharedMemory>::default(),
        );
        let folder = Scratch::new("pass");
        let listening = tokio::spawn(a.listen(&folder.0).unwrap());
        let mut expected = a.expect([7; 32]);
        let mut taker = b.meet(a.address(), &[7; 32]).await.unwrap();
        let mut giver = expected.came().await.unwrap();
        check_given(&mut giver, &mut taker).await;
        drop(giver);
        assert!(taker.next().await.is_err());
        listening.abort();
        let _ = listening.await;
        assert!(!a.address().exists());
    }

    #[tokio::test]
    async fn one_without_an_address_gives_as_well() {
        let (a, b) = (
            Arc::<SharedMemory>::default(),
            Arc::<SharedMemory>::default(),
        );
        let folder = Scratch::new("bring");
        let listening = tokio::spawn(a.listen(&folder.0).unwrap());
        let mut expected = a.expect([7; 32]);
        let mut giver = b.bring(a.address(), &[7; 32]).await.unwrap();
        let mut taker = expected.brought().await.unwrap();
        check_given(&mut giver, &mut taker).await;
        assert!(b.address().as_os_str().is_empty());
        listening.abort();
    }

    #[tokio::test]
    async fn parts_of_one_process_meet_without_a_socket() {
        let both = Arc::<SharedMemory>::default();
        let mut expected = both.expect([1; 32]);
        let mut taker = both.meet(Path::new(""), &[1; 32]).await.unwrap();
        let mut giver = expected.came().await.unwrap();
        check_given(&mut giver, &mut taker).await;
    }

    #[tokio::test]
    async fn only_who_knows_the_nonce_is_met() {
        let (a, b) = (
            Arc::<SharedMemory>::default(),
            Arc::<SharedMemory>::default(),
        );
        let folder = Scratch::new("nonce");
        let listening = tokio::spawn(a.listen(&folder.0).unwrap());
        let expected = a.expect([7; 32]);
        assert!(b.meet(a.address(), &[8; 32]).await.is_err());
        assert!(a.expected().contains_key(&[7; 32]));
        drop(expected);
        assert!(a.expected().is_empty());
        let elsewhere = a.address().with_extension("other");
        for nowhere in ["/".as_ref(), "".as_ref(), &*elsewhere] {
            assert!(b.meet(nowhere, &[7; 32]).await.is_err());
        }
        listening.abort();
    }
}
