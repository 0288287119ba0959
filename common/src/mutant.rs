//! Mutants: defects that simulation has to find, built in on demand.
//!
//! `mutant!("name")` is a constant `false` in every build but one: under the feature `mutants` it is true for the one
//! name that the environment variable `CONVOKE_MUTANT` gives, read once. That build proves the checkers: each mutant
//! is caught by some seed, and without one the same seeds pass (`sims/tests/mutants.rs`). A file has at most two mutants.

/// Whether this build has mutants; no build of the product has.
pub const BUILT_IN: bool = cfg!(feature = "mutants");

/// The name of the chosen mutant, if one is chosen.
#[cfg(feature = "mutants")]
pub fn chosen() -> Option<&'static str> {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("CONVOKE_MUTANT").ok());
    chosen.as_deref()
}

/// The name of the chosen mutant: this build has none.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn chosen() -> Option<&'static str> {
    None
}

/// Whether the mutant of this name is chosen.
#[cfg(feature = "mutants")]
pub fn is_chosen(name: &str) -> bool {
    chosen() == Some(name)
}

/// Whether the mutant of this name is chosen: never, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_chosen(_: &str) -> bool {
    false
}

/// Whether the code has to behave as the mutant of this name does.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_chosen($name)
    };
}
