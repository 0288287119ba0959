//! Strings that are moved, compared and converted.

use convoke_common::Code;
use convoke_graph::graph::{Attr, Attrs, Function, Node, RunsAt, TensorType};
use convoke_graph::{DType, Tensor};

use crate::cpu::testing::{launch, launch_within, one, vec1};

fn text(shape: &[usize], strings: &[&str]) -> Tensor {
    Tensor::from_strings(shape, strings).unwrap()
}

fn none() -> Attrs {
    Attrs::default()
}

fn int(name: &str, v: i64) -> Attrs {
    none().with(name, Attr::Int(v))
}

#[test]
fn strings_are_moved() {
    let x = text(&[2, 3], &["a", "", "été", "日本", "b", "cc"]);
    let check = |op: &str, attrs: Attrs, operands: &[&Tensor], want: Tensor| {
        assert_eq!(one(op, attrs, operands).unwrap(), want, "{op}");
    };
    let turned = text(&[3, 2], &["a", "日本", "", "b", "été", "cc"]);
    check("Transpose", none(), &[&x], turned);
    check("Identity", none(), &[&x], x.clone());
    let flat = text(&[6], &["a", "", "été", "日本", "b", "cc"]);
    check("Reshape", none(), &[&x, &vec1(&[-1i64])], flat);
    let joined = text(&[2, 4], &["a", "", "été", "x", "日本", "b", "cc", "y"]);
    check(
        "Concat",
        int("axis", 1),
        &[&x, &text(&[2, 1], &["x", "y"])],
        joined,
    );
    let rows = text(&[1, 3], &["日本", "b", "cc"]);
    check("Gather", none(), &[&x, &vec1(&[-1i64])], rows);
    let at = Tensor::from_slice(&[2, 1], &[2i64, 0]).unwrap();
    check(
        "GatherElements",
        int("axis", 1),
        &[&x, &at],
        text(&[2, 1], &["été", "日本"]),
    );
    let at = Tensor::from_slice(&[1, 2], &[1i64, 2]).unwrap();
    check("GatherND", none(), &[&x, &at], text(&[1], &["cc"]));
    let ints = |v: &[i64]| vec1(v);
    let part = text(&[2, 1], &["", "b"]);
    check(
        "Slice",
        none(),
        &[&x, &ints(&[1]), &ints(&[2]), &ints(&[1])],
        part,
    );
    let one_row = text(&[2], &["p", "q"]);
    let wide = text(&[2, 2], &["p", "q", "p", "q"]);
    check("Expand", none(), &[&one_row, &ints(&[2, 2])], wide);
    check(
        "Tile",
        none(),
        &[&one_row, &ints(&[2])],
        text(&[4], &["p", "q", "p", "q"]),
    );
    let padded = text(&[4], &["", "p", "q", ""]);
    check("Pad", none(), &[&one_row, &ints(&[1, 1])], padded);
    let padded = text(&[3], &["-", "p", "q"]);
    check(
        "Pad",
        none(),
        &[&one_row, &ints(&[1, 0]), &text(&[], &["-"])],
        padded,
    );
    let hot = text(&[2, 2], &["on", "off", "off", "on"]);
    check(
        "OneHot",
        none(),
        &[
            &ints(&[0, 1]),
            &Tensor::from_slice(&[], &[2i64]).unwrap(),
            &text(&[2], &["off", "on"]),
        ],
        hot,
    );
    let nearest = none().with("mode", Attr::Str("nearest".into()));
    let operands = vec![Some(one_row.clone()), None, None, Some(ints(&[4]))];
    let y = launch("Resize", nearest.clone(), operands, 1).unwrap();
    assert_eq!(y, [text(&[4], &["p", "p", "q", "q"])]);
    let grid = Tensor::from_slice(&[1, 3, 1], &[0.5f32, -0.5, 4.0]).unwrap();
    check(
        "GridSample",
        nearest,
        &[&text(&[1, 1, 2], &["p", "q"]), &grid],
        text(&[1, 1, 3], &["q", "p", ""]),
    );
    let which = Tensor::from_bools(&[2, 1], &[true, false]).unwrap();
    let chosen = text(&[2, 2], &["p", "q", "z", "z"]);
    check(
        "Where",
        none(),
        &[&which, &one_row, &text(&[], &["z"])],
        chosen,
    );
    check("Shape", none(), &[&x], ints(&[2, 3]));
    let parts = launch("Split", int("num_outputs", 2), vec![Some(one_row)], 2).unwrap();
    assert_eq!(parts, [text(&[1], &["p"]), text(&[1], &["q"])]);
    let (at, new) = (vec1(&[0i64]), text(&[1], &["new"]));
    let flat = text(&[2], &["old", "kept"]);
    check(
        "ScatterElements",
        none(),
        &[&flat, &at, &new],
        text(&[2], &["new", "kept"]),
    );
    let linear = vec![Some(flat.clone()), None, None, Some(ints(&[4]))];
    let linear = launch(
        "Resize",
        none().with("mode", Attr::Str("linear".into())),
        linear,
        1,
    );
    assert!(linear.is_err());
    let add = none().with("reduction", Attr::Str("add".into()));
    assert!(one("ScatterElements", add, &[&flat, &at, &new]).is_err());
}

#[test]
fn strings_are_compared() {
    let x = text(&[2, 2], &["a", "b", "", "A"]);
    let y = one("Equal", none(), &[&x, &text(&[2], &["a", "A"])]).unwrap();
    let want = [true, false, false, true];
    assert_eq!(y, Tensor::from_bools(&[2, 2], &want).unwrap());
    let nothing = one("Equal", none(), &[&text(&[0, 2], &[]), &text(&[1], &["a"])]);
    assert_eq!(nothing.unwrap().shape(), [0, 2]);
}

#[test]
fn different_strings() {
    let x = text(&[5], &["b", "a", "b", "", "a"]);
    let all = |attrs| launch("Unique", attrs, vec![Some(x.clone())], 4).unwrap();
    let y = all(none());
    assert_eq!(y[0], text(&[3], &["", "a", "b"]));
    assert_eq!(y[1], vec1(&[3i64, 1, 0]));
    assert_eq!(y[2], vec1(&[2i64, 1, 2, 0, 1]));
    assert_eq!(y[3], vec1(&[1i64, 2, 2]));
    let y = all(int("sorted", 0));
    assert_eq!(y[0], text(&[3], &["b", "a", ""]));
    assert_eq!(y[1], vec1(&[0i64, 1, 3]));
    assert_eq!(y[2], vec1(&[0i64, 1, 0, 2, 1]));
    assert_eq!(y[3], vec1(&[2i64, 2, 1]));
    // More strings than one run of the sort has.
    let many: Vec<String> = (0..20_000)
        .map(|i| (i * 7919 % 10_007).to_string())
        .collect();
    let y = one(
        "Unique",
        none(),
        &[&Tensor::from_strings(&[20_000], &many).unwrap()],
    );
    let mut want = many.clone();
    want.sort();
    want.dedup();
    assert_eq!(y.unwrap().to_strings().unwrap(), want);
}

#[test]
fn numbers_become_strings_and_back() {
    let to = |d| none().with("to", Attr::DType(d));
    let check = |x: Tensor, want: &[&str]| {
        let y = one("Cast", to(DType::Str), &[&x]).unwrap();
        assert_eq!(y.to_strings().unwrap(), want);
        let back = one("Cast", to(x.dtype()), &[&y]).unwrap();
        assert_eq!(back, x);
    };
    check(
        vec1(&[0.1f32, -0.0, 1e20, 3.0]),
        &["0.1", "-0", "100000000000000000000", "3"],
    );
    check(
        vec1(&[f64::INFINITY, f64::NEG_INFINITY, 1e-7]),
        &["INF", "-INF", "0.0000001"],
    );
    check(vec1(&[i64::MIN, 7]), &["-9223372036854775808", "7"]);
    check(vec1(&[u64::MAX]), &["18446744073709551615"]);
    check(vec1(&[half::f16::from_f32(0.5)]), &["0.5"]);
    check(
        Tensor::from_bools(&[2], &[true, false]).unwrap(),
        &["1", "0"],
    );
    let four = Tensor::from_bytes(DType::I4, &[3], &[0x8f, 0x07]).unwrap();
    check(four, &["-1", "-8", "7"]);
    let nan = one("Cast", to(DType::Str), &[&vec1(&[f32::NAN])]).unwrap();
    assert_eq!(nan.to_strings().unwrap(), ["NaN"]);
}

#[test]
fn strings_that_are_no_numbers_are_refused() {
    let parse = |dtype, s: &str| {
        let attrs = none().with("to", Attr::DType(dtype));
        one("Cast", attrs, &[&text(&[1], &[s])])
    };
    let float = |s: &str| parse(DType::F32, s).unwrap().as_slice::<f32>().unwrap()[0];
    assert_eq!(
        (float(" 1e-5 "), float("+inf"), float("1E8")),
        (1e-5, f32::INFINITY, 1e8)
    );
    assert!(float("nAn").is_nan());
    assert_eq!(parse(DType::I32, "100.5").unwrap(), vec1(&[100i32]));
    for (dtype, s) in [
        (DType::F32, ""),
        (DType::F32, "one"),
        (DType::I8, "128"),
        (DType::U8, "-1"),
        (DType::I64, "1e19"),
        (DType::I64, "nan"),
        (DType::Bool, "yes"),
    ] {
        let e = parse(dtype, s).unwrap_err();
        assert!(e.message.contains("string 0"), "{dtype} of {s:?}: {e}");
    }
}

#[test]
fn loops_take_and_collect_strings() {
    let mut body = Function::default();
    let row = body.add_value("row", TensorType::fixed(DType::Str, &[2]));
    body.params.push(row);
    body.results.push(("same".into(), row));
    let attrs = none()
        .with("body", Attr::Function(body.into()))
        .with("num_scan_inputs", Attr::Int(1));
    let x = text(&[2, 2], &["a", "bb", "", "d"]);
    assert_eq!(one("Scan", attrs.clone(), &[&x]).unwrap(), x);
    let attrs = attrs.with("scan_output_directions", Attr::Ints(vec![1]));
    let reversed = text(&[2, 2], &["", "d", "a", "bb"]);
    assert_eq!(one("Scan", attrs, &[&x]).unwrap(), reversed);
}

#[test]
fn slices_of_a_scan_are_within_the_budget() {
    let mut body = Function::default();
    let row = body.add_value("row", TensorType::fixed(DType::Str, &[1]));
    let same = body.add_value("same", TensorType::fixed(DType::Bool, &[1]));
    body.params.push(row);
    body.nodes.push(Node {
        name: "same".into(),
        op: "Equal".into(),
        attrs: none(),
        inputs: vec![Some(row); 2],
        outputs: vec![same],
        runs_at: RunsAt::Step,
    });
    body.results.push(("same".into(), same));
    let attrs = none()
        .with("body", Attr::Function(body.into()))
        .with("num_scan_inputs", Attr::Int(1));
    let long = "a".repeat(1 << 20);
    let x = text(&[2, 1], &["b", &long]);
    let scan = |memory| launch_within(memory, "Scan", attrs.clone(), vec![Some(x.clone())], 1);
    let want = Tensor::from_bools(&[2, 1], &[true, true]).unwrap();
    assert_eq!(scan(1 << 22).unwrap(), [want]);
    assert_eq!(scan(1 << 19).unwrap_err().code, Code::OutOfMemory);
}
