//! Builds a random function.
//!
//! All values are matrices `[rows, cols]`, so that any two can be combined; the rows may be the dynamic axis.

use convoke_graph::dim::Dim;
use convoke_graph::graph::{Attrs, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::infer_types;
use convoke_graph::{DType, Tensor};

use super::{ModelSpec, TRAP, Trap, control, ops};
use crate::draw::Draw;

/// The most results of a function.
const RESULTS: usize = 5;

/// The size of the outermost axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    Dynamic,
    Fixed(usize),
}

impl Rows {
    pub fn dim(self) -> Dim {
        match self {
            Rows::Dynamic => Dim::sym("n"),
            Rows::Fixed(n) => Dim::from(n),
        }
    }
}

/// An f32 matrix that further nodes may read.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveMatrix {
    pub id: ValueId,
    pub rows: Rows,
    pub cols: usize,
    used: bool,
}

/// A function under construction.
pub(super) struct Build {
    f: Function,
    pub draw: Draw,
    pub live: Vec<LiveMatrix>,
}

/// Builds the function of `spec`.
pub(super) fn function(spec: ModelSpec) -> Function {
    let mut b = Build {
        f: Function {
            name: format!("m{:x}", spec.seed & 0xffff),
            ..Function::default()
        },
        draw: Draw::new(spec.seed),
        live: vec![],
    };
    let rows = match spec.dynamic {
        true => Rows::Dynamic,
        false => Rows::Fixed(b.draw.range(1, 6) as usize),
    };
    let widths: &[usize] = if spec.wide {
        &[2048, 3072, 4096]
    } else {
        &[4, 8, 16]
    };
    for i in 0..b.draw.range(1, 3) {
        let rows = match i {
            0 => rows,
            _ if b.draw.chance(50) => rows,
            _ => Rows::Fixed(b.draw.range(1, 6) as usize),
        };
        let cols = b.draw.pick(widths);
        b.param(&format!("x{i}"), rows, cols);
    }
    let trap_at = b.draw.below(u64::from(spec.nodes)) as usize;
    let mut wanted = vec![];
    for i in 0..usize::from(spec.nodes) {
        if let (true, Some(trap)) = (i == trap_at, spec.trap) {
            wanted.push(b.trap(trap));
        }
        ops::grow(&mut b);
    }
    if spec.tables > 0 {
        wanted.push(control::tables(&mut b, spec.tables));
    }
    b.finish(wanted)
}

impl Build {
    fn param(&mut self, name: &str, rows: Rows, cols: usize) {
        let ty = TensorType::new(DType::F32, vec![rows.dim(), Dim::from(cols)]);
        let id = self.f.add_value(name, ty);
        self.f.params.push(id);
        self.push(id, rows, cols);
    }

    fn other_param(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        let id = self.f.add_value(name, TensorType::fixed(dtype, shape));
        self.f.params.push(id);
        id
    }

    /// Adds a constant.
    pub fn literal(&mut self, tensor: Tensor) -> ValueId {
        let ty = TensorType::fixed(tensor.dtype(), tensor.shape());
        let name = format!("c{}", self.f.values.len());
        let id = self.f.add_value(name, ty);
        self.f.literals.push((id, Literal::Inline(tensor)));
        id
    }

    /// Adds a constant of small random numbers.
    pub fn weights(&mut self, shape: &[usize]) -> ValueId {
        let n = shape.iter().product();
        let data: Vec<f32> = (0..n).map(|_| self.small()).collect();
        self.literal(Tensor::from_slice(shape, &data).expect("few elements"))
    }

    /// Adds a constant vector of i64.
    pub fn ints(&mut self, ints: &[i64]) -> ValueId {
        self.literal(Tensor::from_slice(&[ints.len()], ints).expect("few elements"))
    }

    fn small(&mut self) -> f32 {
        self.draw.below(4001) as f32 / 1000. - 2.
    }

    /// Adds a node with `outputs` outputs. Their types are inferred at the end.
    pub fn node(
        &mut self,
        op: &str,
        attrs: Attrs,
        inputs: &[ValueId],
        outputs: usize,
    ) -> Vec<ValueId> {
        let name = format!("n{}", self.f.nodes.len());
        self.named(&name, op, attrs, inputs, outputs)
    }

    fn named(
        &mut self,
        name: &str,
        op: &str,
        attrs: Attrs,
        inputs: &[ValueId],
        outputs: usize,
    ) -> Vec<ValueId> {
        for live in self.live.iter_mut().filter(|l| inputs.contains(&l.id)) {
            live.used = true;
        }
        let untyped = || TensorType::fixed(DType::F32, &[]);
        let outputs: Vec<ValueId> = (0..outputs)
            .map(|o| self.f.add_value(format!("{name}.{o}"), untyped()))
            .collect();
        self.f.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            attrs,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: outputs.clone(),
            runs_at: RunsAt::Step,
        });
        outputs
    }

    /// Adds a node with one output and no attributes.
    pub fn apply(&mut self, op: &str, inputs: &[ValueId]) -> ValueId {
        self.node(op, Attrs::default(), inputs, 1)[0]
    }

    /// Makes `id` available as an operand of further nodes.
    pub fn push(&mut self, id: ValueId, rows: Rows, cols: usize) {
        let used = false;
        self.live.push(LiveMatrix {
            id,
            rows,
            cols,
            used,
        });
    }

    /// Draws an operand. Recent values make chains, and arbitrary values make fan-out.
    pub fn operand(&mut self) -> LiveMatrix {
        let n = self.live.len() as u64;
        let back = if self.draw.chance(60) { n.min(2) } else { n };
        self.live[(n - 1 - self.draw.below(back)) as usize]
    }

    /// Adds the node that fails on demand, and returns its output.
    fn trap(&mut self, trap: Trap) -> ValueId {
        let x = self.operand();
        match trap {
            Trap::Index => {
                let which = self.other_param("which", DType::I64, &[2]);
                let table = self.weights(&[5, 8]);
                let y = self.named(TRAP, "Gather", Attrs::default(), &[table, which], 1)[0];
                self.push(y, Rows::Fixed(2), 8);
                y
            }
            Trap::Divide => {
                let by = self.other_param("divisor", DType::I32, &[1]);
                let to =
                    |dtype| Attrs::default().with("to", convoke_graph::graph::Attr::DType(dtype));
                let whole = self.node("Cast", to(DType::I32), &[x.id], 1)[0];
                let y = self.named(TRAP, "Div", Attrs::default(), &[whole, by], 1)[0];
                let y = self.node("Cast", to(DType::F32), &[y], 1)[0];
                self.push(y, x.rows, x.cols);
                y
            }
            Trap::Memory => {
                let size = self.other_param("size", DType::I64, &[1]);
                let y = self.named(TRAP, "ConstantOfShape", Attrs::default(), &[size], 1)[0];
                let keep = Attrs::default().with("keepdims", convoke_graph::graph::Attr::Int(0));
                let sum = self.node("ReduceSum", keep, &[y], 1)[0];
                let y = self.apply("Add", &[x.id, sum]);
                self.push(y, x.rows, x.cols);
                y
            }
        }
    }

    /// Ends the function, whose results are `results` and some of its other values.
    fn finish(mut self, mut results: Vec<ValueId>) -> Function {
        let is_param = |id: &ValueId| self.f.params.contains(id);
        let ends = self.live.iter().filter(|l| !l.used).map(|l| l.id);
        results.extend(ends.filter(|id| !is_param(id)));
        results.dedup();
        results.truncate(RESULTS - 1);
        // One more result is a value that other nodes may read as well, and now and then a parameter.
        let any = self.draw.index(self.live.len());
        results.extend(any.map(|i| self.live[i].id));
        self.f.results = results
            .into_iter()
            .enumerate()
            .map(|(i, id)| (format!("r{i}"), id))
            .collect();
        infer_types(&mut self.f)
            .unwrap_or_else(|e| panic!("a generated function is wrong: {e:?}\n{}", self.f));
        self.f
    }
}
