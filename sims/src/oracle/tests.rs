//! The oracle against mathematics, and against the product's own kernels, with which it has to agree in every bit.

use std::collections::BTreeSet;

use convoke_graph::graph::{Attr, Attrs, Function, Literal, Node, RunsAt, TensorType};
use convoke_graph::{DType, Tensor};
use convoke_worker::cpu::evaluate as product;

use super::elementary::{erf, exp, gelu, hard_swish, ln, sigmoid, sin, softplus, tanh};
use super::{difference, evaluate, rows};
use crate::draw::Draw;
use crate::workload::{ModelSpec, inputs};

/// Numbers of all magnitudes, and the special ones.
fn numbers() -> impl Iterator<Item = f32> {
    let spread = (0..=u32::MAX).step_by(40_009).map(f32::from_bits);
    let near = (-40_000..40_000).map(|i| i as f32 / 512.);
    spread
        .chain(near)
        .chain([0., -0., f32::INFINITY, f32::NEG_INFINITY])
}

/// Checks a function for `from <= x <= to`: its distance from the mathematical one is at most `ulps` of the result, or of
/// `of` where the result is smaller.
fn check(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, ulps: f64, of: f64) {
    for x in numbers().filter(|x| !x.is_nan()) {
        let (got, want) = (f(x), exact(f64::from(x)));
        let rounded = want as f32;
        if got == rounded || got.is_nan() && want.is_nan() {
            continue;
        }
        // Nothing is away from an infinite number by less than some units.
        assert!(want.is_finite(), "{name}({x:e}) is {got:e}, not {want:e}");
        let unit = want.abs().max(of) * f64::from(f32::EPSILON);
        let away = (f64::from(got) - want).abs();
        let beyond = rounded.is_infinite() && got >= f32::MAX;
        assert!(
            away <= ulps * unit || beyond,
            "{name}({x:e}) is {got:e}, not {want:e}"
        );
    }
}

#[test]
fn elementary_functions_are_close_to_the_mathematical_ones() {
    const TINY: f64 = f32::MIN_POSITIVE as f64;
    check("exp", exp, libm::exp, 2., TINY);
    check("tanh", tanh, libm::tanh, 3., TINY);
    check("erf", erf, libm::erf, 3., TINY);
    check("sin", sin, libm::sin, 1., TINY);
    check("ln", ln, libm::log, 2., TINY);
    check("sigmoid", sigmoid, |x| 1. / (1. + libm::exp(-x)), 4., TINY);
    let softer = |x| {
        if x > 40. {
            x
        } else {
            libm::log1p(libm::exp(x))
        }
    };
    check("softplus", softplus, softer, 4., TINY);
    let whole = |x| 0.5 * x * (1. + libm::erf(x / std::f64::consts::SQRT_2));
    check("gelu", gelu, whole, 8., 1.);
    let hard = |x: f64| x * (x / 6. + 0.5).clamp(0., 1.);
    check("hard_swish", hard_swish, hard, 8., 1.);
}

#[test]
fn sums_have_their_order() {
    let of = |shape: &[usize], all: &[f32]| Tensor::from_slice(shape, all).unwrap();
    // A chain over ascending positions loses the 1 between the two large numbers; in another order it would stay.
    let y = rows::product(&of(&[1, 3], &[1e8, 1., -1e8]), &of(&[3, 1], &[1., 1., 1.]));
    assert_eq!(y, of(&[1, 1], &[0.]));
    // Neighbours lie in different lanes of a sum, which are joined with the one eight lanes further first.
    let mut all = [0f32; 16];
    (all[0], all[1], all[8]) = (1e8, 1., -1e8);
    let y = rows::reduce("ReduceSum", &of(&[1, 16], &all), Some(&[1]), true);
    assert_eq!(y, of(&[1, 1], &[1.]));
}

/// Collects the ops of a function and of the bodies of its nodes.
fn ops_of(f: &Function, found: &mut BTreeSet<String>) {
    for node in &f.nodes {
        found.insert(node.op.to_string());
        node.attrs
            .functions()
            .for_each(|(_, body)| ops_of(body, found));
    }
}

/// The ops that the oracle knows: the texts in its source that begin with a capital letter.
fn known_ops() -> BTreeSet<String> {
    let texts = include_str!("ops.rs").split('"').skip(1).step_by(2);
    let ops = texts.filter(|text| text.starts_with(|c: char| c.is_ascii_uppercase()));
    ops.map(str::to_owned).collect()
}

/// The oracle and the evaluation by the product's kernels agree about every op that the oracle knows.
#[test]
fn the_oracle_has_the_bits_of_the_kernels() {
    let (mut d, mut ops) = (Draw::new(2), BTreeSet::new());
    for n in 0..400 {
        let mut spec = ModelSpec::draw(&mut d);
        spec.tables = if n % 100 == 0 { 2 } else { 0 };
        let model = spec.build();
        ops_of(&model.function, &mut ops);
        for sprung in [false, spec.trap.is_some()] {
            // The kernels would really allocate what a sprung size asks for.
            if sprung && spec.trap == Some(crate::workload::Trap::Memory) {
                continue;
            }
            let given = inputs(&model, d.word(), 1 + (n % 8), sprung);
            let given: Vec<Tensor> = given.into_iter().map(|(_, t)| t).collect();
            let theirs = product::evaluate(&model.function, &given, &product::inline_only);
            let ours = evaluate::evaluate(&model.function, &given);
            match (theirs, ours) {
                (Ok(theirs), Ok(ours)) => {
                    let differs = difference(&ours, &theirs);
                    assert_eq!(differs, None, "{spec:?}\n{}", model.function);
                }
                (Err(theirs), Err(ours)) => {
                    let node = theirs.site.as_deref().and_then(|s| s.node.as_deref());
                    assert_eq!((theirs.code, node), (ours.code, Some(&*ours.node)));
                }
                (theirs, ours) => panic!("{theirs:?}, {ours:?} of {spec:?}"),
            }
        }
    }
    assert_eq!(ops, known_ops());
}

/// A function of one node over one constant.
fn function_of(op: &str, attrs: Attrs) -> Function {
    let mut f = Function::default();
    let ty = || TensorType::fixed(DType::F32, &[2]);
    let (x, y) = (f.add_value("x", ty()), f.add_value("y", ty()));
    let given = Tensor::from_slice(&[2], &[1f32, 2.]).unwrap();
    f.literals.push((x, Literal::Inline(given)));
    f.nodes.push(Node {
        name: "n".into(),
        op: op.into(),
        attrs,
        inputs: vec![Some(x)],
        outputs: vec![y],
        runs_at: RunsAt::Step,
    });
    f.results = vec![("y".into(), y)];
    f
}

#[test]
#[should_panic(expected = "the oracle does not know the op Cosh")]
fn an_unknown_op_is_an_error() {
    let _ = evaluate::evaluate(&function_of("Cosh", Attrs::default()), &[]);
}

#[test]
#[should_panic(expected = "the oracle ignores 'stash_type' of Softmax")]
fn an_unknown_attribute_is_an_error() {
    let attrs = Attrs::default().with("stash_type", Attr::Int(1));
    let _ = evaluate::evaluate(&function_of("Softmax", attrs), &[]);
}
