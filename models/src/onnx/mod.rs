//! ONNX models.
//!
//! ```text
//! file --skeleton--> messages --import--> Function --infer_types--> typed Function
//!          |                     |
//!          |                     +-- scope (names), normalize (older forms), builder (values, nodes)
//!          +-- payloads ----------- files (ranges, external data, weights), encoded (sidecar)
//! ```

mod attrs;
mod builder;
mod constants;
mod devices;
mod format;
mod import;
mod inputs;
mod lengths;
mod nested;
mod normalize;
mod outputs;
mod scope;
mod sort;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use convoke_common::rpc::Stage;
use convoke_graph::artifact::ArtifactMeta;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::Function;
use convoke_graph::{Printable, Tensor};

use prost::Message as _;

use crate::artifact_index::{ArtifactIndex, OnProgress, Source, default_cache_dir};
use crate::error::ModelError;
use crate::file::DataFile;
use crate::safetensors::Weights;
use constants::{encoded, files, tensor};
pub use devices::{Annotated, Origins, annotate};
use format::{proto, skeleton, wire};
use inputs::FixedSizes;
pub use inputs::GivenInput;
pub use normalize::BlockWidth;
pub use outputs::OutputForm;

/// Options for loading a model.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Safetensors files with the content of initializers that the model has no data for.
    pub weights: Vec<PathBuf>,
    /// The folder that caches hashes and decoded weights; [`default_cache_dir`] where this is `None`.
    pub cache_dir: Option<PathBuf>,
    /// The folder that workers share: artifacts beneath it are named by their paths relative to it.
    pub artifact_root: Option<PathBuf>,
    /// Descriptions of inputs, by name. Optional ones that are not named hold a tensor, and constants of the model that
    /// are defaults of inputs stay constants unless they are named.
    pub inputs: BTreeMap<String, GivenInput>,
    /// Whether optional inputs that are not named are left out instead.
    pub without_others: bool,
    /// The width of the blocks of a model that ONNX Runtime's optimizer wrote at its highest level, where the file
    /// leaves it open.
    pub block_width: Option<BlockWidth>,
    /// Called while files are hashed.
    pub progress: Option<OnProgress>,
}

/// The description of a model in its own file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelInfo {
    pub producer: String,
    pub producer_version: String,
    pub ir_version: i64,
    /// Version of ONNX's own operator set.
    pub opset: i64,
    /// The versions of the other operator sets, by domain.
    pub domains: Vec<(String, i64)>,
    /// Pairs of keys and values of free form.
    pub properties: Vec<(String, String)>,
}

/// An imported model.
#[derive(Debug, Clone)]
pub struct ImportedModel {
    /// The function, typed and verified, with every op in its newest form.
    pub function: Function,
    /// How the model's outputs are made of the function's results, which are theirs in this order.
    pub outputs: Vec<OutputForm>,
    /// The files of `function.artifacts`, in the same order.
    pub sources: Vec<Source>,
    pub info: ModelInfo,
    /// The stages of a pipeline that the model's annotations divide it into, in their order.
    pub stages: Vec<Stage>,
    /// This maps each node of the file to the nodes of the function that it became.
    pub origins: Origins,
    /// Remarks on parts of the model that are ignored or take another form here, one sentence each: a `ZipMap` gives a
    /// matrix instead of maps, and a map is given as two lists.
    pub remarks: Vec<String>,
}

/// Imports the model at `path`.
///
/// An input `x` of the type map(K, V) becomes two inputs, the list `x.keys` of K and the list `x.values` of V, whose
/// lengths are the same. The keys must be distinct, in any order.
pub fn load(path: &Path, options: &LoadOptions) -> Result<ImportedModel, ModelError> {
    let file = DataFile::open(path)?;
    let skeleton = skeleton::read(&file)?;
    let info = info(&skeleton.model);
    let weights = Weights::open(&options.weights)?;
    let mut given = options.inputs.clone();
    if options.without_others {
        for name in inputs::optional(&skeleton.model) {
            given.entry(name.into()).or_insert(GivenInput::Nothing);
        }
    }
    let (imported, fixed) = imported(&file, &skeleton, &weights, &given, options.block_width)?;
    let mut origins = imported.origins(&skeleton.model);

    let cache = options.cache_dir.clone().or_else(default_cache_dir);
    let index = ArtifactIndex::new(cache.as_deref(), options.artifact_root.as_deref());
    let progress = options.progress.as_deref();
    let import::Importer {
        mut b,
        mut files,
        outputs,
        remarks: of_import,
        ..
    } = imported;
    // Without a sidecar, types are inferred already.
    if !files.jobs().is_empty() {
        let cache = cache.as_deref().ok_or(ModelError::NoCache)?;
        let model = index.sources(&[path.into()], progress)?;
        let sidecar = encoded::sidecar(&file, model[0].meta(), files.jobs(), cache)?;
        let artifact = files.artifact(&sidecar, DataFile::open(&sidecar)?.identity());
        b.place_sidecar(artifact, files.jobs(), &encoded::layout(files.jobs()).0);
        infer(&mut b, &files)?;
    }
    builder::integers::fuse(&mut b);
    let there: HashSet<&str> = b.f.nodes.iter().map(|n| &*n.name).collect();
    for names in &mut origins {
        names.retain(|name| there.contains(&**name));
    }
    let (stages, mut remarks) = devices::stages(&skeleton.model, &origins)?;
    remarks.extend(of_import);
    if !fixed.is_empty() {
        let sizes = fixed.iter();
        let sizes: Vec<String> = sizes
            .map(|(s, size)| format!("{}={size}", Printable(s)))
            .collect();
        let sizes = sizes.join(", ");
        remarks.push(format!(
            "the model is loaded for {sizes} alone, which decides the ranks of tensors"
        ));
    }
    if skeleton.has_training {
        remarks.push("the model has information for training, which is ignored".into());
    }
    let paths: Vec<PathBuf> = files.used().iter().map(|(p, _)| p.clone()).collect();
    let sources = index.sources(&paths, progress)?;
    for (source, (path, identity)) in sources.iter().zip(files.used()) {
        if source.identity() != *identity {
            return Err(ModelError::Changed { path: path.clone() });
        }
    }
    b.f.artifacts = sources.iter().map(|s| s.meta().clone()).collect();
    b.f.verify()
        .map_err(|e| ModelError::Graph { errors: vec![e] })?;
    Ok(ImportedModel {
        function: b.f,
        outputs,
        sources,
        info,
        stages,
        origins,
        remarks,
    })
}

/// Imports the graph with its open dimensions. Where sizes are given that the model then does not run for, their
/// symbols are fixed to them, if it can be imported so; all symbols are where the model cannot be imported otherwise.
/// Returns the sizes that were fixed as well.
fn imported<'a>(
    file: &'a DataFile,
    skeleton: &'a skeleton::Skeleton,
    weights: &'a Weights,
    given: &BTreeMap<String, GivenInput>,
    block_width: Option<BlockWidth>,
) -> Result<(import::Importer<'a>, FixedSizes), ModelError> {
    let with = |fixed: &FixedSizes| {
        let files = files::Files::new(file, weights);
        let (model, payloads) = (&skeleton.model, &skeleton.payloads);
        let mut i = import::import(model, payloads, files, given, fixed, block_width)?;
        i.b.check_supported()?;
        i.files.check_missing()?;
        // Types that can be inferred without a sidecar are checked before files are read from end to end.
        if i.files.jobs().is_empty() {
            infer(&mut i.b, &i.files)?;
        }
        Ok(i)
    };
    let mut fixed = FixedSizes::new();
    let open = with(&fixed);
    let assumes_nothing =
        |i: &import::Importer<'_>| i.assumed_ones.is_empty() && i.assumed_others.is_empty();
    if open.as_ref().is_ok_and(assumes_nothing) {
        return Ok((open?, fixed));
    }
    let Ok(sizes) = import::given_sizes(&skeleton.model, given) else {
        return Ok((open?, fixed));
    };
    let (mut last, mut before) = (open, None);
    // Each round fixes further symbols, so that there are no more rounds than symbols.
    loop {
        let known = fixed.clone();
        match &last {
            Ok(i) => fixed.extend(wrongly_assumed(i, &sizes)),
            Err(_) => fixed.clone_from(&sizes),
        }
        if fixed.len() == known.len() {
            break;
        }
        last = match (with(&fixed), last) {
            // An error is of the model as it stands, not of one with other inputs.
            (Err(_), Err(first)) => {
                last = Err(first);
                break;
            }
            (next, Ok(i)) => {
                before = Some((i, known));
                next
            }
            (next, Err(_)) => next,
        };
    }
    match (last, before) {
        (Ok(i), _) => Ok((i, fixed)),
        // A node that is impossible with these sizes may be in a branch that is not taken, so keep the import from
        // before. If the branch is taken, the step fails.
        (Err(_), Some(before)) => Ok(before),
        (Err(e), None) => Err(e),
    }
}

/// The sizes of the symbols in those dimensions for which the importer assumed another size than they have.
fn wrongly_assumed(i: &import::Importer<'_>, sizes: &FixedSizes) -> FixedSizes {
    let bindings = sizes.iter();
    let bindings: Bindings = bindings
        .filter_map(|(s, size)| Some((s.clone(), i64::try_from(*size).ok()?)))
        .collect();
    let ones = i.assumed_ones.iter().map(|d| (d, true));
    let others = i.assumed_others.iter().map(|d| (d, false));
    let mut symbols = BTreeSet::new();
    for (dim, one) in ones.chain(others) {
        if dim.eval(&bindings).is_some_and(|n| (n == 1) != one) {
            dim.symbols(&mut symbols);
        }
    }
    let known = symbols.into_iter();
    known
        .filter_map(|s| sizes.get(&s).map(|size| (s.clone(), *size)))
        .collect()
}

/// Decodes a `TensorProto` to its name and content. ONNX's own test cases store their inputs and outputs in this form.
pub fn decode_tensor(bytes: &[u8]) -> Result<(String, Tensor), ModelError> {
    let fail = |tensor: &str, reason: String| ModelError::Tensor {
        tensor: tensor.into(),
        reason,
    };
    let t = proto::TensorProto::decode(bytes).map_err(|e| fail("", e.to_string()))?;
    let name = t.name().to_string();
    let c = tensor::constant(&t, &name, &[])?;
    let decoded = match c.content {
        tensor::Content::Inline(t) => Ok(t),
        tensor::Content::Decoded(data) => {
            Tensor::from_bytes(c.dtype, &c.shape, &data).map_err(|e| e.to_string())
        }
        _ => Err("its content is not in the message".into()),
    };
    let decoded = decoded.map_err(|reason| fail(&name, reason))?;
    Ok((name, decoded))
}

/// Infers the types of the function, whose artifacts have lengths but no hashes yet.
fn infer(b: &mut builder::Builder, files: &files::Files<'_>) -> Result<(), ModelError> {
    let unhashed = |len: u64| ArtifactMeta::new(String::new(), len, vec![]);
    b.f.artifacts = files
        .used()
        .iter()
        .map(|(_, identity)| unhashed(identity.len))
        .collect();
    b.infer()
}

fn info(m: &proto::ModelProto) -> ModelInfo {
    let opsets = scope::opsets(&m.opset_import);
    let mut domains: Vec<(String, i64)> = opsets
        .iter()
        .filter(|(d, _)| !d.is_empty())
        .map(|(d, v)| (d.to_string(), *v))
        .collect();
    domains.sort();
    ModelInfo {
        producer: m.producer_name().into(),
        producer_version: m.producer_version().into(),
        ir_version: m.ir_version(),
        opset: opsets.get("").copied().unwrap_or(0),
        domains,
        properties: m
            .metadata_props
            .iter()
            .map(|p| (p.key().into(), p.value().into()))
            .collect(),
    }
}
