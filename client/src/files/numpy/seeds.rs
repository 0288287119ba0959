//! Array files that the fuzzer starts from.

#[path = "../../../../fuzz/src/seed.rs"]
mod seed;

use std::io::Cursor;

use super::*;
use crate::fuzzing::TARGETS;
use seed::Seed;

fn npy(descr: &str, fortran: &str, shape: &str, body: &[u8]) -> Vec<u8> {
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), body].concat()
}

/// An archive of two arrays, stored or compressed. It contains no time of day, so its bytes are always the same.
fn npz(method: zip::CompressionMethod) -> Vec<u8> {
    let options = SimpleFileOptions::default()
        .compression_method(method)
        .last_modified_time(zip::DateTime::default());
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, array) in [
        ("x.npy", npy("<f4", "False", "(2, 3)", &[0; 24])),
        ("mask.npy", npy("|b1", "True", "(4,)", &[1, 0, 1, 1])),
        ("notes.txt", b"numbers".to_vec()),
    ] {
        zip.start_file(name, options).unwrap();
        zip.write_all(&array).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn seeds() -> Vec<Seed> {
    let longs: Vec<u8> = (0..6i64).flat_map(i64::to_le_bytes).collect();
    let mut version_2 = npy("<f8", "False", "()", &[0; 8]);
    version_2[6] = 2;
    version_2.splice(10..10, [0, 0]);
    vec![
        (
            "npy",
            "fortran".into(),
            npy("<i8", "True", "(2, 3)", &longs),
        ),
        (
            "npy",
            "bools".into(),
            npy("|b1", "False", "(3,)", &[1, 0, 1]),
        ),
        ("npy", "scalar".into(), version_2),
        ("npz", "stored".into(), npz(zip::CompressionMethod::Stored)),
        (
            "npz",
            "deflated".into(),
            npz(zip::CompressionMethod::Deflated),
        ),
    ]
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    seed::check(&entries, seeds());
}
