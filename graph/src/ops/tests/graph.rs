//! Tests of inference and verification of whole functions.

use crate::graph::*;
use crate::ops::*;
use crate::tensor::Tensor;
use crate::{DType, Dim};

/// Builds a function; outputs get a placeholder type.
#[derive(Default)]
struct Build(Function);

impl Build {
    fn param(&mut self, name: &str, dtype: DType, shape: &[Dim]) -> ValueId {
        let id = self
            .0
            .add_value(name, TensorType::new(dtype, shape.to_vec()));
        self.0.params.push(id);
        id
    }

    fn ints(&mut self, v: &[i64]) -> ValueId {
        self.literal(Tensor::from_slice(&[v.len()], v).unwrap())
    }

    fn literal(&mut self, t: Tensor) -> ValueId {
        let ty = TensorType::fixed(t.dtype(), t.shape());
        let name = format!("literal{}", self.0.values.len());
        let id = self.0.add_value(name, ty);
        self.0.literals.push((id, Literal::Inline(t)));
        id
    }

    fn node(&mut self, op: &str, attrs: Attrs, inputs: &[ValueId]) -> ValueId {
        let name = format!("v{}", self.0.values.len());
        let out = self
            .0
            .add_value(name.as_str(), TensorType::new(DType::Bool, vec![]));
        self.0.nodes.push(Node {
            name: format!("{op}_{name}").into(),
            op: op.into(),
            attrs,
            inputs: inputs.iter().map(|i| Some(*i)).collect(),
            outputs: vec![out],
            runs_at: RunsAt::Step,
        });
        out
    }

    fn plain(&mut self, op: &str, inputs: &[ValueId]) -> ValueId {
        self.node(op, Attrs::default(), inputs)
    }

    /// `x`'s dimension `axis` as a vector of one element, as exporters write it.
    fn dim_of(&mut self, x: ValueId, axis: i64) -> ValueId {
        let shape = self.plain("Shape", &[x]);
        let at = self.literal(Tensor::scalar(axis));
        let d = self.plain("Gather", &[shape, at]);
        let zero = self.ints(&[0]);
        self.plain("Unsqueeze", &[d, zero])
    }
}

fn axis(axis: i64) -> Attrs {
    Attrs::default().with("axis", Attr::Int(axis))
}

fn to(f: &Function, id: ValueId) -> String {
    f.ty(id).to_string()
}

#[test]
fn attention_reshapes_resolve_to_symbols() {
    let mut b = Build::default();
    let (batch, seq) = (Dim::sym("batch"), Dim::sym("seq"));
    let x = b.param("x", DType::F32, &[batch, seq, Dim::Const(768)]);
    let (n, s) = (b.dim_of(x, 0), b.dim_of(x, 1));
    let (heads, width) = (b.ints(&[12]), b.ints(&[64]));
    let split = b.node("Concat", axis(0), &[n, s, heads, width]);
    let q = b.plain("Reshape", &[x, split]);
    let perm = |p: &[i64]| Attrs::default().with("perm", Attr::Ints(p.to_vec()));
    let qt = b.node("Transpose", perm(&[0, 2, 1, 3]), &[q]);
    let kt = b.node("Transpose", perm(&[0, 2, 3, 1]), &[q]);
    let scores = b.plain("MatMul", &[qt, kt]);
    let p = b.node("Softmax", axis(-1), &[scores]);
    let ctx = b.plain("MatMul", &[p, qt]);
    let back = b.node("Transpose", perm(&[0, 2, 1, 3]), &[ctx]);
    let all = b.plain("Mul", &[heads, width]);
    let open = b.ints(&[-1]);
    let merge = b.node("Concat", axis(0), &[n, open, all]);
    let y = b.plain("Reshape", &[back, merge]);
    b.0.results.push(("y".into(), y));
    infer_types(&mut b.0).unwrap();
    assert_eq!(to(&b.0, q), "f32[batch, seq, 12, 64]");
    assert_eq!(to(&b.0, scores), "f32[batch, 12, seq, seq]");
    assert_eq!(to(&b.0, y), "f32[batch, seq, 768]");
    assert_eq!(b.0.verify(), Ok(()));
    let known = fold_host(&b.0);
    assert_eq!(known.get(all).unwrap().ints(), Some(vec![768]));
    assert_eq!(known.get(n).unwrap().elements, [Dim::sym("batch")]);
    assert_eq!(known.get(y), None);
    let bound = [("batch".into(), 2), ("seq".into(), 5)].into();
    let cost = node_cost(
        &b.0,
        b.0.nodes.iter().find(|n| n.outputs == [scores]).unwrap(),
        &bound,
    );
    assert_eq!(cost.flops, (2 * 2 * 12 * 5 * 5 * 64) as f64);
}

#[test]
fn a_scan_costs_as_many_runs_as_its_operand_has_slices() {
    let mut body = Build::default();
    let e = body.param("e", DType::F32, &[Dim::Const(4)]);
    let doubled = body.plain("Add", &[e, e]);
    body.0.results.push(("r".into(), doubled));
    infer_types(&mut body.0).unwrap();
    let mut b = Build::default();
    let shorter = Dim::sym("n") - Dim::Const(3);
    let x = b.param("x", DType::F32, &[shorter, Dim::Const(4)]);
    let attrs = Attrs::default()
        .with("body", Attr::Function(std::sync::Arc::new(body.0)))
        .with("num_scan_inputs", Attr::Int(1));
    let y = b.node("Scan", attrs, &[x]);
    b.0.results.push(("y".into(), y));
    infer_types(&mut b.0).unwrap();
    // Where n is not known, and where there would be fewer than no slices, there are none.
    for (n, flops) in [
        (Some(8), 5.0 * 4.0),
        (Some(3), 0.0),
        (Some(1), 0.0),
        (None, 0.0),
    ] {
        let bound = n.map(|n| ("n".into(), n)).into_iter().collect();
        let cost = node_cost(&b.0, &b.0.nodes[0], &bound);
        assert_eq!(cost.flops, flops, "{n:?}");
        assert!(cost.bytes >= 0.0, "{n:?}");
    }
}

#[test]
fn expand_of_a_guarded_shape_resolves() {
    let mut b = Build::default();
    let (batch, seq) = (Dim::sym("batch"), Dim::sym("seq"));
    let ids = b.param("ids", DType::I64, &[batch, seq]);
    let mask = b.param("mask", DType::F32, &[Dim::Const(1), Dim::sym("seq")]);
    let (n, s) = (b.dim_of(ids, 0), b.dim_of(ids, 1));
    let want = b.node("Concat", axis(0), &[n, s]);
    let count = b.ints(&[2]);
    let one = Attrs::default().with(
        "value",
        Attr::Tensor(Tensor::from_slice(&[1], &[1i64]).unwrap()),
    );
    let ones = b.node("ConstantOfShape", one, &[count]);
    let minus = b.literal(Tensor::scalar(-1i64));
    let flipped = b.plain("Mul", &[ones, minus]);
    let open = b.plain("Equal", &[want, flipped]);
    let shape = b.plain("Where", &[open, ones, want]);
    let y = b.plain("Expand", &[mask, shape]);
    let total = b.plain("ReduceProd", &[shape]);
    let half = b.plain("Range", &[minus, minus, minus]);
    infer_types(&mut b.0).unwrap();
    assert_eq!(to(&b.0, y), "f32[batch, seq]");
    assert_eq!(to(&b.0, half), "i64[0]");
    let known = fold_host(&b.0);
    assert_eq!(
        known.get(total).unwrap().elements,
        [&Dim::sym("batch") * &Dim::sym("seq")]
    );
}

#[test]
fn unsupported_ops_are_listed_together() {
    let mut b = Build::default();
    let x = b.param("x", DType::F32, &[Dim::Const(1)]);
    let y = b.plain("Foo", &[x]);
    let z = b.plain("Bar", &[y]);
    b.plain("Foo", &[z]);
    let errors = infer_types(&mut b.0).unwrap_err();
    let texts: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
    assert_eq!(
        texts,
        [
            "op 'Bar' is not supported; it is used by Bar_v2",
            "op 'Foo' is not supported; it is used by Foo_v1, Foo_v3",
        ]
    );
    assert!(b.0.verify().is_err());
}

#[test]
fn every_wrong_node_is_reported_once() {
    let mut b = Build::default();
    let x = b.param("x", DType::F32, &[Dim::Const(2)]);
    let y = b.param("y", DType::F32, &[Dim::Const(3)]);
    let bad = b.plain("Add", &[x, y]);
    b.plain("Relu", &[bad]);
    b.plain("Not", &[x]);
    let errors = infer_types(&mut b.0).unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].to_string().contains("2 and 3 do not broadcast"));
}

#[test]
fn broken_graphs_are_errors() {
    let ok = || {
        let mut b = Build::default();
        let x = b.param("x", DType::F32, &[Dim::sym("s")]);
        let y = b.plain("Relu", &[x]);
        b.plain("Neg", &[y]);
        infer_types(&mut b.0).unwrap();
        b.0.verify().unwrap();
        b.0
    };
    let check = |what: &str, edit: fn(&mut Function)| {
        let mut f = ok();
        edit(&mut f);
        let e = f.verify().unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
        infer_types(&mut f).err()
    };
    let far = |f: &mut Function| f.nodes[0].inputs[0] = Some(ValueId(u32::MAX));
    assert!(check("does not exist", far).is_some());
    assert!(check("does not exist", |f| f.nodes[1].outputs[0] = ValueId(99)).is_some());
    assert!(check("not defined before", |f| f.nodes.swap(0, 1)).is_some());
    check("defined twice", |f| f.nodes[1].outputs[0] = ValueId(1));
    check("defined twice", |f| f.params.push(ValueId(0)));
    check("defined twice", |f| f.values[2].name = "x".into());
    check("depends on step", |f| f.nodes[1].runs_at = RunsAt::Init);
    check("is declared f32[s, 2]", |f| {
        f.values[2].ty.shape = vec![Dim::sym("s"), Dim::Const(2)]
    });
    check("is declared", |f| {
        f.values[2].ty.shape[0] = &Dim::sym("s") + &Dim::Const(1)
    });
    check("does not exist", |f| {
        f.results.push(("r".into(), ValueId(9)))
    });
    assert!(check("negative", |f| f.values[0].ty.shape[0] = Dim::Const(-1)).is_some());
    assert!(
        check("rank 17", |f| f.values[0].ty.shape =
            vec![Dim::Const(1); 17])
        .is_some()
    );
    let file = |offset: u64, len: u64| Literal::Range {
        artifact: 0,
        offset,
        len,
    };
    for (literal, what) in [
        (file(0, 7), "7 bytes"),
        (file(u64::MAX, 8), "outside"),
        (file(1, 8), "outside"),
    ] {
        let mut f = ok();
        let v = f.add_value("w", TensorType::fixed(DType::F32, &[2]));
        f.artifacts.push(crate::artifact::ArtifactMeta::new(
            String::new(),
            8,
            vec![[0; 32]],
        ));
        f.literals.push((v, literal));
        assert!(f.verify().unwrap_err().to_string().contains(what));
        assert!(infer_types(&mut f).is_err());
    }
}

#[test]
fn expressions_stay_bounded() {
    let mut b = Build::default();
    let x = b.param("x", DType::F32, &[Dim::sym("s"), Dim::sym("t")]);
    let mut d = b.plain("Shape", &[x]);
    let three = b.ints(&[3]);
    for _ in 0..200 {
        let square = b.plain("Mul", &[d, d]);
        let third = b.plain("Div", &[square, three]);
        d = b.plain("Add", &[third, d]);
    }
    let mut y = x;
    for _ in 0..200 {
        let flat = b.plain("Flatten", &[y]);
        y = b.node("Concat", axis(0), &[flat, flat, x]);
    }
    let z = b.plain("ConstantOfShape", &[d]);
    infer_types(&mut b.0).unwrap();
    assert_eq!(b.0.ty(z).shape.len(), 2);
    b.0.verify().unwrap();
}

/// Functions that chain ops on hostile integers give errors or types, and never panic.
#[test]
fn extreme_integers_do_not_panic() {
    let extremes = [
        i64::MIN,
        i64::MIN + 1,
        -2,
        -1,
        0,
        1,
        2,
        1 << 31,
        i64::MAX - 1,
        i64::MAX,
    ];
    for a in extremes {
        for c in extremes {
            let mut b = Build::default();
            let x = b.param("x", DType::F32, &[Dim::sym("s"), Dim::Const(4)]);
            let (u, v) = (b.ints(&[a, c]), b.ints(&[c, a]));
            let (p, q) = (b.literal(Tensor::scalar(a)), b.literal(Tensor::scalar(c)));
            for op in [
                "Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Less", "Equal", "Pow",
            ] {
                let folded = b.plain(op, &[u, v]);
                let s = b.plain("Shape", &[x]);
                b.plain(op, &[s, u]);
                if !matches!(op, "Less" | "Equal") {
                    b.plain("ConstantOfShape", &[folded]);
                }
            }
            for op in ["Neg", "Abs", "Sign", "ConstantOfShape"] {
                b.plain(op, &[u]);
            }
            for op in [
                "Reshape",
                "Expand",
                "Tile",
                "Unsqueeze",
                "Squeeze",
                "Pad",
                "ReduceSum",
            ] {
                b.plain(op, &[x, u]);
            }
            b.plain("Slice", &[x, u, v]);
            b.plain("Slice", &[u, u, v]);
            let one = b.ints(&[0]);
            let (ua, va) = (b.ints(&[a]), b.ints(&[c]));
            b.plain("Slice", &[u, ua, va, one, ua]);
            b.plain("Slice", &[x, ua, va, one, ua]);
            b.plain("Range", &[p, q, p]);
            b.plain("Range", &[p, q, q]);
            b.plain("OneHot", &[u, p, v]);
            b.plain("TopK", &[x, ua]);
            b.plain("Gather", &[u, v]);
            b.plain("CumSum", &[x, p]);
            b.plain("Split", &[u, ua]);
            b.node("Gather", axis(a), &[x, u]);
            b.node("Concat", axis(a), &[x, x]);
            b.node("Flatten", axis(a), &[x]);
            let bounds = Attrs::default()
                .with("start", Attr::Int(a))
                .with("end", Attr::Int(c));
            b.node("Shape", bounds, &[x]);
            // Each node is inferred in a function of its own, since the errors of one function are cut off.
            let nodes = std::mem::take(&mut b.0.nodes);
            for node in nodes {
                let mut f = b.0.clone();
                for id in node.inputs.iter().flatten() {
                    if !f.params.contains(id) && f.inline(*id).is_none() {
                        f.params.push(*id);
                    }
                }
                f.nodes.push(node);
                let _ = infer_types(&mut f);
            }
        }
    }
}

/// Prints its times: a release build infers 100,000 nodes in about 0.1 s.
#[test]
#[allow(clippy::disallowed_methods)]
fn inference_is_linear() {
    let time = |n: usize| {
        let mut b = Build::default();
        let mut x = b.param(
            "x",
            DType::F32,
            &[Dim::sym("b"), Dim::sym("s"), Dim::Const(8)],
        );
        let to = b.ints(&[0, 0, -1]);
        for _ in 0..n / 3 {
            let y = b.plain("Relu", &[x]);
            let z = b.plain("Add", &[x, y]);
            x = b.plain("Reshape", &[z, to]);
        }
        let start = std::time::Instant::now();
        infer_types(&mut b.0).unwrap();
        let inferred = start.elapsed();
        b.0.verify().unwrap();
        fold_host(&b.0);
        (inferred, start.elapsed())
    };
    let (inferred, all) = time(100_000);
    println!("100000 nodes: inferred in {inferred:?}, inferred, verified and folded in {all:?}");
    assert!(all.as_secs() < 10, "quadratic");
}

#[test]
fn declared_results_may_not_be_longer_expressions_than_inferred_ones() {
    let mut b = Build::default();
    let x = b.param("x", DType::F32, &[Dim::sym("n"), Dim::sym("m")]);
    let y = b.plain("Relu", &[x]);
    let mut f = b.0;
    infer_types(&mut f).unwrap();
    f.verify().unwrap();
    let sum = |f: &Function, terms: usize| {
        let symbols = (0..terms).map(|i| Dim::sym(&format!("s{i}")));
        let long = symbols.fold(Dim::Const(1), |sum, s| &sum + &s);
        let mut f = f.clone();
        f.values[y.ix()].ty.shape = vec![long.clone(), long];
        f.verify()
    };
    assert_eq!(sum(&f, 10), Ok(()));
    let refused = sum(&f, 1000);
    assert!(matches!(refused, Err(GraphError::Op { .. })), "{refused:?}");
}
