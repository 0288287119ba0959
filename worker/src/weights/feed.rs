//! The literals of a program in the order they are needed, made of chunks that are loaded ahead.
//!
//! ```text
//! order ──> feeder task: a slot per chunk, a task per piece ──> verified chunks, in order ──> tensors
//! ```
//!
//! Invariants
//! 1. The feeder runs ahead of the install that needs the literals, as far as the load buffer has room.
//! 2. Feeder and piece tasks belong to the feed: dropping it ends them.
//! 3. No slot is held while a chunk is waited for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::Pool;
use convoke_graph::Tensor;
use convoke_graph::artifact::{ArtifactMeta, CHUNK};
use convoke_graph::graph::Literal;
use convoke_graph::program::Program;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::program::order::{Fetch, Order, Range, Rider};
use crate::weights::counter::Counter;
use crate::weights::load_buffer::{Allotment, Chunk, PIECE};
use crate::weights::loader::{ChunkRequest, Loader, destination};

/// Longest wait for the next chunk of a client or disk that is reachable: it may be slow.
const CHUNK_BOUND: Duration = Duration::from_secs(60);
/// Chunks that one job copies into a tensor: a hand-over between threads costs as much as copying half a chunk.
const BATCH: usize = 4;
/// Length of the queue of promised chunks; the load buffer has fewer slots.
const QUEUE: usize = 64;

/// A chunk whose load has begun.
struct PendingChunk {
    fetch: Fetch,
    chunk: oneshot::Receiver<Result<Chunk>>,
    /// The task that loads this chunk, and others with it.
    _piece: Arc<AbortOnDropHandle<()>>,
}

/// Loads the literals of one install in their order.
pub struct Feed {
    program: Arc<Program>,
    loader: Arc<Loader>,
    pool: Pool,
    /// Bytes of all that is loaded.
    bytes: u64,
    promised: mpsc::Receiver<PendingChunk>,
    /// The next chunk in line, where it was looked at before it had arrived.
    next: Option<PendingChunk>,
    /// The chunk that was taken last, with its artifact and index.
    current: Option<((u32, u64), Chunk)>,
    _feeder: AbortOnDropHandle<()>,
}

impl Feed {
    /// Starts to load the literals `wanted`, which the caller then takes in this order. Tensors are made in `pool`.
    pub fn start(loader: Arc<Loader>, program: Arc<Program>, wanted: Vec<u32>, pool: Pool) -> Feed {
        let ahead = loader.load_buffer.ahead;
        let order = Order::new(&program.literals, wanted, ahead);
        let bytes = order.bytes();
        let allotment = loader.load_buffer.allotment(bytes);
        let (tell, promised) = mpsc::channel(QUEUE);
        let feeder = feed(loader.clone(), program.clone(), order, allotment, tell);
        let feeder = loader.world.spawn(feeder);
        Feed {
            program,
            loader,
            pool,
            bytes,
            promised,
            next: None,
            current: None,
            _feeder: AbortOnDropHandle::new(feeder),
        }
    }

    /// Bytes of all literals that are loaded.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Loads the literal of value `v` into `values`, unless it is there already; small literals may ride along.
    pub async fn load(
        &mut self,
        v: u32,
        literal: &Literal,
        values: &mut [Option<Tensor>],
        counter: &Counter,
    ) -> Result<()> {
        if values[v as usize].is_some() {
            return Ok(());
        }
        let range = match literal {
            Literal::Inline(t) => {
                values[v as usize] = Some(t.clone());
                return Ok(());
            }
            literal => Range::of(literal).ok_or_else(|| Error::internal("a literal of no kind"))?,
        };
        let mut chunks = range.chunks();
        let mut target = Target {
            value: v,
            range,
            tensor: None,
        };
        loop {
            let mut placing = FillJob {
                program: self.program.clone(),
                pool: self.pool.clone(),
                target,
                chunks: Vec::new(),
                riders: Vec::new(),
            };
            while !chunks.is_empty() && placing.chunks.len() < BATCH {
                let index = chunks.start;
                let wait = placing.chunks.is_empty();
                let Some((chunk, riders)) = self.take((range.artifact, index), wait).await? else {
                    break;
                };
                let riders = riders.into_iter().map(|r| (r, index, chunk.clone()));
                placing.riders.extend(riders);
                placing.chunks.push((index, chunk));
                chunks.start += 1;
            }
            let placed = self.loader.off_thread(move || placing.run()).await??;
            counter.done.fetch_add(placed.bytes, Ordering::Relaxed);
            for (r, t) in placed.riders {
                values[r as usize] = Some(t);
            }
            target = placed.target;
            if chunks.is_empty() {
                break;
            }
        }
        let whole = |t: Tensor| t.check_elements().map(|()| t);
        values[v as usize] = target.tensor.map(whole).transpose()?;
        Ok(())
    }

    /// The chunk at `at` and its riders; `None` where it has not arrived and `wait` is false.
    async fn take(&mut self, at: (u32, u64), wait: bool) -> Result<Option<(Chunk, Vec<Rider>)>> {
        if let Some((which, chunk)) = &self.current
            && *which == at
        {
            return Ok(Some((chunk.clone(), vec![])));
        }
        let mut next = match self.next.take() {
            Some(next) => next,
            None if wait => {
                self.current = None;
                self.promised.recv().await.ok_or_else(cut_short)?
            }
            None => match self.promised.try_recv() {
                Ok(next) => next,
                Err(_) => return Ok(None),
            },
        };
        if (next.fetch.artifact, next.fetch.index) != at {
            return Err(Error::internal("chunks were not taken in their order"));
        }
        let chunk = if wait {
            self.current = None;
            let arrived = tokio::time::timeout(CHUNK_BOUND, next.chunk).await;
            let arrived = arrived.map_err(|_| self.late(at))?;
            arrived.map_err(|_| cut_short())??
        } else {
            match next.chunk.try_recv() {
                Ok(chunk) => chunk?,
                Err(oneshot::error::TryRecvError::Closed) => return Err(cut_short()),
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.next = Some(next);
                    return Ok(None);
                }
            }
        };
        self.current = Some((at, chunk.clone()));
        Ok(Some((chunk, next.fetch.riders)))
    }

    fn late(&self, (artifact, index): (u32, u64)) -> Error {
        let meta = self.program.artifacts.get(artifact as usize);
        let path = meta.map_or("", |m| m.path.as_str());
        let msg = format!("chunk {index} of {path:?} did not arrive within {CHUNK_BOUND:?}");
        Error::new(Code::Io, msg)
            .advise("check the disk that holds the model, and the network to it")
    }
}

fn cut_short() -> Error {
    Error::internal("a loading task ended without a result")
}

/// Requests every chunk of the order as soon as the load buffer has room. Ends early once the feed is dropped.
async fn feed(
    loader: Arc<Loader>,
    program: Arc<Program>,
    order: Order,
    allotment: Allotment,
    tell: mpsc::Sender<PendingChunk>,
) {
    let metas: Vec<Arc<ArtifactMeta>> = program.artifacts.iter().cloned().map(Arc::new).collect();
    let mut order = order.peekable();
    while let Some(first) = order.next() {
        let Some(meta) = metas.get(first.artifact as usize) else {
            return;
        };
        let shared = loader.shared(meta).await;
        let source = loader.source(shared.as_ref(), meta, first.index);
        let mut piece = vec![first];
        while let Some(last) = piece.last().filter(|_| piece.len() < PIECE as usize)
            && let Some(next) = order.next_if(|n| {
                (n.artifact, n.index) == (last.artifact, last.index + 1)
                    && loader
                        .source(shared.as_ref(), meta, n.index)
                        .is_like(&source)
            })
        {
            piece.push(next);
        }
        let Some(mut permits) = allotment.permits(piece.len() as u32).await else {
            return;
        };
        let (mut asked, mut chunks) = (Vec::new(), Vec::new());
        for fetch in piece {
            let Some(permit) = permits.split() else {
                return;
            };
            let (answer, chunk) = oneshot::channel();
            let index = fetch.index;
            asked.push(ChunkRequest {
                index,
                permit,
                answer,
            });
            chunks.push((fetch, chunk));
        }
        let task = loader.clone().piece(source, meta.clone(), asked);
        let task = Arc::new(AbortOnDropHandle::new(loader.world.spawn(task)));
        for (fetch, chunk) in chunks {
            let promised = PendingChunk {
                fetch,
                chunk,
                _piece: task.clone(),
            };
            if tell.send(promised).await.is_err() {
                return;
            }
        }
    }
}

/// A tensor that is being filled.
struct Target {
    value: u32,
    range: Range,
    tensor: Option<Tensor>,
}

impl Target {
    /// The tensor, which is made at its first use.
    fn tensor(&mut self, program: &Program, pool: &Pool) -> Result<&mut Tensor> {
        let tensor = match self.tensor.take() {
            Some(t) => t,
            None => destination(
                pool,
                &program.values[self.value as usize].ty,
                self.range.len,
            )?,
        };
        if tensor.byte_len() as u64 != self.range.len {
            let msg = "a literal's range is not its size";
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        Ok(self.tensor.insert(tensor))
    }
}

/// One job, which copies chunks into a tensor and fills the literals that ride along.
struct FillJob {
    program: Arc<Program>,
    pool: Pool,
    target: Target,
    chunks: Vec<(u64, Chunk)>,
    riders: Vec<(Rider, u64, Chunk)>,
}

/// The result of a [`FillJob`] job.
struct FilledLiteral {
    target: Target,
    riders: Vec<(u32, Tensor)>,
    bytes: u64,
}

impl FillJob {
    fn run(mut self) -> Result<FilledLiteral> {
        let mut bytes = 0;
        let range = self.target.range;
        let tensor = self.target.tensor(&self.program, &self.pool)?;
        for (index, chunk) in &self.chunks {
            bytes += place(*index, chunk, range.offset, tensor);
        }
        let mut riders = Vec::new();
        for (rider, index, chunk) in self.riders {
            let mut target = Target {
                value: rider.value,
                range: rider.range,
                tensor: None,
            };
            let tensor = target.tensor(&self.program, &self.pool)?;
            bytes += place(index, &chunk, rider.range.offset, tensor);
            tensor.check_elements()?;
            riders.extend(target.tensor.map(|t| (rider.value, t)));
        }
        Ok(FilledLiteral {
            target: self.target,
            riders,
            bytes,
        })
    }
}

/// Copies the part of a chunk that belongs to the range starting at `offset`; returns the number of bytes copied.
fn place(index: u64, chunk: &[u8], offset: u64, tensor: &mut Tensor) -> u64 {
    let Some(out) = tensor.bytes_mut() else {
        return 0;
    };
    let start = index * CHUNK;
    let end = start + chunk.len() as u64;
    let (from, to) = (start.max(offset), end.min(offset + out.len() as u64));
    if from >= to {
        return 0;
    }
    let src = &chunk[(from - start) as usize..(to - start) as usize];
    out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(src);
    to - from
}

#[cfg(test)]
mod tests;
