//! A coordinator and workers as processes of their own.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};

use convoke::{Cluster, Token};
use rustix::process::Signal;

use super::{Daemon, Scratch, convoke};

/// A loopback address whose port the system chooses.
pub const ANYWHERE: &str = "127.0.0.1:0";

/// Where a coordinator listens.
pub const COORDINATOR_PORT: u16 = 17070;

/// A loopback address of this cluster: no other of this process has it, nor one of a process that runs beside it, unless their
/// numbers differ by a multiple of 65,536.
fn own_address() -> Ipv4Addr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

/// A coordinator and the workers w0, w1, …, each with one compute thread. They end with the test.
pub struct Processes {
    pub coordinator: Option<Daemon>,
    pub address: String,
    pub workers: Vec<Option<Daemon>>,
    /// The loopback address of this cluster alone. Its ports are not of those that the system hands out, so that each
    /// process finds its own free when it is started again.
    pub host: Ipv4Addr,
    memory: String,
    /// The address at which each worker listens.
    listens: Vec<String>,
    /// The address at which a worker reaches the coordinator, if it is not the coordinator's own.
    joins: BTreeMap<usize, String>,
    /// The log filter, and whether the log goes to files of the scratch folder.
    log: (String, bool),
    /// How long the steps of a worker that leaves may go on.
    drain_bound: String,
    /// Environment variables of processes that are started later.
    pub variables: Vec<(&'static str, String)>,
    // This field is dropped last, after the processes that use the folder.
    pub scratch: Scratch,
}

impl Processes {
    /// Starts a coordinator and `workers` workers that may use `memory` each.
    pub fn start(name: &str, workers: usize, memory: &str) -> Processes {
        let mut cluster = Processes::prepare(name, memory);
        cluster.start_coordinator();
        (0..workers).for_each(|_| cluster.add_worker());
        cluster
    }

    /// Makes a cluster of which no process runs yet.
    pub fn prepare(name: &str, memory: &str) -> Processes {
        let host = own_address();
        Processes {
            coordinator: None,
            address: format!("{host}:{COORDINATOR_PORT}"),
            workers: vec![],
            host,
            memory: memory.into(),
            listens: vec![],
            joins: BTreeMap::new(),
            log: ("error".into(), false),
            drain_bound: "8s".into(),
            variables: vec![],
            scratch: Scratch::new(name),
        }
    }

    /// Makes processes that are started later log with this filter to `NAME.log` in the scratch folder.
    pub fn log_to_files(&mut self, filter: &str) {
        self.log = (filter.into(), true);
    }

    /// Sets the address at which worker `i`, when it is started, reaches the coordinator.
    pub fn join_through(&mut self, i: usize, address: &str) {
        self.joins.insert(i, address.to_owned());
    }

    /// Sets the drain bound of workers that are started later.
    pub fn drain_bound(&mut self, bound: &str) {
        self.drain_bound = bound.into();
    }

    /// Keeps worker `i`, when it is started, from sharing memory, as between hosts: a folder takes the place of its
    /// socket.
    pub fn block_shared_memory(&self, i: usize) {
        let socket = self.scratch.path(&format!("w{i}/memory.sock"));
        std::fs::create_dir_all(socket).unwrap();
    }

    /// Starts the coordinator.
    pub fn start_coordinator(&mut self) {
        let args = [
            "coordinator",
            "--listen",
            &self.address,
            "--state-dir",
            &self.path("coordinator"),
            "--token-dir",
            &self.path("tokens"),
        ];
        self.coordinator = Some(self.daemon("coordinator", &args));
    }

    /// Starts one more worker.
    pub fn add_worker(&mut self) {
        let port = usize::from(COORDINATOR_PORT) + 1 + self.workers.len();
        self.add_worker_at(&format!("{}:{port}", self.host));
    }

    /// Starts one more worker, which listens at this address.
    pub fn add_worker_at(&mut self, listen: &str) {
        self.listens.push(listen.to_owned());
        self.workers.push(None);
        self.start_worker(self.workers.len() - 1);
    }

    /// Starts worker `i`.
    pub fn start_worker(&mut self, i: usize) {
        let name = format!("w{i}");
        let args = [
            "worker",
            "--join",
            self.joins.get(&i).unwrap_or(&self.address),
            "--token-file",
            &self.path("tokens/worker/token"),
            "--name",
            &name,
            "--listen",
            &self.listens[i],
            "--threads",
            "1",
            "--memory",
            &self.memory,
            "--drain-bound",
            &self.drain_bound,
            "--state-dir",
            &self.path(&name),
            "--cache",
            "0",
        ];
        self.workers[i] = Some(self.daemon(&name, &args));
    }

    /// Starts a coordinator or worker.
    fn daemon(&self, name: &str, args: &[&str]) -> Daemon {
        let (filter, to_file) = &self.log;
        let how = ["--attached", "--json", "--log", filter];
        let log = match to_file {
            true => File::options()
                .create(true)
                .append(true)
                .open(self.scratch.path(&format!("{name}.log")))
                .unwrap()
                .into(),
            false => Stdio::inherit(),
        };
        let mut command = convoke(args.iter().chain(&how));
        let daemon = Daemon::spawn(command.stderr(log).envs(self.variables.iter().cloned()));
        let ready = daemon.line();
        assert!(
            ready.contains("\"listen\""),
            "{name} did not start: {ready}"
        );
        daemon
    }

    pub fn path(&self, name: &str) -> String {
        self.scratch.path(name).display().to_string()
    }

    /// The address at which a worker listens.
    pub fn listens(&self, i: usize) -> &str {
        &self.listens[i]
    }

    pub fn client_token(&self) -> String {
        self.path("tokens/client/token")
    }

    pub async fn connect(&self) -> Cluster {
        self.connect_through(&self.address).await
    }

    /// Connects a client that reaches the coordinator at this address.
    pub async fn connect_through(&self, address: &str) -> Cluster {
        let token = Token::from_file(self.client_token()).unwrap();
        convoke::connect(address, token).await.unwrap()
    }

    pub fn worker(&self, i: usize) -> &Daemon {
        self.workers[i].as_ref().unwrap()
    }

    pub fn kill_worker(&mut self, i: usize) {
        self.workers[i].take().unwrap().signal(Signal::KILL);
    }

    pub fn kill_coordinator(&mut self) {
        self.coordinator.take().unwrap().signal(Signal::KILL);
    }
}
