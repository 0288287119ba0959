//! Tests of the annotations that place nodes on devices.

use std::path::{Path, PathBuf};

use super::super::devices::{Annotated, annotate};
use super::*;

/// A node that has stage `stage` of configuration `configuration`.
fn staged(configuration: &str, stage: i32, n: NodeProto) -> NodeProto {
    let annotation = NodeDeviceConfigurationProto {
        configuration_id: Some(configuration.into()),
        sharding_spec: vec![],
        pipeline_stage: Some(stage),
    };
    let mut device_configurations = n.device_configurations.clone();
    device_configurations.push(annotation);
    NodeProto {
        device_configurations,
        ..n
    }
}

fn configuration(name: &str, devices: &[&str]) -> DeviceConfigurationProto {
    DeviceConfigurationProto {
        name: Some(name.into()),
        num_devices: Some(devices.len() as i32),
        device: devices.iter().map(|d| d.to_string()).collect(),
    }
}

fn relu(input: &str, output: &str) -> NodeProto {
    node("Relu", input, output, vec![])
}

/// A model of these nodes on `x`, whose result is `y`.
fn of(nodes: Vec<NodeProto>, configuration: Vec<DeviceConfigurationProto>) -> ModelProto {
    let g = graph(vec![value("x", F32, &["2"])], vec![], nodes, "y");
    ModelProto {
        ir_version: Some(11),
        configuration,
        ..model(17, g)
    }
}

/// Each stage as `device: node node`.
fn stages(i: &ImportedModel) -> Vec<String> {
    let shown = i.stages.iter().map(|s| {
        let device = s.device.as_deref().unwrap_or("-");
        format!("{device}: {}", s.nodes.join(" "))
    });
    shown.collect()
}

#[test]
fn stages_have_the_nodes_and_the_devices_of_the_file() {
    let check = |m: &ModelProto, want: &[&str]| {
        assert_eq!(stages(&try_import(m).unwrap()), want);
    };
    let nodes = |c: &str| {
        vec![
            staged(c, 4, relu("x", "a")),
            staged(c, 1, relu("a", "b")),
            relu("b", "y"),
        ]
    };
    // Stages without devices keep their order; devices are those with the numbers of the stages.
    check(&of(nodes("c"), vec![]), &["-: b_node", "-: a_node"]);
    let names = &["w0", "w1", "w2", "", "w4/cpu"];
    let named = of(nodes("c"), vec![configuration("c", names)]);
    check(&named, &["w1: b_node", "w4/cpu: a_node"]);
    check(
        &of(vec![relu("x", "y")], vec![configuration("c", names)]),
        &[],
    );
}

#[test]
fn one_configuration_counts() {
    let both = staged("b", 0, staged("a", 7, relu("x", "y")));
    let known = vec![configuration("b", &["w1"]), configuration("a", &[])];
    let i = try_import(&of(vec![both], known)).unwrap();
    assert_eq!(stages(&i), ["w1: y_node"]);
    assert_eq!(
        i.remarks,
        ["the model has several configurations of devices: 'b' is used, 1 others are ignored"]
    );
}

#[test]
fn a_configuration_that_is_not_defined_is_told() {
    let nodes = vec![
        staged("lost", 0, relu("x", "a")),
        staged("c", 1, relu("a", "b")),
        staged("lost", 1, relu("b", "y")),
    ];
    let i = try_import(&of(nodes, vec![configuration("c", &["w0", "w1"])])).unwrap();
    assert_eq!(stages(&i), ["w1: b_node"]);
    let want = "2 nodes of the model name a configuration of devices that the model does not define ('lost'): it says of no \
                devices";
    assert_eq!(i.remarks[0], want);
}

#[test]
fn what_annotations_may_take_is_bounded() {
    let check = |m: &ModelProto, what: &str| {
        let e = try_import(m).unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    };
    let configured = |count: usize| {
        let node = (0..count).fold(relu("x", "y"), |n, i| staged(&format!("c{i}"), 0, n));
        of(vec![node], vec![])
    };
    assert_eq!(stages(&try_import(&configured(16)).unwrap()), ["-: y_node"]);
    check(&configured(17), "configurations of devices");
    let device = |bytes: usize| {
        let node = staged("c", 0, relu("x", "y"));
        of(vec![node], vec![configuration("c", &[&"w".repeat(bytes)])])
    };
    assert!(try_import(&device(512)).is_ok());
    check(&device(513), "bytes of a device's name");
}

#[test]
fn sharding_and_training_are_ignored_with_a_word() {
    let mut n = staged("c", 0, relu("x", "y"));
    n.device_configurations[0].sharding_spec = vec![ShardingSpecProto {
        tensor_name: Some("x".into()),
    }];
    let s = Scratch::new();
    let mut bytes = of(vec![n], vec![configuration("c", &["w0"])]).encode_to_vec();
    // An empty message of information for training.
    bytes.extend([0xa2, 0x01, 0x00]);
    let i = load(&s.write("m.onnx", &bytes), &options(&s)).unwrap();
    assert_eq!(stages(&i), ["w0: y_node"]);
    assert_eq!(
        i.remarks,
        [
            "1 node of the model says how tensors are sharded, which is ignored: nodes run whole",
            "the model has information for training, which is ignored"
        ]
    );
}

#[test]
fn nodes_of_functions_and_branches_belong_to_nodes_of_the_file() {
    let scaled = FunctionProto {
        name: Some("f".into()),
        domain: Some("local".into()),
        input: names("a"),
        output: names("r"),
        node: vec![relu("a", "t"), relu("t", "r")],
        opset_import: vec![opset("", 17)],
        ..FunctionProto::default()
    };
    let call = NodeProto {
        domain: Some("local".into()),
        ..node("f", "x", "a", vec![])
    };
    let branch = |n: NodeProto| graph(vec![], vec![], vec![n], "b");
    let branches = vec![
        graph_attr("then_branch", branch(staged("c", 2, relu("a", "b")))),
        graph_attr("else_branch", branch(relu("a", "b"))),
    ];
    let choice = node("If", "yes", "y", branches);
    let mut m = of(
        vec![staged("c", 0, call), staged("c", 1, choice)],
        vec![configuration("c", &["w0", "w1", "w2"])],
    );
    m.functions = vec![scaled];
    m.opset_import.push(opset("local", 1));
    let g = m.graph.as_mut().unwrap();
    g.initializer = vec![raw("yes", 9, &[], vec![1])];
    let i = try_import(&m).unwrap();
    let want = [
        "w0: a_node/t_node a_node/r_node",
        "w1: ",
        "w2: y_node/b_node",
    ];
    assert_eq!(stages(&i), want);
}

/// Writes the model with the placement of `device_of`, and imports what was written.
fn written(
    s: &Scratch,
    m: &ModelProto,
    device_of: &dyn Fn(&str) -> Option<usize>,
) -> (Annotated, ImportedModel) {
    let from = s.write("m.onnx", &m.encode_to_vec());
    let imported = load(&from, &options(s)).unwrap();
    let devices = ["w0".to_owned(), "w1".to_owned()];
    let to = s.path().join("annotated.onnx");
    let done = annotate(&from, &to, &[], &devices, &imported.origins, device_of).unwrap();
    (done, load(&to, &options(s)).unwrap())
}

fn decoded(path: &Path) -> ModelProto {
    ModelProto::decode(&*std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_is_written_is_the_model_with_annotations() {
    let s = Scratch::new();
    let big = floats("w", &[4096], &[0.5; 4096]);
    let nodes = vec![
        relu("x", "a"),
        relu("a", "b"),
        node("Add", "b w", "y", vec![]),
    ];
    let mut m = model(
        17,
        graph(vec![value("x", F32, &["4096"])], vec![big], nodes, "y"),
    );
    m.metadata_props.push(StringStringEntryProto {
        key: Some("key".into()),
        value: Some("value".into()),
    });
    let device_of = |name: &str| match name {
        "a_node" => Some(0),
        "y_node" => Some(1),
        _ => None,
    };
    let (done, again) = written(&s, &m, &device_of);
    assert_eq!((done.nodes, done.divided), (2, 0));
    assert_eq!(stages(&again), ["w0: a_node", "w1: y_node"]);
    assert!(again.remarks.is_empty(), "{:?}", again.remarks);
    // Nothing else changed, except for the version of the IR.
    let path = s.path().join("annotated.onnx");
    let mut found = decoded(&path);
    assert_eq!((found.ir_version, found.configuration.len()), (Some(11), 1));
    found.ir_version = m.ir_version;
    found.configuration.clear();
    for n in &mut found.graph.as_mut().unwrap().node {
        n.device_configurations.clear();
    }
    assert_eq!(found, m);
    // A later plan replaces the former one, and leaves the annotations of others.
    let mut other = decoded(&path);
    other.configuration.push(configuration("other", &["gpu"]));
    let first = &mut other.graph.as_mut().unwrap().node[0];
    *first = staged("other", 0, first.clone());
    let (_, again) = written(&s, &other, &|name| (name == "b_node").then_some(1));
    let found = decoded(&path);
    let names: Vec<&str> = found.configuration.iter().map(|c| c.name()).collect();
    assert_eq!(names, ["other", "convoke"]);
    assert_eq!(stages(&again), ["w1: b_node"]);
    assert_eq!(again.remarks.len(), 1);
}

#[test]
fn data_of_other_files_stays_beside_the_model() {
    let s = Scratch::new();
    s.write("m.data", &[0; 8]);
    let w = external("w", &[2], &[("location", "m.data")]);
    let x = value("x", F32, &["2"]);
    let m = model(
        17,
        graph(vec![x], vec![w], vec![node("Add", "x w", "y", vec![])], "y"),
    );
    let (done, _) = written(&s, &m, &|_| Some(0));
    assert_eq!(done.nodes, 1);
    let from = s.path().join("m.onnx");
    let elsewhere = s.path().join("sub");
    std::fs::create_dir(&elsewhere).unwrap();
    let refused = |to: &Path, data: &[PathBuf], advice: &str| {
        let e = annotate(&from, to, data, &[], &vec![vec![]], &|_| None);
        let e = Error::from(e.unwrap_err());
        assert_eq!(e.code, Code::InvalidArgument);
        assert!(e.advice.contains(advice), "{e}");
    };
    refused(&elsewhere.join("a.onnx"), &[], "the folder of the model");
    // Neither the model's data files nor the weights that were given with it are written over.
    refused(&s.path().join("m.data"), &[], "another name");
    let weights = s.write("w.safetensors", &[1]);
    refused(&weights, std::slice::from_ref(&weights), "another name");
    let over = annotate(
        &from,
        &from,
        std::slice::from_ref(&from),
        &[],
        &vec![vec![]],
        &|_| None,
    );
    assert!(over.is_ok());
}

#[test]
fn a_folder_that_is_not_there_is_not_made() {
    let s = Scratch::new();
    let x = value("x", F32, &["2"]);
    let m = model(
        17,
        graph(vec![x], vec![], vec![node("Neg", "x", "y", vec![])], "y"),
    );
    let (done, _) = written(&s, &m, &|_| Some(0));
    assert_eq!(done.nodes, 1);
    let absent = s.path().join("absent");
    let to = absent.join("a.onnx");
    let e = annotate(
        &s.path().join("m.onnx"),
        &to,
        &[],
        &[],
        &vec![vec![]],
        &|_| None,
    );
    assert_eq!(Error::from(e.unwrap_err()).code, Code::Io);
    assert!(!absent.exists());
}
