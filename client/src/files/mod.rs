//! Files of arrays: those of numpy, and safetensors.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub mod numpy;
pub(crate) mod safetensors;

/// How many names are tried for the temporary file that a file is written to.
const DRAFTS: usize = 16;

/// Names beside `path` for a temporary file, which are to be tried one after the other: an earlier process with the
/// same process id may have been killed while it wrote, and have left a file of such a name.
fn drafts(path: &Path, extension: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = path.to_owned();
    (0..DRAFTS).map(move |_| {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.{n}.{extension}", std::process::id()));
        path.with_file_name(name)
    })
}
