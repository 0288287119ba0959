//! Clients that are processes of their own: a test starts its own binary once more.

use std::process::{Child, Command, Stdio};

use convoke::{Cluster, Token};

use super::cluster::Processes;

const ADDRESS: &str = "CLIENT_TEST_ADDRESS";
const TOKEN: &str = "CLIENT_TEST_TOKEN";
const WORKER: &str = "CLIENT_TEST_WORKER";

/// Connects to the cluster that the environment names, if this process was started by [`client`].
pub async fn told_cluster() -> Option<Cluster> {
    let address = std::env::var(ADDRESS).ok()?;
    let token = Token::from_file(std::env::var(TOKEN).unwrap()).unwrap();
    Some(convoke::connect(&address, token).await.unwrap())
}

/// The process id of that cluster's first worker.
pub fn told_worker() -> u32 {
    std::env::var(WORKER).unwrap().parse().unwrap()
}

/// Starts a process that runs the test with this name, as a client of these processes.
pub fn client(processes: &Processes, test: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ADDRESS, &processes.address)
        .env(TOKEN, processes.client_token())
        .env(WORKER, processes.worker(0).pid().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
