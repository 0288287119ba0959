//! Errors that users meet: each command prints one clear error, exits with the right code and leaves nothing running.
//! The texts are part of the interface.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use std::path::Path;

use crate::partial::{Message, node, value};
use common::{Daemon, Finished, Scratch, convoke, finish, fixture, run};
use convoke::numpy::{read_npz, write_npz};
use convoke::{DType, HostTensor as Tensor};

fn text(p: &Path) -> String {
    p.display().to_string()
}

#[track_caller]
fn fails(args: &[&str], expected: &str) -> Finished {
    let done = run(args).expect(1);
    let errors: Vec<&str> = done
        .stderr
        .lines()
        .skip_while(|l| !l.starts_with("error: "))
        .collect();
    assert_eq!(errors.join("\n"), expected, "{done:#?}");
    assert_eq!(done.stdout, "");
    done
}

#[test]
fn models_that_cannot_be_read() {
    let scratch = Scratch::new("models");
    let inputs = text(&fixture("digits/test.npz"));
    let check = |name: &str, bytes: Option<&[u8]>, expected: &str| {
        let path = scratch.path(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let expected = expected.replace("PATH", &text(&path));
        // The end of the workers causes no further report.
        let args = ["run", &text(&path), "--inputs", &inputs, "--local", "2"];
        let done = fails(&args, &expected);
        assert_eq!(done.stderr.trim_end(), expected);
    };
    check(
        "absent.onnx",
        None,
        "error: PATH does not exist\n  check the path",
    );
    check(
        "text.onnx",
        Some(b"this is a letter, not a model"),
        "error: PATH is not an ONNX model: its first bytes are not a model's\n  \
         export the model to ONNX, for example with torch.onnx.export",
    );
    let whole = std::fs::read(fixture("digits/model.onnx")).unwrap();
    check(
        "half.onnx",
        Some(&whole[..whole.len() / 2]),
        "error: PATH is truncated: 144840 bytes are needed at offset 24, the file has 72435\n  \
         the file is incomplete or damaged; copy or download it again",
    );
}

#[test]
fn inputs_that_do_not_fit() {
    let scratch = Scratch::new("inputs");
    let model = text(&fixture("digits/model.onnx"));
    let check = |name: &str, arrays: &[(&str, Tensor)], expected: &str| {
        let path = scratch.path(name);
        let arrays: Vec<(String, Tensor)> = arrays
            .iter()
            .map(|(n, t)| ((*n).into(), t.clone()))
            .collect();
        write_npz(&path, &arrays).unwrap();
        fails(
            &["run", &model, "--inputs", &text(&path), "--local", "1"],
            expected,
        );
    };
    let t = |dtype, shape: &[usize]| Tensor::zeros(dtype, shape).unwrap();
    check(
        "name.npz",
        &[("picture", t(DType::F32, &[1, 1, 8, 8]))],
        "error: input 'image' (f32[batch, 1, 8, 8]) is missing; the model has no input 'picture'\n  \
         the model's inputs are: image",
    );
    check(
        "dtype.npz",
        &[("image", t(DType::F64, &[1, 1, 8, 8]))],
        "error: input 'image' is f64[1, 1, 8, 8], expected f32[batch, 1, 8, 8]\n  \
         the model's inputs are: image",
    );
    check(
        "shape.npz",
        &[("image", t(DType::F32, &[1, 1, 8, 9]))],
        "error: input 'image' is f32[1, 1, 8, 9], expected f32[batch, 1, 8, 8] with batch = 1\n  \
         the model's inputs are: image",
    );
    fails(
        &["run", &model, "--local", "1"],
        "error: the model needs inputs: image: f32[batch, 1, 8, 8]\n  \
         give them with --inputs FILE.npz, or one by one with --input NAME=FILE.npy",
    );
    fails(
        &["plan", &model, "--local", "1"],
        "error: the sizes of these dynamic axes are not known: batch\n  \
         give inputs, or bound each axis, for example with --dim seq=512",
    );
    fails(
        &["plan", &model, "--local", "1", "--dim", "seq=5"],
        "error: the model has no dynamic axis 'seq'; it has: batch",
    );
    let inputs = text(&fixture("digits/test.npz"));
    fails(
        &[
            "run", &model, "--inputs", &inputs, "--local", "1", "--dim", "batch=2",
        ],
        "error: --dim batch=2 is less than the 360 of input 'image', which is f32[360, 1, 8, 8]\n  \
         write --dim batch=360 or more, or leave it out",
    );
    fails(
        &[
            "plan", &model, "--inputs", &inputs, "--local", "1", "--dim", "batch=2",
        ],
        "error: the axis batch is bounded by 2, and the inputs have 360\n  \
         bound it by 360 or more, with --dim batch=360, or leave the bound out",
    );
    fails(
        &["check", &model, "--inputs", &inputs, "--dim", "batch=2"],
        "error: --dim batch=2 is less than the 360 of the inputs\n  \
         write --dim batch=360 or more, or leave it out",
    );
    fails(
        &[
            "run",
            &model,
            "--inputs",
            &inputs,
            "--local",
            "1",
            "--dim",
            "batch=361..400",
        ],
        "error: --dim batch=361..400 is more than the 360 of input 'image', which is f32[360, 1, 8, 8]\n  \
         write --dim batch=360..400, or leave it out",
    );
    fails(
        &[
            "run",
            &model,
            "--inputs",
            &inputs,
            "--local",
            "1",
            "--artifact-root",
            "/nope",
        ],
        "error: --artifact-root /nope: No such file or directory (os error 2)\n  \
         name a folder that is there and can be read",
    );
    let rich = run([
        "run", &model, "--inputs", &inputs, "--local", "1", "--memory", "500TiB",
    ]);
    let warning = "warning: 500 TiB are offered, and this machine has ";
    assert!(rich.expect(0).stderr.starts_with(warning));
    let absent = text(&scratch.path("absent.npz"));
    let done = fails(
        &["run", &model, "--inputs", &absent],
        &format!(
            "error: cannot read {absent}: No such file or directory (os error 2)\n  \
             check the path and its permissions"
        ),
    );
    drop(done);
    fails(
        &["run", &model, "--inputs", &model],
        &format!(
            "error: {model} is not a .npz file: invalid Zip archive: Could not find EOCD\n  \
             write it with numpy.save (.npy) or numpy.savez (.npz), little-endian"
        ),
    );
}

#[test]
fn clusters_that_cannot_be_reached() {
    let scratch = Scratch::new("reach");
    let (token, state) = (scratch.path("client.token"), scratch.path("state"));
    std::fs::write(&token, "sesame").unwrap();
    let (token, model) = (text(&token), text(&fixture("digits/model.onnx")));
    let connect = |address: &str, token: &str, expected: &str| {
        fails(
            &["status", "--connect", address, "--token-file", token],
            expected,
        );
    };
    connect(
        "127.0.0.1:9",
        &token,
        &format!(
            "error: token file {token}: not a join token (its prefix is wrong): a token is the whole line that \
             `convoke token create` prints\n  make one with `convoke token create --role client --ttl 1h`"
        ),
    );
    let absent = text(&scratch.path("absent"));
    connect(
        "127.0.0.1:9",
        &absent,
        &format!(
            "error: token file {absent}: cannot read the join token: {absent} does not exist\n  make one with `convoke token create --role client --ttl 1h`"
        ),
    );

    // A real cluster makes valid tokens, and then ends.
    let tokens = text(&scratch.path("tokens"));
    let daemon = Daemon::start([
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        &text(&state),
        "--token-dir",
        &tokens,
        "--json",
        "--log",
        "warn",
    ]);
    let ready: serde_json::Value = serde_json::from_str(&daemon.line()).unwrap();
    let address = ready["listen"].as_str().unwrap().to_owned();
    let client = format!("{tokens}/client/token");
    run(["status", "--connect", &address, "--token-file", &client]).expect(0);

    let taken = run([
        "coordinator",
        "--listen",
        &address,
        "--state-dir",
        &text(&scratch.path("other")),
    ])
    .expect(1);
    assert!(
        taken.stderr.contains("error: ") && taken.stderr.contains(&address),
        "{taken:#?}"
    );
    let same = run([
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        &text(&state),
        "--json",
    ])
    .expect(1);
    assert_eq!(same.json()["error"]["code"], "address_in_use", "{same:#?}");

    let worker = format!("{tokens}/worker/token");
    connect(
        &address,
        &worker,
        "error: the token is for a worker, not for a client\n  \
         make one with `convoke token create --role client`",
    );
    let list = run(["token", "list", "--state-dir", &text(&state), "--json"])
        .expect(0)
        .json();
    let id = list["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["role"] == "client")
        .unwrap()["id"]
        .clone();
    run([
        "token",
        "revoke",
        id.as_str().unwrap(),
        "--state-dir",
        &text(&state),
    ])
    .expect(0);
    connect(
        &address,
        &client,
        "error: the join token was revoked\n  make a new one with `convoke token create`",
    );

    assert_eq!(daemon.interrupt(), Some(0));
    let gone = run([
        "run",
        &model,
        "--connect",
        &address,
        "--token-file",
        &client,
        "--json",
    ])
    .expect(1);
    assert_eq!(gone.json()["error"]["code"], "unreachable", "{gone:#?}");
    fails(
        &["token", "list", "--state-dir", &text(&state)],
        &format!(
            "error: cannot ask the coordinator at {}/admin.sock: No such file or directory (os error 2)\n  \
             run this on the coordinator's machine, as its user, with its --state-dir",
            text(&state)
        ),
    );
}

#[test]
fn steps_that_fail() {
    let scratch = Scratch::new("steps");
    let model = text(&fixture("mini_transformer/model.onnx"));
    let ids = |ids: &[i64]| Tensor::from_slice(&[1, ids.len()], ids).unwrap();
    let path = scratch.path("ids.npz");
    let arrays = [
        ("input_ids".to_owned(), ids(&[3, 99_999])),
        ("attention_mask".to_owned(), ids(&[1, 1])),
    ];
    write_npz(&path, &arrays).unwrap();
    let path = text(&path);
    // Which worker is the fastest is measured and may differ, so the test pins the node.
    let pin = "/embeddings/word_embeddings/Gather=w0";
    let split = [
        "run", &model, "--inputs", &path, "--local", "3", "--pin", pin,
    ];
    fails(
        &split,
        "error: index 99999 is out of range for axis 0 of length 160; valid indices are -160 to 159 \
         [node '/embeddings/word_embeddings/Gather', op Gather(f32[160, 64], i64[1, 2]), worker w0, host embedded, \
         device cpu:0]; stopped: w1, w2",
    );
    let done = run(split.iter().chain(&["--json"])).expect(1);
    assert_eq!(
        done.json()["error"],
        serde_json::json!({
            "code": "kernel_failed",
            "message": "index 99999 is out of range for axis 0 of length 160; valid indices are -160 to 159",
            "advice": "",
            "site": {
                "worker": "w0",
                "host": "embedded",
                "device": "cpu:0",
                "node": "/embeddings/word_embeddings/Gather",
                "op": "Gather",
                "operands": ["f32[160, 64]", "i64[1, 2]"],
                "origin": null,
            },
            "stopped": ["w1", "w2"],
            "attached": [],
        })
    );
    let digits = text(&fixture("digits/model.onnx"));
    let images = text(&fixture("digits/test.npz"));
    let late = [
        "run",
        &digits,
        "--inputs",
        &images,
        "--local",
        "1",
        "--timeout",
        "1ms",
    ];
    fails(
        &late,
        "error: the model was still planned and loaded after 1ms\n  `convoke status` says what the workers are busy with, and for whom",
    );
    let done = run(late.iter().chain(&["--json"])).expect(1);
    assert_eq!(
        done.json()["error"]["code"],
        "deadline_exceeded",
        "{done:#?}"
    );
}

/// The model of one `com.microsoft` operator with an integer attribute. Inputs have an element type and dimensions, of which 0 is
/// unknown; an operand without a name is left out.
fn of_contrib(
    op: &str,
    (attribute, number): (&str, u64),
    operands: &[&str],
    inputs: &[(&str, u64, &[u64])],
) -> Message {
    let attribute = Message::default().bytes(1, attribute);
    let attribute = attribute.number(3, number).number(20, 2);
    let node = node("y", op, operands).bytes(5, attribute);
    let graph = Message::default().bytes(1, node.bytes(7, "com.microsoft"));
    let graph = inputs
        .iter()
        .fold(graph.bytes(2, "contrib"), |graph, (name, ty, shape)| {
            graph.bytes(11, value(name, *ty, shape))
        });
    let graph = graph.bytes(12, Message::default().bytes(1, "y"));
    let opset = |domain: &str, version| Message::default().bytes(1, domain).number(2, version);
    let model = Message::default().number(1, 8).bytes(7, graph);
    model
        .bytes(8, opset("", 17))
        .bytes(8, opset("com.microsoft", 1))
}

#[test]
fn operands_that_a_contrib_operator_cannot_take_are_errors() {
    const F32: u64 = 1;
    const I32: u64 = 6;
    let scratch = Scratch::new("contrib");
    let check = |name: &str, model: &Message, feeds: Vec<(&str, Tensor)>, error: Option<&str>| {
        let paths = ["onnx", "npz"].map(|ending| scratch.path(&format!("{name}.{ending}")));
        std::fs::write(&paths[0], model).unwrap();
        let feeds: Vec<_> = feeds.into_iter().map(|(n, t)| (n.to_owned(), t)).collect();
        write_npz(&paths[1], &feeds).unwrap();
        let [model, inputs] = paths.map(|path| text(&path));
        let done = run(["run", &model, "--inputs", &inputs, "--local", "1"]);
        match error {
            None => drop(done.expect(0)),
            Some(error) => {
                let done = done.expect(1);
                assert!(done.stderr.contains(error), "{done:#?}");
            }
        }
    };
    let zeros =
        |shape: &[usize]| Tensor::from_slice(shape, &vec![0f32; shape.iter().product()]).unwrap();
    // Two beams of one sequence, which is five tokens long.
    let operands = ["x", "x", "x", "", "", "", "past", "past", "at", "beams"];
    let attention = of_contrib(
        "MultiHeadAttention",
        ("num_heads", 2),
        &operands,
        &[
            ("x", F32, &[2, 1, 8]),
            ("past", F32, &[2, 2, 16, 4]),
            ("at", I32, &[1]),
            ("beams", I32, &[1, 2, 16]),
        ],
    );
    // What the cache does not hold yet may have come from anywhere.
    for (beam, place, error) in [
        (1, 4, None),
        (2, 5, None),
        (2, 4, Some("index 2 is out of range")),
        (-1, 0, Some("index 2 is out of range")),
    ] {
        let mut beams = [0i32; 32];
        beams[place] = beam;
        let feeds = vec![
            ("x", zeros(&[2, 1, 8])),
            ("past", zeros(&[2, 2, 16, 4])),
            ("at", Tensor::from_slice(&[1], &[5i32]).unwrap()),
            ("beams", Tensor::from_slice(&[1, 2, 16], &beams).unwrap()),
        ];
        check("beams", &attention, feeds, error);
    }
    let unfold = of_contrib("UnfoldTensor", ("size", 5), &["x"], &[("x", F32, &[2, 0])]);
    check("long", &unfold, vec![("x", zeros(&[2, 5]))], None);
    for length in [0, 2, 4] {
        let error = Some("is out of range");
        check("short", &unfold, vec![("x", zeros(&[2, length]))], error);
    }
}

#[test]
fn wrong_usage_exits_with_two() {
    let usage = |args: &[&str], expected: &str| {
        let done = run(args).expect(2);
        assert!(done.stderr.starts_with(expected), "{done:#?}");
    };
    usage(&[], "Makes the devices of many machines act as one");
    usage(&["fly"], "error: unrecognized subcommand 'fly'");
    usage(
        &["run"],
        "error: the following required arguments were not provided:",
    );
    usage(
        &["run", "m.onnx", "--local", "0"],
        "error: invalid value '0' for '--local <N>'",
    );
    usage(
        &["run", "m.onnx", "--memory", "lots"],
        "error: invalid value 'lots' for '--memory <SIZE>': 'lots' is no unit of size",
    );
    usage(
        &["run", "m.onnx", "--local", "2", "--connect", "h:1"],
        "error: --local N and --connect HOST:PORT exclude each other: give one",
    );
    usage(
        &["run", "m.onnx", "--connect", "h:1"],
        "error: --connect needs --token-file FILE",
    );
    usage(
        &["run", "m.onnx", "--local", "2", "--workers", "3"],
        "error: --workers 3 needs --local 3 or more",
    );
    usage(
        &["status", "--state-dir", "/none"],
        "error: no coordinator of this user runs here with the state folder /none: give --connect HOST:PORT and",
    );
    usage(
        &["run", "m.onnx", "--log", "a=b=c"],
        "error: --log 'a=b=c' is no filter: ",
    );
    usage(
        &["run", "m.onnx", "--log", "loud"],
        "error: --log 'loud' is no filter: 'loud' is neither a level nor a crate that logs; write off",
    );
    usage(
        &["run", "m.onnx", "--retry", "never"],
        "error: invalid value 'never' for '--retry <WHEN>'",
    );
    let by_variable = |value: &str| {
        let mut c = convoke(["run"]);
        c.env("CONVOKE_JSON", value);
        finish(c.spawn().unwrap()).expect(2)
    };
    for json in [run(["run", "--json"]).expect(2), by_variable("1")] {
        let error = json.json()["error"].clone();
        assert_eq!(error["code"], "invalid_argument");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("<MODEL.onnx>"), "{message}");
    }
    assert_eq!(by_variable("false").stdout, "");
}

#[test]
fn health_as_json_is_one_value() {
    let scratch = Scratch::new("health");
    let ask = ["status", "--health", "--json"];
    let at = |dir: &str| run(ask.iter().chain(&["--state-dir", dir]));
    let none = at(&text(&scratch.path("none"))).expect(1).json();
    assert_eq!(none["healthy"], false, "{none}");
    assert_eq!(none["error"]["code"], "not_found", "{none}");
    let state = text(&scratch.path("state"));
    let listen = "127.0.0.1:0";
    let args = ["coordinator", "--listen", listen, "--state-dir", &state];
    let daemon = Daemon::start(args);
    daemon.line();
    let well = at(&state).expect(0);
    assert_eq!(well.stdout, "{\"healthy\":true}\n");
    assert_eq!(daemon.interrupt(), Some(0));
    let usage = run(ask).expect(2).json();
    assert_eq!(usage["error"]["code"], "invalid_argument", "{usage}");
}

#[test]
fn a_flag_counts_more_than_a_variable() {
    let model = text(&fixture("digits/model.onnx"));
    let mut c = convoke(["run", &model, "--local", "1"]);
    c.env("CONVOKE_CONNECT", "127.0.0.1:9")
        .env("CONVOKE_INPUTS", fixture("digits/test.npz"));
    finish(c.spawn().unwrap()).expect(0);
    let mut c = convoke(["run", &model, "--connect", "127.0.0.1:9"]);
    c.env("CONVOKE_LOCAL", "1")
        .env("CONVOKE_TOKEN_FILE", "/nonexistent/token");
    let done = finish(c.spawn().unwrap()).expect(1);
    assert!(
        done.stderr.contains("token file /nonexistent/token"),
        "{done:#?}"
    );
}

#[test]
fn json_errors_have_one_shape() {
    let done = run(["run", "/nonexistent/m.onnx", "--json"]).expect(1);
    let mut e = done.json();
    let keys: Vec<&String> = e["error"].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["advice", "attached", "code", "message", "site", "stopped"]
    );
    assert_eq!(e["error"]["code"].take(), "invalid_model");
    assert_eq!(
        e["error"]["message"].take(),
        "/nonexistent/m.onnx does not exist"
    );
    assert_eq!(e["error"]["advice"].take(), "check the path");
}

#[test]
fn nobody_reading_is_no_panic() {
    let mut child = convoke(["--help"]).spawn().unwrap();
    drop(child.stdout.take());
    assert!(!finish(child).stderr.contains("panicked"));
    let model = text(&fixture("digits/model.onnx"));
    let inputs = text(&fixture("digits/test.npz"));
    let scratch = Scratch::new("unread");
    let mut arrays = read_npz(fixture("digits/test.npz")).unwrap();
    for (name, array) in &mut arrays {
        if name.starts_with("expected/") {
            *array = Tensor::zeros(array.dtype(), array.shape()).unwrap();
        }
    }
    let wrong = scratch.path("wrong.npz");
    write_npz(&wrong, &arrays).unwrap();
    let wrong = text(&wrong);
    let check = |inputs: &str, more: &[&str], code: i32, expected: &str| {
        let args = ["run", &model, "--inputs", inputs, "--local", "1"];
        let mut child = convoke(args.iter().chain(more)).spawn().unwrap();
        drop(child.stdout.take());
        let done = finish(child).expect(code);
        assert!(done.stderr.contains(expected), "{done:#?}");
    };
    check(&inputs, &[], 0, "");
    let differs = "error: output 'logits' differs from the expected";
    check(&wrong, &["--verify"], 1, differs);
    check(&wrong, &["--verify", "--json"], 1, differs);
}
