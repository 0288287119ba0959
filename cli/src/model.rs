//! The model that a command names: its inputs, and how it is to be split.

use convoke::numpy::{read_npy, read_npz};
use convoke::{Cluster, Code, Error, HostTensor as Tensor, ModelBuilder, Signature};

use crate::args::ModelArgs;
use crate::failure::Failure;

/// Arrays of this prefix are expected outputs, not inputs.
const EXPECTED: &str = "expected/";

/// What the files hold.
pub struct Arrays {
    /// To be fed, by name.
    pub inputs: Vec<(String, Tensor)>,
    /// Outputs as they should be, by name.
    pub expected: Vec<(String, Tensor)>,
}

/// Reads the files that the flags name.
pub fn read_inputs(args: &ModelArgs) -> Result<Arrays, Failure> {
    let mut inputs = Vec::new();
    let mut expected = Vec::new();
    if let Some(path) = &args.inputs {
        for (name, tensor) in read_npz(path)? {
            match name.strip_prefix(EXPECTED) {
                Some(name) => expected.push((name.to_owned(), tensor)),
                None => inputs.push((name, tensor)),
            }
        }
    }
    for (name, path) in &args.input {
        let tensor = read_npy(path)?;
        // A single file counts more than the archive.
        inputs.retain(|(n, _)| n != name);
        inputs.push((name.clone(), tensor));
    }
    Ok(Arrays { inputs, expected })
}

/// How the model is to be loaded; on how many workers is left open.
pub fn builder(cluster: &Cluster, args: &ModelArgs) -> ModelBuilder {
    let mut b = cluster
        .load(&args.model)
        .exact(args.exact)
        .in_flight(args.in_flight);
    for w in &args.weights {
        b = b.weights(w);
    }
    if let Some(root) = &args.artifact_root {
        b = b.artifact_root(root);
    }
    for d in &args.dim {
        b = b.dim(&d.symbol, d.most);
    }
    b
}

/// Adds the pins.
pub fn pinned(mut b: ModelBuilder, args: &ModelArgs) -> ModelBuilder {
    for p in &args.pin {
        b = b.pin(&p.pattern, &p.worker);
    }
    b
}

/// Fails, listing what the model needs, where nothing at all is given.
pub fn check_given(inputs: &[(String, Tensor)], wanted: &[Signature]) -> Result<(), Failure> {
    if !inputs.is_empty() || wanted.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = wanted
        .iter()
        .map(|s| format!("{}: {}", s.name, s.ty))
        .collect();
    let msg = format!("the model needs inputs: {}", list.join("; "));
    let e = Error::new(Code::InvalidInput, msg);
    Err(e
        .advise("give them with --inputs FILE.npz, or one by one with --input NAME=FILE.npy")
        .into())
}
