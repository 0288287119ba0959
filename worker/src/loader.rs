//! Loading weights: byte ranges of artifacts, from wherever they can be had, verified chunk by chunk.
//!
//! ```text
//! range -> chunks -> shared path beneath --artifact-root, else cache, else the client -> tensor
//! ```
//!
//! Invariants
//! 1. No byte reaches a tensor before its chunk matched its hash.
//! 2. What is in flight beyond the tensor itself is one request's chunks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::Tensor;
use convoke_common::admission::chain;
use convoke_common::artifact::{ArtifactId, ArtifactMeta, CHUNK, chunks_of};
use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::Pool;
use convoke_common::world::quic::Connection;
use convoke_common::world::{StoreFile, World};
use convoke_rendezvous::artifacts::{self, ArtifactSource};

use crate::cache::Cache;

/// Chunks asked of a client in one request.
const REQUEST: u64 = 4;

/// Where a client's artifacts are read from when no shared path has them.
#[derive(Clone)]
pub enum ClientSource {
    /// Another process.
    Remote(Connection),
    /// This process.
    Local(Arc<dyn ArtifactSource>),
}

/// Bytes of weights by source: shared path, cache, client.
#[derive(Debug, Default)]
pub struct Loaded([AtomicU64; 3]);

impl Loaded {
    /// The counts.
    pub fn get(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| self.0[i].load(Ordering::Relaxed))
    }
    fn add(&self, source: usize, bytes: usize) {
        self.0[source].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Loads the ranges of one install.
pub struct Loader {
    pub world: World,
    pub root: Option<PathBuf>,
    pub cache: Option<Arc<Cache>>,
    pub client: Option<ClientSource>,
    pub loaded: Arc<Loaded>,
    files: Mutex<BTreeMap<ArtifactId, Option<Arc<dyn StoreFile>>>>,
}

impl Loader {
    /// A loader over these sources.
    pub fn new(
        world: World,
        root: Option<PathBuf>,
        cache: Option<Arc<Cache>>,
        client: Option<ClientSource>,
        loaded: Arc<Loaded>,
    ) -> Loader {
        Loader {
            world,
            root,
            cache,
            client,
            loaded,
            files: Mutex::default(),
        }
    }

    /// Reads `len` bytes at `offset` of an artifact into a tensor.
    pub async fn range(
        self: &Arc<Self>,
        meta: &ArtifactMeta,
        offset: u64,
        len: u64,
        mut tensor: Tensor,
    ) -> Result<Tensor> {
        if tensor.byte_len() as u64 != len {
            return Err(Error::new(
                Code::ProtocolViolation,
                "a literal's range is not its size",
            ));
        }
        let mut chunks = chunks_of(offset, len);
        while !chunks.is_empty() {
            // What this host has is read off the network thread, as far as it goes.
            let (me, m, todo) = (self.clone(), meta.clone(), chunks.clone());
            let (done, result) = tokio::sync::oneshot::channel();
            self.world.store.run_blocking(Box::new(move || {
                let r = me.read_here(&m, offset, todo, &mut tensor);
                // The receiver is gone when the install was given up.
                drop(done.send((r, tensor)));
            }));
            let (next, t) = result
                .await
                .map_err(|_| Error::internal("a reading thread ended without a result"))?;
            tensor = t;
            chunks.start = next?;
            if chunks.is_empty() {
                break;
            }
            let count = (chunks.end - chunks.start).min(REQUEST);
            self.fetch(meta, chunks.start, count as u32, offset, &mut tensor)
                .await?;
            chunks.start += count;
        }
        tensor.check_bool()?;
        Ok(tensor)
    }

    /// Copies chunks from the shared file or the cache; answers the first that neither has.
    fn read_here(
        &self,
        meta: &ArtifactMeta,
        offset: u64,
        chunks: std::ops::Range<u64>,
        tensor: &mut Tensor,
    ) -> Result<u64> {
        let file = self.file(meta);
        let mut buffer = vec![0; if file.is_some() { CHUNK as usize } else { 0 }];
        for index in chunks.clone() {
            if let Some(file) = &file {
                let bytes = &mut buffer[..meta.chunk_len(index)];
                let read = file.read_exact_at(index * CHUNK, bytes);
                read.map_err(|e| Error::new(Code::Io, chain(&e)))?;
                meta.check_chunk(index, bytes).map_err(|e| {
                    Error::new(Code::CorruptArtifact, e.to_string())
                        .advise(format!("the file {} changed while loading", meta.path))
                })?;
                self.loaded.add(0, bytes.len());
                place(index, bytes, offset, tensor);
                continue;
            }
            let hash = usize::try_from(index).ok().and_then(|i| meta.chunks.get(i));
            let cached = self.cache.as_ref().zip(hash).and_then(|(c, h)| c.read(h));
            let Some(bytes) = cached else {
                return Ok(index);
            };
            self.loaded.add(1, bytes.len());
            place(index, &bytes, offset, tensor);
        }
        Ok(chunks.end)
    }

    /// The shared file, where this worker sees one whose first chunk is the artifact's.
    fn file(&self, meta: &ArtifactMeta) -> Option<Arc<dyn StoreFile>> {
        let root = self.root.as_ref()?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files
            .entry(meta.id)
            .or_insert_with(|| self.open(root, meta))
            .clone()
    }

    fn open(&self, root: &Path, meta: &ArtifactMeta) -> Option<Arc<dyn StoreFile>> {
        if meta.path.is_empty() {
            return None;
        }
        let file = self
            .world
            .store
            .open_beneath(root, Path::new(&meta.path))
            .ok()?;
        if file.identity().ok()?.size != meta.len {
            return None;
        }
        let mut first = vec![0; meta.chunk_len(0)];
        file.read_exact_at(0, &mut first).ok()?;
        let same = meta.check_chunk(0, &first).is_ok();
        tracing::debug!(path = meta.path, same, "shared file found");
        same.then_some(file)
    }

    async fn fetch(
        &self,
        meta: &ArtifactMeta,
        first: u64,
        count: u32,
        offset: u64,
        tensor: &mut Tensor,
    ) -> Result<()> {
        let mut keep = Vec::new();
        let mut take = |index: u64, bytes: &[u8]| {
            self.loaded.add(2, bytes.len());
            place(index, bytes, offset, tensor);
            if self.cache.is_some()
                && let Some(hash) = meta.chunks.get(index as usize)
            {
                keep.push((*hash, bytes.to_vec()));
            }
            Ok(())
        };
        match &self.client {
            Some(ClientSource::Remote(connection)) => {
                artifacts::fetch(connection, meta, first, count, &mut take).await?;
            }
            Some(ClientSource::Local(source)) => {
                for index in first..first + u64::from(count) {
                    let (source, id) = (source.clone(), meta.id);
                    let (done, read) = tokio::sync::oneshot::channel();
                    self.world.store.run_blocking(Box::new(move || {
                        // The receiver is gone when the install was given up.
                        drop(done.send(source.chunk(id, index)));
                    }));
                    let bytes = read.await.map_err(|_| {
                        Error::internal("a reading thread ended without a result")
                    })??;
                    meta.check_chunk(index, &bytes)
                        .map_err(|e| Error::new(Code::CorruptArtifact, e.to_string()))?;
                    take(index, &bytes)?;
                }
            }
            None => {
                let msg = format!("no source for artifact {} ({})", meta.id, meta.path);
                return Err(Error::new(Code::NotFound, msg).advise(
                    "keep the client connected while loading, or give the worker an --artifact-root",
                ));
            }
        }
        let Some(cache) = self.cache.clone().filter(|_| !keep.is_empty()) else {
            return Ok(());
        };
        let (done, written) = tokio::sync::oneshot::channel();
        self.world.store.run_blocking(Box::new(move || {
            keep.iter()
                .for_each(|(hash, bytes)| cache.write(hash, bytes));
            let _ = done.send(());
        }));
        // The wait bounds what is held in memory; a write that failed costs a fetch later.
        drop(written.await);
        Ok(())
    }
}

/// Copies the part of a chunk that belongs to the range starting at `offset`.
fn place(index: u64, chunk: &[u8], offset: u64, tensor: &mut Tensor) {
    let Some(out) = tensor.bytes_mut() else {
        return;
    };
    let start = index * CHUNK;
    let end = start + chunk.len() as u64;
    let (from, to) = (start.max(offset), end.min(offset + out.len() as u64));
    if from < to {
        let src = &chunk[(from - start) as usize..(to - start) as usize];
        out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(src);
    }
}

/// A tensor to load a literal into: its size is known and reserved before a byte is read.
pub fn destination(pool: &Pool, ty: &convoke_common::graph::TensorType) -> Result<Tensor> {
    let shape = ty.fixed_shape().ok_or_else(|| {
        Error::new(
            Code::ProtocolViolation,
            format!("a literal of type {ty} has no fixed size"),
        )
    })?;
    pool.tensor(ty.dtype, &shape)
}
