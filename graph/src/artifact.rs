//! Artifacts: the files that weights are ranges of.
//!
//! An artifact is known by the BLAKE3 hashes of its 1 MiB chunks, so that each chunk is verified by itself while it
//! streams. Its id is the hash over length and chunk hashes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes per chunk; the last chunk of an artifact may be shorter.
pub const CHUNK: u64 = 1 << 20;

/// The longest literal, in bytes, that is taken from a chunk which is fetched for another literal.
pub const RIDES: u64 = 64 << 10;

/// The fewest bytes of chunks in flight that keep a load going: four chunks are in use while the next four arrive.
pub const LEAST_COMING: u64 = 8 * CHUNK;

/// The most bytes of chunks that a load of `bytes` bytes has in flight, where the worker's load buffer has `window`
/// bytes: an eighth of the load, so that the memory which it takes beside its weights stays small against them.
pub fn coming(bytes: u64, window: u64) -> u64 {
    (bytes / 8).max(LEAST_COMING).min(window)
}

/// BLAKE3 hash of one chunk.
pub type ChunkHash = [u8; 32];

/// Content id of a whole artifact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArtifactId(pub [u8; 32]);

impl fmt::Display for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
impl fmt::Debug for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The facts that are needed to fetch and verify ranges of an artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArtifactMeta {
    pub id: ArtifactId,
    /// Path relative to the client's artifact root, for workers that see the same files; empty if there is none.
    pub path: String,
    /// Length in bytes.
    pub len: u64,
    /// One hash per chunk.
    pub chunks: Arc<[ChunkHash]>,
}

/// Why an artifact's metadata or one of its chunks is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// The number of hashes does not match the length.
    #[error("artifact {id} of {len} bytes lists {chunks} chunk hashes")]
    ChunkCount {
        id: ArtifactId,
        len: u64,
        chunks: usize,
    },
    /// The id is not the hash of length and chunk hashes.
    #[error("artifact {id} does not match its chunk hashes")]
    WrongId { id: ArtifactId },
    /// A chunk's bytes have another hash or length.
    #[error("chunk {index} of artifact {id} is corrupt")]
    CorruptChunk { id: ArtifactId, index: u64 },
}

impl ArtifactMeta {
    /// Metadata of a file of `len` bytes with these chunk hashes.
    pub fn new(path: String, len: u64, chunks: Vec<ChunkHash>) -> ArtifactMeta {
        let id = Self::id_of(len, &chunks);
        ArtifactMeta {
            id,
            path,
            len,
            chunks: chunks.into(),
        }
    }

    fn id_of(len: u64, chunks: &[ChunkHash]) -> ArtifactId {
        let mut h = blake3::Hasher::new();
        h.update(&len.to_le_bytes());
        chunks.iter().for_each(|c| {
            h.update(c);
        });
        ArtifactId(*h.finalize().as_bytes())
    }

    /// Checks that hashes, length and id agree.
    pub fn check(&self) -> Result<(), ArtifactError> {
        if self.chunks.len() as u64 != self.len.div_ceil(CHUNK) {
            let (id, len, chunks) = (self.id, self.len, self.chunks.len());
            return Err(ArtifactError::ChunkCount { id, len, chunks });
        }
        if Self::id_of(self.len, &self.chunks) != self.id {
            return Err(ArtifactError::WrongId { id: self.id });
        }
        Ok(())
    }

    /// Length of chunk `index` in bytes; 0 outside the artifact.
    pub fn chunk_len(&self, index: u64) -> usize {
        self.len
            .saturating_sub(index.saturating_mul(CHUNK))
            .min(CHUNK) as usize
    }

    /// Checks the bytes of chunk `index`.
    pub fn check_chunk(&self, index: u64, bytes: &[u8]) -> Result<(), ArtifactError> {
        let want = usize::try_from(index).ok().and_then(|i| self.chunks.get(i));
        if bytes.len() == self.chunk_len(index)
            && want.is_some_and(|w| blake3::hash(bytes).as_bytes() == w)
        {
            return Ok(());
        }
        Err(ArtifactError::CorruptChunk { id: self.id, index })
    }
}

/// The chunks that bytes `offset..offset + len` touch.
pub fn chunks_of(offset: u64, len: u64) -> std::ops::Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / CHUNK..(offset.saturating_add(len)).div_ceil(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_detects_every_change() {
        let data = vec![7u8; CHUNK as usize + 5];
        let hashes: Vec<ChunkHash> = data
            .chunks(CHUNK as usize)
            .map(|c| *blake3::hash(c).as_bytes())
            .collect();
        let meta = ArtifactMeta::new("m".into(), data.len() as u64, hashes);
        meta.check().unwrap();
        assert_eq!(meta.chunk_len(1), 5);
        meta.check_chunk(1, &data[CHUNK as usize..]).unwrap();
        assert!(meta.check_chunk(1, &data[..5 - 1]).is_err());
        assert!(meta.check_chunk(2, &[]).is_err());
        let longer = ArtifactMeta {
            len: meta.len + 1,
            ..meta.clone()
        };
        assert!(matches!(longer.check(), Err(ArtifactError::WrongId { .. })));
        let more = ArtifactMeta {
            len: meta.len + CHUNK,
            ..meta
        };
        assert!(matches!(
            more.check(),
            Err(ArtifactError::ChunkCount { .. })
        ));
    }

    #[test]
    fn ranges_touch_whole_chunks() {
        assert_eq!(chunks_of(0, 1), 0..1);
        assert_eq!(chunks_of(CHUNK - 1, 2), 0..2);
        assert_eq!(chunks_of(5, 0), 0..0);
    }
}
