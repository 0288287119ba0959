//! The model that a command names: its input arrays, and how it is loaded and split.

use std::path::PathBuf;

use convoke::numpy::{Npz, npy_type, read_npy};
use convoke::{ArrayType, Cluster, Code, Error, HostTensor as Tensor, ModelBuilder, Signature};
use convoke_graph::Printable;

use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::machine;
use crate::values::Bound;

/// The prefix of the names of arrays that are expected outputs, not inputs.
const EXPECTED: &str = "expected/";

/// The arrays that the flags name. Opening them reads their dtypes and shapes only; the values are read after these
/// were compared with the model's, since a small (compressed) file may hold very large arrays.
pub struct Arrays {
    archive: Option<Npz>,
    /// Inputs that have a file of their own: name and path.
    files: Vec<(String, PathBuf)>,
    /// Name, dtype and shape of each input.
    inputs: Vec<(String, ArrayType)>,
    /// Name, dtype and shape of each expected output.
    expected: Vec<(String, ArrayType)>,
}

impl Arrays {
    /// Opens the files that the flags name.
    pub fn open(args: &ModelArgs) -> Result<Arrays, Failure> {
        let mut all = Arrays {
            archive: args.inputs.as_ref().map(Npz::open).transpose()?,
            files: vec![],
            inputs: vec![],
            expected: vec![],
        };
        for (name, array) in all.archive.iter().flat_map(Npz::arrays) {
            match name.strip_prefix(EXPECTED) {
                Some(name) => all.expected.push((name.to_owned(), array)),
                None => all.inputs.push((name.to_owned(), array)),
            }
        }
        for (name, path) in &args.input {
            let array = npy_type(path)?;
            // A single file overrides the archive, and a later file overrides an earlier one of the same name.
            all.inputs.retain(|(n, _)| n != name);
            all.files.retain(|(n, _)| n != name);
            all.inputs.push((name.clone(), array));
            all.files.push((name.clone(), path.clone()));
        }
        Ok(all)
    }

    /// Dtypes and shapes of the inputs, by name.
    pub fn inputs(&self) -> Vec<(String, ArrayType)> {
        self.inputs.clone()
    }

    /// Reads the values of the inputs.
    pub fn read_inputs(&mut self) -> Result<Vec<(String, Tensor)>, Failure> {
        let mut all = Vec::with_capacity(self.inputs.len());
        for (name, _) in &self.inputs {
            let file = self.files.iter().find(|(n, _)| n == name);
            let tensor = match (file, &mut self.archive) {
                (Some((_, path)), _) => Some(read_npy(path)?),
                (None, Some(archive)) => Some(archive.read(name)?),
                (None, None) => None,
            };
            all.extend(tensor.map(|t| (name.clone(), t)));
        }
        Ok(all)
    }

    /// Reads the expected outputs for which `comparable` holds; of the others, only name and type are returned.
    pub fn read_expected(
        &mut self,
        comparable: impl Fn(&str, &ArrayType) -> bool,
    ) -> Result<Vec<(String, ExpectedOutput)>, Failure> {
        let mut all = Vec::with_capacity(self.expected.len());
        for (name, array) in &self.expected {
            let expected = match &mut self.archive {
                Some(archive) if comparable(name, array) => {
                    ExpectedOutput::Values(archive.read(&format!("{EXPECTED}{name}"))?)
                }
                _ => ExpectedOutput::Type(array.clone()),
            };
            all.push((name.clone(), expected));
        }
        Ok(all)
    }
}

/// What an output of the model is compared with.
pub enum ExpectedOutput {
    /// The output has these values.
    Values(Tensor),
    /// The expected output has another dtype or shape than the output, so its values are not compared.
    Type(ArrayType),
}

/// Makes the builder that loads the model, without pins and a number of workers.
pub fn builder(cluster: &Cluster, args: &ModelArgs) -> Result<ModelBuilder, Failure> {
    let mut b = cluster
        .load(&args.model)
        .exact(args.exact)
        .in_flight(args.in_flight);
    for w in &args.weights {
        b = b.weights(w);
    }
    if let Some(root) = &args.artifact_root {
        machine::readable_folder("--artifact-root", root)?;
        b = b.artifact_root(root);
    }
    for d in &args.dim {
        b = b.dim(&d.symbol, d.most);
    }
    Ok(b)
}

/// Adds the pins of the flags to a builder.
pub fn pinned(mut b: ModelBuilder, args: &ModelArgs) -> ModelBuilder {
    for p in &args.pin {
        b = b.pin(&p.pattern, p.devices.to_string());
    }
    b
}

/// Checks that no input is larger than the bound that `--dim` gives for its axis.
pub fn check_bounds(
    bounds: &[Bound],
    inputs: &[(String, ArrayType)],
    wanted: &[Signature],
) -> Result<(), Failure> {
    for (name, given) in inputs {
        let Some(signature) = wanted.iter().find(|s| s.name == *name) else {
            continue;
        };
        for (dim, size) in signature.ty.shape.iter().zip(given.shape.iter()) {
            let bound = bounds
                .iter()
                .find(|b| dim.as_symbol().is_some_and(|s| **s == *b.symbol));
            if let Some(bound) = bound
                && i64::try_from(*size).is_ok_and(|size| size > bound.most)
            {
                let (name, symbol) = (Printable(name), Printable(&bound.symbol));
                let most = bound.most;
                let msg = format!(
                    "--dim {symbol}={most} is less than the {size} of input '{name}', which is {given}"
                );
                let error = Error::new(Code::InvalidArgument, msg);
                let advice = format!("write --dim {symbol}={size} or more, or leave it out");
                return Err(error.advise(advice).into());
            }
        }
    }
    Ok(())
}

/// Checks that any input is given if the model needs inputs; the error lists what it needs.
pub fn check_given(inputs: &[(String, ArrayType)], wanted: &[Signature]) -> Result<(), Failure> {
    if !inputs.is_empty() || wanted.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = wanted
        .iter()
        .map(|s| format!("{}: {}", Printable(&s.name), s.ty))
        .collect();
    let msg = format!("the model needs inputs: {}", list.join("; "));
    let e = Error::new(Code::InvalidInput, msg);
    Err(e
        .advise("give them with --inputs FILE.npz, or one by one with --input NAME=FILE.npy")
        .into())
}
