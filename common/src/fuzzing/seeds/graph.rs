//! Functions with every kind of value, and the parts of one.

use std::sync::Arc;

use convoke_graph::artifact::{ArtifactMeta, CHUNK};
use convoke_graph::codec;
use convoke_graph::graph::{
    Attr, Attrs, Function, Literal, Node, RunsAt, TensorType, Value, ValueId,
};
use convoke_graph::ids::FunctionId;
use convoke_graph::ops;
use convoke_graph::program::{
    Axes, DriverProgram, DriverSlot, Feed, Fetch, FetchFrom, HashedProgram, NUMERICS_PROFILE,
    Program, ProgramNode, RecvSlot, SendEdge,
};
use convoke_graph::{DType, Dim, Tensor};

use super::{Seed, chosen};
use crate::grant::{BodyGrant, BodyPart, Grant, Participant};
use crate::ids::{Incarnation, LeaseId, PlanId};

struct Builder(Function);

impl Builder {
    fn value(&mut self, name: &str, dtype: DType, shape: Vec<Dim>) -> ValueId {
        self.0.add_value(name, TensorType::new(dtype, shape))
    }

    fn param(&mut self, name: &str, dtype: DType, shape: Vec<Dim>) -> ValueId {
        let id = self.value(name, dtype, shape);
        self.0.params.push(id);
        id
    }

    fn inline(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let shape = tensor.shape().iter().map(|d| Dim::from(*d)).collect();
        let id = self.value(name, tensor.dtype(), shape);
        self.0.literals.push((id, Literal::Inline(tensor)));
        id
    }

    fn node(&mut self, name: &str, op: &str, attrs: Attrs, inputs: &[Option<ValueId>]) -> ValueId {
        let output = self.value(name, DType::F32, vec![]);
        self.0.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            attrs,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            runs_at: RunsAt::Step,
        });
        output
    }
}

fn typed(mut b: Builder, result: ValueId) -> Function {
    b.0.name = "test".into();
    b.0.results = vec![("y".into(), result)];
    ops::infer_types(&mut b.0).unwrap();
    b.0
}

/// A layer with weights in a file: `Softmax(Gemm(x, w, b))`, where `b` is computed from `c` at the install.
pub(super) fn layer() -> Function {
    let mut b = Builder(Function::default());
    let dims = |d: &[i64]| d.iter().copied().map(Dim::Const).collect::<Vec<_>>();
    let x = b.param("x", DType::F32, vec![Dim::sym("n"), Dim::Const(8)]);
    let w = b.value("w", DType::F32, dims(&[8, 4]));
    let range = Literal::Range {
        artifact: 0,
        offset: 64,
        len: 128,
    };
    b.0.literals.push((w, range));
    let chunks = vec![[1; 32], [2; 32]];
    b.0.artifacts = vec![ArtifactMeta::new("w.bin".into(), CHUNK + 9, chunks)];
    let c = b.inline("c", Tensor::from_slice(&[4], &[1f32, 2., 3., 4.]).unwrap());
    let bias = b.node("bias", "Neg", Attrs::default(), &[Some(c)]);
    b.0.nodes[0].runs_at = RunsAt::Init;
    let scaled = Attrs::default()
        .with("alpha", Attr::Float(0.5))
        .with("transB", Attr::Int(0));
    let h = b.node("h", "Gemm", scaled, &[Some(x), Some(w), Some(bias)]);
    let axis = Attrs::default().with("axis", Attr::Int(-1));
    let y = b.node("y", "Softmax", axis, &[Some(h)]);
    typed(b, y)
}

/// Shape arithmetic as exporters write it: a reshape to `[n, s / 2, 2 * 4]`, and a slice.
pub(super) fn shapes() -> Function {
    let mut b = Builder(Function::default());
    let (n, s) = (Dim::sym("n"), Dim::sym("s"));
    let x = b.param("x", DType::F32, vec![n, s, Dim::Const(4)]);
    let longs = |v: &[i64]| Tensor::from_slice(&[v.len()], v).unwrap();
    let none = Attrs::default;
    let shape = b.node("shape", "Shape", none(), &[Some(x)]);
    let zero = b.inline("zero", longs(&[0]));
    let one = b.inline("one", longs(&[1]));
    let two = b.inline("two", longs(&[2]));
    let axis = || Attrs::default().with("axis", Attr::Int(0));
    let batch = b.node("batch", "Gather", axis(), &[Some(shape), Some(zero)]);
    let length = b.node("length", "Gather", axis(), &[Some(shape), Some(one)]);
    let half = b.node("half", "Div", none(), &[Some(length), Some(two)]);
    let eight = b.inline("eight", longs(&[8]));
    let target = b.node(
        "target",
        "Concat",
        axis(),
        &[Some(batch), Some(half), Some(eight)],
    );
    let y = b.node("reshaped", "Reshape", none(), &[Some(x), Some(target)]);
    let cut = b.node(
        "cut",
        "Slice",
        none(),
        &[Some(y), Some(zero), Some(two), Some(one), None],
    );
    typed(b, cut)
}

/// A tensor whose dimensions are polynomials that use every operation on dimensions.
pub(super) fn dimensions() -> Function {
    let mut b = Builder(Function::default());
    let (n, s, two) = (Dim::sym("n"), Dim::sym("s"), Dim::Const(2));
    let shape = vec![
        &(&n * &s) + &two,
        n.floor_div(&s),
        n.larger(&s),
        (&n - &two).smaller(&s.ceil_div(&two)),
    ];
    let x = b.param("x", DType::F16, shape);
    let to = Attrs::default().with("to", Attr::DType(DType::F32));
    let y = b.node("y", "Cast", to, &[Some(x)]);
    typed(b, y)
}

pub(super) fn program() -> Program {
    let ty = || TensorType::new(DType::F32, vec![Dim::sym("n"), Dim::Const(4)]);
    let value = |name: &str| Value {
        name: name.into(),
        ty: ty(),
    };
    let constant = Tensor::from_slice(&[1, 4], &[1f32, 2., 3., 4.]).unwrap();
    let mut values: Vec<Value> = ["c", "x", "y"].map(value).into();
    values[0].ty = TensorType::fixed(DType::F32, &[1, 4]);
    Program {
        name: "test".into(),
        function: FunctionId([7; 32]),
        profile: NUMERICS_PROFILE.into(),
        values,
        literals: vec![(0, Literal::Inline(constant))],
        artifacts: vec![ArtifactMeta::new("w.bin".into(), 9, vec![[1; 32]])],
        nodes: vec![ProgramNode {
            name: "add".into(),
            op: "Add".into(),
            attrs: Attrs::default(),
            inputs: vec![1, 0],
            outputs: vec![2],
            priority: 2,
            cost: 1,
        }],
        init_nodes: 0,
        recvs: vec![RecvSlot { value: 1, from: 1 }],
        sends: vec![SendEdge {
            value: 2,
            to: 1,
            slot: 0,
            priority: 1,
        }],
    }
}

pub(super) fn participants() -> Vec<Participant> {
    let member = |name: &str, address: &str| Participant {
        name: name.into(),
        incarnation: Incarnation(3),
        address: address.into(),
    };
    vec![member("w0", "10.0.0.1:7000"), member("driver", "")]
}

pub(super) fn axes() -> Axes {
    Axes {
        bounds: vec![("n".into(), 8)],
    }
}

pub(super) fn hashed() -> HashedProgram {
    HashedProgram::new(Arc::new(program())).unwrap()
}

pub(super) fn grant() -> Grant {
    Grant {
        lease: LeaseId(1),
        plan: PlanId(2),
        program: hashed().id(),
        me: 0,
        participants: participants(),
        axes: axes(),
        in_flight: 2,
        step_bytes: 4096,
        bodies: vec![BodyGrant {
            number: 1,
            within: 0,
            participants: participants(),
            axes: axes(),
            part: Some(BodyPart {
                program: hashed().id(),
                me: 0,
                step_bytes: 4096,
            }),
            driver: Some(driver()),
        }],
    }
}

pub(super) fn driver() -> DriverProgram {
    let ty = || TensorType::new(DType::F32, vec![Dim::sym("n"), Dim::Const(4)]);
    let fetch = |name: &str, from| Fetch {
        name: name.into(),
        ty: ty(),
        from,
    };
    DriverProgram {
        feeds: vec![Feed {
            name: "x".into(),
            ty: ty(),
            to: vec![(0, 0)],
        }],
        fetches: vec![
            fetch("y", FetchFrom::Worker { from: 0, slot: 0 }),
            fetch("same", FetchFrom::Param(0)),
        ],
        slots: vec![DriverSlot { from: 0, ty: ty() }],
    }
}

pub(super) fn seeds() -> Vec<Seed> {
    let seed = |name: &str, input| ("graph", name.to_owned(), input);
    let mut seeds: Vec<Seed> = [
        ("layer", layer()),
        ("shapes", shapes()),
        ("dimensions", dimensions()),
    ]
    .map(|(name, f)| seed(name, chosen(0, &codec::encode(&f).unwrap())))
    .into();
    seeds.push(seed(
        "program",
        chosen(1, &codec::encode(&program()).unwrap()),
    ));
    seeds.push(seed(
        "grant",
        chosen(2, &codec::encode(&(grant(), program())).unwrap()),
    ));
    seeds.push(seed(
        "driver",
        chosen(3, &codec::encode(&driver()).unwrap()),
    ));
    seeds
}
