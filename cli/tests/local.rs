//! `convoke run` and `convoke plan` on workers inside the process.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;
use crate::partial::{Message, node, value};

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsRawFd;

use common::{BOUND, Scratch, convoke, finish, fixture, run};
use convoke::HostTensor as Tensor;
use convoke::numpy::{read_npz, write_npy, write_npz};

fn digits() -> [String; 3] {
    let path = |name: &str| fixture(name).display().to_string();
    [
        path("digits/model.onnx"),
        "--inputs".into(),
        path("digits/test.npz"),
    ]
}

fn with<'a>(first: &'a str, middle: &'a [String], rest: &[&'a str]) -> Vec<&'a str> {
    let middle = middle.iter().map(String::as_str);
    std::iter::once(first)
        .chain(middle)
        .chain(rest.iter().copied())
        .collect()
}

#[test]
fn digits_on_three_workers_have_the_bits_of_one() {
    let (d, scratch) = (digits(), Scratch::new("local"));
    let file = scratch.path("out.npz");
    let out = file.to_str().unwrap();
    let done = run(with(
        "run",
        &d,
        &[
            "--local",
            "3",
            "--verify",
            "--json",
            "--steps",
            "5",
            "--outputs",
            out,
        ],
    ))
    .expect(0);
    let r = done.json();
    let workers = r["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 3, "{r}");
    assert!(workers.iter().all(|w| w["nodes"].as_u64() > Some(0)), "{r}");
    assert!(
        r["cut_edges"].as_u64() > Some(0) && r["cut_bytes"].as_u64() > Some(0),
        "{r}"
    );
    assert_eq!(r["verify"]["bits_equal"], true, "{r}");
    assert_eq!(r["verify"]["expected"][0]["name"], "logits");
    assert_eq!(r["verify"]["expected"][0]["ok"], true, "{r}");
    assert_eq!(r["outputs"][0]["shape"], serde_json::json!([360, 10]));
    assert_eq!(r["steps"], 5);
    assert!(r["step_ms"]["p99"].as_f64() >= r["step_ms"]["p50"].as_f64());
    let written = read_npz(&file).unwrap();
    assert_eq!(written[0].0, "logits");
    assert_eq!(
        written[0].1.digest(),
        r["outputs"][0]["digest"].as_str().unwrap()
    );

    // The user asked for this number of workers; only `plan` warns that one would be faster.
    assert_eq!(
        (&r["warnings"], &*done.stderr),
        (&serde_json::json!([]), "")
    );

    let text = run(with("run", &d, &["--local", "2", "--threads", "1"])).expect(0);
    assert!(
        text.stdout.contains("logits: f32[360, 10]"),
        "{}",
        text.stdout
    );
    assert!(text.stdout.contains("  cut edges: 1, "), "{}", text.stdout);
    assert_eq!(text.stderr, "");
}

#[test]
fn one_worker_is_the_default_and_is_said() {
    let done = run(with("run", &digits(), &[])).expect(0);
    assert_eq!(
        done.stderr,
        "using 1 worker in this process; --connect HOST:PORT uses a cluster\n"
    );
}

#[test]
fn a_plan_explains_without_running() {
    let d = digits();
    let r = run(with("plan", &d, &["--local", "3", "--json"]))
        .expect(0)
        .json();
    let parts = r["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 3, "{r}");
    assert!(
        parts.iter().all(|p| p["peak_bytes"].as_u64() > Some(0)),
        "{r}"
    );
    assert!(!r["cut_edges"].as_array().unwrap().is_empty(), "{r}");
    let text = run(with("plan", &d, &["--local", "3"])).expect(0).stdout;
    assert!(
        text.contains("PEAK MEMORY")
            && text.contains("predicted step: ")
            && text.contains("warning: a step on 3 workers is predicted to be slower than on one"),
        "{text}"
    );
}

/// The worker, the number of nodes, and the first and last node of each part of a plan.
fn parts(plan: &serde_json::Value) -> Vec<[serde_json::Value; 4]> {
    let part = |p: &serde_json::Value| {
        ["name", "nodes", "first_node", "last_node"].map(|field| p[field].clone())
    };
    plan["parts"].as_array().unwrap().iter().map(part).collect()
}

#[test]
fn a_model_with_a_plan_as_annotations_is_placed_as_planned() {
    let (d, scratch) = (digits(), Scratch::new("annotated"));
    let file = scratch.path("placed.onnx").display().to_string();
    let save = ["--local", "3", "--json", "--save-annotated", &file];
    let planned = run(with("plan", &d, &save)).expect(0);
    assert!(
        planned.stderr.contains("placed.onnx has the plan"),
        "{}",
        planned.stderr
    );
    let planned = planned.json();
    assert_eq!(planned["stages"], serde_json::json!([]));
    // Whoever plans the file gets the same parts, however fast the machine seems to be.
    let d = [file, d[1].clone(), d[2].clone()];
    let again = run(with("plan", &d, &["--local", "3", "--json"]))
        .expect(0)
        .json();
    assert_eq!(parts(&again), parts(&planned));
    let stages = again["stages"].as_array().unwrap();
    let told: Vec<_> = stages
        .iter()
        .map(|s| [&s["device"], &s["worker"], &s["nodes"]])
        .collect();
    let placed = parts(&planned);
    let want: Vec<_> = placed
        .iter()
        .map(|[name, nodes, ..]| [name, name, nodes])
        .collect();
    assert_eq!(told, want);
    let r = run(with("run", &d, &["--local", "3", "--verify", "--json"]))
        .expect(0)
        .json();
    assert_eq!(r["verify"]["bits_equal"], true, "{r}");
    assert_eq!(r["verify"]["expected"][0]["ok"], true, "{r}");
    // A pin of the user comes before the annotations, and a device that is not there is said.
    let pinned = ["--local", "3", "--json", "--pin", "*=w1"];
    let pinned = run(with("plan", &d, &pinned)).expect(0).json();
    assert_eq!(parts(&pinned).len(), 1, "{pinned}");
    assert_eq!(pinned["parts"][0]["name"], "w1");
    let fewer = run(with("plan", &d, &["--local", "2", "--json"]))
        .expect(0)
        .json();
    let warnings = fewer["warnings"].to_string();
    assert!(warnings.contains("'w2' is the first"), "{warnings}");
}

/// The nodes of each worker that the line of a pin names.
fn pinned(text: &str, start: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(start)).collect();
    let [parts] = lines[..] else {
        panic!("not one line begins with '{start}': {text}");
    };
    let part = |part: &str| {
        let (nodes, worker) = part.split_once(" on ").unwrap();
        let (count, _) = nodes.split_once(" node").unwrap();
        (worker.to_owned(), count.parse().unwrap())
    };
    parts.split(", ").map(part).collect()
}

#[test]
fn a_plan_explains_where_the_nodes_of_pins_run() {
    let d = digits();
    // Another plan may cut elsewhere, since each measures the machine: the text is compared with itself.
    let nodes = |pins: &[&str]| {
        let text = run(with("plan", &d, &[&["--local", "3"], pins].concat()));
        let text = text.expect(0).stdout;
        let table = text.lines().skip_while(|l| !l.contains("NODES")).skip(1);
        let rows = table.take_while(|l| !l.contains("WORKER"));
        let row = |line: &str| {
            let mut words = line.split_whitespace();
            let (name, count) = words.next().zip(words.next()).unwrap();
            (name.to_owned(), count.parse().unwrap())
        };
        (rows.map(row).collect::<BTreeMap<String, u64>>(), text)
    };
    // All nodes are pinned to all devices: each part is of the pin.
    let (parts, text) = nodes(&["--pin", "*=kind:cpu"]);
    assert_eq!(parts.len(), 3, "{text}");
    assert_eq!(pinned(&text, "pin: * on kind:cpu: "), parts, "{text}");
    // Some nodes by a pattern of their names.
    let (parts, text) = nodes(&["--pin", "/block1/*=cpu"]);
    let some = pinned(&text, "pin: /block1/* on cpu: ");
    let (some, all): (u64, u64) = (some.values().sum(), parts.values().sum());
    assert!(0 < some && some < all, "{text}");
    // A set with one device in it leaves the others nothing of them.
    let (_, text) = nodes(&["--pin", "/block1/*=w1/cpu:0"]);
    let there = pinned(&text, "pin: /block1/* on w1/cpu:0: ");
    assert_eq!(there, [("w1".to_owned(), some)].into(), "{text}");
}

#[test]
fn an_unexpected_result_fails_and_says_by_how_much() {
    let scratch = Scratch::new("verify");
    let mut arrays = read_npz(fixture("digits/test.npz")).unwrap();
    let zeros = Tensor::zeros(convoke::DType::F32, &[360, 10]).unwrap();
    arrays
        .iter_mut()
        .filter(|(n, _)| n == "expected/logits")
        .for_each(|(_, t)| *t = zeros.clone());
    let file = scratch.path("wrong.npz");
    write_npz(&file, &arrays).unwrap();
    let model = fixture("digits/model.onnx");
    let args = [
        "run".as_ref(),
        model.as_os_str(),
        "--inputs".as_ref(),
        file.as_os_str(),
        "--verify".as_ref(),
    ];
    let done = run(args).expect(1);
    assert!(
        done.stdout.contains("same bits as on one worker") && done.stdout.contains("TOO FAR"),
        "{done:?}"
    );
    assert!(
        done.stderr
            .contains("error: output 'logits' differs from the expected by "),
        "{done:?}"
    );
    let json = run(args.iter().copied().chain(["--json".as_ref()]))
        .expect(1)
        .json();
    assert_eq!(json["error"]["code"], "verify_failed");
    assert_eq!(json["verify"]["bits_equal"], true);
}

#[test]
fn single_arrays_count_more_than_the_archive() {
    let (d, scratch) = (digits(), Scratch::new("single"));
    let image = scratch.path("image.npy");
    write_npy(
        &image,
        &Tensor::zeros(convoke::DType::F32, &[2, 1, 8, 8]).unwrap(),
    )
    .unwrap();
    let input = format!("image={}", image.display());
    let r = run(with(
        "run",
        &d,
        &["--input", &input, "--local", "1", "--json"],
    ))
    .expect(0)
    .json();
    assert_eq!(r["outputs"][0]["shape"], serde_json::json!([2, 10]), "{r}");
}

/// The digits model with names that a terminal would obey. They are as long as those that they replace, so that all
/// lengths in the file stay right.
fn obeyed(replaced: &[(&str, &str)]) -> Vec<u8> {
    let mut model = std::fs::read(fixture("digits/model.onnx")).unwrap();
    for (plain, obeyed) in replaced {
        let (plain, obeyed) = (plain.as_bytes(), obeyed.as_bytes());
        assert_eq!(plain.len(), obeyed.len());
        let starts = 0..=model.len() - plain.len();
        let found: Vec<usize> = starts
            .filter(|at| model[*at..].starts_with(plain))
            .collect();
        assert!(!found.is_empty());
        for at in found {
            model[at..at + plain.len()].copy_from_slice(obeyed);
        }
    }
    model
}

#[test]
fn names_in_a_model_do_nothing_to_the_terminal() {
    let scratch = Scratch::new("escapes");
    let (input, axis) = ("\u{1b}[31m", "\u{1b}[32m");
    let names = [
        ("/stem/Conv", "\u{1b}[2J\u{1b}[33mx"),
        ("image", input),
        ("batch", axis),
        ("logits", "\u{1b}[34my"),
    ];
    let model = scratch.path("\u{1b}[2Jm.onnx");
    std::fs::write(&model, obeyed(&names)).unwrap();
    let unknown = scratch.path("\u{1b}[2Ju.onnx");
    std::fs::write(&unknown, obeyed(&[("Relu", "\u{1b}[2J")])).unwrap();
    let inputs = scratch.path("\u{1b}[2Ji.npz");
    let x = Tensor::zeros(convoke::DType::F32, &[1, 1, 8, 8]).unwrap();
    write_npz(&inputs, &[(input.to_owned(), x)]).unwrap();
    let [model, unknown, inputs] = [&model, &unknown, &inputs].map(|p| p.to_str().unwrap());
    let plain = digits()[2].clone();
    let check = |code: i32, args: &[&str], shown: &[&str]| {
        let done = run(args).expect(code);
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(!said.contains('\u{1b}'), "{done:#?}");
        for name in shown {
            assert!(said.contains(name), "no {name}: {done:#?}");
        }
    };
    let bound = format!("{axis}=5");
    check(
        0,
        &["plan", model, "--local", "1", "--dim", &bound],
        &[r"\u{1b}[2J\u{1b}[33mx"],
    );
    check(1, &["plan", model, "--local", "1"], &[r"\u{1b}[32m"]);
    check(
        0,
        &["run", model, "--inputs", inputs, "--local", "1"],
        &[r"\u{1b}[34my"],
    );
    check(
        1,
        &["run", model, "--inputs", &plain, "--local", "1"],
        &[r"'\u{1b}[31m'"],
    );
    check(
        1,
        &["run", unknown, "--inputs", &plain, "--local", "1"],
        &[
            r"not supported: \u{1b}[2J of opset ",
            r" nodes: /stem_relu/\u{1b}[2J,",
        ],
    );
    check(1, &["run", inputs, "--local", "1"], &[r"\u{1b}[2Ji.npz"]);
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]
fn a_signal_ends_a_command_whose_results_nobody_reads() {
    let (d, scratch) = (digits(), Scratch::new("unread"));
    let file = scratch.path("out.npz");
    // The pipe is full, so that the report waits for a reader.
    let (reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: The call asks for the size of an open pipe, and is given no memory.
    let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    let full = vec![b' '; usize::try_from(size).unwrap()];
    writer.write_all(&full).unwrap();
    let out = ["--json", "--outputs", file.to_str().unwrap()];
    let mut command = convoke(with("run", &d, &out));
    let child = command.stdout(writer).spawn().unwrap();
    // The outputs are written after the cluster has ended, right before the report.
    let end = std::time::Instant::now() + BOUND;
    while !file.exists() {
        assert!(std::time::Instant::now() < end, "no outputs in {BOUND:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = finish(child).expect(130);
    assert!(done.stderr.contains("error: interrupted"), "{done:?}");
    drop(reader);
}

#[test]
fn a_plan_takes_the_inputs_that_a_run_casts() {
    const BF16: u64 = 16;
    let graph = Message::default()
        .bytes(1, node("y", "Neg", &["x"]))
        .bytes(2, "negated")
        .bytes(11, value("x", BF16, &[2]))
        .bytes(12, value("y", BF16, &[2]));
    let opset = Message::default().bytes(1, "").number(2, 17);
    let model = Message::default().number(1, 8);
    let model = model.bytes(7, graph).bytes(8, opset);
    let scratch = Scratch::new("cast");
    let path = |name: &str| scratch.path(name).display().to_string();
    std::fs::write(path("model.onnx"), model).unwrap();
    let x = Tensor::from_slice(&[2], &[1f32, -2.]).unwrap();
    write_npz(path("in.npz"), &[("x".to_owned(), x)]).unwrap();
    let (model, inputs) = (path("model.onnx"), path("in.npz"));
    for command in ["run", "plan"] {
        let done = run([command, &model, "--inputs", &inputs, "--local", "1"]).expect(0);
        let note = "input 'x' is cast from f32 to bf16";
        assert!(done.stderr.contains(note), "{done:?}");
    }
}
