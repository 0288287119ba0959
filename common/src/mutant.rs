//! Mutants: defects that tests have to find, built in on demand.
//!
//! `mutant!("name")` is a constant `false` in every build but two. Under the feature `mutants`, and in the unit tests of
//! the crate that marks the mutant, it is true for the one name that the environment variable `CONVOKE_MUTANT` gives,
//! read once. The feature proves the checkers of the simulation: each mutant is caught by some seed or scenario, and
//! without one the same seeds pass (`sims/tests/mutants.rs`). Where simulation does not come, a unit test catches it,
//! and [`mutant_is_killed!`](crate::mutant_is_killed) beside that test proves it. A file has at most two mutants.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// Whether every crate of this build has its mutants. Builds of the product have none.
pub const BUILT_IN: bool = cfg!(feature = "mutants");

/// The name of the chosen mutant, if one is chosen.
fn chosen() -> Option<&'static str> {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok());
    chosen.as_deref()
}

/// The variable that names the chosen mutant.
const VARIABLE: &str = "CONVOKE_MUTANT";

/// How long the one test that a proof starts may take.
const BOUND: Duration = Duration::from_secs(60);

/// Whether the mutant of this name is chosen, by code that is a part of its crate's unit tests or not.
#[inline(always)]
pub fn is_chosen(name: &str, in_unit_tests: bool) -> bool {
    (BUILT_IN || in_unit_tests) && chosen() == Some(name)
}

/// Whether the code has to behave as the mutant of this name does.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_chosen($name, cfg!(test))
    };
}

/// Asserts that a unit test of the same module passes, and fails with the mutant of this name.
#[macro_export]
macro_rules! mutant_is_killed {
    ($name:literal, $test:ident) => {{
        let _: fn() -> _ = $test;
        let test = concat!(module_path!(), "::", stringify!($test));
        $crate::mutant::assert_killed($name, test)
    }};
}

/// Panics unless the unit test with this path, which begins with its crate, passes without the mutant of this name and
/// fails with it. Each time the running program of tests is started anew for that test alone, and killed where it does
/// not end in time.
#[track_caller]
pub fn assert_killed(name: &str, test: &str) {
    let test = test.split_once("::").map_or(test, |(_, path)| path);
    let said = |mutant: Option<&str>| {
        let program = std::env::current_exe().expect("the program of the tests has a path");
        let mut command = Command::new(program);
        command.args([test, "--exact", "--test-threads=1"]);
        command.env_remove(VARIABLE);
        command.envs(mutant.map(|name| (VARIABLE, name)));
        let said = output(command, BOUND);
        said.unwrap_or_else(|| panic!("{test} does not end, with {mutant:?}"))
    };
    let without = said(None);
    assert!(
        without.contains("1 passed; 0 failed"),
        "{test} does not pass: {without}"
    );
    let with = said(Some(name));
    assert!(
        with.contains("0 passed; 1 failed"),
        "{test} passes with {name}: {with}"
    );
}

/// The standard output of a program. `None` where it does not end within `bound`, after which it is killed.
#[allow(
    clippy::disallowed_methods,
    reason = "a thread of its own reads, so that the wait for it has a bound"
)]
fn output(mut command: Command, bound: Duration) -> Option<String> {
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.expect("the program of the tests starts");
    let from = child.stdout.take();
    let (told, tells) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.map(|mut from| from.read_to_end(&mut text));
        // Nobody takes it after the bound.
        let _ = told.send(String::from_utf8_lossy(&text).into_owned());
    });
    let text = tells.recv_timeout(bound).ok();
    if text.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let mut endless = Command::new("sh");
        endless.args(["-c", "echo begun; exec sleep 600"]);
        assert_eq!(output(endless, Duration::from_millis(50)), None);
        let mut brief = Command::new("echo");
        brief.arg("1 passed");
        assert_eq!(output(brief, BOUND).as_deref(), Some("1 passed\n"));
    }
}
