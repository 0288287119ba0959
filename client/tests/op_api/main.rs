//! The methods of ops follow the registry: this test generates the files in `src/tensor/ops`.
//!
//! With `CONVOKE_WRITE_OPS=1` in the environment the files are written.

#![allow(clippy::unwrap_used)]

mod generate;
mod words;

use std::path::PathBuf;
use std::process::Command;

use convoke_graph::ops;

/// Removes what formatting decides from a text: whitespace, commas and braces.
fn essence(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let tokens = lines.flat_map(str::chars);
    tokens
        .filter(|c| !c.is_whitespace() && !",{}".contains(*c))
        .collect()
}

#[test]
fn methods_follow_the_registry() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tensor/ops");
    let files = generate::files();
    let write = std::env::var_os("CONVOKE_WRITE_OPS").is_some();
    if write {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
    }
    for (name, made) in &files {
        let path = folder.join(name);
        if write {
            std::fs::write(&path, made).unwrap();
            // Each file is formatted alone: a module's own modules may not be there yet.
            let mut rustfmt = Command::new("rustfmt");
            rustfmt.args(["--edition", "2024", "--config", "skip_children=true"]);
            let formatted = rustfmt.arg(&path).status();
            assert!(
                formatted.unwrap().success(),
                "rustfmt fails on {}",
                path.display()
            );
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            essence(&there) == essence(made),
            "{name} does not follow the registry: run this test with CONVOKE_WRITE_OPS=1"
        );
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), files.len());
}

#[test]
fn names_are_in_snake_case() {
    for (op, method) in [
        ("MatMul", "matmul"),
        ("ReduceSumSquare", "reduce_sum_square"),
        ("GatherND", "gather_nd"),
        ("LRN", "lrn"),
        ("RMSNormalization", "rms_normalization"),
        ("IsNaN", "is_nan"),
        ("Where", "where_"),
        ("TopK", "top_k"),
    ] {
        assert_eq!(words::method(op), method);
    }
}

#[test]
fn words_are_about_ops_that_there_are() {
    for op in words::INTERNAL.iter().chain(words::HOST_DATA) {
        assert!(ops::lookup(op).is_some(), "{op}");
    }
    for (op, attr) in words::WITHOUT_EFFECT.iter().chain(words::BY_NUMPYS_NAMES) {
        let def = ops::lookup(op).unwrap();
        assert!(def.attrs.iter().any(|a| a.name == *attr), "{op} {attr}");
    }
    for (op, from) in words::JOINT {
        assert!(ops::lookup(op).unwrap().operands.len() > *from, "{op}");
    }
}
