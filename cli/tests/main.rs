//! Tests of the binary, on real processes. One program for all files, since each program has the whole product in it.
//! `flat` measures its own process and is a program of its own.

mod audit;
mod bench;
mod check;
mod closures;
mod common;
mod crowded;
mod cuda;
mod detection;
mod eager;
mod errors;
mod examples;
mod failures;
mod generate;
mod history;
mod hostile;
mod lifecycle;
mod loads;
mod local;
mod memory;
mod partial;
mod partitions;
mod private;
mod programs;
mod recovery;
mod sharing;
mod status;
mod up;
mod waiting;
mod weights;

/// A file that no program has would never run.
#[test]
fn every_file_is_in_a_program() {
    let manifest = include_str!("../Cargo.toml");
    let own = include_str!("main.rs");
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in std::fs::read_dir(tests).expect("the folder of this file") {
        let path = entry.expect("an entry").path();
        let is_source = path.extension().is_some_and(|e| e == "rs");
        let name = path.file_stem().expect("a name").to_string_lossy();
        let has_program = own.contains(&format!("\nmod {name};"))
            || manifest.contains(&format!("path = \"tests/{name}.rs\""));
        assert!(!is_source || has_program, "{name}.rs");
    }
}
