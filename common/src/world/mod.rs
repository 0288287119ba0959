//! The seams: everything ambient that production code touches comes from one value, [`World`].
//!
//! ```text
//! World ─┬─ net      QUIC endpoints, TCP for tripwires, name lookup, task spawner
//!        ├─ compute  a pool of threads for kernels
//!        ├─ store    disk
//!        ├─ wall     calendar time, for certificates and tokens only
//!        ├─ rng      cryptographic randomness
//!        └─ shared   memory shared with processes of this host; not under simulation, where there is none
//! ```
//!
//! Invariants:
//! 1. Nothing outside this module opens a socket or a file, spawns a thread or a task, reads the calendar or draws a
//!    random number. Elapsed time is `tokio::time` only, so a paused clock governs every timeout.
//! 2. Every trait here can be implemented under simulation: no trait hands out an operating system object. Shared
//!    memory has no trait: where it is missing, tensors take the network.
//! 3. Network I/O runs on the tokio runtime of the caller; nothing here starts a runtime.
//! 4. Whatever arrives from outside is bounded before it is buffered: windows, queues, file sizes.

mod clock;
mod compute;
mod disk;
mod endpoint;
pub mod hello;
mod net;
mod private;
mod rng;
pub(crate) mod shared_memory;
mod socket;
mod store;
#[cfg(test)]
pub(crate) mod testing;
mod transport;

/// The items of the QUIC library that services and shells name, so that they need no dependency on it.
pub mod quic {
    pub use quinn::{
        Connection, ConnectionError, ReadError, ReadExactError, RecvStream, SendStream, VarInt,
        WriteError,
    };
}

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::{Code, Error};

pub use clock::{SystemClock, WallClock, WallTime};
pub use compute::{
    AccountId, Begin, CREDIT, Compute, ComputeUse, FairQueue, Job, NoCompute, Refusal, RefusedJob,
    Rival, STEP_TURN, Share,
};
pub use disk::Disk;
pub use endpoint::{Endpoint, Incoming, build_endpoint};
pub use net::{Net, NetError, RealNet, TcpAcceptor, TcpConnection};
pub use rng::{Rng, SystemRng};
pub use shared_memory::{ExpectedPeer, Giver, Nonce, SegmentNotice, SharedMemory, Taker};
pub use socket::bind_private;
pub use store::{
    DirEntry, DiskSpace, EntryKind, FileIdentity, FileMode, Store, StoreError, StoreFile,
    off_thread,
};
pub use transport::{EndpointOptions, FIRST_WINDOW, admit_all_streams, welcome};

/// A boxed future, as the object-safe traits of this module return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Everything ambient that a process uses; cheap to clone.
#[derive(Clone)]
pub struct World {
    /// Sockets and tasks.
    pub net: Arc<dyn Net>,
    /// The pool that kernels run on.
    pub compute: Arc<dyn Compute>,
    /// Files.
    pub store: Arc<dyn Store>,
    /// Calendar time.
    pub wall: Arc<dyn WallClock>,
    /// Randomness.
    pub rng: Arc<dyn Rng>,
    /// The way to share memory with processes of the same host; `None` if there is none.
    pub shared: Option<Arc<SharedMemory>>,
}

impl World {
    /// The production world over compute threads that the caller owns, or [`NoCompute`].
    pub fn real(compute: Arc<dyn Compute>) -> Self {
        let wall: Arc<dyn WallClock> = Arc::new(SystemClock);
        let rng: Arc<dyn Rng> = Arc::new(SystemRng::default());
        Self {
            net: Arc::new(RealNet::new(wall.clone(), rng.clone())),
            compute,
            store: Arc::new(Disk::new(rng.clone())),
            wall,
            rng,
            shared: Some(Arc::default()),
        }
    }

    /// The production world of a cluster whose members are all in this process.
    pub fn of_one_process(compute: Arc<dyn Compute>) -> Self {
        let world = Self::real(compute);
        let net = RealNet::of_one_process(world.wall.clone(), world.rng.clone());
        Self {
            net: Arc::new(net),
            ..world
        }
    }

    /// Spawns a task on the current runtime.
    pub fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        self.net.spawn(Box::pin(task))
    }

    /// Runs `task` to its end, even if the caller stops waiting for it.
    pub async fn complete<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        self.spawn(async move {
            // The caller may have stopped waiting.
            drop(tell.send(task.await));
        });
        let ends = |_| Err(Error::new(Code::Cancelled, "the process is ending"));
        told.await.unwrap_or_else(ends)
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}
