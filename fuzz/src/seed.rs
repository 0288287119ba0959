//! Seeds: valid messages of each kind, which are stored in the corpora as `seed-*`. Tests that include this file
//! generate the seeds anew and compare, so that the corpora follow the formats; with `CONVOKE_WRITE_SEEDS=1` in the
//! environment they write the seeds instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A seed: the name of its target, its own name, and the input.
pub type Seed = (&'static str, String, Vec<u8>);

/// Checks that each target accepts its seeds, and that the corpora hold exactly these seeds.
pub fn check(entries: &[(&str, fn(&[u8]) -> bool)], seeds: Vec<Seed>) {
    let entries: BTreeMap<_, _> = entries.iter().copied().collect();
    let mut expected: BTreeMap<&str, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for (target, name, input) in seeds {
        assert!(
            entries[target](&input),
            "'{target}' refuses its seed '{name}'"
        );
        let twice = expected
            .entry(target)
            .or_default()
            .insert(format!("seed-{name}"), input);
        assert!(twice.is_none(), "'{target}' has two seeds '{name}'");
    }
    for (target, seeds) in expected {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus")).join(target);
        if std::env::var_os("CONVOKE_WRITE_SEEDS").is_some() {
            write(&folder, &seeds);
        }
        let kept: BTreeSet<String> = kept(&folder);
        let fresh = |(name, input): (&String, &Vec<u8>)| {
            std::fs::read(folder.join(name)).is_ok_and(|kept| kept == *input)
        };
        let current =
            seeds.keys().cloned().collect::<BTreeSet<_>>() == kept && seeds.iter().all(fresh);
        assert!(
            current,
            "the seeds of '{target}' are those of another format: run this test with CONVOKE_WRITE_SEEDS=1"
        );
    }
}

fn write(folder: &Path, seeds: &BTreeMap<String, Vec<u8>>) {
    std::fs::create_dir_all(folder).expect("a folder");
    for old in kept(folder) {
        std::fs::remove_file(folder.join(old)).expect("removed");
    }
    for (name, input) in seeds {
        std::fs::write(folder.join(name), input).expect("written");
    }
}

fn kept(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|e| {
        e.expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    names.filter(|name| name.starts_with("seed-")).collect()
}
