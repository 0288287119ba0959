//! Loading chunks of artifacts from the nearest source that has them, and verifying them.
//!
//! ```text
//! piece of chunks -> shared path beneath --artifact-root, else cache, else the client -> verified chunks
//!                                                                            └─> keeper -> cache
//! ```
//!
//! Invariants
//! 1. A chunk that is handed out has matched its hash.
//! 2. The network thread only receives: reading, hashing and writing files are jobs of the store's threads.
//! 3. Every chunk holds its slot of the load buffer from before it is requested.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::Pool;
use convoke_common::rpc::Sources;
use convoke_common::world::quic::Connection;
use convoke_common::world::{StoreFile, World};
use convoke_graph::Tensor;
use convoke_graph::artifact::{ArtifactId, ArtifactMeta, CHUNK};
use convoke_rendezvous::artifacts::{self, ArtifactSource};
use tokio::sync::{Semaphore, oneshot};

use crate::node::keeper::Keeper;
use crate::weights::cache::Cache;
use crate::weights::load_buffer::{Buffer, Buffers, Chunk, ChunkBytes, ChunkPermits, LoadBuffer};

/// Jobs of one load that read files at once: enough to keep a disk busy, and few beside the threads that compute.
const READERS: usize = 4;

/// How long a job of the store's threads may take: far longer than a working disk needs for the few MiB of one job.
const STORE_BOUND: Duration = Duration::from_secs(60);

/// Where a client's artifacts are read from when no shared path has them.
#[derive(Clone)]
pub enum ClientSource {
    /// The client is another process, at the end of this connection.
    Remote(Connection),
    /// The client is in this process.
    Local(Arc<dyn ArtifactSource>),
}

/// Bytes of weights loaded so far, by source: shared path, cache, client.
#[derive(Debug, Default)]
pub struct LoadedBytes([AtomicU64; 3]);

impl LoadedBytes {
    /// The counts so far.
    pub fn get(&self) -> Sources {
        let [shared_path, cache, clients] = [0, 1, 2].map(|i| self.0[i].load(Ordering::Relaxed));
        Sources {
            shared_path,
            cache,
            clients,
        }
    }
    fn add(&self, source: usize, bytes: usize) {
        self.0[source].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A requested chunk: its index, its place in the load buffer, and the channel on which its load is awaited.
pub struct ChunkRequest {
    pub index: u64,
    pub permit: ChunkPermits,
    pub answer: oneshot::Sender<Result<Chunk>>,
}

impl ChunkRequest {
    fn fail(self, e: Error) {
        // The receiver is gone where the load was given up.
        let _ = self.answer.send(Err(e));
    }

    fn give(self, bytes: ChunkBytes) -> Chunk {
        let chunk = Chunk::new(bytes, self.permit);
        let _ = self.answer.send(Ok(chunk.clone()));
        chunk
    }
}

/// The source that chunks are taken from.
#[derive(Clone)]
pub enum ChunkSource {
    Shared(Arc<dyn StoreFile>),
    Cache,
    Client,
}

impl ChunkSource {
    /// Whether both sources are of one kind.
    pub fn is_like(&self, other: &ChunkSource) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The shared file of each artifact that was looked up, or `None` where there is none.
type Files = BTreeMap<ArtifactId, Option<Arc<dyn StoreFile>>>;

/// Loads the chunks of one install.
pub struct Loader {
    pub world: World,
    pub root: Option<PathBuf>,
    pub cache: Option<Arc<Cache>>,
    pub client: Option<ClientSource>,
    pub loaded: Arc<LoadedBytes>,
    pub load_buffer: Arc<LoadBuffer>,
    keeper: Option<Keeper<Chunk>>,
    buffers: Buffers,
    readers: Semaphore,
    files: Mutex<Files>,
}

impl Loader {
    /// A loader over these sources.
    pub fn new(
        world: World,
        root: Option<PathBuf>,
        cache: Option<Arc<Cache>>,
        client: Option<ClientSource>,
        loaded: Arc<LoadedBytes>,
        load_buffer: Arc<LoadBuffer>,
    ) -> Loader {
        let keeper = |c: &Arc<Cache>| Keeper::new(world.store.clone(), c.clone());
        Loader {
            keeper: cache.as_ref().map(keeper),
            world,
            root,
            cache,
            client,
            loaded,
            load_buffer,
            buffers: Buffers::default(),
            readers: Semaphore::new(READERS),
            files: Mutex::default(),
        }
    }

    /// Runs `work` on one of the store's threads, and waits for its result for at most a minute.
    pub async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (done, result) = oneshot::channel();
        self.world.store.run_blocking(Box::new(move || {
            // The receiver is gone where the install was given up.
            drop(done.send(work()));
        }));
        let result = tokio::time::timeout(STORE_BOUND, result).await;
        let silent = |_| {
            let msg = format!("a loading thread or its disk has not answered for {STORE_BOUND:?}");
            Error::new(Code::Io, msg).advise("check the disk that holds the model")
        };
        let ended = |_| Error::internal("a loading thread ended without a result");
        result.map_err(silent)?.map_err(ended)
    }

    /// The source of chunk `index`; `shared` is the result of [`Loader::shared`].
    pub fn source(
        &self,
        shared: Option<&Arc<dyn StoreFile>>,
        meta: &ArtifactMeta,
        index: u64,
    ) -> ChunkSource {
        if let Some(file) = shared {
            return ChunkSource::Shared(file.clone());
        }
        let hash = usize::try_from(index).ok().and_then(|i| meta.chunks.get(i));
        match self.cache.as_ref().zip(hash) {
            Some((cache, hash)) if cache.has(hash) => ChunkSource::Cache,
            _ => ChunkSource::Client,
        }
    }

    /// The shared file of an artifact, if this worker sees one of the same size whose first chunk matches.
    pub async fn shared(self: &Arc<Self>, meta: &Arc<ArtifactMeta>) -> Option<Arc<dyn StoreFile>> {
        let root = self.root.clone().filter(|_| !meta.path.is_empty())?;
        let known = self.files().get(&meta.id).cloned();
        if let Some(known) = known {
            return known;
        }
        let (me, m) = (self.clone(), meta.clone());
        let found = self.off_thread(move || me.open(&root, &m)).await;
        let found = found.unwrap_or_else(|e| {
            tracing::warn!(path = meta.path, "the shared file is not used: {e}");
            None
        });
        self.files().insert(meta.id, found.clone());
        found
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, root: &Path, meta: &ArtifactMeta) -> Option<Arc<dyn StoreFile>> {
        let path = Path::new(&meta.path);
        let file = self.world.store.open_beneath(root, path).ok()?;
        if file.identity().ok()?.size != meta.len {
            return None;
        }
        let mut first = vec![0; meta.chunk_len(0)];
        file.read_exact_at(0, &mut first).ok()?;
        let same = meta.check_chunk(0, &first).is_ok();
        tracing::debug!(path = meta.path, same, "shared file found");
        same.then_some(file)
    }

    /// Loads a piece: consecutive chunks of one artifact.
    pub async fn piece(
        self: Arc<Self>,
        source: ChunkSource,
        meta: Arc<ArtifactMeta>,
        asked: Vec<ChunkRequest>,
    ) {
        if matches!(source, ChunkSource::Client) {
            return self.from_client(&meta, asked).await;
        }
        // All buffers are taken on this thread: the allocator does not reuse for one thread what many others freed.
        let with = |a| (a, self.buffers.take());
        let asked: Vec<_> = asked.into_iter().map(with).collect();
        let (me, m) = (self.clone(), meta.clone());
        let missing = self.read(move || me.here(&source, &m, asked)).await;
        for a in missing {
            self.from_client(&meta, vec![a]).await;
        }
    }

    async fn from_client(self: &Arc<Self>, meta: &Arc<ArtifactMeta>, asked: Vec<ChunkRequest>) {
        match &self.client {
            Some(ClientSource::Remote(connection)) => {
                self.fetch(connection, meta, asked).await;
            }
            Some(ClientSource::Local(source)) => {
                let (me, m, source) = (self.clone(), meta.clone(), source.clone());
                let read = move || {
                    for a in asked {
                        match source.chunk(m.id, a.index) {
                            Ok(bytes) => me.verified(&m, a, ChunkBytes::Shared(bytes)),
                            Err(e) => a.fail(e),
                        }
                    }
                };
                self.read(read).await;
            }
            None => {
                let msg = format!("no source for artifact {} ({})", meta.id, meta.path);
                let e = Error::new(Code::NotFound, msg).advise(
                    "keep the client connected while loading, or give the worker an --artifact-root",
                );
                asked.into_iter().for_each(|a| a.fail(e.clone()));
            }
        }
    }

    /// Like [`Loader::off_thread`], with a bound on how many jobs read at once. A job that is cut short drops its
    /// answers, which those who wait for a chunk take for an error.
    async fn read<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let _reader = self.readers.acquire().await;
        self.off_thread(work).await.unwrap_or_default()
    }

    /// Reads chunks from the shared file or the cache; returns the requests whose chunks turn out to be missing.
    fn here(
        &self,
        source: &ChunkSource,
        meta: &ArtifactMeta,
        asked: Vec<(ChunkRequest, Buffer)>,
    ) -> Vec<ChunkRequest> {
        let mut missing = Vec::new();
        for (a, mut buffer) in asked {
            if let ChunkSource::Shared(file) = source {
                match read_shared(file.as_ref(), meta, a.index, &mut buffer) {
                    Ok(len) => {
                        self.loaded.add(0, len);
                        a.give(ChunkBytes::Buffer(buffer, len));
                    }
                    Err(e) => a.fail(e),
                }
                continue;
            }
            let hash = meta.chunks.get(a.index as usize);
            let cached = self.cache.as_ref().zip(hash);
            match cached.and_then(|(c, h)| c.read(h, &mut buffer)) {
                Some(len) => {
                    self.loaded.add(1, len);
                    a.give(ChunkBytes::Buffer(buffer, len));
                }
                None => missing.push(a),
            }
        }
        missing
    }

    /// Requests consecutive chunks from the client; each is verified while the next ones arrive.
    async fn fetch(
        self: &Arc<Self>,
        connection: &Connection,
        meta: &Arc<ArtifactMeta>,
        asked: Vec<ChunkRequest>,
    ) {
        let first = asked.first().map_or(0, |a| a.index);
        let chunks = first..first + asked.len() as u64;
        let mut replies = artifacts::request(connection, meta, chunks).await;
        for a in asked {
            let mut buffer = self.buffers.take();
            let received = match &mut replies {
                Ok(r) => r.next(&mut buffer).await,
                Err(e) => Err(e.clone()),
            };
            let len = match received {
                Ok(len) => len,
                // The first error ends the load: no caller waits for the chunks behind it.
                Err(e) => return a.fail(e),
            };
            let (me, m) = (self.clone(), meta.clone());
            self.world.store.run_blocking(Box::new(move || {
                me.verified(&m, a, ChunkBytes::Buffer(buffer, len));
            }));
        }
    }

    /// Hands out a client's chunk that matches its hash, and queues it for the cache.
    fn verified(&self, meta: &ArtifactMeta, asked: ChunkRequest, bytes: ChunkBytes) {
        let index = asked.index;
        if let Err(e) = meta.check_chunk(index, &bytes) {
            return asked.fail(Error::new(Code::CorruptArtifact, e.to_string()));
        }
        self.loaded.add(2, bytes.len());
        let chunk = asked.give(bytes);
        if let (Some(keeper), Some(hash)) = (&self.keeper, meta.chunks.get(index as usize)) {
            keeper.keep(*hash, chunk);
        }
    }

    /// Returns once the loaded chunks are in the cache, as far as it has room and its disk answers.
    pub async fn written(&self) {
        if let Some(keeper) = &self.keeper {
            let written = tokio::time::timeout(STORE_BOUND, keeper.written()).await;
            if written.is_err() {
                tracing::warn!("the cache has not taken its chunks within {STORE_BOUND:?}");
            }
        }
    }
}

fn read_shared(
    file: &dyn StoreFile,
    meta: &ArtifactMeta,
    index: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    let bytes = &mut buffer[..meta.chunk_len(index)];
    let read = file.read_exact_at(index * CHUNK, bytes);
    read.map_err(|e| Error::new(Code::Io, chain(&e)))?;
    meta.check_chunk(index, bytes).map_err(|e| {
        Error::new(Code::CorruptArtifact, e.to_string())
            .advise(format!("the file {} changed while loading", meta.path))
    })?;
    Ok(bytes.len())
}

/// Allocates the tensor that a literal of `bytes` bytes is loaded into: its size is reserved before a byte is read.
pub fn destination(
    pool: &Pool,
    ty: &convoke_graph::graph::TensorType,
    bytes: u64,
) -> Result<Tensor> {
    let shape = ty.fixed_shape().ok_or_else(|| {
        Error::new(
            Code::ProtocolViolation,
            format!("a literal of type {ty} has no fixed size"),
        )
    })?;
    pool.sized(
        ty.dtype,
        &shape,
        usize::try_from(bytes).unwrap_or(usize::MAX),
    )
}
