//! `convoke run` and `convoke plan` on workers inside the process.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

mod common;

use common::{Scratch, fixture, run};
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
