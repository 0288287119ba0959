//! Decoding of tensors whose elements a file stores as protobuf numbers instead of raw bytes.
//!
//! Small tensors are decoded with the structure. Larger ones stream into one file in the cache folder, the
//! *sidecar*, which is then an artifact like any other.
//!
//! Invariants
//! 1. The folder of a sidecar is named by a hash of everything that decides its bytes, and the file in it by the id of
//!    its content. A file that does not match its name is written anew.
//! 2. A sidecar appears as a whole or not at all.

use std::io::Write;
use std::path::{Path, PathBuf};

use convoke_graph::DType;
use convoke_graph::artifact::{ArtifactMeta, CHUNK};

use super::tensor::Scattered;
use crate::artifact_index::{ArtifactIndex, write_atomically};
use crate::error::ModelError;
use crate::file::{DataFile, Reader};
use crate::onnx::proto::TensorProto;
use crate::onnx::skeleton::Piece;
use crate::onnx::wire;

/// The elements of a tensor that prost decoded.
pub(in crate::onnx) enum Elements<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U64(&'a [u64]),
}

impl Elements<'_> {
    /// The elements of `t`; `None` where it has none.
    pub(in crate::onnx) fn of(t: &TensorProto) -> Option<Elements<'_>> {
        Some(if !t.float_data.is_empty() {
            Elements::F32(&t.float_data)
        } else if !t.double_data.is_empty() {
            Elements::F64(&t.double_data)
        } else if !t.int32_data.is_empty() {
            Elements::I32(&t.int32_data)
        } else if !t.int64_data.is_empty() {
            Elements::I64(&t.int64_data)
        } else if !t.uint64_data.is_empty() {
            Elements::U64(&t.uint64_data)
        } else {
            return None;
        })
    }

    fn field(&self) -> u32 {
        match self {
            Elements::F32(_) => 4,
            Elements::I32(_) => 5,
            Elements::I64(_) => 7,
            Elements::F64(_) => 10,
            Elements::U64(_) => 11,
        }
    }

    /// The bytes of the elements as `dtype`.
    pub(in crate::onnx) fn encode(&self, dtype: DType) -> Result<Vec<u8>, String> {
        check_field(self.field(), dtype)?;
        let mut out = Vec::new();
        match self {
            Elements::F32(v) => out.extend_from_slice(bytemuck::cast_slice(v)),
            Elements::F64(v) => out.extend_from_slice(bytemuck::cast_slice(v)),
            Elements::I32(v) => v
                .iter()
                .for_each(|v| put(dtype, i64::from(*v) as u64, &mut out)),
            Elements::I64(v) => v.iter().for_each(|v| put(dtype, *v as u64, &mut out)),
            Elements::U64(v) => v.iter().for_each(|v| put(dtype, *v, &mut out)),
        }
        Ok(out)
    }
}

/// Fails where ONNX does not store `dtype` in field `field`.
fn check_field(field: u32, dtype: DType) -> Result<(), String> {
    use DType::*;
    let ok = match field {
        4 => dtype == F32,
        5 => dtype.is_narrow() || matches!(dtype, I32 | I16 | I8 | U16 | U8 | Bool | F16 | BF16),
        7 => dtype == I64,
        10 => dtype == F64,
        11 => matches!(dtype, U32 | U64),
        _ => false,
    };
    if ok {
        Ok(())
    } else {
        Err(format!(
            "is {dtype} but its content is stored as another type"
        ))
    }
}

/// Appends the low bytes of `v`, as the reference implementation does. A half-precision float is stored as the number
/// that its bits represent, and packed elements are stored as the number that their byte represents.
fn put(dtype: DType, v: u64, out: &mut Vec<u8>) {
    match dtype {
        DType::Bool => out.push(u8::from(v != 0)),
        _ => out.extend_from_slice(&v.to_le_bytes()[..dtype.width()]),
    }
}

/// A tensor to decode from the model file.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) struct Job {
    pub tensor: String,
    pub dtype: DType,
    /// Size of the decoded content.
    pub bytes: u64,
    pub input: Input,
}

/// The source of the elements that a job decodes.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) enum Input {
    Pieces(Vec<Piece>),
    /// The elements are already decoded.
    Bytes(Vec<u8>),
    /// Elements that lie among zeros.
    Scattered(Scattered),
}

/// Decodes a tensor that is known to be small.
pub(in crate::onnx) fn decode(model: &DataFile, job: &Job) -> Result<Vec<u8>, ModelError> {
    let mut out = Vec::new();
    stream(model, job, &mut |part| {
        out.extend_from_slice(part);
        Ok(())
    })?;
    Ok(out)
}

/// Decoded elements are passed on when this many bytes are buffered.
const FLUSH: usize = 1 << 20;

fn stream(
    model: &DataFile,
    job: &Job,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let fail = |reason: String| ModelError::Tensor {
        tensor: job.tensor.clone(),
        reason,
    };
    let pieces = match &job.input {
        Input::Bytes(b) => return sink(b),
        Input::Scattered(s) => return scatter(s, job, sink),
        Input::Pieces(p) => p,
    };
    let mut out = Vec::new();
    let mut written = 0u64;
    let mut r = Reader::new(model);
    for p in pieces {
        check_field(p.field, job.dtype).map_err(fail)?;
        r.seek(p.offset);
        let end = p.offset + p.len;
        while r.pos() < end {
            let content_end = if p.packed {
                end
            } else {
                wire::field(&mut r, end)?.end
            };
            match p.field {
                // Floats are stored as their own bytes.
                4 | 10 => {
                    let len = (content_end - r.pos()).min(FLUSH as u64);
                    r.copy(len, &mut out)?;
                }
                _ => {
                    let v = wire::varint(&mut r, content_end)?;
                    put(job.dtype, v, &mut out);
                }
            }
            if out.len() >= FLUSH {
                written += out.len() as u64;
                sink(&out)?;
                out.clear();
            }
            if written + out.len() as u64 > job.bytes {
                break;
            }
        }
    }
    written += out.len() as u64;
    if written != job.bytes {
        let more = if written > job.bytes { "more" } else { "fewer" };
        return Err(fail(format!(
            "needs {} bytes, the file has {more}",
            job.bytes
        )));
    }
    sink(&out)
}

/// Passes on the dense tensor that has the elements of `s` at their positions, and zeros elsewhere.
fn scatter(
    s: &Scattered,
    job: &Job,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let width = job.dtype.width();
    let mut at = 0u64;
    let mut zeros_to = |end: u64, sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>| {
        while at < end {
            let len = (end - at).min(ZEROS.len() as u64);
            sink(&ZEROS[..len as usize])?;
            at += len;
        }
        at = end + width as u64;
        Ok::<(), ModelError>(())
    };
    for (position, element) in s.positions.iter().zip(s.elements.chunks_exact(width)) {
        zeros_to(position * width as u64, sink)?;
        sink(element)?;
    }
    zeros_to(job.bytes, sink)
}

/// The value of the elements that a sparse tensor does not list.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Alignment of decoded tensors in the sidecar, in bytes.
const ALIGN: u64 = 64;

/// The offsets of the decoded tensors, and the length of the file that holds them.
pub(in crate::onnx) fn layout(jobs: &[Job]) -> (Vec<u64>, u64) {
    let mut at = 0u64;
    let offsets = jobs
        .iter()
        .map(|j| {
            let offset = at.next_multiple_of(ALIGN);
            at = offset + j.bytes;
            offset
        })
        .collect();
    (offsets, at)
}

/// Returns the path of the file with the decoded tensors, and writes it where it does not exist.
pub(in crate::onnx) fn sidecar(
    model: &DataFile,
    model_meta: &ArtifactMeta,
    jobs: &[Job],
    cache_dir: &Path,
) -> Result<PathBuf, ModelError> {
    let dir = cache_dir.join("encoded").join(key(model_meta, jobs));
    if let Some(path) = existing(&dir, cache_dir) {
        return Ok(path);
    }
    let made = std::fs::create_dir_all(&dir).map_err(WriteError::Io);
    let written = made.and_then(|()| {
        write_atomically(&dir, |file| {
            let meta = write(model, jobs, file, &dir)?;
            model.check_unchanged()?;
            Ok(file_name(&meta))
        })
    });
    written.map_err(|e| match e {
        WriteError::Io(source) => ModelError::Io {
            path: dir.clone(),
            action: "write to",
            source,
        },
        WriteError::Model(e) => *e,
    })
}

enum WriteError {
    Io(std::io::Error),
    Model(Box<ModelError>),
}
impl From<std::io::Error> for WriteError {
    fn from(e: std::io::Error) -> WriteError {
        WriteError::Io(e)
    }
}
impl From<ModelError> for WriteError {
    fn from(e: ModelError) -> WriteError {
        WriteError::Model(Box::new(e))
    }
}

/// A hash of everything that decides the bytes of a sidecar.
fn key(model: &ArtifactMeta, jobs: &[Job]) -> String {
    // Lengths come before what they count, so that no two lists of jobs are the same bytes.
    let count = |h: &mut blake3::Hasher, n: usize| {
        h.update(&(n as u64).to_le_bytes());
    };
    let mut h = blake3::Hasher::new();
    h.update(b"convoke-encoded-2");
    h.update(&model.id.0);
    for job in jobs {
        h.update(&[job.dtype as u8]);
        h.update(&job.bytes.to_le_bytes());
        match &job.input {
            Input::Bytes(b) => {
                count(&mut h, b.len());
                h.update(b);
            }
            Input::Scattered(s) => {
                count(&mut h, s.positions.len());
                for at in &s.positions {
                    h.update(&at.to_le_bytes());
                }
                h.update(&s.elements);
            }
            Input::Pieces(pieces) => {
                count(&mut h, pieces.len());
                for p in pieces {
                    for v in [u64::from(p.field), p.offset, p.len, u64::from(p.packed)] {
                        h.update(&v.to_le_bytes());
                    }
                }
            }
        }
    }
    h.finalize().to_hex()[..32].to_string()
}

fn file_name(meta: &ArtifactMeta) -> String {
    blake3::Hash::from(meta.id.0).to_hex().to_string()
}

/// Finds the file in `dir` whose content matches its name, and removes files that do not match.
fn existing(dir: &Path, cache_dir: &Path) -> Option<PathBuf> {
    let index = ArtifactIndex::new(Some(cache_dir), None);
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        let named = entry.file_name().to_str().is_some_and(|n| n.len() == 64);
        if !named {
            continue;
        }
        let source = index
            .sources(std::slice::from_ref(&path), None)
            .ok()?
            .pop()?;
        if entry.file_name().to_str() == Some(&file_name(source.meta())) {
            return Some(path);
        }
        let _ = std::fs::remove_file(&path);
    }
    None
}

/// Writes the decoded tensors to `file`, which lies in `dir`.
fn write(
    model: &DataFile,
    jobs: &[Job],
    file: &mut std::fs::File,
    dir: &Path,
) -> Result<ArtifactMeta, ModelError> {
    let (offsets, len) = layout(jobs);
    let mut out = ChunkWriter {
        file,
        dir,
        chunk: Vec::new(),
        hashes: Vec::new(),
        written: 0,
    };
    for (job, offset) in jobs.iter().zip(offsets) {
        let gap = offset - out.written;
        out.put(&[0; ALIGN as usize][..gap as usize])?;
        stream(model, job, &mut |part| out.put(part))?;
    }
    out.flush()?;
    Ok(ArtifactMeta::new(String::new(), len, out.hashes))
}

/// A writer that hashes its output chunk by chunk.
struct ChunkWriter<'a> {
    file: &'a mut std::fs::File,
    dir: &'a Path,
    chunk: Vec<u8>,
    hashes: Vec<convoke_graph::artifact::ChunkHash>,
    written: u64,
}

impl ChunkWriter<'_> {
    fn put(&mut self, mut part: &[u8]) -> Result<(), ModelError> {
        self.written += part.len() as u64;
        while !part.is_empty() {
            let room = CHUNK as usize - self.chunk.len();
            let (now, later) = part.split_at(room.min(part.len()));
            self.chunk.extend_from_slice(now);
            part = later;
            if self.chunk.len() == CHUNK as usize {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ModelError> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.hashes.push(*blake3::hash(&self.chunk).as_bytes());
        let written = self.file.write_all(&self.chunk);
        self.chunk.clear();
        written.map_err(|source| ModelError::Io {
            path: self.dir.into(),
            action: "write to",
            source,
        })
    }
}
