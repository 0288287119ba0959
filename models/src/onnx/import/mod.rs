//! Builds a function from the decoded messages of a model.

mod maps;
mod names;
mod node;

use std::collections::{BTreeMap, HashMap, HashSet};

use convoke_graph::graph::{TensorType, ValueId};
use convoke_graph::{Dim, Printable};
use prost::Message as _;

use super::builder::Builder;
use super::devices::{self, Origins};
use super::files::Files;
use super::inputs::{self, FixedSizes, GivenInput, GraphInput, map_names, sequence_name};
use super::normalize::{self, Block, BlockWidth};
use super::outputs::OutputForm;
use super::proto::{ModelProto, NodeProto};
use super::scope::{Functions, Meaning, Scope, functions, opsets};
use super::skeleton::Payload;
use super::{lengths, sort};
use crate::error::ModelError;

/// The supported versions of ONNX's own operator set.
pub(super) const OPSETS: std::ops::RangeInclusive<i64> = 1..=28;

/// Most nodes of a model, counting those of expanded functions.
const MAX_NODES: u64 = 1 << 20;

/// Functions and branches may expand to at most `EXPANDED` bytes of nodes and names, plus `EXPANSION` times the bytes
/// of the model's structure. A bound is needed because functions that call functions can grow by powers of two.
const EXPANDED: u64 = 4 << 20;
const EXPANSION: u64 = 1 << 10;
/// Further bytes that nodes may expand to, for each byte of content in the model's file. Attributes of classical models
/// become tables, some of which have wider elements than the file.
const OF_CONTENT: u64 = 4;

pub(super) struct Importer<'a> {
    /// The function that nodes are added to.
    pub b: Builder,
    /// The functions that enclose it, where it is one that a control-flow op runs; the outermost one first.
    pub(super) enclosing: Vec<Builder>,
    pub files: Files<'a>,
    pub(super) payloads: &'a [Payload],
    pub(super) functions: Functions<'a>,
    pub(super) scopes: Vec<Scope<'a>>,
    /// The constants of the outermost function that stand for constants of the functions in it, by the address of the
    /// message that has them and their full names.
    pub(super) outermost: HashMap<(usize, String), ValueId>,
    /// The type of each constant that is decoded into the sidecar, and the index of the job that decodes it, by the
    /// address of the message that has it. A function that is expanded again uses what its first copy decodes.
    pub(super) decoded: HashMap<usize, (TensorType, usize)>,
    /// The nodes that are imported as part of a branch, by the address of the branch.
    pub(super) moved: HashMap<usize, Vec<&'a NodeProto>>,
    /// By node of the outermost function, the address of the model's node that it came from. A node of a model-local
    /// function counts as the node that calls the function.
    came_from: Vec<usize>,
    /// Number of symbols made so far.
    pub(super) symbols: usize,
    /// Every name that something reads.
    pub(super) read: HashSet<&'a str>,
    /// The channels of a block in ONNX Runtime's blocked layout.
    block: Block,
    /// Number of nodes so far, including those of expanded functions.
    count: u64,
    /// Bytes that expanded nodes may still take, and the limit that they started from.
    left: u64,
    most: u64,
    /// How the model's outputs are made of the function's results.
    pub(super) outputs: Vec<OutputForm>,
    /// Remarks on what differs from the model's file, one sentence each.
    pub(super) remarks: Vec<String>,
    /// The dimensions that must be 1, since the rank of a tensor was taken for that size.
    pub(super) assumed_ones: Vec<Dim>,
    /// The dimensions that must not be 1, for the same reason.
    pub(super) assumed_others: Vec<Dim>,
}

/// The sizes that are given for the symbols of the inputs of `model`.
pub(super) fn given_sizes(
    model: &ModelProto,
    given: &BTreeMap<String, GivenInput>,
) -> Result<FixedSizes, ModelError> {
    let graph = model.graph.as_ref().ok_or(ModelError::NoOpset)?;
    let mut scope = Scope::default();
    scope.add_initializers(graph)?;
    let inputs = inputs::types(graph, &scope.pending, given, &FixedSizes::new())?;
    Ok(inputs::given_sizes(&inputs, given))
}

/// Imports the graph of `model`, which must have one. `given` says what is known of the inputs, and `fixed` which of
/// their open dimensions have a known size.
pub(super) fn import<'a>(
    model: &'a ModelProto,
    payloads: &'a [Payload],
    files: Files<'a>,
    given: &BTreeMap<String, GivenInput>,
    fixed: &FixedSizes,
    block_width: Option<BlockWidth>,
) -> Result<Importer<'a>, ModelError> {
    let Some(graph) = &model.graph else {
        return Err(ModelError::NoOpset);
    };
    let mut scope = Scope {
        opsets: opsets(&model.opset_import),
        ranks: lengths::declared(graph.value_info.iter().chain(&graph.output)),
        ..Scope::default()
    };
    if !scope.opsets.contains_key("") {
        if scope.opsets.is_empty() {
            return Err(ModelError::NoOpset);
        }
        // The model has no version of ONNX's own domain, so its nodes use other domains or model-local functions.
        scope.opsets.insert("", *OPSETS.end());
    }
    check_opset(scope.opsets[""])?;
    scope.add_initializers(graph)?;
    let mut read = HashSet::new();
    let nodes = model
        .functions
        .iter()
        .flat_map(|f| &f.node)
        .chain(&graph.node);
    nodes.for_each(|n| {
        sort::all_reads(n, &mut |name| {
            read.insert(name);
        })
    });
    read.extend(graph.output.iter().map(|o| o.name()));
    read.extend(
        model
            .functions
            .iter()
            .flat_map(|f| f.output.iter().map(String::as_str)),
    );
    let content: u64 = payloads.iter().map(Payload::stored_len).sum();
    let most = EXPANDED
        .saturating_add(EXPANSION.saturating_mul(model.encoded_len() as u64))
        .saturating_add(OF_CONTENT.saturating_mul(content));
    let inputs = inputs::types(graph, &scope.pending, given, fixed)?;
    // An input that calls feed takes the place of its default.
    for (name, _) in &inputs {
        scope.pending.remove(name);
    }
    let mut i = Importer {
        b: Builder::new(graph.name()),
        enclosing: vec![],
        files,
        payloads,
        functions: functions(&model.functions)?,
        scopes: vec![],
        outermost: HashMap::new(),
        decoded: HashMap::new(),
        moved: HashMap::new(),
        came_from: vec![],
        symbols: 0,
        read,
        block: normalize::block_of(graph, block_width),
        count: 0,
        left: most,
        most,
        outputs: vec![],
        remarks: vec![],
        assumed_ones: vec![],
        assumed_others: vec![],
    };
    for (name, input) in inputs {
        let meaning = match input {
            GraphInput::Tensor(ty) => Meaning::Tensor(i.b.param(name, ty)),
            GraphInput::Nothing => Meaning::Nothing,
            GraphInput::Sequence(types) => {
                let each = types.into_iter().enumerate();
                let each = each.map(|(at, ty)| i.b.param(&sequence_name(name, at), ty));
                Meaning::Sequence(each.collect())
            }
            GraphInput::Map(types) => {
                let names = map_names(name);
                let [a, b] = &names;
                let remark = format!(
                    "input '{}' is a map, which is given as two lists of one length: its keys '{}' and its values '{}'",
                    Printable(name),
                    Printable(a),
                    Printable(b)
                );
                let further =
                    "further inputs are maps, which are given as their keys and their values";
                i.remark("is a map, which", remark, further);
                let [key, value] = *types;
                let (keys, values) = (i.b.param(a, key), i.b.param(b, value));
                Meaning::Map { keys, values }
            }
        };
        scope.define_as(name, meaning)?;
    }
    i.scopes.push(scope);
    i.nodes(
        graph.node.iter().collect(),
        graph.output.iter().map(|o| o.name()),
    )?;
    for o in &graph.output {
        let user = "the graph's outputs";
        let meaning = i.meaning(o.name(), user)?;
        if meaning == Meaning::Nothing {
            return Err(names::undefined(o.name(), user));
        }
        i.refuse_single(&meaning, o.name(), "the graph's output");
        let meaning = i.refuse_map(meaning, o.name(), "the graph's output");
        i.output(o.name(), meaning);
    }
    Ok(i)
}

pub(super) fn check_opset(found: i64) -> Result<(), ModelError> {
    if OPSETS.contains(&found) {
        return Ok(());
    }
    Err(ModelError::Opset {
        found,
        min: *OPSETS.start(),
        max: *OPSETS.end(),
    })
}

/// The most remarks of one kind, before one that speaks of all others.
const MOST_REMARKS: usize = 16;

impl<'a> Importer<'a> {
    /// Adds a remark of the kind whose remarks have the words `kind`, once. `further` stands for those beyond the first
    /// ones.
    pub(super) fn remark(&mut self, kind: &str, remark: String, further: &str) {
        let alike = self.remarks.iter().filter(|r| r.contains(kind)).count();
        let is_known = |remark: &str| self.remarks.iter().any(|r| r == remark);
        match alike < MOST_REMARKS {
            _ if is_known(&remark) || is_known(further) => {}
            true => self.remarks.push(remark),
            false => self.remarks.push(further.to_owned()),
        }
    }

    pub(super) fn scope(&mut self) -> &mut Scope<'a> {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Imports the nodes that `results` depend on, except those that only one branch needs, which are imported with it.
    /// A node that nothing needs is checked for the names of its outputs only.
    pub(super) fn nodes(
        &mut self,
        nodes: Vec<&'a NodeProto>,
        results: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), ModelError> {
        let order = sort::order(&nodes)?;
        let needed = sort::needed(&nodes, &order, results.clone());
        let branches = self.of_branches(&nodes, &order, &needed, results);
        let mut moved: HashMap<usize, Vec<&NodeProto>> = HashMap::new();
        for i in &order {
            if let Some(branch) = branches[*i] {
                moved.entry(branch).or_default().push(nodes[*i]);
            }
        }
        // If the graph is imported again, the nodes that were moved before no longer count.
        let nested = nodes.iter().flat_map(|n| &n.attribute);
        for g in nested.filter_map(|a| a.g.as_ref()) {
            self.moved.remove(&(std::ptr::from_ref(g) as usize));
        }
        self.moved.extend(moved);
        for i in order {
            match branches[i] {
                Some(_) => {}
                None if needed[i] => {
                    self.node(nodes[i], i)?;
                    self.note_origin(nodes[i]);
                }
                None => {
                    self.count_nodes(1)?;
                    for output in nodes[i].output.iter().filter(|o| !o.is_empty()) {
                        self.scope().define(output, None)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes that the newest nodes of the outermost function came from `node`.
    fn note_origin(&mut self, node: &NodeProto) {
        if self.enclosing.is_empty() && self.scopes.iter().all(|s| s.function.is_none()) {
            let address = std::ptr::from_ref(node) as usize;
            self.came_from.resize(self.b.f.nodes.len(), address);
        }
    }

    /// Returns which nodes of the function each node of `model` became.
    pub(super) fn origins(&self, model: &ModelProto) -> Origins {
        let nodes = self.b.f.nodes.iter().map(|n| n.name.clone());
        let nodes: Vec<_> = nodes.zip(self.came_from.iter().copied()).collect();
        model
            .graph
            .as_ref()
            .map_or(vec![], |g| devices::origins(g, &nodes))
    }

    /// Counts `n` nodes, or `n` other items that cost as much as a node.
    pub(super) fn count_nodes(&mut self, n: usize) -> Result<(), ModelError> {
        self.count = self.count.saturating_add(n as u64);
        if self.count > MAX_NODES {
            return Err(ModelError::TooLarge {
                what: "nodes",
                limit: MAX_NODES,
            });
        }
        Ok(())
    }

    /// Counts `bytes` of nodes that come from an expanded function, branch or loop.
    pub(super) fn count_bytes(&mut self, bytes: u64) -> Result<(), ModelError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(ModelError::TooLarge {
            what: "bytes of expanded functions",
            limit: self.most,
        })?;
        Ok(())
    }
}
