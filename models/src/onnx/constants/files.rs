//! The files that hold constants. They are found and checked while the graph is imported.
//!
//! Invariants
//! 1. A file that a model names lies in the model's own folder or beneath it, after every link is resolved; or, where the
//!    model is in a cache of Hugging Face's hub, directly in the folder of that cache that holds the content of files.
//! 2. A range lies inside its file.
//! 3. Content of at most [`INLINE_LIMIT`] bytes is read and becomes part of the graph.
//! 4. Sparse tensors expand to a bounded multiple of their bytes in the model.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use convoke_graph::Tensor;
use convoke_graph::graph::{INLINE_LIMIT, Literal};

use super::encoded::{self, Input, Job};
use super::tensor::{Constant, Content};
use crate::error::ModelError;
use crate::file::{DataFile, Identity};
use crate::safetensors::Weights;

/// Sparse tensors may expand to at most `DENSE` bytes, plus `EXPANSION` times the bytes of their elements and positions.
const DENSE: u64 = 64 << 20;
const EXPANSION: u64 = 1 << 10;

/// The files of one model.
pub(in crate::onnx) struct Files<'a> {
    model: &'a DataFile,
    weights: &'a Weights,
    /// The files that hold literals, in the order of first use; the index of a file is that of its artifact.
    used: Vec<(PathBuf, Identity)>,
    index: HashMap<PathBuf, u32>,
    /// The files that external locations were resolved to.
    resolved: HashMap<String, (PathBuf, Identity)>,
    /// Tensors to decode into the sidecar.
    jobs: Vec<Job>,
    /// Bytes that sparse tensors may still expand to.
    dense: u64,
    missing: Vec<String>,
}

/// Where the content of a constant was placed.
pub(in crate::onnx) enum StoredConstant {
    Literal(Literal),
    /// The content goes to the sidecar, decoded by the job with this index.
    Sidecar(usize),
}

impl<'a> Files<'a> {
    pub(in crate::onnx) fn new(model: &'a DataFile, weights: &'a Weights) -> Files<'a> {
        let (index, resolved) = (HashMap::new(), HashMap::new());
        Files {
            model,
            weights,
            used: vec![],
            index,
            resolved,
            jobs: vec![],
            dense: DENSE,
            missing: vec![],
        }
    }

    /// The files of the artifacts, in order, with the identities that they had when their ranges were found.
    pub(in crate::onnx) fn used(&self) -> &[(PathBuf, Identity)] {
        &self.used
    }

    pub(in crate::onnx) fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Fails when a weight was found nowhere.
    pub(in crate::onnx) fn check_missing(&self) -> Result<(), ModelError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        Err(ModelError::MissingWeights {
            names: self.missing.iter().take(10).cloned().collect(),
            count: self.missing.len(),
            searched: !self.weights.is_empty(),
        })
    }

    /// The index of the artifact for the file at `path`, which is added at its first use.
    pub(in crate::onnx) fn artifact(&mut self, path: &Path, identity: Identity) -> u32 {
        if let Some(i) = self.index.get(path) {
            return *i;
        }
        let i = self.used.len() as u32;
        self.used.push((path.into(), identity));
        self.index.insert(path.into(), i);
        i
    }

    /// Places the content of constant `c` with the name `name`.
    pub(in crate::onnx) fn place(
        &mut self,
        name: &str,
        mut c: Constant,
    ) -> Result<StoredConstant, ModelError> {
        let content = std::mem::replace(&mut c.content, Content::Missing);
        let job = |input| Job {
            tensor: name.into(),
            dtype: c.dtype,
            bytes: c.bytes,
            input,
        };
        Ok(match content {
            Content::Inline(t) if t.byte_len() <= INLINE_LIMIT => {
                StoredConstant::Literal(Literal::Inline(t))
            }
            Content::Inline(t) => self.later(job(Input::Bytes(t.bytes().to_vec()))),
            Content::Decoded(data) => self.later(job(Input::Bytes(data))),
            Content::Encoded(pieces) => {
                let job = job(Input::Pieces(pieces));
                if c.bytes > INLINE_LIMIT as u64 {
                    return Ok(self.later(job));
                }
                StoredConstant::Literal(inline(name, &c, &encoded::decode(self.model, &job)?)?)
            }
            Content::Scattered(s) => {
                let stored = s.elements.len() as u64 + size_of_val(&*s.positions) as u64;
                let most = self.dense.saturating_add(EXPANSION.saturating_mul(stored));
                self.dense = most.checked_sub(c.bytes).ok_or(ModelError::TooLarge {
                    what: "bytes of expanded sparse tensors",
                    limit: most,
                })?;
                let job = job(Input::Scattered(s));
                if c.bytes > INLINE_LIMIT as u64 {
                    return Ok(self.later(job));
                }
                StoredConstant::Literal(inline(name, &c, &encoded::decode(self.model, &job)?)?)
            }
            Content::Model(offset) => {
                let model = self.model;
                StoredConstant::Literal(self.range(
                    name,
                    &c,
                    model.path(),
                    model.identity(),
                    offset,
                )?)
            }
            Content::External { location, offset } => {
                let (path, identity) = self.external(name, &location, offset, c.bytes)?;
                StoredConstant::Literal(self.range(name, &c, &path, identity, offset)?)
            }
            Content::Missing => match self.weights.find(name, c.dtype, &c.shape)? {
                Some(w) => {
                    StoredConstant::Literal(self.range(name, &c, w.path, w.identity, w.offset)?)
                }
                None => {
                    self.missing.push(name.into());
                    // This range is a placeholder: the import fails after all missing names are collected.
                    StoredConstant::Literal(Literal::Range {
                        artifact: 0,
                        offset: 0,
                        len: c.bytes,
                    })
                }
            },
        })
    }

    /// The content of a constant, which is read into memory.
    pub(in crate::onnx) fn read(&mut self, name: &str, c: &Constant) -> Result<Tensor, ModelError> {
        let wrong = |reason: String| ModelError::Tensor {
            tensor: name.into(),
            reason,
        };
        let bytes = match &c.content {
            Content::Inline(t) => return Ok(t.clone()),
            Content::Decoded(data) => data.clone(),
            Content::Model(offset) => self.model.bytes(*offset, c.bytes)?,
            Content::Encoded(pieces) => {
                let input = Input::Pieces(pieces.clone());
                let (dtype, bytes) = (c.dtype, c.bytes);
                let job = Job {
                    tensor: name.into(),
                    dtype,
                    bytes,
                    input,
                };
                encoded::decode(self.model, &job)?
            }
            Content::External { location, offset } => {
                let (path, identity) = self.external(name, location, *offset, c.bytes)?;
                bytes_of(&path, identity, *offset, c.bytes)?
            }
            Content::Missing => return Err(wrong("has no content".into())),
            Content::Scattered(_) => return Err(wrong("is sparse".into())),
        };
        Tensor::from_bytes(c.dtype, &c.shape, &bytes).map_err(|e| wrong(e.to_string()))
    }

    fn later(&mut self, job: Job) -> StoredConstant {
        self.jobs.push(job);
        StoredConstant::Sidecar(self.jobs.len() - 1)
    }

    fn range(
        &mut self,
        name: &str,
        c: &Constant,
        path: &Path,
        identity: Identity,
        offset: u64,
    ) -> Result<Literal, ModelError> {
        if c.bytes > INLINE_LIMIT as u64 {
            let artifact = self.artifact(path, identity);
            return Ok(Literal::Range {
                artifact,
                offset,
                len: c.bytes,
            });
        }
        inline(name, c, &bytes_of(path, identity, offset, c.bytes)?)
    }

    /// The file that `location` names, which has `len` bytes at `offset`.
    fn external(
        &mut self,
        name: &str,
        location: &str,
        offset: u64,
        len: u64,
    ) -> Result<(PathBuf, Identity), ModelError> {
        let (path, identity) = self.resolve(name, location)?;
        if offset.checked_add(len).is_none_or(|end| end > identity.len) {
            return Err(ModelError::Truncated {
                path,
                at: offset,
                need: len,
                len: identity.len,
            });
        }
        Ok((path, identity))
    }

    /// Resolves `location` to a file in the model's folder or beneath it.
    fn resolve(&mut self, name: &str, location: &str) -> Result<(PathBuf, Identity), ModelError> {
        if let Some(found) = self.resolved.get(location) {
            return Ok(found.clone());
        }
        let refuse = |reason: String| ModelError::External {
            tensor: name.into(),
            location: location.into(),
            reason,
        };
        let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        if !Path::new(location).components().all(inside) || location.contains('\0') {
            return Err(refuse("the path is not inside the model's folder".into()));
        }
        let folder = match self.model.path().parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let folder = folder.canonicalize().map_err(|e| refuse(e.to_string()))?;
        let path = folder
            .join(location)
            .canonicalize()
            .map_err(|e| refuse(e.to_string()))?;
        if !path.starts_with(&folder) && path.parent() != blobs_of(&folder).as_deref() {
            return Err(refuse("a link leads out of the model's folder".into()));
        }
        let found = (path.clone(), DataFile::open(&path)?.identity());
        self.resolved.insert(location.into(), found.clone());
        Ok(found)
    }
}

/// The folder that holds the content of the files in `folder`, where that is a snapshot in a cache of Hugging Face's hub:
/// `REPO/snapshots/REVISION/..` has links to files in `REPO/blobs`.
fn blobs_of(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.ancestors().find(|f| f.ends_with("snapshots"))?;
    Some(snapshots.parent()?.join("blobs"))
}

/// The `len` bytes at `offset` of the file at `path`, which must be the one that was found there before.
fn bytes_of(path: &Path, identity: Identity, offset: u64, len: u64) -> Result<Vec<u8>, ModelError> {
    let file = DataFile::open(path)?;
    if file.identity() != identity {
        return Err(ModelError::Changed { path: path.into() });
    }
    file.bytes(offset, len)
}

fn inline(name: &str, c: &Constant, bytes: &[u8]) -> Result<Literal, ModelError> {
    let t = Tensor::from_bytes(c.dtype, &c.shape, bytes);
    let t = t.map_err(|e| ModelError::Tensor {
        tensor: name.into(),
        reason: e.to_string(),
    })?;
    Ok(Literal::Inline(t))
}
