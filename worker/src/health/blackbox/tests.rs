//! Deaths of real processes: this test binary starts itself again as the process that dies.

#![allow(clippy::disallowed_methods, reason = "real processes die in real time")]

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use super::page::Page;
use super::signals::FATAL;
use super::*;

const FUNCTION: FunctionId = FunctionId([9; 32]);
const FOLDER: &str = "CONVOKE_TEST_BLACK_BOX";
const HOW: &str = "CONVOKE_TEST_DEATH";

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("convoke-box-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn overflow(depth: u64) -> u64 {
    let big = black_box([depth; 512]);
    if depth == u64::MAX {
        return 0;
    }
    overflow(black_box(depth + 1)) + big[7]
}

fn die(how: &str) {
    match how {
        "abort" => std::process::abort(),
        "overflow" => drop(black_box(overflow(0))),
        // SAFETY: the fault is intended.
        "fault" => unsafe {
            black_box(ptr_to_nowhere().read_volatile());
        },
        signal => {
            let signal: i32 = signal.parse().unwrap();
            // SAFETY: the call sends a signal to this process.
            assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
            // A sent signal may be handled by another thread, a moment later.
            std::thread::park_timeout(std::time::Duration::from_secs(60));
        }
    }
}

fn ptr_to_nowhere() -> *const u64 {
    std::ptr::without_provenance(black_box(8))
}

/// The process that [`check`] starts and that dies; not a test of its own.
#[test]
fn the_one_that_dies() {
    let (Some(folder), Ok(how)) = (std::env::var_os(FOLDER), std::env::var(HOW)) else {
        return;
    };
    let recorder: &'static BlackBox = Box::leak(Box::new(BlackBox::open(folder.as_ref())));
    assert!(recorder.note(&FUNCTION, "too early").is_none());
    recorder.begin(Incarnation(7)).unwrap();
    assert!(recorder.begin(Incarnation(8)).is_err());
    assert!(
        BlackBox::open(folder.as_ref())
            .begin(Incarnation(9))
            .is_err()
    );
    drop(recorder.note(&FunctionId([1; 32]), "over"));
    let _noted = recorder.note(&FUNCTION, "/layer/MatMul");
    if how == "elsewhere" {
        let helper = std::thread::spawn(|| die("fault"));
        helper.join().unwrap();
    }
    if how == "not this thread" {
        let other = std::thread::spawn(|| {
            let _noted = recorder.note(&FUNCTION, "/layer/Softmax");
            die("fault");
        });
        other.join().unwrap();
    }
    die(&how);
}

/// Lets a process die `how`, and checks which signal ended it and which death is reported.
fn check(how: &str, ended_by: i32, died: Option<(i32, &str)>) -> String {
    let scratch = Scratch::new(&how.replace(' ', "-"));
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "health::blackbox::tests::the_one_that_dies",
            "--nocapture",
        ])
        .env(FOLDER, &scratch.0)
        .env(HOW, how)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr).into_owned();
    assert_eq!(child.status.signal(), Some(ended_by), "{how}: {text}");
    let expected = died.map(|(signal, node)| Death {
        incarnation: Incarnation(7),
        signal,
        function: FUNCTION,
        node: node.into(),
    });
    let found = page::read(&scratch.0.join(FILE));
    assert_eq!(found, Vec::from_iter(expected), "{how}: {text}");
    text
}

#[test]
fn each_fatal_signal_is_marked_and_still_ends_the_process() {
    let node = "/layer/MatMul";
    for signal in FATAL {
        check(&signal.to_string(), signal, Some((signal, node)));
    }
    check("fault", libc::SIGSEGV, Some((libc::SIGSEGV, node)));
    check("abort", libc::SIGABRT, Some((libc::SIGABRT, node)));
    check("elsewhere", libc::SIGSEGV, Some((libc::SIGSEGV, node)));
    check(
        "not this thread",
        libc::SIGSEGV,
        Some((libc::SIGSEGV, "/layer/Softmax")),
    );
}

#[test]
fn a_stack_overflow_is_marked_and_std_still_names_it() {
    let node = Some((libc::SIGSEGV, "/layer/MatMul"));
    let text = check("overflow", libc::SIGABRT, node);
    assert!(text.contains("has overflowed its stack"), "{text}");
}

#[test]
fn who_is_killed_from_outside_blames_no_node() {
    check(&libc::SIGKILL.to_string(), libc::SIGKILL, None);
    check(&libc::SIGTERM.to_string(), libc::SIGTERM, None);
}

#[test]
fn what_makes_no_sense_is_no_death() {
    let scratch = Scratch::new("nonsense");
    let path = scratch.0.join(FILE);
    assert_eq!(page::read(&path), []);
    for bytes in [
        vec![],
        vec![0xff; 100],
        vec![0xff; 1 << 14],
        vec![0; 1 << 20],
    ] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(page::read(&path), []);
    }
    // The page has a signal, and records with wrong lengths.
    let page = Page::map(&path).unwrap();
    let long = format!("{}é{}", "x".repeat(300), "y\n".repeat(107));
    page.fill(0, 1, &FUNCTION, &long);
    page.mark(11, 5);
    let found = page::read(&path);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].node, format!("é{}", "y\u{fffd}".repeat(107)));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[256..260].copy_from_slice(&u32::MAX.to_ne_bytes());
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(page::read(&path), []);
}

#[test]
fn a_recorder_that_ends_leaves_no_page() {
    let scratch = Scratch::new("ends");
    let path = scratch.0.join(FILE);
    let recorder = BlackBox {
        page: OnceLock::from(Page::map(&path).unwrap()),
        path: Some(path),
        deaths: vec![],
    };
    drop(recorder.note(&FUNCTION, "/encoder/layer.11/attention/self/MatMul_1"));
    assert!(scratch.0.join(FILE).exists());
    recorder.remove();
    assert!(!scratch.0.join(FILE).exists());
}
