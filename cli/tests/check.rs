//! `convoke check`: what it says about models that run, and about those that do not.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use common::{Scratch, fixture, run};
use convoke::HostTensor;
use convoke::numpy::write_npz;

/// A field of a protobuf message that has a length, of less than 16 KiB.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (low, high) = (content.len() % 128, content.len() / 128);
    let length = match high {
        0 => vec![low as u8],
        high => vec![low as u8 | 0x80, high as u8],
    };
    [&[number << 3 | 2], &*length, content].concat()
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// A model of the set 17 with the nodes `n0`, `n1` and so on, which read `x: f32[2]`, of these ops.
fn model<const N: usize>(ops: [&str; N]) -> Vec<u8> {
    let ty = field(
        1,
        &[varint(1, 1), field(2, &field(1, &varint(1, 2)))].concat(),
    );
    let value = |name: &str| [field(1, name.as_bytes()), field(2, &ty)].concat();
    let node = |(i, op): (usize, &&str)| {
        let (name, made) = (format!("n{i}"), format!("y{i}"));
        let node = [
            field(1, b"x"),
            field(2, made.as_bytes()),
            field(3, name.as_bytes()),
            field(4, op.as_bytes()),
        ];
        field(1, &node.concat())
    };
    let mut graph: Vec<u8> = ops.iter().enumerate().flat_map(node).collect();
    graph.extend(field(2, b"g"));
    graph.extend(field(11, &value("x")));
    (0..N).for_each(|i| graph.extend(field(12, &value(&format!("y{i}")))));
    let model = [varint(1, 8), field(7, &graph), field(8, &varint(2, 17))];
    model.concat()
}

/// A model of the set 17: maxima of three, of `x: f32[1, 1, h]`.
fn pooling() -> Vec<u8> {
    let (one, h) = (varint(1, 1), field(2, b"h"));
    let shape: Vec<u8> = [&one, &one, &h].iter().flat_map(|d| field(1, d)).collect();
    let ty = field(1, &[varint(1, 1), field(2, &shape)].concat());
    let kernel = [
        field(1, b"kernel_shape"),
        varint(8, 3),
        // The type of an attribute of integers is 7.
        vec![20 << 3 & 0x7f | 0x80, 1, 7],
    ];
    let node = [
        field(1, b"x"),
        field(2, b"y"),
        field(3, b"pool"),
        field(4, b"MaxPool"),
        field(5, &kernel.concat()),
    ];
    let graph = [
        field(1, &node.concat()),
        field(2, b"g"),
        field(11, &[field(1, b"x"), field(2, &ty)].concat()),
        field(12, &field(1, b"y")),
    ];
    let graph = field(7, &graph.concat());
    [varint(1, 8), graph, field(8, &varint(2, 17))].concat()
}

#[test]
fn sizes_with_which_a_model_does_not_run_are_not_assumed() {
    let scratch = Scratch::new("check-sizes");
    let file = scratch.path("model.onnx");
    std::fs::write(&file, pooling()).unwrap();
    let path = file.to_str().unwrap();
    let axes = run(["check", path, "--json"]).expect(0).json()["figures"]["axes"].clone();
    assert_eq!(
        axes,
        serde_json::json!([{"axis": "h", "size": 4, "assumed": true}])
    );
    let said = run(["check", path, "--dim", "h=2"]).expect(1).stderr;
    let why = "the model does not run with h=2: node 'pool' (MaxPool): a kernel of extent 3 does not fit in 2";
    assert!(said.contains(why), "{said}");
    run(["check", path, "--dim", "h=3"]).expect(0);
}

#[test]
fn inputs_that_disagree_on_a_size_are_refused() {
    let model = fixture("mini_transformer/model.onnx").display().to_string();
    let check = |mask: &[usize]| {
        let scratch = Scratch::new("check-inputs");
        let file = scratch.path("inputs.npz");
        let zeros = |name: &str, shape: &[usize]| {
            let all = vec![0i64; shape.iter().product()];
            let array = HostTensor::from_slice(shape, &all).unwrap();
            (name.to_owned(), array)
        };
        let arrays = [zeros("input_ids", &[2, 7]), zeros("attention_mask", mask)];
        write_npz(&file, &arrays).unwrap();
        run(["check", &model, "--inputs", file.to_str().unwrap()])
    };
    check(&[2, 7]).expect(0);
    let said = check(&[2, 5]).expect(1).stderr;
    assert!(
        said.contains("input 'attention_mask' has the shape [2, 5], expected [")
            && said.contains("= 7"),
        "{said}"
    );
    let said = check(&[2, 7, 1]).expect(1).stderr;
    assert!(said.contains("has the shape [2, 7, 1]"), "{said}");
}

#[test]
fn what_a_model_takes_is_said() {
    let digits = fixture("digits/model.onnx").display().to_string();
    let r = run(["check", &digits, "--json"]).expect(0).json();
    assert_eq!(
        (&r["runs"], r["unsupported"].as_array().unwrap().len()),
        (&true.into(), 0)
    );
    let f = &r["figures"];
    let number = |name: &str| f[name].as_f64().unwrap();
    assert!(number("nodes") > 3. && number("parameters") > 1000. && number("operations") > 10_000.);
    assert_eq!(number("weights_bytes"), 4. * number("parameters"));
    let splits = f["splits"].as_array().unwrap();
    let needed: Vec<usize> = splits
        .iter()
        .map(|s| s["needed_bytes"].as_array().unwrap().len())
        .collect();
    assert_eq!(needed, [1, 2, 3]);
    assert_eq!(splits[0]["cut_bytes"], 0);
    let text = run(["check", &digits, "--workers", "2"]).expect(0).stdout;
    assert!(
        text.contains("runs: ") && text.contains("EACH NEEDS"),
        "{text}"
    );
    let whole = "no split over more than ";
    assert!(!text.contains(whole), "{text}");
    let text = run(["check", &digits, "--workers", "60"]).expect(0).stdout;
    assert!(text.contains(whole), "{text}");
}

#[test]
fn sizes_of_axes_are_assumed_or_given() {
    let model = fixture("mini_transformer/model.onnx").display().to_string();
    let check = |flags: &[&str]| {
        let args = [&["check", &model, "--json"], flags].concat();
        run(args).expect(0).json()["figures"].clone()
    };
    let assumed = check(&[]);
    let axes = assumed["axes"].as_array().unwrap();
    assert!(!axes.is_empty() && axes.iter().all(|a| a["assumed"] == true && a["size"] == 1));
    let axis = axes[0]["axis"].as_str().unwrap();
    let given = check(&["--dim", &format!("{axis}=7")]);
    assert_eq!(
        (&given["axes"][0]["size"], &given["axes"][0]["assumed"]),
        (&7.into(), &false.into())
    );
    assert!(given["operations"].as_f64() > assumed["operations"].as_f64());
    let text = run(["check", &model, "--dim", "nowhere=3"])
        .expect(1)
        .stderr;
    assert!(
        text.contains("no dynamic axis 'nowhere'") && text.contains(axis),
        "{text}"
    );
}

#[test]
fn sizes_of_axes_are_those_of_the_inputs_unless_they_are_given() {
    let [model, inputs] = ["model.onnx", "test.npz"].map(|name| {
        let file = fixture(&format!("mini_transformer/{name}"));
        file.display().to_string()
    });
    let check = |flags: &[&str]| {
        let args = [&["check", &model, "--json", "--inputs", &inputs], flags].concat();
        run(args).expect(0).json()["figures"]["axes"].clone()
    };
    let axes = check(&[]);
    let axes = axes.as_array().unwrap();
    assert!(axes.iter().all(|a| a["assumed"] == false), "{axes:?}");
    assert!(axes.iter().any(|a| a["size"] != 1), "{axes:?}");
    let axis = axes[0]["axis"].as_str().unwrap();
    let given = check(&["--dim", &format!("{axis}=7")]);
    assert_eq!(given[0]["size"], 7);
}

#[test]
fn inputs_of_another_dtype_are_refused_as_by_run() {
    let scratch = Scratch::new("check");
    let model = fixture("digits/model.onnx").display().to_string();
    let file = scratch.path("inputs.npz").display().to_string();
    let x = HostTensor::from_slice(&[1, 1, 8, 8], &[0.5f64; 64]).unwrap();
    write_npz(&file, &[("image".into(), x)]).unwrap();
    for command in [&["check", &model][..], &["run", &model, "--local", "1"]] {
        let said = run([command, &["--inputs", &file]].concat())
            .expect(1)
            .stderr;
        let told = "input 'image' is f64[1, 1, 8, 8], expected f32[batch, 1, 8, 8]";
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn a_loop_of_unknown_length_is_told() {
    let model = fixture("exported/torch_script_loop/model.onnx");
    let text = run(["check", model.to_str().unwrap()]).expect(0).stdout;
    assert!(
        text.contains(
            "a run decides how often 1 loop iterates: 1000 iterations are counted for each"
        ),
        "{text}"
    );
    let model = fixture("digits/model.onnx");
    let text = run(["check", model.to_str().unwrap()]).expect(0).stdout;
    assert!(!text.contains("iterate"), "{text}");
}

#[test]
fn nodes_whose_sizes_data_decides_are_told() {
    let told = |name: &str| {
        let model = fixture(name).display().to_string();
        let text = run(["check", &model]).expect(0).stdout;
        let counted = run(["check", &model, "--json"]).expect(0).json();
        let nodes = counted["figures"]["uncounted_nodes"].as_u64().unwrap();
        let least = text.contains("at least ") && text.contains("of unknown size");
        assert_eq!(least, nodes > 0, "{text}");
        nodes
    };
    assert_eq!(told("digits/model.onnx"), 0);
    assert!(told("sequences/model.onnx") > 0);
}

#[test]
fn what_is_missing_is_listed_by_op() {
    let scratch = Scratch::new("check");
    let file = scratch.path("model.onnx");
    std::fs::write(&file, model(["Twist", "Neg", "Twist"])).unwrap();
    let path = file.to_str().unwrap();
    let r = run(["check", path, "--json"]).expect(1).json();
    assert_eq!(
        (&r["runs"], &r["error"]["code"]),
        (&false.into(), &"unsupported_op".into())
    );
    let missing = r["unsupported"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{missing:?}");
    let of = &missing[0];
    assert_eq!(
        (&of["op"], &of["opset"], &of["nodes"]),
        (&"Twist".into(), &17.into(), &2.into())
    );
    assert_eq!(of["reason"], "no such op");
    assert_eq!(of["dtypes"], serde_json::json!(["f32"]));
    assert_eq!(of["first_nodes"], serde_json::json!(["n0", "n2"]));
    let done = run(["check", path]).expect(1);
    assert!(
        done.stdout.contains("does not run") && done.stdout.contains("Twist"),
        "{}",
        done.stdout
    );
    assert!(
        done.stderr
            .contains("2 nodes of the model are not supported"),
        "{}",
        done.stderr
    );
}

#[test]
fn the_list_of_what_is_missing_is_bounded() {
    let scratch = Scratch::new("check-many");
    let file = scratch.path("model.onnx");
    let ops: [String; 70] = std::array::from_fn(|i| format!("Twist{i}"));
    std::fs::write(&file, model(ops.each_ref().map(String::as_str))).unwrap();
    let path = file.to_str().unwrap();
    let r = run(["check", path, "--json"]).expect(1).json();
    assert_eq!(r["unsupported"].as_array().unwrap().len(), 64);
    assert_eq!(r["further"], serde_json::json!({"ops": 6, "nodes": 6}));
    let done = run(["check", path]).expect(1);
    let text = format!("{}{}", done.stdout, done.stderr);
    assert!(
        text.contains("and 54 further operators, 54 nodes")
            && text.contains("Twist15")
            && !text.contains("Twist16"),
        "{text}"
    );
    // The advice is the same for all, and is given once.
    assert_eq!(text.matches("export the model without them").count(), 1);
}

#[test]
fn a_model_without_nodes_takes_no_operations() {
    let scratch = Scratch::new("check-empty");
    let file = scratch.path("model.onnx");
    let ty = [varint(1, 1), field(2, &field(1, &varint(1, 2)))].concat();
    let x = [field(1, b"x"), field(2, &field(1, &ty))].concat();
    let graph = [field(2, b"g"), field(11, &x), field(12, &x)];
    let graph = field(7, &graph.concat());
    let model = [varint(1, 8), graph, field(8, &varint(2, 17))];
    std::fs::write(&file, model.concat()).unwrap();
    let text = run(["check", file.to_str().unwrap()]).expect(0).stdout;
    assert!(text.contains(", 0 FLOP per step"), "{text}");
}
