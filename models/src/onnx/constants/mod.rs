//! Constants of a model: initializers, Constant nodes, and tables that are made of attributes.
//!
//! ```text
//! TensorProto ── tensor (dtype, shape, place of the content) ── files (a range of a file, external data, weights)
//!                                                          '─ encoded (elements as protobuf numbers: decoded beside the model)
//! ```

pub(super) mod encoded;
pub(super) mod files;
pub(super) mod tensor;

use convoke_graph::Tensor;
use convoke_graph::graph::{Literal, ValueId};

use super::import::Importer;
use super::normalize::{ImportFailure, Outputs};
use super::proto::AttributeProto;
use super::scope::Initializer;
use super::skeleton::Payload;
use crate::error::ModelError;
use files::{Files, StoredConstant};
use tensor::sparse;

impl<'a> Importer<'a> {
    /// Adds a constant of the model to the function that `level` others enclose.
    pub(super) fn initializer(
        &mut self,
        constant: Initializer<'a>,
        full: &str,
        level: usize,
    ) -> Result<ValueId, ModelError> {
        self.place(
            constant.address(),
            full,
            level,
            |files, payloads| match constant {
                Initializer::Dense(t) => tensor::constant(t, full, payloads),
                Initializer::Sparse(s) => sparse::constant(s, full, files, payloads),
            },
        )
    }

    /// Adds a constant, which `make` reads, to the function that `level` others enclose. The constant is known by the
    /// address of the message that has it. Content that lies in a file belongs to the outermost function, whose value the
    /// others capture.
    fn place(
        &mut self,
        address: usize,
        full: &str,
        level: usize,
        make: impl FnOnce(&mut Files<'a>, &[Payload]) -> Result<tensor::Constant, ModelError>,
    ) -> Result<ValueId, ModelError> {
        let key = (address, full.to_owned());
        if let Some(known) = self.outermost.get(&key) {
            return Ok(self.captured(*known, 0, level));
        }
        let (ty, stored) = match self.decoded.get(&address) {
            Some((ty, job)) => (ty.clone(), StoredConstant::Sidecar(*job)),
            None => {
                let c = make(&mut self.files, self.payloads)?;
                (c.ty(), self.files.place(full, c)?)
            }
        };
        match stored {
            StoredConstant::Literal(Literal::Inline(t)) => {
                if self.scopes.len() > 1 {
                    self.count_bytes(t.byte_len() as u64)?;
                }
                let inline = StoredConstant::Literal(Literal::Inline(t));
                Ok(self.builder(level).constant(full, ty, inline))
            }
            placed => {
                if let StoredConstant::Sidecar(job) = &placed {
                    self.decoded.insert(address, (ty.clone(), *job));
                }
                let id = self.builder(0).constant(full, ty, placed);
                if level > 0 {
                    self.outermost.insert(key, id);
                }
                Ok(self.captured(id, 0, level))
            }
        }
    }

    /// Adds a constant that was made of attributes.
    pub(super) fn table(&mut self, full: &str, t: Tensor) -> Result<ValueId, ModelError> {
        let c = tensor::Constant {
            dtype: t.dtype(),
            shape: t.shape().to_vec(),
            bytes: t.byte_len() as u64,
            content: tensor::Content::Inline(t),
        };
        if self.scopes.len() > 1 {
            self.count_bytes(c.bytes)?;
        }
        let (ty, level) = (c.ty(), self.enclosing.len());
        match self.files.place(full, c)? {
            inline @ StoredConstant::Literal(Literal::Inline(_)) => {
                Ok(self.b.constant(full, ty, inline))
            }
            placed => {
                let id = self.builder(0).constant(full, ty, placed);
                Ok(self.captured(id, 0, level))
            }
        }
    }

    /// Imports a Constant node.
    pub(super) fn constant(
        &mut self,
        name: &str,
        outputs: &[String],
        bound: &[(&str, &'a AttributeProto)],
    ) -> Outputs {
        let full = self.full_names(outputs);
        let full = full.first().filter(|n| !n.is_empty()).map_or(name, |n| n);
        let error = |reason: &str| ModelError::Node {
            node: name.into(),
            op: "Constant".into(),
            reason: reason.into(),
        };
        let [(form, a)] = bound else {
            return Err(error("must have one attribute").into());
        };
        let tensor =
            |t: Result<_, convoke_graph::tensor::TensorError>| t.map_err(|e| error(&e.to_string()));
        let utf8 = |s| std::str::from_utf8(s).map_err(|_| error("is not valid UTF-8"));
        let t = match *form {
            "value" => {
                let t = a.t.as_ref().ok_or_else(|| error("has no value"))?;
                let (t, level) = (Initializer::Dense(t), self.enclosing.len());
                return Ok(vec![self.initializer(t, full, level)?]);
            }
            "sparse_value" => {
                let s = a.sparse_tensor.as_ref();
                let s = s.ok_or_else(|| error("has no value"))?;
                let (s, level) = (Initializer::Sparse(s), self.enclosing.len());
                return Ok(vec![self.initializer(s, full, level)?]);
            }
            "value_int" => Tensor::scalar(a.i()),
            "value_float" => Tensor::scalar(a.f()),
            "value_ints" => tensor(Tensor::from_slice(&[a.ints.len()], &a.ints))?,
            "value_floats" => tensor(Tensor::from_slice(&[a.floats.len()], &a.floats))?,
            "value_string" => tensor(Tensor::from_strings(&[], &[utf8(a.s())?]))?,
            "value_strings" => {
                let all = a.strings.iter().map(|s| utf8(s));
                let all = all.collect::<Result<Vec<_>, _>>()?;
                tensor(Tensor::from_strings(&[all.len()], &all))?
            }
            other => return Err(ImportFailure::Unsupported(format!("attribute '{other}'"))),
        };
        let (dtype, shape, bytes) = (t.dtype(), t.shape().to_vec(), t.byte_len() as u64);
        let c = tensor::Constant {
            dtype,
            shape,
            bytes,
            content: tensor::Content::Inline(t),
        };
        let address = std::ptr::from_ref(*a) as usize;
        let level = self.enclosing.len();
        Ok(vec![self.place(address, full, level, |_, _| Ok(c))?])
    }
}
