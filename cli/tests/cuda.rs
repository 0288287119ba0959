//! A machine without a GPU: the device `cuda` is refused by one error that names what is missing. On a machine with a GPU
//! this says nothing, and `docs/accelerators.md` says what to run there.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![cfg(feature = "cuda")]

mod common;

use common::{fixture, run};

/// Checks that a command ends with one error, the first line of which contains `expected`.
#[track_caller]
fn is_refused(args: &[&str], expected: &str) {
    let done = run(args).expect(1);
    let errors: Vec<&str> = done
        .stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{done:#?}");
    assert!(errors[0].contains(expected), "{done:#?}");
    assert!(!done.stderr.contains("panicked"), "{done:#?}");
}

fn has_driver() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

#[test]
fn a_missing_driver_is_one_error() {
    if has_driver() {
        return;
    }
    let missing = "no CUDA device: libcuda.so.1 not found";
    let model = fixture("digits/model.onnx").display().to_string();
    let inputs = fixture("digits/test.npz").display().to_string();
    is_refused(
        &[
            "run", &model, "--inputs", &inputs, "--local", "1", "--device", "cuda:0",
        ],
        missing,
    );
    is_refused(
        &["plan", &model, "--local", "1", "--device", "cuda"],
        missing,
    );
}
