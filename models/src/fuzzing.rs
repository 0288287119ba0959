//! The entry points of this crate for the fuzz targets in `fuzz/`, and for the tests that replay their corpora; see
//! [`convoke_common::fuzzing`]. This module is not part of the public interface.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use convoke_common::fuzzing::{MemoryBound, Target};
use convoke_graph::DType;

use crate::error::ModelError;
use crate::onnx::{self, LoadOptions};
use crate::safetensors::Weights;

/// The fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "onnx",
        // Functions and branches may expand to 4 MiB of nodes, and 1 KiB more for each byte of input. A node takes
        // several times as much in memory as its bytes.
        budget: MemoryBound {
            fixed: 32 << 20,
            factor: 8 << 10,
        },
        entry: model,
    },
    Target {
        name: "tensor",
        budget: MemoryBound {
            fixed: 64 << 10,
            factor: 32,
        },
        entry: tensor,
    },
    Target {
        name: "safetensors",
        budget: MemoryBound {
            fixed: 256 << 10,
            factor: 64,
        },
        entry: weights,
    },
];

/// Size in bytes of the file beside a model, which the model may name as external data.
const EXTERNAL: usize = 8 << 10;

/// A temporary folder, which is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("convoke-fuzz-{}-{n}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Folder(path))
    }

    fn write(&self, name: &str, content: &[u8]) -> std::io::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure is ignored: the folder may be gone already, and nothing depends on its removal.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `test` in a temporary folder. Panics where the disk fails, with a message that tells this from a defect that
/// the input shows.
fn on_disk(test: impl FnOnce(&Folder) -> std::io::Result<bool>) -> bool {
    let tested = Folder::new().and_then(|folder| test(&folder));
    tested.expect("a file in the folder for temporary files")
}

fn accepted<T>(result: Result<T, ModelError>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => {
            std::hint::black_box((error.to_string(), error.advice()));
            false
        }
    }
}

/// Loads the input as a model, beside a file that the model may name.
fn model(input: &[u8]) -> bool {
    on_disk(|folder| {
        folder.write("data.bin", &[0x3c; EXTERNAL])?;
        let path = folder.write("model.onnx", input)?;
        let options = LoadOptions {
            cache_dir: Some(folder.0.join("cache")),
            ..LoadOptions::default()
        };
        Ok(accepted(onnx::load(&path, &options)))
    })
}

fn tensor(input: &[u8]) -> bool {
    accepted(onnx::decode_tensor(input))
}

/// Opens the input as a weights file, and looks for weights in it.
fn weights(input: &[u8]) -> bool {
    on_disk(|folder| {
        let path = folder.write("w.safetensors", input)?;
        Ok(accepted(bind(&path)))
    })
}

fn bind(path: &Path) -> Result<(), ModelError> {
    let weights = Weights::open(&[path.to_owned()])?;
    for (name, shape) in [("a", &[2][..]), ("b", &[3]), ("", &[])] {
        // A mismatch of types is no reason to refuse the file, since the model may be wrong.
        let found = weights.find(name, DType::F32, shape);
        std::hint::black_box(found.map_err(|e| e.to_string()).is_ok());
    }
    Ok(())
}
