//! Builds a function from the decoded messages of a model.

use std::collections::{BTreeMap, HashMap, HashSet};

use convoke_graph::Dim;
use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::ops::{self, Op};
use prost::Message as _;

use super::builder::Builder;
use super::devices::{self, Origins};
use super::files::Files;
use super::inputs::{self, FixedSizes, GivenInput, GraphInput, sequence_name};
use super::nested::{self, Reads};
use super::normalize::{self, Block, ImportFailure, ImportedNode, Outputs};
use super::outputs::OutputForm;
use super::proto::{AttributeProto, ModelProto, NodeProto};
use super::scope::{Functions, Meaning, Scope, domain, functions, opsets};
use super::skeleton::Payload;
use super::{attrs, lengths, sort, tensor};
use crate::error::{COMPUTED_RANK, ModelError, UNKNOWN_RANK};

/// The supported versions of ONNX's own operator set.
pub(super) const OPSETS: std::ops::RangeInclusive<i64> = 1..=28;

/// Most nodes of a model, counting those of expanded functions.
const MAX_NODES: u64 = 1 << 20;

/// Functions and branches may expand to at most `EXPANDED` bytes of nodes and names, plus `EXPANSION` times the bytes
/// of the model's structure. A bound is needed because functions that call functions can grow by powers of two.
const EXPANDED: u64 = 4 << 20;
const EXPANSION: u64 = 1 << 10;
/// What they may expand to, besides, for each byte of content in the model's file: attributes of classical models are read
/// and become tables, of which some have wider elements.
const OF_CONTENT: u64 = 4;

/// The domain of classical models.
const LEARN: &str = "ai.onnx.ml";

/// Attributes of ops of ONNX that only Convoke's own programs and passes may set.
const OWN_ATTRS: [&str; 3] = ["kept", "packed_input_size", "refuse_empty"];

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
    /// By node of the outermost function, the address of the model's node that it came from. A node of a model-local function
    /// counts as the node that calls the function.
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

/// Imports the graph of `model`, which must have one. `given` says what is known of the inputs, and `fixed` which of their open
/// dimensions have a known size.
pub(super) fn import<'a>(
    model: &'a ModelProto,
    payloads: &'a [Payload],
    files: Files<'a>,
    given: &BTreeMap<String, GivenInput>,
    fixed: &FixedSizes,
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
        block: normalize::block_of(graph),
        count: 0,
        left: most,
        most,
        outputs: vec![],
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
            return Err(undefined(o.name(), user));
        }
        i.refuse_single(&meaning, o.name(), "the graph's output");
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

fn undefined(value: &str, user: &str) -> ModelError {
    ModelError::Undefined {
        value: value.into(),
        user: user.into(),
    }
}

impl<'a> Importer<'a> {
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
        // Where the graph is imported again, what was moved before no longer counts.
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

    /// What became of the nodes of `model`, which was imported.
    pub(super) fn origins(&self, model: &ModelProto) -> Origins {
        let nodes = self.b.f.nodes.iter().map(|n| n.name.clone());
        let nodes: Vec<_> = nodes.zip(self.came_from.iter().copied()).collect();
        model
            .graph
            .as_ref()
            .map_or(vec![], |g| devices::origins(g, &nodes))
    }

    /// The value that `name` stands for, or `None` for an optional operand that was left out. A constant becomes a
    /// literal when it is first read.
    pub(super) fn resolve(
        &mut self,
        name: &str,
        user: &str,
    ) -> Result<Option<ValueId>, ModelError> {
        for s in (0..self.scopes.len()).rev() {
            let scope = &mut self.scopes[s];
            let level = scope.level;
            if let Some(id) = scope.names.get(name).copied() {
                return Ok(id.map(|id| self.captured(id, level, self.enclosing.len())));
            }
            if let Some((key, constant)) = scope.pending.remove_entry(name) {
                let full = format!("{}{name}", scope.prefix);
                let id = self.initializer(constant, &full, level)?;
                self.scopes[s].names.insert(key, Some(id));
                return Ok(Some(self.captured(id, level, self.enclosing.len())));
            }
            if !scope.open {
                break;
            }
        }
        Err(undefined(name, user))
    }

    /// The sequence or optional value that `name` stands for; `None` where it is a tensor or nothing.
    pub(super) fn compound(&mut self, name: &str) -> Option<Meaning> {
        for s in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[s];
            if let Some(compound) = scope.compounds.get(name).cloned() {
                let (from, to) = (scope.level, self.enclosing.len());
                return Some(compound.map(&mut |id| self.captured(id, from, to)));
            }
            let known = scope.names.contains_key(name) || scope.pending.contains_key(name);
            if known || !scope.open {
                return None;
            }
        }
        None
    }

    /// Whether `name` stands for an optional value that holds nothing.
    pub(super) fn holds_nothing(&self, name: &str) -> bool {
        for scope in self.scopes.iter().rev() {
            if let Some(id) = scope.names.get(name) {
                return id.is_none();
            }
            let known = scope.compounds.contains_key(name) || scope.pending.contains_key(name);
            if known || !scope.open {
                break;
            }
        }
        false
    }

    /// What `name` stands for; an empty name stands for nothing.
    pub(super) fn meaning(&mut self, name: &str, user: &str) -> Result<Meaning, ModelError> {
        if name.is_empty() {
            return Ok(Meaning::Nothing);
        }
        if let Some(compound) = self.compound(name) {
            return Ok(compound);
        }
        let id = self.resolve(name, user)?;
        Ok(id.map_or(Meaning::Nothing, Meaning::Tensor))
    }

    /// Reports what must not be a scalar or a list of one number, depending on data.
    pub(super) fn refuse_single(&mut self, meaning: &Meaning, name: &str, user: &str) {
        if let Meaning::Tensor(id) = meaning
            && self.b.single.contains(id)
        {
            self.b.unsupported(name, user, Some(nested::REASON.into()));
        }
    }

    /// Adds the results of the function that an output of the graph is made of.
    fn output(&mut self, name: &str, meaning: Meaning) {
        let (mut optional, mut held) = (false, meaning);
        let results = &mut self.b.f.results;
        if let Meaning::Optional(has, what) = held {
            (optional, held) = (true, *what);
            results.push((format!("{name}.present"), has));
        }
        let mut add = |name: String, sequence: bool| {
            self.outputs.push(OutputForm {
                name,
                optional,
                sequence,
            });
        };
        match held {
            Meaning::Tensor(id) => {
                results.push((name.into(), id));
                add(name.into(), false);
            }
            Meaning::Packed(p) => {
                results.push((format!("{name}.elements"), p.data));
                results.push((format!("{name}.shapes"), p.shapes));
                add(name.into(), true);
            }
            Meaning::Sequence(all) => {
                for (at, id) in all.into_iter().enumerate() {
                    let name = sequence_name(name, at);
                    results.push((name.clone(), id));
                    add(name, false);
                }
            }
            Meaning::Nothing | Meaning::Optional(..) => {}
        }
    }

    /// The function that `level` others enclose.
    pub(super) fn builder(&mut self, level: usize) -> &mut Builder {
        self.enclosing.get_mut(level).unwrap_or(&mut self.b)
    }

    /// The value that stands for `id`, a value of the function that `from` others enclose, in the function that `to`
    /// others enclose.
    pub(super) fn captured(&mut self, mut id: ValueId, from: usize, to: usize) -> ValueId {
        for level in from + 1..=to {
            let (outer, inner) = self.enclosing.split_at_mut(level);
            let inner = inner.first_mut().unwrap_or(&mut self.b);
            id = inner.capture(&outer[level - 1], id);
        }
        id
    }

    /// Counts `n` nodes, or as many things that cost as much as a node.
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

    /// Counts `bytes` of what comes from an expanded function, branch or loop.
    pub(super) fn count_bytes(&mut self, bytes: u64) -> Result<(), ModelError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(ModelError::TooLarge {
            what: "bytes of expanded functions",
            limit: self.most,
        })?;
        Ok(())
    }

    fn node(&mut self, n: &'a NodeProto, index: usize) -> Result<(), ModelError> {
        self.count_nodes(1)?;
        let name = format!("{}{}", self.scope().prefix, sort::node_name(n, index));
        let domain = domain(n.domain());
        self.b.opset = self.opset(domain);
        self.b.operands.clear();
        let bound = self.bind_attributes(n);
        if self.scopes.len() > 1 {
            self.expand(&name, n, &bound)?;
        }
        let outputs = self.used_outputs(n);
        let called = self.functions.get(&(domain, n.op_type(), n.overload()));
        if let Some(f) = called.copied() {
            let inputs = n.input.iter().map(|i| self.meaning(i, &name));
            let inputs = inputs.collect::<Result<_, _>>()?;
            return self.call(f, &name, inputs, bound, outputs);
        }
        if self.of_sequences(&name, n, &bound)? {
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(n.input.len());
        for i in &n.input {
            inputs.push(if i.is_empty() {
                None
            } else {
                self.resolve(i, &name)?
            });
        }
        self.b.operands.extend(inputs.iter().flatten());
        let reads = match domain {
            "" => nested::reads(&self.b, n.op_type(), &inputs),
            _ => nested::reads(&self.b, "", &inputs),
        };
        if reads == Reads::Otherwise {
            let out = Err(ImportFailure::Unsupported(nested::REASON.into()));
            let out = self.reported(out, domain, n.op_type(), &name, outputs)?;
            return self.define_all(outputs, out);
        }
        let rank = n
            .output
            .first()
            .and_then(|o| self.scope().ranks.get(o.as_str()).copied());
        if let Some(open) = lengths::settle(&mut self.b, &name, n, &mut inputs, rank)? {
            let outermost = self.enclosing.first().unwrap_or(&self.b);
            let reason = match outermost.is_of_inputs(&open) {
                true => UNKNOWN_RANK,
                false => COMPUTED_RANK,
            };
            let out = Err(ImportFailure::Unsupported(reason.into()));
            let out = self.reported(out, domain, n.op_type(), &name, outputs)?;
            return self.define_all(outputs, out);
        }
        // Without axes, those that are 1 go; which of the open ones are is assumed.
        let named = bound
            .iter()
            .any(|(attr, a)| *attr == "axes" && !a.ints.is_empty());
        if let ("", "Squeeze", [Some(x)] | [Some(x), None], false) =
            (domain, n.op_type(), &*inputs, named)
            && let Some(ty) = self.b.ty(*x)
        {
            let open = ty.shape.iter().filter(|d| d.as_const().is_none());
            self.assumed_others.extend(open.cloned());
        }
        let out = match (domain, n.op_type()) {
            ("", "Constant") => self.constant(&name, outputs, &bound),
            ("", "If") => return self.branch(&name, n, &inputs, &bound),
            ("", "Loop") => return self.repeated(&name, n, &inputs, &bound),
            ("", "Scan") => return self.scanned(&name, n, &inputs, &bound),
            ("ai.onnx.preview", "FlexAttention") => {
                self.flex_attention(&name, inputs, &bound, outputs)
            }
            _ => self.op(domain, n.op_type(), &name, inputs, &bound, outputs),
        };
        let out = self.reported(out, domain, n.op_type(), &name, outputs)?;
        if reads == Reads::PassedOn {
            self.b.single.extend(&out);
        }
        self.define_all(outputs, out)
    }

    fn define_all(&mut self, outputs: &'a [String], ids: Vec<ValueId>) -> Result<(), ModelError> {
        for (o, id) in outputs.iter().zip(ids).filter(|(o, _)| !o.is_empty()) {
            self.scope().define(o, Some(id))?;
        }
        Ok(())
    }

    /// Counts the bytes of a node that comes from an expanded function or branch.
    fn expand(
        &mut self,
        name: &str,
        n: &NodeProto,
        bound: &[(&str, &AttributeProto)],
    ) -> Result<(), ModelError> {
        let attributes: usize = bound.iter().map(|(_, a)| a.encoded_len()).sum();
        let named = n.input.len() + 2 * n.output.len() + 1;
        let bytes = n.encoded_len() + attributes + named * name.len();
        self.count_bytes(bytes as u64)
    }

    /// The outputs up to the last one that something reads. All outputs of a Split are kept, since their number
    /// matters.
    fn used_outputs(&self, n: &'a NodeProto) -> &'a [String] {
        let optional = |o: &&String| o.is_empty() || !self.read.contains(o.as_str());
        let unread = n.output.iter().rev().take_while(optional).count();
        match n.op_type() {
            "Split" => &n.output,
            _ => &n.output[..(n.output.len() - unread).max(n.output.len().min(1))],
        }
    }

    /// The attributes of a node. References to attributes of the enclosing function are replaced by those, or dropped
    /// where the call does not set them.
    fn bind_attributes(&mut self, n: &'a NodeProto) -> Vec<(&'a str, &'a AttributeProto)> {
        let scope = self.scope();
        n.attribute
            .iter()
            .filter_map(|a| match a.ref_attr_name() {
                "" => Some((a.name(), a)),
                outer => Some((a.name(), *scope.attrs.get(outer)?)),
            })
            .collect()
    }

    /// Notes an unsupported node. Its outputs get placeholder values, so that the import continues and finds all other
    /// unsupported nodes.
    pub(super) fn reported(
        &mut self,
        out: Outputs,
        domain: &str,
        op: &str,
        name: &str,
        outputs: &[String],
    ) -> Result<Vec<ValueId>, ModelError> {
        match out {
            Ok(out) => Ok(out),
            Err(ImportFailure::Error(e)) => Err(e),
            Err(ImportFailure::Consequence) => Ok(self.b.stand_ins(outputs)),
            Err(ImportFailure::Unsupported(reason)) => {
                let op = if domain.is_empty() {
                    op.into()
                } else {
                    format!("{domain}.{op}")
                };
                let reason = Some(reason).filter(|r| !r.is_empty());
                self.b.unsupported(name, &op, reason);
                Ok(self.b.stand_ins(outputs))
            }
        }
    }

    /// The attributes of a node, in the graph's form.
    pub(super) fn attributes(
        &self,
        bound: &[(&str, &AttributeProto)],
    ) -> Result<Attrs, ImportFailure> {
        let mut attributes = Attrs::default();
        for (attr, a) in bound {
            let value = attrs::convert(a, self.payloads).map_err(|reason| {
                ImportFailure::Unsupported(format!("attribute '{attr}' {reason}"))
            })?;
            attributes.0.insert((*attr).into(), value);
        }
        Ok(attributes)
    }

    /// As [`Self::attributes`], with tensors of any size, which are read from the model's file.
    fn whole_attributes(
        &mut self,
        bound: &[(&str, &AttributeProto)],
    ) -> Result<Attrs, ImportFailure> {
        let is_tensor = |a: &AttributeProto| a.t.is_some();
        let small: Vec<_> = bound
            .iter()
            .filter(|(_, a)| !is_tensor(a))
            .copied()
            .collect();
        let mut attributes = self.attributes(&small)?;
        for (attr, a) in bound {
            if let Some(t) = &a.t {
                let c = tensor::constant(t, attr, self.payloads)?;
                if self.scopes.len() > 1 {
                    self.count_bytes(c.bytes)?;
                }
                let t = self.files.read(attr, &c)?;
                attributes.0.insert((*attr).into(), Attr::Tensor(t));
            }
        }
        Ok(attributes)
    }

    fn op(
        &mut self,
        domain: &str,
        op: &str,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        bound: &[(&str, &AttributeProto)],
        outputs: &[String],
    ) -> Outputs {
        let version = match self.opset(domain) {
            Some(v) => v,
            None => {
                return Err(ImportFailure::Unsupported(
                    "its operator set is not imported".into(),
                ));
            }
        };
        let custom = match domain {
            "" | "com.microsoft" | "com.microsoft.nchwc" => None,
            LEARN => ops::lookup(&format!("{domain}.{op}")),
            _ => match ops::lookup(&format!("{domain}.{op}")) {
                None => return Err(ImportFailure::Unsupported(String::new())),
                found => found,
            },
        };
        let own = ops::lookup(op).filter(|_| domain.is_empty());
        if own.is_some_and(|def| matches!(def.op, Op::Fused(_) | Op::Handle(_) | Op::Learn(_))) {
            return Err(ImportFailure::Unsupported(String::new()));
        }
        if let Some((attr, _)) = bound.iter().find(|(attr, _)| OWN_ATTRS.contains(attr)) {
            return Err(ImportFailure::Unsupported(format!("attribute '{attr}'")));
        }
        let graphs = |a: &AttributeProto| a.g.is_some() || !a.graphs.is_empty();
        if bound.iter().any(|(_, a)| graphs(a)) {
            return Err(ImportFailure::Unsupported("control flow".into()));
        }
        let attributes = match (domain, custom) {
            (LEARN, None) => self.whole_attributes(bound)?,
            _ => self.attributes(bound)?,
        };
        if outputs.is_empty() {
            return Ok(vec![]);
        }
        let outputs = self.full_names(outputs);
        let op = custom.map_or(op, |def| def.name);
        let (name, op) = (name.into(), op.into());
        let call = ImportedNode {
            name,
            op,
            inputs,
            attrs: attributes,
            outputs,
            opset: version,
        };
        match (domain, custom) {
            ("", _) if call.op == "TfIdfVectorizer" => normalize::tf_idf(self, call),
            ("", _) => normalize::standard(&mut self.b, call),
            (_, Some(_)) => call.emit(&mut self.b),
            (LEARN, None) => normalize::learned(self, call),
            ("com.microsoft.nchwc", _) => normalize::blocked(&mut self.b, call, self.block),
            _ if call.op == "DynamicQuantizeLSTM" => normalize::dynamic_lstm(self, call),
            _ => normalize::microsoft(&mut self.b, call),
        }
    }

    /// The version of the operator set of `domain` in the current scope; a branch uses that of the enclosing graph.
    fn opset(&self, domain: &str) -> Option<i64> {
        for s in self.scopes.iter().rev() {
            if let Some(v) = s.opsets.get(domain) {
                return Some(*v);
            }
            if !s.open {
                break;
            }
        }
        // Models that use ONNX Runtime's ops do not always import their domain.
        domain.starts_with("com.microsoft").then_some(1)
    }

    pub(super) fn full_names(&mut self, names: &[String]) -> Vec<String> {
        let prefix = self.scope().prefix.clone();
        let full = |n: &String| {
            if n.is_empty() {
                String::new()
            } else {
                format!("{prefix}{n}")
            }
        };
        names.iter().map(full).collect()
    }
}
