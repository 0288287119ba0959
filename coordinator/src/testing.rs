//! Graphs as text, for tests.
//!
//! ```text
//! param x: f32[n, 3]              weight w: f32[3, 4]         const two: i64[1] = 2
//! y, z = Split(x, two) {axis=1}   init p = PackGemmB(w)       result y
//! ```
//!
//! A weight is a range of one artifact without bytes. Attributes: `1`, `0.5`, `[1, 2]`, `"text"`, `@f32`, and `&name`
//! for a function that is given beside the text.
//! Types of node outputs are inferred. A node is named after its first output.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use convoke_common::rpc::{Intent, Numerics, PlanOptions, Profiles, Speed, WorkerCount};
use convoke_graph::artifact::{ArtifactMeta, CHUNK};
use convoke_graph::graph::{Attr, Attrs, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::program::Axes;
use convoke_graph::tensor::Tensor;
use convoke_graph::{DType, Dim, ops};

use crate::place::{ClusterModel, WorkerModel};

/// Parses the function that `text` describes, with inferred types, and verifies it.
pub fn parse(text: &str) -> Function {
    parse_with(text, &[])
}

/// As [`parse`]; attributes may name these functions.
pub fn parse_with(text: &str, functions: &[(&str, &Function)]) -> Function {
    let functions = functions.iter();
    let functions = functions.map(|(name, f)| (name.to_string(), Arc::new(Function::clone(f))));
    let mut b = Builder {
        functions: functions.collect(),
        ..Builder::default()
    };
    text.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .for_each(|l| b.line(l));
    let mut f = b.f;
    if b.bytes > 0 {
        // No two chunks are equal; those of another function are.
        let chunks = (0..b.bytes.div_ceil(CHUNK)).map(|i| [i as u8; 32]);
        let chunks = chunks.collect();
        f.artifacts = vec![ArtifactMeta::new("weights".into(), b.bytes, chunks)];
    }
    f.name = "test".into();
    ops::infer_types(&mut f).unwrap_or_else(|e| panic!("{e:?} in\n{text}"));
    f.verify().unwrap_or_else(|e| panic!("{e} in\n{text}"));
    f
}

#[derive(Default)]
struct Builder {
    f: Function,
    names: BTreeMap<String, ValueId>,
    functions: BTreeMap<String, Arc<Function>>,
    bytes: u64,
}

impl Builder {
    fn line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "param" => {
                let id = self.declare(rest);
                self.f.params.push(id);
            }
            "weight" => {
                let id = self.declare(rest);
                let len = ops::value_bytes(self.f.ty(id), &Default::default()).unwrap();
                let literal = Literal::Range {
                    artifact: 0,
                    offset: self.bytes,
                    len,
                };
                self.f.literals.push((id, literal));
                self.bytes += len;
            }
            "const" => {
                let (decl, values) = rest.split_once('=').unwrap();
                let id = self.declare(decl);
                let tensor = tensor(self.f.ty(id), values);
                self.f.literals.push((id, Literal::Inline(tensor)));
            }
            "result" => {
                let id = self.names[rest.trim()];
                self.f.results.push((rest.trim().into(), id));
            }
            "init" => self.node(rest, RunsAt::Init),
            _ => self.node(line, RunsAt::Step),
        }
    }

    fn declare(&mut self, decl: &str) -> ValueId {
        let (name, ty) = decl.split_once(':').unwrap();
        self.value(name.trim(), parse_type(ty.trim()))
    }

    fn value(&mut self, name: &str, ty: TensorType) -> ValueId {
        let id = self.f.add_value(name, ty);
        assert!(self.names.insert(name.into(), id).is_none(), "{name} twice");
        id
    }

    fn node(&mut self, line: &str, runs_at: RunsAt) {
        let (outputs, rest) = line.split_once('=').unwrap();
        let (op, rest) = rest.trim().split_once('(').unwrap();
        let (inputs, rest) = rest.split_once(')').unwrap();
        let operand = |name: &str| match name {
            "_" => None,
            name => Some(*self.names.get(name).unwrap_or_else(|| panic!("no {name}"))),
        };
        let inputs = list(inputs).map(operand).collect();
        let attrs = rest.trim().trim_start_matches('{').trim_end_matches('}');
        let attrs = attrs.split(';').filter(|a| !a.trim().is_empty()).map(|a| {
            let (name, value) = a.split_once('=').unwrap();
            let value = value.trim();
            let function = value.strip_prefix('&').map(|f| self.functions[f].clone());
            let value = function.map_or_else(|| attr(value), Attr::Function);
            (name.trim().into(), value)
        });
        let attrs = Attrs(attrs.collect());
        let unknown = TensorType::new(DType::F32, vec![]);
        let outputs: Vec<ValueId> = list(outputs)
            .map(|o| self.value(o, unknown.clone()))
            .collect();
        let name = self.f.value(outputs[0]).name.clone();
        self.f.nodes.push(Node {
            name,
            op: op.into(),
            attrs,
            inputs,
            outputs,
            runs_at,
        });
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|s| !s.is_empty())
}

fn dtype(name: &str) -> DType {
    DType::ALL
        .into_iter()
        .find(|d| d.name() == name)
        .unwrap_or_else(|| panic!("dtype {name}"))
}

fn parse_type(text: &str) -> TensorType {
    let (d, dims) = text.trim_end_matches(']').split_once('[').unwrap();
    let dim = |d: &str| d.parse::<i64>().map_or_else(|_| Dim::sym(d), Dim::Const);
    TensorType::new(dtype(d), list(dims).map(dim).collect())
}

fn tensor(ty: &TensorType, values: &str) -> Tensor {
    let shape = ty.fixed_shape().unwrap();
    match ty.dtype {
        DType::F32 => {
            let v: Vec<f32> = list(values).map(|v| v.parse().unwrap()).collect();
            Tensor::from_slice(&shape, &v).unwrap()
        }
        DType::I64 => {
            let v: Vec<i64> = list(values).map(|v| v.parse().unwrap()).collect();
            Tensor::from_slice(&shape, &v).unwrap()
        }
        DType::Bool => {
            let v: Vec<bool> = list(values).map(|v| v.parse().unwrap()).collect();
            Tensor::from_bools(&shape, &v).unwrap()
        }
        other => panic!("no constants of {other} in tests"),
    }
}

fn attr(text: &str) -> Attr {
    if let Some(d) = text.strip_prefix('@') {
        return Attr::DType(dtype(d));
    }
    if let Some(s) = text.strip_prefix('"') {
        return Attr::Str(s.trim_end_matches('"').into());
    }
    if text.starts_with("[\"") {
        let items = text.trim_matches(['[', ']']);
        return Attr::Strs(list(items).map(|s| s.trim_matches('"').into()).collect());
    }
    if let Some(items) = text.strip_prefix('[') {
        return Attr::Ints(
            list(items.trim_end_matches(']'))
                .map(|v| v.parse().unwrap())
                .collect(),
        );
    }
    text.parse()
        .map_or_else(|_| Attr::Float(text.parse().unwrap()), Attr::Int)
}

/// Formats the nodes and results of a function as text.
pub fn dump(f: &Function) -> String {
    let mut out = String::new();
    let name = |v: &ValueId| f.value(*v).name.to_string();
    for n in &f.nodes {
        let init = if n.runs_at == RunsAt::Init {
            "init "
        } else {
            ""
        };
        let outputs: Vec<String> = n.outputs.iter().map(name).collect();
        let inputs: Vec<String> = n
            .inputs
            .iter()
            .map(|v| v.as_ref().map_or("_".into(), name))
            .collect();
        write!(
            out,
            "{init}{} = {}({})",
            outputs.join(", "),
            n.op,
            inputs.join(", ")
        )
        .unwrap();
        let attrs: Vec<String> = n
            .attrs
            .0
            .iter()
            .map(|(k, v)| format!("{k}={}", show(v)))
            .collect();
        if !attrs.is_empty() {
            write!(out, " {{{}}}", attrs.join("; ")).unwrap();
        }
        out.push('\n');
    }
    f.results
        .iter()
        .for_each(|(n, v)| writeln!(out, "result {n} = {}", name(v)).unwrap());
    out
}

fn show(a: &Attr) -> String {
    match a {
        Attr::Int(v) => v.to_string(),
        Attr::Float(v) => format!("{v:?}"),
        Attr::Str(v) => format!("{v:?}"),
        Attr::Ints(v) => format!("{v:?}"),
        Attr::DType(d) => format!("@{d}"),
        Attr::Function(f) => format!("{} nodes", f.nodes.len()),
        other => format!("{other:?}"),
    }
}

/// Removes indentation and empty lines from `text`.
pub fn dedent(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .map(|l| format!("{l}\n"))
        .collect()
}

/// Returns a cluster of `n` equal workers `w0`, `w1`, … with `memory` bytes each.
pub fn cluster(n: usize, memory: u64) -> ClusterModel {
    let speed = Speed {
        flops: 1e11,
        memory_bandwidth: 1e10,
    };
    let worker = |i: usize| WorkerModel {
        threads: 2,
        ..WorkerModel::cpu(i as u64, memory, speed)
    };
    ClusterModel::new((0..n).map(worker).collect())
}

/// Returns options in which every axis of `f` is bounded by 8.
pub fn options(f: &Function, workers: WorkerCount) -> PlanOptions {
    let mut symbols = Default::default();
    f.params
        .iter()
        .flat_map(|p| &f.ty(*p).shape)
        .for_each(|d| d.symbols(&mut symbols));
    let axes = Axes {
        bounds: symbols.into_iter().map(|s| (s, 8)).collect(),
    };
    PlanOptions {
        intent: Intent::Install,
        workers,
        pins: vec![],
        stages: vec![],
        list_nodes: false,
        axes,
        tighter: vec![],
        expected: vec![],
        numerics: Numerics::Standard,
        in_flight: 1,
        avoid: vec![],
        ops: vec![],
        profiles: Profiles::Uniform,
    }
}

/// A repeatable sequence of numbers (Knuth's MMIX generator).
pub struct Lcg(pub u64);

impl Lcg {
    /// Returns the next number, below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }
}

/// Returns a random function of about `nodes` nodes: unary and binary steps, matrix products, init chains, values that
/// are used often or never, and results of every kind.
pub fn random(seed: u64, nodes: usize) -> Function {
    let mut r = Lcg(seed);
    let mut text = String::from("param a: f32[n, 16]\nparam b: f32[n, 16]\nparam unused: f32[4]\n");
    let (mut flows, mut weights) = (vec!["a".to_string(), "b".to_string()], Vec::new());
    for i in 0..3 {
        writeln!(text, "weight m{i}: f32[16, 16]\nweight v{i}: f32[16]").unwrap();
        weights.push(format!("v{i}"));
    }
    for i in 0..nodes {
        let flow = |r: &mut Lcg, flows: &[String]| {
            flows[flows.len() - 1 - r.below(flows.len().min(12))].clone()
        };
        let x = flow(&mut r, &flows);
        match r.below(8) {
            0 => {
                let (a, b) = (r.below(weights.len()), r.below(weights.len()));
                writeln!(text, "init c{i} = Mul({}, {})", weights[a], weights[b]).unwrap();
                weights.push(format!("c{i}"));
                continue;
            }
            1 => writeln!(text, "s{i} = MatMul({x}, m{})", r.below(3)).unwrap(),
            2 => writeln!(text, "s{i} = Add({x}, {})", weights[r.below(weights.len())]).unwrap(),
            3 => writeln!(text, "s{i} = Relu({x})").unwrap(),
            4 => writeln!(text, "s{i} = Tanh({x})").unwrap(),
            _ => writeln!(text, "s{i} = Add({x}, {})", flow(&mut r, &flows)).unwrap(),
        }
        flows.push(format!("s{i}"));
    }
    for _ in 0..3 {
        writeln!(text, "result {}", flows[r.below(flows.len())]).unwrap();
    }
    writeln!(
        text,
        "result {}\nresult {}",
        flows[flows.len() - 1],
        weights[weights.len() - 1]
    )
    .unwrap();
    parse(&text)
}

/// A GELU of the nodes `a` to `h`, which only one branch of an `If` reads.
pub fn gelu_of_one_branch() -> Function {
    let branch = |op: &str| parse(&format!("param h: f32[8]\n y = {op}(h)\n result y"));
    let text = "param c: bool[]
         param x: f32[8]
         const root: f32[] = 1.4142135
         const one: f32[] = 1
         const half: f32[] = 0.5
         a = Div(x, root)
         b = Erf(a)
         d = Add(b, one)
         e = Mul(x, d)
         h = Mul(e, half)
         z = If(c, h) {then_branch=&yes; else_branch=&no}
         result z";
    parse_with(text, &[("yes", &branch("Relu")), ("no", &branch("Neg"))])
}
