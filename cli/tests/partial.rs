//! `convoke run --partial` on real processes: it writes the outputs that do not depend on the failed node, and says why
//! the others failed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use common::cluster::Processes;
use common::run;
use convoke::HostTensor as Tensor;
use convoke::numpy::{read_npz, write_npz};

/// A protobuf message, whose fields are bytes or numbers.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    pub(crate) fn number(mut self, field: u64, n: u64) -> Message {
        self.varint(field << 3);
        self.varint(n);
        self
    }

    pub(crate) fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend(bytes.as_ref());
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Makes an input or output of an ONNX graph, with its element type.
pub(crate) fn value(name: &str, elements: u64, shape: &[u64]) -> Message {
    let dims = shape.iter().map(|d| Message::default().number(1, *d));
    let dims = dims.fold(Message::default(), |shape, dim| shape.bytes(1, dim));
    let tensor = Message::default().number(1, elements).bytes(2, dims);
    let ty = Message::default().bytes(1, tensor);
    Message::default().bytes(1, name).bytes(2, ty)
}

pub(crate) fn node(name: &str, op: &str, inputs: &[&str]) -> Message {
    let given = inputs.iter().fold(Message::default(), |m, i| m.bytes(1, i));
    given.bytes(2, name).bytes(3, name).bytes(4, op)
}

/// Makes the model `found = table[at]`, `near = -found`, `far = |near|`, and beside these nodes `minus = -table`,
/// `size = |minus|`. All values are outputs except `found` and `minus`.
fn model() -> Message {
    const F32: u64 = 1;
    const I64: u64 = 7;
    let nodes = [
        node("found", "Gather", &["table", "at"]),
        node("near", "Neg", &["found"]),
        node("far", "Abs", &["near"]),
        node("minus", "Neg", &["table"]),
        node("size", "Abs", &["minus"]),
    ];
    let graph = nodes
        .into_iter()
        .fold(Message::default(), |m, n| m.bytes(1, n))
        .bytes(2, "lookup")
        .bytes(11, value("table", F32, &[2, 3]))
        .bytes(11, value("at", I64, &[1]))
        .bytes(12, value("near", F32, &[1, 3]))
        .bytes(12, value("far", F32, &[1, 3]))
        .bytes(12, value("size", F32, &[2, 3]));
    let opset = Message::default().bytes(1, "").number(2, 17);
    let model = Message::default().number(1, 8);
    model.bytes(7, graph).bytes(8, opset)
}

#[test]
fn what_does_not_depend_on_a_failure_is_written() {
    let processes = Processes::start("partial", 2, "256MiB");
    let path = |name: &str| processes.path(name);
    std::fs::write(path("lookup.onnx"), model()).unwrap();
    for (name, at) in [("good.npz", 1i64), ("bad.npz", 9)] {
        let table = Tensor::from_slice(&[2, 3], &[1f32, -2., 3., -4., 5., -6.]).unwrap();
        let at = Tensor::from_slice(&[1], &[at]).unwrap();
        let arrays = [("table".to_owned(), table), ("at".to_owned(), at)];
        write_npz(path(name), &arrays).unwrap();
    }
    let run = |inputs: &str, more: &[&str]| {
        let (model, inputs, token) = (path("lookup.onnx"), path(inputs), processes.client_token());
        let mut args = vec!["run", &model, "--inputs", &inputs, "--token-file", &token];
        args.extend(["--connect", &processes.address]);
        // The node that fails is on one worker, and nodes that depend on it are on both.
        for pin in ["found=w0", "near=w0", "far=w1", "minus=w1", "size=w0"] {
            args.extend(["--pin", pin]);
        }
        args.extend(more);
        run(args)
    };
    let out = path("out.npz");
    let all = run("good.npz", &["--partial", "--json", "--outputs", &out]);
    let all = all.expect(0).json();
    assert_eq!(all["failed"], serde_json::json!([]));
    assert_eq!(read_npz(&out).unwrap().len(), 3);

    let verified = ["--partial", "--verify", "--steps", "3", "--outputs", &out];
    let some = run("bad.npz", &verified).expect(1);
    assert!(
        some.stderr
            .contains("error: 2 of 3 outputs failed: near, far\n"),
        "{some:#?}"
    );
    let why = "index 9 is out of range for axis 0 of length 2; valid indices are -2 to 1 \
               [node 'found', op Gather(f32[2, 3], i64[1]), worker w0";
    for name in ["near", "far"] {
        let line = format!("  {name}: {why}");
        assert!(some.stdout.contains(&line), "{some:#?}");
    }
    assert!(
        some.stdout.contains("same bits as on one worker"),
        "{some:#?}"
    );
    let written = read_npz(&out).unwrap();
    let size = Tensor::from_slice(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
    assert_eq!(written, [("size".to_owned(), size)]);

    let told = run("bad.npz", &["--partial", "--json"]).expect(1).json();
    let names = |of: &str| -> Vec<String> {
        let all = told[of].as_array().unwrap().iter();
        all.map(|o| o["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (names("outputs"), names("failed")),
        (vec!["size".into()], vec!["near".into(), "far".into()])
    );
    for failed in told["failed"].as_array().unwrap() {
        let error = &failed["error"];
        assert_eq!(error["code"], "kernel_failed");
        assert_eq!(error["site"]["node"], "found");
        assert_eq!(error["site"]["worker"], "w0");
    }
    assert_eq!(told["error"]["code"], "kernel_failed");
    // Without `--partial`, no output is returned.
    let none = run("bad.npz", &["--json"]).expect(1).json();
    assert!(none.get("outputs").is_none(), "{none}");
}
