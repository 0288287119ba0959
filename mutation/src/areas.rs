//! The parts of the code whose mutants are looked at.

use std::path::Path;

use anyhow::Result;

/// A part of the code, its package, and where its files lie.
pub struct Area {
    pub name: &'static str,
    pub package: &'static str,
    paths: &'static [&'static str],
}

/// All parts; a file belongs to the first one that has it.
pub const AREAS: [Area; 10] = [
    Area {
        name: "detection",
        package: "convoke-common",
        paths: &["common/src/detection/"],
    },
    Area {
        name: "identity",
        package: "convoke-common",
        paths: &["common/src/identity/"],
    },
    Area {
        name: "ledger",
        package: "convoke-common",
        paths: &["common/src/memory"],
    },
    Area {
        name: "actors",
        package: "convoke-common",
        paths: &["common/src/actor.rs", "common/src/tasks.rs"],
    },
    Area {
        name: "rendezvous",
        package: "convoke-rendezvous",
        paths: &["rendezvous/src/"],
    },
    Area {
        name: "leases",
        package: "convoke-coordinator",
        paths: &[
            "coordinator/src/membership/leases.rs",
            "coordinator/src/membership/plans.rs",
            "coordinator/src/membership/drivers.rs",
            "coordinator/src/membership/tables/leases.rs",
            "coordinator/src/membership/tables/plans.rs",
            "coordinator/src/membership/tables/drivers.rs",
            "coordinator/src/service/leases/open_releases.rs",
            "coordinator/src/service/leases/releasing.rs",
            "coordinator/src/service/leases/installing.rs",
        ],
    },
    Area {
        name: "drain",
        package: "convoke-coordinator",
        paths: &[
            "coordinator/src/membership/service_state.rs",
            "coordinator/src/service/draining.rs",
        ],
    },
    Area {
        name: "membership",
        package: "convoke-coordinator",
        paths: &["coordinator/src/membership/"],
    },
    Area {
        name: "attempts",
        package: "convoke",
        paths: &["client/src/calls/"],
    },
    Area {
        name: "cache",
        package: "convoke-worker",
        paths: &["worker/src/weights/"],
    },
];

/// The area of a source file; `None` where it has none, or holds tests.
pub fn area_of(file: &str) -> Option<&'static Area> {
    let name = file.rsplit('/').next()?;
    let of_tests = ["tests.rs", "testing.rs", "fuzzing.rs", "mutant.rs"].contains(&name)
        || file.contains("/tests/")
        || file.contains("/testing/")
        || file.contains("/fuzzing/");
    if of_tests || !name.ends_with(".rs") {
        return None;
    }
    AREAS
        .iter()
        .find(|a| a.paths.iter().any(|p| file.starts_with(p)))
}

/// The folder of the package that a file belongs to.
pub fn package_folder(file: &str) -> Option<&str> {
    file.split_once("/src/").map(|(folder, _)| folder)
}

/// All source files of the areas, in order.
pub fn files(root: &Path) -> Result<Vec<String>> {
    let mut found = vec![];
    for folder in ["common", "rendezvous", "coordinator", "client", "worker"] {
        walk(root, &format!("{folder}/src"), &mut found)?;
    }
    found.sort();
    Ok(found)
}

fn walk(root: &Path, folder: &str, found: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        } else if area_of(&path).is_some() {
            found.push(path);
        }
    }
    Ok(())
}
