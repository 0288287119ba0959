//! Test support: a coordinator, members and a scripted worker over loopback.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use convoke_common::admission::{DIAL_BOUND, bind_towards, call, join};
use convoke_common::detection::Detector;
use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Error, Result};
use convoke_common::grant::{Grant, Participant};
use convoke_common::identity::{
    JoinToken, OwnIdentity, RevocationList, Role, TlsConfigs, TokenId, dial,
};
use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::memory::SharedBlocks;
use convoke_common::rpc::transport::{MAX_FRAME, serve_stream};
use convoke_common::rpc::{
    CoordinatorClient, InstallAnswer, LinkReport, MemoryReport, Progress, Registration,
    RegistrationAnswer, Speed, Worker, WorkerKernels, WorkerStatus, answer, connect_coordinator,
};
use convoke_common::world::quic::Connection;
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, Rng, SystemRng, World};
use convoke_graph::ids::ProgramId;
use convoke_graph::ops::KernelSet;
use convoke_graph::program::{HashedProgram, NUMERICS_PROFILE, Program};
use tarpc::context::Context;
use tokio::sync::Semaphore;

use crate::{Coordinator, CoordinatorConfig, RunningCoordinator};

/// A new folder, which is removed with its contents when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        let tag = u64::from_le_bytes((&SystemRng::default() as &dyn Rng).bytes());
        let path = std::env::temp_dir().join(format!("convoke-c-{tag:016x}"));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running coordinator with its world.
pub struct Rig {
    pub world: World,
    pub running: RunningCoordinator,
}

pub fn config() -> CoordinatorConfig {
    CoordinatorConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        state_dir: None,
        run_dir: None,
        token_dir: None,
    }
}

pub async fn rig() -> Rig {
    rig_with(config()).await.unwrap()
}

pub async fn rig_with(config: CoordinatorConfig) -> Result<Rig> {
    let world = World::real(Arc::new(NoCompute));
    let running = Coordinator::start(world.clone(), config).await?;
    Ok(Rig { world, running })
}

impl Rig {
    pub async fn token(&self, role: Role) -> JoinToken {
        self.running
            .create_token(role, Some(Duration::from_secs(3600)))
            .await
            .unwrap()
    }

    pub async fn join(&self, token: &JoinToken, role: Role, name: &str) -> Result<OwnIdentity> {
        join(
            &self.world,
            &self.running.addr().to_string(),
            token,
            role,
            name,
        )
        .await
    }

    /// Joins a member with a new token and connects it.
    pub async fn member(&self, role: Role, name: &str) -> TestMember {
        let token = self.token(role).await;
        let identity = self.join(&token, role, name).await.unwrap();
        self.connect(&identity).await.unwrap()
    }

    pub async fn connect(&self, identity: &OwnIdentity) -> Result<TestMember> {
        let tls = TlsConfigs::cluster(
            identity,
            Arc::<RevocationList>::default(),
            self.world.wall.clone(),
        )?;
        let addr = self.running.addr();
        let options = EndpointOptions::default();
        let endpoint = self
            .world
            .net
            .endpoint(bind_towards(addr), &tls, &options)
            .await?;
        let connection = dial(&endpoint, addr, Role::Coordinator, DIAL_BOUND)
            .await?
            .connection;
        Detector::dialling(self.world.clone()).watch(connection.clone());
        let client = connect_coordinator(&self.world, &connection).await?;
        Ok(TestMember {
            name: identity.peer().name.to_string(),
            _endpoint: endpoint,
            connection,
            client,
            seen: SeenCalls::default(),
        })
    }

    /// Joins and registers a worker that follows the script.
    pub async fn worker(&self, name: &str, script: Script) -> TestMember {
        let session = self.member(Role::Worker, name).await;
        session.serve(&self.world, script);
        session.register(1).await.unwrap();
        session
    }
}

/// A member's connection.
pub struct TestMember {
    pub name: String,
    _endpoint: Endpoint,
    pub connection: Connection,
    pub client: CoordinatorClient,
    pub seen: SeenCalls,
}

const SPEED: Speed = Speed {
    flops: 1e9,
    memory_bandwidth: 1e9,
};

pub fn offer(incarnation: u64) -> Registration {
    Registration {
        incarnation: Incarnation(incarnation),
        advertise: ":7071".into(),
        host: "here".into(),
        version: convoke_common::VERSION.into(),
        profile: NUMERICS_PROFILE.into(),
        device: DeviceId::default(),
        device_profile: NUMERICS_PROFILE.into(),
        threads: 1,
        memory: 1 << 30,
        device_memory: 1 << 30,
        device_blocks: SharedBlocks::default(),
        load_buffer: 8 << 20,
        host_speed: SPEED,
        device_speed: SPEED,
        leases: vec![],
        deaths: vec![],
        ops: vec![],
        kernels: WorkerKernels {
            host: KernelSet::all(),
            device: KernelSet::all(),
        },
    }
}

impl TestMember {
    pub async fn register(&self, incarnation: u64) -> Result<RegistrationAnswer> {
        answer(None, self.client.register(call(), offer(incarnation)).await)
    }

    /// Serves [`Worker`] on the connection.
    pub fn serve(&self, world: &World, script: Script) {
        let worker = Scripted {
            script,
            seen: self.seen.clone(),
        };
        let (connection, inside, deaf) =
            (self.connection.clone(), world.clone(), worker.script.deaf);
        world.spawn(async move {
            while let Ok((send, mut recv)) = connection.accept_bi().await {
                let mut kind = [0; 1];
                recv.read_exact(&mut kind).await.unwrap();
                if deaf {
                    continue;
                }
                let worker = worker.clone();
                inside.spawn(serve_stream(send, recv, worker.serve(), MAX_FRAME));
            }
        });
    }

    /// The hashes of the programs that the scripted worker was sent.
    pub fn programs(&self) -> Vec<ProgramId> {
        let seen = self.seen.0.lock().unwrap();
        let program = |call: &SeenCall| match call {
            SeenCall::Program(id) => Some(*id),
            _ => None,
        };
        seen.iter().filter_map(program).collect()
    }

    /// Waits until the connection is closed and returns the code.
    pub async fn close_code(&self) -> u64 {
        let closed = tokio::time::timeout(Duration::from_secs(5), self.connection.closed());
        match closed.await.expect("closed in time") {
            convoke_common::world::quic::ConnectionError::ApplicationClosed(close) => {
                close.error_code.into_inner()
            }
            other => panic!("closed by {other}"),
        }
    }

    /// Waits until the scripted worker has seen this call.
    pub async fn saw(&self, wanted: &SeenCall) {
        let seen = async {
            while !self.seen.0.lock().unwrap().contains(wanted) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(5), seen).await;
        waited.unwrap_or_else(|_| {
            panic!(
                "{}: no {wanted:?} in {:?}",
                self.name,
                self.seen.0.lock().unwrap()
            )
        });
    }
}

/// The behaviour of a scripted worker.
#[derive(Clone, Default)]
pub struct Script {
    /// The error that `install` answers; `None` is success.
    pub install: Option<Error>,
    /// Whether `install` asks for the program, also where it is sent.
    pub forgetful: bool,
    /// Whether the worker ends every stream at once, while its connection stands.
    pub deaf: bool,
    /// Whether `install` never answers.
    pub hangs: bool,
    /// The semaphore of which each `release` takes a permit before it answers.
    pub frees: Option<Arc<Semaphore>>,
    /// The answer of `memory`.
    pub memory: Arc<Mutex<MemoryReport>>,
}

/// A call that a scripted worker saw.
#[derive(Debug, Clone, PartialEq)]
pub enum SeenCall {
    Install(LeaseId),
    /// An install that came with the program of this hash.
    Program(ProgramId),
    Release(LeaseId),
    Probe(Vec<String>),
    Revoke(Vec<TokenId>),
    Drain,
}

#[derive(Clone, Default)]
pub struct SeenCalls(pub Arc<Mutex<Vec<SeenCall>>>);

#[derive(Clone)]
struct Scripted {
    script: Script,
    seen: SeenCalls,
}

impl Scripted {
    /// Whether the worker was sent this program.
    fn knows(&self, program: ProgramId) -> bool {
        let sent = SeenCall::Program(program);
        self.seen.0.lock().unwrap().contains(&sent)
    }

    fn note(&self, call: SeenCall) {
        self.seen.0.lock().unwrap().push(call);
    }
}

impl Worker for Scripted {
    async fn install(
        self,
        _: Context,
        grant: Grant,
        programs: Vec<Arc<Program>>,
    ) -> Result<InstallAnswer> {
        for sent in programs {
            let sent = HashedProgram::new(sent).unwrap().id();
            self.note(SeenCall::Program(sent));
        }
        if self.script.forgetful || !self.knows(grant.program) {
            return Ok(InstallAnswer::NeedsProgram);
        }
        self.note(SeenCall::Install(grant.lease));
        if self.script.hangs {
            std::future::pending::<()>().await;
        }
        let installed = Ok(InstallAnswer::Installed);
        self.script.install.map_or(installed, Err)
    }
    async fn progress(self, _: Context, _: PlanId) -> Result<Progress> {
        Ok(Progress { done: 3, total: 10 })
    }
    async fn release(self, _: Context, lease: LeaseId) -> Result<()> {
        self.note(SeenCall::Release(lease));
        if let Some(frees) = &self.script.frees {
            frees.acquire().await.unwrap().forget();
        }
        Ok(())
    }
    async fn probe(self, _: Context, peers: Vec<Participant>) -> Result<Vec<LinkReport>> {
        self.note(SeenCall::Probe(peers.into_iter().map(|p| p.name).collect()));
        Ok(vec![])
    }
    async fn revoke(self, _: Context, ids: Vec<TokenId>) -> Result<()> {
        self.note(SeenCall::Revoke(ids));
        Ok(())
    }
    async fn drain(self, _: Context) -> Result<()> {
        self.note(SeenCall::Drain);
        Ok(())
    }
    async fn memory(self, _: Context) -> Result<MemoryReport> {
        Ok(self.script.memory.lock().unwrap().clone())
    }
    async fn status(self, _: Context) -> Result<WorkerStatus> {
        Ok(WorkerStatus {
            incarnation: Incarnation(1),
            memory_budget: 1 << 30,
            memory_used: Default::default(),
            memory_peak: 0,
            device_memory: None,
            resident: 0,
            resident_peak: 0,
            programs: vec![],
            live_steps: 0,
            live_handles: 0,
            handle_bytes: 0,
            steps_done: 0,
            steps_failed: Default::default(),
            links: vec![],
            refused: Default::default(),
            cache_bytes: 0,
            loaded: Default::default(),
            weights: Default::default(),
            program_store: Default::default(),
            rendezvous: Default::default(),
            holdings: vec![],
            connections: vec![],
            compute: vec![],
        })
    }
}
