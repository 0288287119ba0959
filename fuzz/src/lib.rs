//! Code that all fuzz targets share; see `README.md`.

pub mod meter;
pub mod seed;

use convoke_common::fuzzing::Target;

/// The target of this name. Panics where there is none.
pub fn target(targets: &[Target], name: &str) -> Target {
    let found = targets.iter().find(|t| t.name == name);
    *found.unwrap_or_else(|| panic!("there is no target '{name}'"))
}

/// Defines the entry point of a target: `fuzz!("name", the TARGETS of its crate)`.
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $targets:expr) => {
        static TARGET: std::sync::LazyLock<convoke_common::fuzzing::Target> =
            std::sync::LazyLock::new(|| $crate::target($targets, $name));

        libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::meter::run(&TARGET, input));
    };
}
