//! What is under test: a model goes in, tensors come out.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use convoke_common::graph::{Function, Literal, TensorType};
use convoke_common::{Code, Error, Result, Tensor};
use convoke_models::onnx::{LoadOptions, load};
use convoke_models::{Imported, ModelError};
use convoke_worker::cpu::evaluate;

use crate::case::Named;

/// The model at `path`, imported.
pub fn import(path: &Path, cache: &Path) -> std::result::Result<Imported, ModelError> {
    let options = LoadOptions {
        cache_dir: Some(cache.into()),
        ..LoadOptions::default()
    };
    load(path, &options)
}

/// The results of the model's function on `inputs`.
pub fn run(model: &Imported, inputs: &Named) -> Result<Named> {
    let f = &model.function;
    let params = f.params.iter().map(|id| {
        let name = &f.value(*id).name;
        let fed = inputs.iter().find(|(n, _)| n.as_str() == &**name);
        fed.map(|(_, t)| t.clone()).ok_or_else(|| {
            Error::new(
                Code::InvalidInput,
                format!("input '{name}' is not in the data set"),
            )
        })
    });
    let params = params.collect::<Result<Vec<_>>>()?;
    let load =
        |_: &Function, literal: &Literal, ty: &TensorType| literal_tensor(model, literal, ty);
    let results = evaluate::evaluate(f, &params, &load)?;
    Ok(f.results
        .iter()
        .map(|(name, _)| name.clone())
        .zip(results)
        .collect())
}

fn literal_tensor(model: &Imported, literal: &Literal, ty: &TensorType) -> Result<Tensor> {
    let (artifact, offset, len) = match literal {
        Literal::Inline(t) => return Ok(t.clone()),
        Literal::Range {
            artifact,
            offset,
            len,
        } => (*artifact as usize, *offset, *len as usize),
    };
    let unknown = || {
        Error::new(
            Code::InvalidGraph,
            "a literal is a range of a file that is not there",
        )
    };
    let source = model.sources.get(artifact).ok_or_else(unknown)?;
    let shape = ty
        .fixed_shape()
        .ok_or_else(|| Error::new(Code::InvalidGraph, "a literal without a size"))?;
    let mut bytes = vec![0; len];
    let mut read = || -> std::io::Result<()> {
        let mut file = std::fs::File::open(source.path())?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut bytes)
    };
    read().map_err(|e| {
        Error::new(
            Code::Io,
            format!("cannot read {}: {e}", source.path().display()),
        )
    })?;
    Ok(Tensor::from_bytes(ty.dtype, &shape, &bytes)?)
}
