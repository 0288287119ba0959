//! Writing chunks to the cache behind the load that fetched them.
//!
//! Invariants
//! 1. The window that bounds the loaded chunks bounds the queue as well: a queued chunk keeps its slot of the window.
//! 2. A load ends once all its chunks are written, or could not be. Where it is given up, the chunks that no job has
//!    begun are dropped.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::world::Store;
use convoke_graph::artifact::ChunkHash;
use tokio::sync::Notify;

use crate::weights::cache::Cache;

/// Jobs that write at once: while one waits for the folder's lock the other copies.
const WRITERS: usize = 2;

/// Queues chunks for the cache, and writes them on the store's threads.
pub struct Keeper<B> {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    queue: Arc<Queue<B>>,
}

struct Queue<B> {
    state: Mutex<UnwrittenChunks<B>>,
    idle: Notify,
}

struct UnwrittenChunks<B> {
    waiting: VecDeque<(ChunkHash, B)>,
    writers: usize,
}

impl<B> Queue<B> {
    fn state(&self) -> MutexGuard<'_, UnwrittenChunks<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job that writes chunks; it counts as one until it ends, even by a panic.
struct Writer<B> {
    queue: Arc<Queue<B>>,
    counted: bool,
}

impl<B: Deref<Target = [u8]>> Writer<B> {
    fn run(mut self, cache: &Cache) {
        while let Some((hash, bytes)) = self.next() {
            cache.write(&hash, &bytes);
        }
    }

    /// The next chunk; when there is none, the writer no longer counts, so that the next chunk starts another.
    fn next(&mut self) -> Option<(ChunkHash, B)> {
        let mut state = self.queue.state();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.writers -= 1;
            self.counted = false;
        }
        next
    }
}

impl<B> Drop for Writer<B> {
    fn drop(&mut self) {
        if self.counted {
            self.queue.state().writers -= 1;
        }
        self.queue.idle.notify_one();
    }
}

impl<B: Deref<Target = [u8]> + Send + 'static> Keeper<B> {
    /// A keeper with nothing to do.
    pub fn new(store: Arc<dyn Store>, cache: Arc<Cache>) -> Keeper<B> {
        let none = UnwrittenChunks {
            waiting: VecDeque::new(),
            writers: 0,
        };
        let queue = Queue {
            state: Mutex::new(none),
            idle: Notify::new(),
        };
        Keeper {
            store,
            cache,
            queue: Arc::new(queue),
        }
    }

    /// Queues a verified chunk to be written.
    pub fn keep(&self, hash: ChunkHash, bytes: B) {
        let mut state = self.queue.state();
        state.waiting.push_back((hash, bytes));
        if state.writers == WRITERS {
            return;
        }
        state.writers += 1;
        drop(state);
        let writer = Writer {
            queue: self.queue.clone(),
            counted: true,
        };
        let cache = self.cache.clone();
        self.store
            .run_blocking(Box::new(move || writer.run(&cache)));
    }

    /// Returns once every queued chunk is written, or could not be.
    pub async fn written(&self) {
        while self.queue.state().writers > 0 {
            // A writer that ended since the check has left a permit.
            self.queue.idle.notified().await;
        }
    }
}

impl<B> Drop for Keeper<B> {
    fn drop(&mut self) {
        self.queue.state().waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::world::{Disk, SystemRng};
    use convoke_graph::artifact::CHUNK;

    #[tokio::test]
    async fn what_is_kept_is_there_when_it_counts_as_written() {
        let dir = std::env::temp_dir().join(format!("convoke-keeper-{}", std::process::id()));
        let store: Arc<dyn Store> = Arc::new(Disk::new(Arc::new(SystemRng::default())));
        let cache = Arc::new(Cache::open(store.clone(), dir.clone(), 1 << 20).unwrap());
        let keeper = Keeper::new(store, cache.clone());
        let chunks: Vec<Vec<u8>> = (0..20).map(|i| vec![i; 100]).collect();
        for bytes in &chunks {
            let hash = *blake3::hash(bytes).as_bytes();
            keeper.keep(hash, bytes.clone());
            keeper.keep(hash, bytes.clone());
        }
        keeper.written().await;
        let mut buffer = vec![0; CHUNK as usize];
        for bytes in &chunks {
            let len = cache.read(blake3::hash(bytes).as_bytes(), &mut buffer);
            assert_eq!(&buffer[..len.unwrap()], bytes);
        }
        assert_eq!(cache.bytes(), 2000);
        keeper.written().await;
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
