//! Tests that other users of a machine can change or read nothing: folders are checked as ssh does, and files and
//! sockets have their own modes, whatever the umask.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::cluster::ANYWHERE;
use common::{Daemon, Finished, Scratch, convoke, finish};

/// The binary, run where every new file is everybody's unless it is given another mode.
fn open_handed(args: &[&str]) -> Command {
    let plain = convoke(args);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "umask 000; exec \"$@\"", "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in plain.get_envs() {
        assert!(value.is_none(), "variables are only removed");
        shell.env_remove(name);
    }
    shell
}

fn run(args: &[&str]) -> Finished {
    finish(open_handed(args).spawn().unwrap())
}

fn set(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The sockets in a folder.
fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let sockets = entries.filter(|e| e.file_type().unwrap().is_socket());
    sockets.map(|e| e.path()).collect()
}

/// Fails with this reason, and leaves nothing in the folder.
#[track_caller]
fn refuses(args: &[&str], folder: &Path) {
    let done = run(args).expect(1);
    let reason = format!(
        "others may write into it (mode 0777); run `chmod go-w {}`",
        folder.display()
    );
    assert!(done.stderr.contains(&reason), "{done:#?}");
    assert!(std::fs::read_dir(folder).unwrap().next().is_none());
}

/// A role that runs, and where it listens.
fn start(args: &[&str], log: &Path) -> (Daemon, String) {
    let log = File::create(log).unwrap();
    let daemon = Daemon::spawn(open_handed(args).stderr(log));
    let ready: serde_json::Value = serde_json::from_str(&daemon.line()).unwrap();
    let listen = ready["listen"].as_str().unwrap().to_owned();
    (daemon, listen)
}

const WARNING: &str = "whoever reads a join token can join with it";

#[test]
fn other_users_change_and_read_nothing_that_decides_who_is_let_in() {
    let scratch = Scratch::new("private");
    let path = |name: &str| scratch.path(name).display().to_string();
    let (open, state, token) = (path("open"), path("coordinator"), path("worker.token"));
    std::fs::create_dir(&open).unwrap();
    set(open.as_ref(), 0o777);
    let coordinator = ["coordinator", "--json", "--attached", "--listen", ANYWHERE];
    let started_in = |folder| [&coordinator[..], &["--state-dir", folder]].concat();
    refuses(&started_in(&open), open.as_ref());

    let (coordinator, address) = start(&started_in(&state), &scratch.path("coordinator.log"));
    let made = ["token", "create", "--role", "worker", "--out", &token];
    run(&[&made[..], &["--state-dir", &state]].concat()).expect(0);
    assert_eq!(mode(token.as_ref()), 0o600);

    let worker = [
        "worker",
        "--json",
        "--attached",
        "--join",
        &address,
        "--listen",
        ANYWHERE,
        "--threads",
        "1",
        "--memory",
        "100MiB",
        "--cache",
        "0",
        "--token-file",
        &token,
        "--state-dir",
    ];
    refuses(&[&worker[..], &[&open]].concat(), open.as_ref());
    let (own, log) = (path("worker"), scratch.path("worker.log"));
    let (worker, _) = start(&[&worker[..], &[&own]].concat(), &log);
    for folder in [&state, &own] {
        assert_eq!(mode(folder.as_ref()), 0o700, "{folder}");
        let sockets = sockets(folder.as_ref());
        assert!(!sockets.is_empty(), "{folder} has none");
        for socket in sockets {
            assert_eq!(mode(&socket), 0o600, "{}", socket.display());
        }
    }
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains(WARNING), "{log}");

    let token = path("client.token");
    let made = ["token", "create", "--role", "client", "--out", &token];
    run(&[&made[..], &["--state-dir", &state]].concat()).expect(0);
    set(token.as_ref(), 0o644);
    let asked = run(&["status", "--connect", &address, "--token-file", &token]).expect(0);
    let told = format!("{WARNING}: ");
    assert!(
        asked.stderr.contains(&told) && asked.stderr.contains(&token),
        "{asked:#?}"
    );
    // Nobody has a token that could not be written, so it is revoked.
    let nowhere = path("absent/client.token");
    let made = ["token", "create", "--role", "client", "--out", &nowhere];
    let failed = run(&[&made[..], &["--state-dir", &state]].concat()).expect(1);
    let why = format!("error: cannot write {nowhere}: its folder does not exist");
    assert!(failed.stderr.contains(&why), "{failed:#?}");
    let listed = run(&["token", "list", "--json", "--state-dir", &state]).expect(0);
    let listed = listed.json();
    let tokens = listed["tokens"].as_array().unwrap().iter();
    let revoked: Vec<&str> = tokens
        .filter(|t| t["revoked"] == true)
        .map(|t| t["id"].as_str().unwrap())
        .collect();
    assert_eq!(revoked.len(), 1, "{listed}");
    let told = format!(
        "the token {}, which was made for it, is revoked",
        revoked[0]
    );
    assert!(failed.stderr.contains(&told), "{failed:#?}");
    assert_eq!([worker, coordinator].map(Daemon::interrupt), [Some(0); 2]);
}
