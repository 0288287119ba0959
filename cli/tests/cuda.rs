//! Tests of a machine without a GPU: the device `cuda` is refused by one error that names what is missing. On a machine
//! without NVIDIA's driver that is the driver. No machine has a GPU of the number that is asked for.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![cfg(feature = "cuda")]

use crate::common;

use common::{fixture, run};

/// Checks that a command ends with one error, the first line of which begins with what is missing.
#[track_caller]
fn is_refused(args: &[&str]) {
    let missing = match std::path::Path::new("/dev/nvidiactl").exists() {
        true => "no CUDA device: ",
        false => "no CUDA device: libcuda.so.1 not found",
    };
    let done = run(args).expect(1);
    let errors: Vec<&str> = done
        .stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{done:#?}");
    assert!(errors[0].contains(missing), "{done:#?}");
    assert!(!done.stderr.contains("panicked"), "{done:#?}");
}

#[test]
fn a_missing_gpu_is_one_error() {
    let model = fixture("digits/model.onnx").display().to_string();
    let inputs = fixture("digits/test.npz").display().to_string();
    let device = ["--local", "1", "--device", "cuda:4096"];
    is_refused(&[&["run", &model, "--inputs", &inputs][..], &device].concat());
    is_refused(&[&["plan", &model][..], &device].concat());
}
