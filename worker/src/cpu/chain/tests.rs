use std::sync::atomic::AtomicBool;

use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::ops::ConcreteOutputs;

use super::*;
use crate::cpu::testing;

use Arith::{Add, Max, Mul};

const NEG: Elementwise = Elementwise::Unary(FloatUnary::Neg);

fn launched(
    fused: &FusedChain,
    mut registers: Vec<Option<Tensor>>,
    sizes: Option<&ConcreteOutputs>,
) -> Tensor {
    let pool = Pool::new(&Ledger::new("test", 1 << 30), Purpose::Handles, 0).unwrap();
    let flag = AtomicBool::new(false);
    let made = fused.kernel.launch(&mut Launch {
        inputs: Operands::given(&mut registers),
        sizes,
        exec: Exec::single(&flag),
        pool: &pool,
    });
    made.unwrap().pop().unwrap()
}

/// Compares a fused kernel with the nodes one by one. Values below `given` are operands; node `i` makes value
/// `given + i`.
fn check(given: &[Tensor], nodes: &[(Elementwise, &[u32])], like: &[u32]) -> (Vec<u32>, bool) {
    let first = given.len() as u32;
    let outputs = (first..).take(nodes.len());
    let steps: Vec<Step<'_>> = nodes
        .iter()
        .zip(outputs)
        .map(|((function, inputs), output)| Step {
            function: *function,
            inputs,
            output,
        })
        .collect();
    let fused = fuse(DType::F32, &[], &steps, Tail::Plain, |v| like.contains(&v)).unwrap();
    // The nodes are computed one by one for comparison.
    let mut values = given.to_vec();
    for (function, inputs) in nodes {
        let inputs: Vec<&Tensor> = inputs.iter().map(|v| &values[*v as usize]).collect();
        let op = match function {
            Elementwise::Unary(_) => "Neg",
            Elementwise::Fold(Add) => "Sum",
            Elementwise::Fold(Max) => "Max",
            Elementwise::Fold(_) | Elementwise::Coding(_) => "Mul",
        };
        values.push(testing::one(op, Default::default(), &inputs).unwrap());
    }
    let launch = |registers: Vec<Option<Tensor>>, sizes: Option<&ConcreteOutputs>| {
        launched(&fused, registers, sizes)
    };
    let copies = || -> Vec<_> {
        let fresh = |v: &u32| {
            let t = &given[*v as usize];
            Some(Tensor::from_bytes(t.dtype(), t.shape(), t.bytes()).unwrap())
        };
        fused.operands.iter().map(fresh).collect()
    };
    let last = values.last().unwrap();
    let sizes = [(last.dtype(), last.shape().into())].into_iter().collect();
    assert_eq!(launch(copies(), Some(&sizes)), *last);
    let shared = fused
        .operands
        .iter()
        .map(|v| Some(given[*v as usize].clone()));
    assert_eq!(launch(shared.collect(), Some(&sizes)), *last);
    let all = copies();
    let at: Vec<_> = all.iter().flatten().map(|t| t.bytes().as_ptr()).collect();
    let y = launch(all, None);
    assert_eq!(y, *last);
    (fused.operands.clone(), at.contains(&y.bytes().as_ptr()))
}

fn f32s(shape: &[usize], first: f32) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| first + i as f32 * 0.37).collect();
    Tensor::from_slice(shape, &data).unwrap()
}

#[test]
fn a_chain_equals_its_nodes() {
    let (x, row, one) = (f32s(&[3, 700], -9.), f32s(&[700], 1.), f32s(&[], 0.5));
    let given = [x, row, one];
    let add = |a, b| (Elementwise::Fold(Add), vec![a, b]);
    let nodes = [
        add(0, 1),
        (NEG, vec![3]),
        (Elementwise::Fold(Mul), vec![4, 2]),
    ];
    let nodes = nodes.each_ref().map(|(p, i)| (*p, &i[..]));
    // The first operand's buffer becomes the result where no one else holds it.
    assert_eq!(check(&given, &nodes, &[0]), (vec![0, 1, 2], true));
    assert_eq!(check(&given, &nodes, &[]), (vec![0, 1, 2], false));
    // An operand that is read again later must stay, and so must one that a node reads twice.
    let again = [(NEG, &[0][..]), (Elementwise::Fold(Add), &[3, 0])];
    assert_eq!(check(&given, &again, &[0]), (vec![0], false));
    let twice = [(Elementwise::Fold(Add), &[0, 0][..]), (NEG, &[3])];
    assert_eq!(check(&given, &twice, &[0]), (vec![0], false));
    // What the first function that writes to the result reads may become the result, also where another function comes first.
    let both = [f32s(&[3, 700], -9.), f32s(&[3, 700], 2.)];
    let later = [(NEG, &[0][..]), (Elementwise::Fold(Add), &[1, 2])];
    assert_eq!(check(&both, &later, &[0, 1]), (vec![0, 1], true));
    assert_eq!(check(&both, &later, &[0]), (vec![0, 1], false));
}

#[test]
fn what_a_chain_reads_and_makes_may_be_of_another_dtype() {
    let cast = |t: &Tensor, to| {
        let attrs = Attrs::default().with("to", Attr::DType(to));
        testing::one("Cast", attrs, &[t]).unwrap()
    };
    let x = cast(&f32s(&[4, 700], -9.), DType::F16);
    let row = f32s(&[700], 1.);
    let steps = [(Elementwise::Fold(Add), &[2, 1][..], 3), (NEG, &[3], 4)];
    let steps = steps.map(|(function, inputs, output)| Step {
        function,
        inputs,
        output,
    });
    let sum = testing::one("Sum", Attrs::default(), &[&cast(&x, DType::F32), &row]).unwrap();
    let plain = testing::one("Neg", Attrs::default(), &[&sum]).unwrap();
    let axes = testing::vec1(&[-1i64]);
    let check = |tail: Tail, want: Tensor| {
        let head = Head {
            input: 0,
            output: 2,
            from: DType::F16,
        };
        let fused = fuse(DType::F32, &[head], &steps, tail, |_| true).unwrap();
        assert_eq!(fused.operands, [0, 1]);
        let sizes = [(want.dtype(), want.shape().into())].into_iter().collect();
        let given = || vec![Some(x.clone()), Some(row.clone())];
        assert_eq!(launched(&fused, given(), Some(&sizes)), want);
    };
    check(Tail::Plain, plain.clone());
    check(Tail::Cast(DType::F16), cast(&plain, DType::F16));
    check(Tail::Cast(DType::I32), cast(&plain, DType::I32));
    let mean = testing::one("ReduceMean", Attrs::default(), &[&plain, &axes]).unwrap();
    check(Tail::Reduce(Reduce::Mean, plain.shape().into()), mean);
}

#[test]
fn numbers_of_codes_become_codes_in_one_kernel() {
    let one = |op: &str, inputs: &[&Tensor]| testing::one(op, Attrs::default(), inputs);
    let check = |zero: Tensor, scales: [f32; 3], edge: f32| {
        let to = zero.dtype();
        let cast = |t: &Tensor| {
            let attrs = Attrs::default().with("to", Attr::DType(to));
            testing::one("Cast", attrs, &[t]).unwrap()
        };
        let x = cast(&f32s(&[4, 700], edge));
        let y = cast(&f32s(&[700], -3.));
        let scales = scales.map(Tensor::scalar);
        let numbers = [&x, &y].map(|t| one("DequantizeLinear", &[t, &scales[0], &zero]));
        let [a, b] = numbers.map(Result::unwrap);
        let sum = one("Mul", &[&one("Sum", &[&a, &b]).unwrap(), &scales[1]]).unwrap();
        let want = one("QuantizeLinear", &[&sum, &scales[2], &zero]).unwrap();

        let function = |op: &str| {
            let spec = Spec {
                def: convoke_graph::ops::lookup(op).unwrap(),
                attrs: &Attrs::default(),
                operands: &[Some(if op == "QuantizeLinear" {
                    DType::F32
                } else {
                    to
                })],
            };
            let scale = &scales[if op == "QuantizeLinear" { 2 } else { 0 }];
            let (coding, codes) = coding(&spec, Some(scale), Some(&zero)).unwrap();
            assert_eq!(codes, to);
            Elementwise::Coding(coding)
        };
        let decode = function("DequantizeLinear");
        let head = |input: u32| Head {
            input,
            output: 10 + input,
            from: to,
        };
        let steps = [
            (decode, &[10][..], 3),
            (decode, &[11], 4),
            (Elementwise::Fold(Add), &[3, 4], 5),
            (Elementwise::Fold(Mul), &[5, 2], 6),
            (function("QuantizeLinear"), &[6], 7),
        ];
        let steps = steps.map(|(function, inputs, output)| Step {
            function,
            inputs,
            output,
        });
        let heads = [head(0), head(1)];
        let fused = fuse(DType::F32, &heads, &steps, Tail::Cast(to), |_| false).unwrap();
        assert_eq!(fused.operands, [0, 1, 2]);
        let given = [&x, &y, &scales[1]].map(|t| Some(t.clone()));
        let sizes = [(to, want.shape().into())].into_iter().collect();
        assert_eq!(launched(&fused, given.into(), Some(&sizes)), want);
    };
    check(Tensor::scalar(3u8), [0.05, 1.5, 0.125], -9.);
    check(Tensor::scalar(-7i8), [0.5, -2., 0.01], -400.);
    // Numbers that are not ones become the least code, and infinities the extremes.
    check(Tensor::scalar(0i8), [0.5, f32::NAN, 0.01], 0.);
    check(Tensor::scalar(200u8), [0.5, f32::INFINITY, 0.01], 0.);
}

/// Sums of codes of one shape have a kernel of their own, and those of other shapes are chains.
#[test]
fn sums_of_codes_have_the_bits_of_their_functions() {
    let of = |op: &str, attrs: Attrs, inputs: &[&Tensor]| testing::one(op, attrs, inputs).unwrap();
    let check = |[zero, other, to]: [Tensor; 3], scales: [f32; 3], relu: bool, row: bool| {
        let cast = |t: &Tensor, to: &Tensor| {
            let attrs = Attrs::default().with("to", Attr::DType(to.dtype()));
            of("Cast", attrs, &[t])
        };
        let shape: &[usize] = if row { &[700] } else { &[4, 700] };
        let (x, y) = (
            cast(&f32s(&[4, 700], -9.), &zero),
            cast(&f32s(shape, -3.), &other),
        );
        let scales = scales.map(Tensor::scalar);
        let plain = |op: &str, inputs: &[&Tensor]| of(op, Attrs::default(), inputs);
        let a = plain("DequantizeLinear", &[&x, &scales[0], &zero]);
        let b = plain("DequantizeLinear", &[&y, &scales[1], &other]);
        let mut sum = plain("Add", &[&a, &b]);
        if relu {
            sum = plain("Relu", &[&sum]);
        }
        let want = plain("QuantizeLinear", &[&sum, &scales[2], &to]);

        let function = |op: &str, from: DType, scale: &Tensor, zero: &Tensor| {
            let spec = Spec {
                def: convoke_graph::ops::lookup(op).unwrap(),
                attrs: &Attrs::default(),
                operands: &[Some(from)],
            };
            Elementwise::Coding(coding(&spec, Some(scale), Some(zero)).unwrap().0)
        };
        let head = |input: u32, from: DType| Head {
            input,
            output: 10 + input,
            from,
        };
        let heads = [head(0, zero.dtype()), head(1, other.dtype())];
        let decode =
            |scale: &Tensor, zero: &Tensor| function("DequantizeLinear", zero.dtype(), scale, zero);
        let mut steps = vec![
            (decode(&scales[0], &zero), &[10][..], 3),
            (decode(&scales[1], &other), &[11], 4),
            (Elementwise::Fold(Add), &[4, 3], 5),
        ];
        if relu {
            steps.push((Elementwise::Unary(FloatUnary::Relu), &[5], 6));
        }
        let last: &[u32] = if relu { &[6] } else { &[5] };
        steps.push((
            function("QuantizeLinear", DType::F32, &scales[2], &to),
            last,
            7,
        ));
        let steps: Vec<Step<'_>> = steps
            .into_iter()
            .map(|(function, inputs, output)| Step {
                function,
                inputs,
                output,
            })
            .collect();
        let tail = Tail::Cast(to.dtype());
        assert!(sum_of_codes(&heads, &steps, &tail).is_some());
        let fused = fuse(DType::F32, &heads, &steps, tail, |_| false).unwrap();
        let given = [&x, &y].map(|t| Some(t.clone()));
        let sizes = [(to.dtype(), want.shape().into())].into_iter().collect();
        assert_eq!(launched(&fused, given.into(), Some(&sizes)), want);
    };
    let (u, i) = (|z: u8| Tensor::scalar(z), |z: i8| Tensor::scalar(z));
    for (relu, row) in [(false, false), (true, false), (true, true)] {
        check([u(3), u(7), u(128)], [0.05, 0.125, 0.25], relu, row);
        check([i(-7), u(200), i(5)], [0.5, -2., 0.01], relu, row);
        check([i(0), i(1), u(0)], [0.5, f32::NAN, 0.01], relu, row);
        check([u(0), i(1), i(-3)], [0.5, f32::INFINITY, 0.01], relu, row);
    }
}

#[test]
fn only_one_parameter_for_all_codes_joins_chains() {
    let check = |op: &str, dtype: DType, scale: Tensor, zero: Option<Tensor>, want: bool| {
        let spec = Spec {
            def: convoke_graph::ops::lookup(op).unwrap(),
            attrs: &Attrs::default(),
            operands: &[Some(dtype)],
        };
        let found = coding(&spec, Some(&scale), zero.as_ref());
        assert_eq!(found.is_some(), want, "{op} of {dtype}");
        assert!(
            coding(&spec, None, zero.as_ref()).is_none(),
            "{op}: scale not known"
        );
    };
    let (decode, encode, one) = ("DequantizeLinear", "QuantizeLinear", Tensor::scalar(0.5f32));
    check(decode, DType::U8, one.clone(), None, true);
    check(decode, DType::I8, testing::vec1(&[0.5f32]), None, true);
    check(decode, DType::I8, testing::vec1(&[0.5f32, 1.]), None, false);
    check(decode, DType::I32, one.clone(), None, false);
    check(encode, DType::F32, one.clone(), None, true);
    check(encode, DType::F16, one.clone(), None, false);
    check(
        encode,
        DType::F32,
        one.clone(),
        Some(Tensor::scalar(1i8)),
        true,
    );
    check(
        encode,
        DType::F32,
        one.clone(),
        Some(Tensor::scalar(1i16)),
        false,
    );
    check("Neg", DType::F32, one, None, false);
}

#[test]
fn reductions_of_rows_end_chains() {
    let check = |op: &str, axes: &[i64], shape: &[usize], want: bool| {
        let spec = Spec {
            def: convoke_graph::ops::lookup(op).unwrap(),
            attrs: &Attrs::default(),
            operands: &[Some(DType::F32), Some(DType::I64)],
        };
        let axes = testing::vec1(axes);
        let found = reduction(&spec, Some(&axes), shape);
        assert_eq!(found.is_some(), want, "{op} {axes:?} {shape:?}");
    };
    check("ReduceSum", &[-1], &[4, 8], true);
    check("ReduceSum", &[1, 2], &[4, 8, 2], true);
    check("ReduceSum", &[1], &[4, 8, 1], true);
    check("ReduceSum", &[], &[4, 8], true);
    check("ReduceSum", &[0], &[4, 8], false);
    check("ReduceSum", &[0, 2], &[4, 8, 2], false);
    check("ReduceSum", &[1], &[4, 1], false);
    check("ReduceSum", &[1], &[4, 0], false);
    check("ReduceSum", &[7], &[4, 8], false);
    check("ReduceLogSumExp", &[1], &[4, 8], false);
    check("Softmax", &[1], &[4, 8], false);
    // A reduction of few long rows is not fused, so that all threads can share a row.
    check("ReduceSum", &[1], &[4, 1 << 20], false);
    check("ReduceSum", &[1], &[64, 1 << 20], true);
}

#[test]
fn many_operands_and_many_readers() {
    let given = [f32s(&[5], 1.), f32s(&[5], -2.), f32s(&[1], 3.)];
    let nodes = [
        (Elementwise::Fold(Max), &[0, 1, 2][..]),
        (Elementwise::Fold(Add), &[3, 0, 3, 1]),
        (NEG, &[3]),
        (Elementwise::Fold(Mul), &[4, 5]),
        (Elementwise::Fold(Mul), &[6, 6]),
        (Elementwise::Fold(Add), &[2, 7]),
    ];
    check(&given, &nodes, &[0, 1]);
}

#[test]
fn too_many_tiles_are_refused() {
    // The nodes negate one value n times; all results are read at the end.
    let fits = |n: u32| {
        let all: Vec<u32> = (1..=n).collect();
        let neg = |output: &u32| Step {
            function: NEG,
            inputs: &[0],
            output: *output,
        };
        let mut steps: Vec<Step<'_>> = all.iter().map(neg).collect();
        steps.push(Step {
            function: Elementwise::Fold(Add),
            inputs: &all,
            output: n + 1,
        });
        fuse(DType::F32, &[], &steps, Tail::Plain, |_| true).is_some()
    };
    assert!(fits(4) && !fits(12));
}

#[test]
fn the_functions_of_chains_are_those_that_roles_name() {
    use crate::cpu::{ChainRole, chain_role};

    for def in convoke_graph::ops::all() {
        let is_function = (1..=2).any(|operands| {
            let spec = Spec {
                def,
                attrs: &Attrs::default(),
                operands: &vec![Some(DType::F32); operands],
            };
            elementwise(&spec).is_some()
        });
        let role = chain_role(def.op);
        assert_eq!(
            is_function,
            role == Some(ChainRole::Function),
            "{}",
            def.name
        );
    }
}
