//! Why a model cannot be imported, with the messages and advice for users.

use std::path::PathBuf;

use convoke_common::{Code, Error, Site};
use convoke_graph::graph::GraphError;
use convoke_graph::printable::Listed;
use convoke_graph::{DType, Printable};

/// A node that is not supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedNode {
    /// The name of the node in the model, or `Op_index` where it has none.
    pub node: String,
    /// The op as `Op`, or `domain.Op` outside of ONNX's own domain.
    pub op: String,
    /// The version of the op's operator set, where the model imports it.
    pub opset: Option<i64>,
    /// The dtype of the first operand whose type is known.
    pub dtype: Option<DType>,
    /// The property of the node that is not supported, where the op itself is supported.
    pub reason: Option<String>,
}

/// Why a model cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is no file at this path.
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    /// The path names a folder, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The operating system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        path: PathBuf,
        action: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The file was written to while it was read, or since its hashes were computed.
    #[error("{} changed while it was in use", path.display())]
    Changed { path: PathBuf },
    /// The file is a pointer that git-lfs has not replaced by the content.
    #[error("{} is a git-lfs pointer, not the file itself", path.display())]
    LfsPointer { path: PathBuf },
    /// The bytes are not an ONNX model.
    #[error("{} is not an ONNX model: {reason}", path.display())]
    NotOnnx { path: PathBuf, reason: String },
    /// The file ends inside a field or a weight.
    #[error("{} is truncated: {need} bytes are needed at offset {at}, the file has {len}", path.display())]
    Truncated {
        path: PathBuf,
        at: u64,
        need: u64,
        len: u64,
    },
    /// A field of the file contradicts itself.
    #[error("{} is damaged at offset {at}: {reason}", path.display())]
    Malformed {
        path: PathBuf,
        at: u64,
        reason: String,
    },
    /// The model exceeds a limit of the importer.
    #[error("the model has too many {what}: at most {limit} are accepted")]
    TooLarge { what: &'static str, limit: u64 },
    /// The model needs a version of the operator set outside of the supported range.
    #[error("the model needs opset {found}; opsets {min} to {max} are supported")]
    Opset { found: i64, min: i64, max: i64 },
    /// The model does not say which operator set it uses.
    #[error("the model declares no operator set")]
    NoOpset,
    /// No value can be given for a graph input.
    #[error("input '{}': {reason}", Printable(input))]
    Input { input: String, reason: String },
    /// The caller's description of an input does not fit the input.
    #[error("input '{}': {reason}", Printable(input))]
    Given { input: String, reason: String },
    /// A value is of a kind that tensors cannot hold: strings, sequences, 8-bit floats and the like.
    #[error("{what}: {reason}")]
    UnsupportedType { what: String, reason: String },
    /// A constant contradicts itself or has no supported form.
    #[error("tensor '{}': {reason}", Printable(tensor))]
    Tensor { tensor: String, reason: String },
    /// External data is not allowed, for example outside of the model's folder, or cannot be read.
    #[error(
        "tensor '{}' is stored in '{}': {reason}",
        Printable(tensor),
        Printable(location)
    )]
    External {
        tensor: String,
        location: String,
        reason: String,
    },
    /// A file is to be written where the data files of its model are not.
    #[error("{} would not find the data of the model, which lies in other files", path.display())]
    AwayFromData { path: PathBuf },
    /// A file is to be written over a data file of its model.
    #[error("{} holds data of the model", path.display())]
    OverData { path: PathBuf },
    /// No weights file has the content of some initializers that the model has no data for.
    #[error("{count} weights without data: {}", list_names(names, *count))]
    MissingWeights {
        /// The names of the first ten.
        names: Vec<String>,
        count: usize,
        /// Whether the user gave weights files.
        searched: bool,
    },
    /// A weights file has the tensor with another dtype or shape.
    #[error("weight '{}' is {wanted} in the model but {found} in {}", Printable(name), path.display())]
    WeightMismatch {
        name: String,
        wanted: String,
        found: String,
        path: PathBuf,
    },
    /// Two weights files have a tensor of the same name.
    #[error("weight '{}' is in {} and in {}", Printable(name), first.display(), second.display())]
    DuplicateWeight {
        name: String,
        first: PathBuf,
        second: PathBuf,
    },
    /// A weights file is not in the safetensors format.
    #[error("{} is not a valid safetensors file: {reason}", path.display())]
    Safetensors { path: PathBuf, reason: String },
    /// A name is defined more than once.
    #[error("value '{}' is defined twice", Printable(value))]
    Duplicate { value: String },
    /// A name is used but never defined.
    #[error(
        "value '{}', used by '{}', is defined nowhere",
        Printable(value),
        Printable(user)
    )]
    Undefined { value: String, user: String },
    /// Some nodes depend on each other in a cycle.
    #[error("the graph has a cycle through {}", list_names(nodes, nodes.len()))]
    Cycle { nodes: Vec<String> },
    /// A model-local function uses itself.
    #[error("function '{}' uses itself", Printable(function))]
    Recursion { function: String },
    /// An attribute cannot be read.
    #[error(
        "node '{}' ({}): attribute '{}': {reason}",
        Printable(node),
        Printable(op),
        Printable(attr)
    )]
    Attribute {
        node: String,
        op: String,
        attr: String,
        reason: String,
    },
    /// A node breaks a rule of its op, or of an older form of the op.
    #[error("node '{}' ({}): {reason}", Printable(node), Printable(op))]
    Node {
        node: String,
        op: String,
        reason: String,
    },
    /// The model uses ops, or forms of ops, that are not supported; the list is complete.
    #[error("the model needs operations that are not supported: {}", by_op(nodes))]
    Unsupported { nodes: Vec<UnsupportedNode> },
    /// The graph breaks rules of the ops that it uses.
    #[error("the model's graph is invalid: {}", list(errors, errors.len()))]
    Graph { errors: Vec<GraphError> },
    /// Decoded weights must be written to a file, and there is no cache folder.
    #[error(
        "the model stores weights in an encoded form, and there is no cache folder for the decoded ones"
    )]
    NoCache,
}

/// Lists the first ten of `items`, and says how many of `count` are left.
fn list<T: std::fmt::Display>(items: &[T], count: usize) -> String {
    let mut out: Vec<String> = items.iter().take(10).map(|i| i.to_string()).collect();
    if count > out.len() {
        out.push(format!("and {} more", count - out.len()));
    }
    out.join(", ")
}

/// Lists names like [`list`], in printable form.
fn list_names(names: &[String], count: usize) -> String {
    let first = names.iter().take(10).map(|n| Printable(n));
    list(&first.collect::<Vec<_>>(), count)
}

/// The names of nodes that are listed for each unsupported op.
const NAMED_NODES: usize = 3;

/// The most unsupported ops that are listed in a text.
pub const LISTED_OPS: usize = 16;

/// The nodes of one op that are not supported for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedOp<'a> {
    /// The op as `Op`, or `domain.Op` outside of ONNX's own domain.
    pub op: &'a str,
    /// The version of the op's operator set, where the model imports it.
    pub opset: Option<i64>,
    /// The dtypes of the nodes' first operands, where they are known.
    pub dtypes: Vec<DType>,
    /// The property of the nodes that is not supported, where the op itself is.
    pub reason: Option<&'a str>,
    /// The names of the nodes.
    pub nodes: Vec<&'a str>,
}

impl UnsupportedOp<'_> {
    /// Advice to the user.
    pub fn advice(&self) -> &'static str {
        advice_on(self.op, self.reason)
    }
}

/// Groups nodes by op, version and reason, in the order of first appearance.
pub fn unsupported_ops(nodes: &[UnsupportedNode]) -> Vec<UnsupportedOp<'_>> {
    let mut groups: Vec<UnsupportedOp<'_>> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for n in nodes {
        let at = *known
            .entry((&n.op, n.opset, &n.reason))
            .or_insert(groups.len());
        if at == groups.len() {
            groups.push(UnsupportedOp {
                op: &n.op,
                opset: n.opset,
                dtypes: Vec::new(),
                reason: n.reason.as_deref(),
                nodes: Vec::new(),
            });
        }
        let new = n.dtype.filter(|d| !groups[at].dtypes.contains(d));
        groups[at].dtypes.extend(new);
        groups[at].nodes.push(&n.node);
    }
    groups
}

/// Lists the ops, each with the number and the first names of its nodes.
fn by_op(nodes: &[UnsupportedNode]) -> String {
    let one = |group: &UnsupportedOp<'_>| {
        let opset = group.opset.map(|v| format!(" of opset {v}"));
        let reason = group.reason.map(|r| format!(", {}", Printable(r)));
        let names = &group.nodes;
        let shown: Vec<String> = names
            .iter()
            .take(NAMED_NODES)
            .map(|n| Listed(n).to_string())
            .collect();
        let more = match names.len() - shown.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!(
            "{}{} ({}: {}{more}{})",
            Listed(group.op),
            opset.unwrap_or_default(),
            match names.len() {
                1 => "node".to_owned(),
                n => format!("{n} nodes"),
            },
            shown.join(", "),
            reason.unwrap_or_default()
        )
    };
    let groups = unsupported_ops(nodes);
    let (listed, further) = groups.split_at(groups.len().min(LISTED_OPS));
    let mut all: Vec<String> = listed.iter().map(one).collect();
    if !further.is_empty() {
        all.push(further_ops(
            further.len(),
            further.iter().map(|g| g.nodes.len()).sum(),
        ));
    }
    all.join("; ")
}

/// Says how many further ops are not supported, and how many nodes these have.
pub fn further_ops(ops: usize, nodes: usize) -> String {
    let count = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    format!(
        "and {}, {}",
        count(ops, "further operator"),
        count(nodes, "node")
    )
}

/// The advice for ops that ONNX Runtime made.
const BEFORE_ONNX_RUNTIME: &str = "load the model as it was before ONNX Runtime's optimizer or quantizer rewrote it, or at the level 'basic'";

/// How the names of the ops begin that its optimizer and its quantizers write in place of others. Exporters and converters write
/// the other ops of its domain.
const REWRITTEN: [&str; 24] = [
    "Attention",
    "Bias",
    "Bitmask",
    "ConvTransposeWithDynamicPads",
    "DecoderMasked",
    "Dequantize",
    "DynamicQuantize",
    "EmbedLayer",
    "FastGelu",
    "Fused",
    "GatedRelativePositionBias",
    "GatherBlockQuantized",
    "Gelu",
    "Gemm",
    "Group",
    "Longformer",
    "MatMul",
    "MultiHead",
    "Nhwc",
    "Q",
    "RotaryEmbedding",
    "SimplifiedLayer",
    "Skip",
    "TransposeMatMul",
];

/// The advice for ops on channels in blocks, which only the optimizer's highest level makes.
const BEFORE_BLOCKS: &str = "have ONNX Runtime's optimizer write the model at the level 'extended', which keeps ONNX's order of channels, or load it as it was before";

/// Why the channels of a block are not known.
pub(crate) const EITHER_WIDTH: &str = "weights whose blocks may be of 8 or 16 channels";

/// The advice for a model in blocks of channels of either width.
const WHICH_BLOCKS: &str = "say which with --nchwc-block (ModelBuilder::block_width): 16 if ONNX Runtime wrote the model on a processor with AVX-512 or of ARM, else 8; the wrong one gives wrong numbers, so compare results with known ones; or have it write the model at the level 'extended'";

/// Why something that reads or yields a map is not imported.
pub(crate) const OF_MAPS: &str = "only CastMap and DictVectorizer can read a map";

/// The advice for maps that others read.
const AS_TENSORS: &str =
    "give what the map holds as tensors, or have CastMap or DictVectorizer read it";

/// How the reason of a node begins whose patterns of strings no kernel takes.
pub const OF_PATTERNS: &str = "its pattern";

/// The advice on these.
const AS_RE2: &str = "write the pattern as RE2 has it, shorter or with fewer repetitions";

/// The advice for any other op.
const WITHOUT_THEM: &str =
    "export the model without them, or write kernels for them (docs/guide.md, \"Ops of your own\")";

/// The advice for ops that search for the best sequence of tokens with a decoder in their body.
const WITHOUT_SEARCH: &str =
    "export the decoder by itself, and choose tokens in the program that calls it";

/// The advice for ops on rows without padding, and for nodes that were compiled for another device.
const BEFORE_PACKING: &str = "load the model as it was before its rows were packed";
const BEFORE_COMPILATION: &str = "load the model that it was compiled from";

/// Endings of the reasons for nodes whose results have no fixed rank, because the sizes of inputs or computed values
/// decide it.
pub(crate) const RANK_OF_SIZES: &str = "its rank depends on sizes of inputs";
pub(crate) const RANK_OF_DATA: &str = "its rank depends on data";

/// The reasons of nodes on sequences and optional values that have no one rank.
pub(crate) const BRANCHES_DIFFER: &str = "its branches yield values of different kinds or ranks";
pub(crate) const ITERATIONS_DIFFER: &str =
    "what it carries is of another kind or rank after an iteration";
pub(crate) const TENSORS_DIFFER: &str = "the tensors of its sequence differ in rank";

/// The advice for results without a fixed rank.
const GIVE_SIZES: &str = "give the inputs with the model (--inputs FILE, `ModelBuilder::shape`), or export it with these \
                          sizes fixed, or with dynamo=True";
const KEEP_RANK: &str = "export the model so that this value has one rank: in both branches, in every iteration and in every \
                         call";

/// The reasons for a node whose result has as many axes as an operand has elements, where calls or computed values
/// decide that number.
pub(crate) const UNKNOWN_RANK: &str = "data decides the rank of its result";
pub(crate) const COMPUTED_RANK: &str = "data that is computed decides the rank of its result";

/// The advice on these.
const DECLARE_ONE: &str = "declare the rank of its result in the model, as onnx.shape_inference does where it knows it, \
                           or export the model so that it is fixed";
const DECLARE_RANK: &str = "declare the rank of its result with onnx.shape_inference, or give the inputs with the model \
                            (--inputs FILE, `ModelBuilder::shape`)";

/// Whether a graph lacks what decides the rank of a tensor, which a declaration may say. No declaration says how large the kernel `W`
/// of a convolution is.
fn is_of_rank(e: &GraphError) -> bool {
    matches!(e, GraphError::RankUnknown { operand, .. } if operand != "W")
}

/// Whether a graph lacks the sizes of a tensor that decide those of another.
fn is_of_sizes(e: &GraphError) -> bool {
    matches!(e, GraphError::RankUnknown { .. })
}

/// What the user can do about an op that is not supported.
fn advice_on(op: &str, reason: Option<&str>) -> &'static str {
    match reason {
        Some(UNKNOWN_RANK) => return DECLARE_RANK,
        Some(COMPUTED_RANK) => return DECLARE_ONE,
        Some(BRANCHES_DIFFER | ITERATIONS_DIFFER | TENSORS_DIFFER) => return KEEP_RANK,
        Some(reason) if reason.ends_with(RANK_OF_SIZES) => return GIVE_SIZES,
        Some(reason) if reason.ends_with(RANK_OF_DATA) => return KEEP_RANK,
        Some(EITHER_WIDTH) => return WHICH_BLOCKS,
        Some(OF_MAPS) => return AS_TENSORS,
        Some(reason) if reason.starts_with(OF_PATTERNS) => return AS_RE2,
        _ => {}
    }
    let own = op
        .strip_prefix("com.microsoft.")
        .or(op.strip_prefix("com.ms."));
    match own {
        None => WITHOUT_THEM,
        Some("BeamSearch" | "GreedySearch" | "Sampling" | "WhisperBeamSearch") => WITHOUT_SEARCH,
        Some(
            "PackedAttention"
            | "PackedMultiHeadAttention"
            | "PagedAttention"
            | "RemovePadding"
            | "RestorePadding",
        ) => BEFORE_PACKING,
        Some("EPContext") => BEFORE_COMPILATION,
        Some(blocked) if blocked.starts_with("nchwc.") => BEFORE_BLOCKS,
        Some(own) if REWRITTEN.iter().any(|name| own.starts_with(name)) => BEFORE_ONNX_RUNTIME,
        // ONNX Runtime's optimizer alone writes its other domains.
        Some(_) if op.starts_with("com.ms.") => BEFORE_ONNX_RUNTIME,
        Some(_) => WITHOUT_THEM,
    }
}

/// What the user can do about a model that has too many of something.
fn fewer(what: &str) -> &'static str {
    match what {
        "levels of functions" => "inline the functions of the model, as onnx.inliner does",
        "levels of branches and loops" | "levels of nesting" => {
            "export the model with fewer branches and loops within others"
        }
        "bytes of expanded functions" => {
            "export the model with fewer functions, branches and loops within others"
        }
        "bytes of expanded sparse tensors" => "store the sparse tensors as dense ones",
        "pieces of one tensor" => "store each tensor in one piece",
        "configurations of devices" | "stages of a pipeline" | "bytes of a device's name" => {
            "leave annotations of devices out of the model, or make fewer and shorter ones"
        }
        _ => "store weights as tensors, not as attributes or nodes",
    }
}

impl ModelError {
    /// The stable code of the error.
    pub fn code(&self) -> Code {
        match self {
            ModelError::Io { .. } | ModelError::NoCache => Code::Io,
            ModelError::Unsupported { .. }
            | ModelError::UnsupportedType { .. }
            | ModelError::Opset { .. } => Code::UnsupportedOp,
            ModelError::Given { .. }
            | ModelError::AwayFromData { .. }
            | ModelError::OverData { .. } => Code::InvalidArgument,
            ModelError::Graph { .. } => Code::InvalidGraph,
            _ => Code::InvalidModel,
        }
    }

    /// What the user can do about the error; empty where there is no advice.
    pub fn advice(&self) -> &'static str {
        use ModelError as E;
        match self {
            E::Missing { .. } => "check the path",
            E::NotAFile { .. } => "give the path of the model file itself",
            E::Io { .. } => "check permissions and free space",
            E::Changed { .. } => "wait until nothing writes to the file, then load the model again",
            E::LfsPointer { .. } => "run `git lfs pull` where the file comes from",
            E::NotOnnx { .. } => "export the model to ONNX, for example with torch.onnx.export",
            E::Truncated { .. } | E::Malformed { .. } => {
                "the file is incomplete or damaged; copy or download it again"
            }
            E::TooLarge { what, .. } => fewer(what),
            E::Opset { found, min, .. } if found < min => {
                "convert the model with onnx.version_converter, or export it again with a newer opset"
            }
            E::Opset { .. } => "export the model again with an older opset_version",
            E::NoOpset => {
                "the file is incomplete or was written by a broken exporter; run onnx.checker on it"
            }
            E::Input { .. } => {
                "give the inputs with the model (--inputs FILE, `ModelBuilder::input`), or export it with input shapes: \
                 dimensions may be symbolic, their number must be known"
            }
            E::Given { .. } => {
                "name inputs as the model does; `convoke check` lists them, and which of them are sequences or optional"
            }
            E::UnsupportedType { .. } => "export the model with dense tensors of numbers or bools",
            E::External { .. } => {
                "keep external data in the model's own folder and name it by a relative path"
            }
            E::AwayFromData { .. } => {
                "write it into the folder of the model, beside the files that hold its data"
            }
            E::OverData { .. } => "write it to a file of another name",
            E::MissingWeights {
                searched: false, ..
            } => "give the file that has them with --weights FILE.safetensors",
            E::MissingWeights { .. } => {
                "the weights files belong to another model, or one is missing"
            }
            E::WeightMismatch { .. } => "use the weights that were exported with this model",
            E::DuplicateWeight { .. } => "give each weight once",
            E::Safetensors { .. } => "the file is incomplete or damaged; copy or download it again",
            E::Unsupported { nodes } => {
                let on = |n: &UnsupportedNode| advice_on(&n.op, n.reason.as_deref());
                let advice = nodes.first().map(on);
                let of_all = advice.filter(|a| nodes.iter().all(|n| on(n) == *a));
                of_all.unwrap_or(WITHOUT_THEM)
            }
            E::NoCache => "set HOME or XDG_CACHE_HOME, or name a cache folder",
            E::Duplicate { .. } | E::Undefined { .. } | E::Cycle { .. } | E::Recursion { .. } => {
                "the exporter wrote an invalid graph; run onnx.checker on the file"
            }
            E::Graph { errors } if errors.iter().any(is_of_rank) => DECLARE_RANK,
            E::Graph { errors } if errors.iter().any(is_of_sizes) => GIVE_SIZES,
            E::Tensor { .. } | E::Attribute { .. } | E::Node { .. } | E::Graph { .. } => {
                "export the model again; onnx.checker may say more"
            }
        }
    }

    /// The first node that the error is about, and its op.
    fn node(&self) -> Option<(&str, &str)> {
        match self {
            ModelError::Unsupported { nodes } => nodes.first().map(|n| (&*n.node, &*n.op)),
            ModelError::Node { node, op, .. } | ModelError::Attribute { node, op, .. } => {
                Some((node, op))
            }
            ModelError::Graph { errors } => errors.iter().find_map(|e| match e {
                GraphError::Op { node, op, .. } | GraphError::RankUnknown { node, op, .. } => {
                    Some((&**node, &**op))
                }
                _ => None,
            }),
            _ => None,
        }
    }
}

impl From<ModelError> for Error {
    fn from(e: ModelError) -> Error {
        let error = Error::new(e.code(), e.to_string()).advise(e.advice());
        match e.node() {
            None => error,
            Some((node, op)) => error.at(Site {
                node: Some(node.into()),
                op: Some(op.into()),
                ..Site::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests;
