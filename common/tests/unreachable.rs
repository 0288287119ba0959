//! Errors that a peer cannot be reached say whether that peer is a worker: [`convoke_common::error::Error::unreachable`] asks
//! for it. No source makes such an error in one of the other ways that are usual here; the search is for their text.

use std::path::{Path, PathBuf};

use convoke_common::error::{Code, Error};

/// The file that has the constructor.
const CONSTRUCTOR: &str = "common/src/error.rs";

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Whether a source makes an error of this code, or turns another one into it, without the constructor.
fn makes(text: &str) -> bool {
    let dense: String = text.split_whitespace().collect();
    ["new(Code::", "=>Code::", "code=Code::", "code:Code::"]
        .iter()
        .any(|way| dense.contains(&format!("{way}Unreachable")))
}

#[test]
fn an_unreachable_peer_is_named_by_the_constructor_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = vec![];
    sources(root, &mut all);
    let here = Path::new(file!()).file_name().unwrap();
    let offenders: Vec<&Path> = all
        .iter()
        .map(|path| path.strip_prefix(root).unwrap())
        .filter(|path| *path != Path::new(CONSTRUCTOR))
        .filter(|path| path.file_name() != Some(here))
        .filter(|path| makes(&std::fs::read_to_string(root.join(path)).unwrap()))
        .collect();
    assert!(all.len() > 100, "{} sources", all.len());
    assert_eq!(offenders, Vec::<&Path>::new());
}

#[test]
fn a_source_that_makes_one_is_found() {
    assert!(makes("Err(Error::new(\n    Code::Unreachable,\n    msg))"));
    assert!(makes("let code = match e { _ => Code::Unreachable, };"));
    assert!(!makes("Code::Unreachable if last.site.is_some() => 1,"));
}

#[test]
fn the_worker_is_the_place_of_the_error() {
    let site = |e: Error| e.site.and_then(|s| s.worker);
    let of_worker = Error::unreachable(Some("w1"), "cannot reach w1");
    assert_eq!(of_worker.code, Code::Unreachable);
    assert_eq!(site(of_worker).as_deref(), Some("w1"));
    assert_eq!(site(Error::unreachable(None, "no coordinator")), None);
}
