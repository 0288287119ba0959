//! Two executors and a driver over one lease, with links of the test's choice.

// Each test binary uses only a part of this module.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use convoke_common::Result;
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::memory::{Ledger, Pool, Purpose, SharedBlocks};
use convoke_common::world::{AccountId, NoCompute, Share, World};
use convoke_graph::dim::Dim;
use convoke_graph::graph::{Attrs, Literal, TensorType, Value};
use convoke_graph::ids::FunctionId;
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs, KernelSet};
use convoke_graph::program::{
    Axes, DriverProgram, DriverSlot, Feed, Fetch, FetchFrom, NUMERICS_PROFILE, Program,
    ProgramNode, RecvSlot, SendEdge,
};
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::driver::Driver;
use convoke_rendezvous::{Hub, Lease, Link, Peer, RecvSpec, StepHandler};
use convoke_worker::Threads;
use convoke_worker::cpu::{Kernel, KernelFailure, Launch, Outputs};
use convoke_worker::device::simgpu::SimGpu;
use convoke_worker::device::{Device, DeviceKernel, DeviceOp, DeviceQueue};
use convoke_worker::executor::{Engine, Executor};
use convoke_worker::program::installed::InstalledProgram;

pub const LEASE: LeaseId = LeaseId(1);

/// Bytes of memory for a worker's steps, enough for reading operands in place as well.
const BASE: u64 = 4 << 20;

pub fn value(name: &str, dtype: DType, shape: &[Dim]) -> Value {
    Value {
        name: name.into(),
        ty: TensorType::new(dtype, shape.to_vec()),
    }
}

pub fn node(name: &str, op: &str, inputs: &[u32], output: u32) -> ProgramNode {
    ProgramNode {
        name: name.into(),
        op: op.into(),
        attrs: Attrs::default(),
        inputs: inputs.to_vec(),
        outputs: vec![output],
        priority: 1,
        cost: 1,
    }
}

pub fn program(values: Vec<Value>, nodes: Vec<ProgramNode>) -> Program {
    Program {
        name: "test".into(),
        function: FunctionId([7; 32]),
        profile: NUMERICS_PROFILE.into(),
        values,
        literals: vec![],
        artifacts: vec![],
        nodes,
        init_nodes: 0,
        recvs: vec![],
        sends: vec![],
    }
}

pub struct Cluster {
    pub driver: Arc<Driver>,
    pub executors: Vec<Arc<Executor>>,
    pub leases: Vec<Arc<Lease>>,
    pub ledger: Ledger,
    pub hubs: Vec<Arc<Hub>>,
    /// The compute threads of each worker, one each.
    pub threads: Vec<Threads>,
    pub engines: Vec<Arc<Engine>>,
    pub holds: Vec<Arc<Hold>>,
}

/// Stops kernels in the middle, as if they did not end.
#[derive(Default)]
pub struct Hold {
    /// Whether kernels stop, and how many have stopped.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Hold {
    pub fn set(&self, hold: bool) {
        self.state.lock().unwrap().0 = hold;
        self.changed.notify_all();
    }

    /// Waits until a kernel has stopped.
    pub fn wait(&self) {
        let state = self.state.lock().unwrap();
        let bound = Duration::from_secs(60);
        let inside = self.changed.wait_timeout_while(state, bound, |s| s.1 == 0);
        assert!(!inside.unwrap().1.timed_out(), "no kernel was launched");
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |s| s.0).unwrap();
        state.1 -= 1;
    }
}

struct Holdable {
    inner: Arc<dyn Kernel>,
    hold: Arc<Hold>,
}

impl Kernel for Holdable {
    fn launch(&self, launch: &mut Launch<'_>) -> std::result::Result<Outputs, KernelFailure> {
        self.hold.pass();
        self.inner.launch(launch)
    }

    fn infer(
        &self,
        operands: &[Option<ConcreteOperand<'_>>],
    ) -> std::result::Result<ConcreteOutputs, KernelFailure> {
        self.inner.infer(operands)
    }
}

/// Hubs of w0, w1 and the driver, in this order.
pub fn hubs() -> Vec<Arc<Hub>> {
    let peer = |name: &str| Peer {
        role: match name {
            "driver" => Role::Client,
            _ => Role::Worker,
        },
        name: name.into(),
        incarnation: Incarnation(7),
    };
    ["w0", "w1", "driver"].map(|n| Hub::new(peer(n))).into()
}

/// The share of a caller that has no lease.
pub fn of_nobody() -> Share {
    Share::new(AccountId::named("nobody"), convoke_common::ids::LeaseId(99))
}

/// A cluster that is linked inside the process.
pub fn cluster(in_flight: u32) -> Cluster {
    over(joined(), in_flight)
}

/// The [`hubs`], linked inside the process.
pub fn joined() -> Vec<Arc<Hub>> {
    let hubs = hubs();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        Link::join_local(&hubs[a], &hubs[b]);
    }
    hubs
}

/// A cluster in which w0 computes s = x + x and w1 computes y = 24 / s for the driver. `x` is i64 of shape [n]; 0
/// fails.
pub fn over(hubs: Vec<Arc<Hub>>, in_flight: u32) -> Cluster {
    let n = Dim::sym("n");
    let i64s = |name: &str| value(name, DType::I64, std::slice::from_ref(&n));
    let mut first = program(
        vec![i64s("x"), i64s("s")],
        vec![node("double", "Add", &[0, 0], 1)],
    );
    first.recvs = vec![RecvSlot { value: 0, from: 2 }];
    first.sends = vec![SendEdge {
        value: 1,
        to: 1,
        slot: 0,
        priority: 1,
    }];
    let twenty_four = value("c", DType::I64, &[Dim::Const(1)]);
    let y = i64s("y");
    let mut second = program(
        vec![i64s("s"), twenty_four, y.clone()],
        vec![node("divide", "Div", &[1, 0], 2)],
    );
    second.literals = vec![(1, Literal::Inline(ids(&[24])))];
    second.recvs = vec![RecvSlot { value: 0, from: 0 }];
    second.sends = vec![SendEdge {
        value: 2,
        to: 2,
        slot: 0,
        priority: 1,
    }];
    let ty = |v: &Value| v.ty.clone();
    let driver = DriverProgram {
        feeds: vec![Feed {
            name: "x".into(),
            ty: ty(&i64s("x")),
            to: vec![(0, 0)],
        }],
        fetches: vec![Fetch {
            name: "y".into(),
            ty: ty(&y),
            from: FetchFrom::Worker { from: 1, slot: 0 },
        }],
        slots: vec![DriverSlot {
            from: 1,
            ty: ty(&y),
        }],
    };
    of_programs(hubs, in_flight, [first, second], driver)
}

/// A simulated GPU whose kernels a [`Hold`] can stop.
struct HoldableGpu {
    gpu: SimGpu,
    hold: Arc<Hold>,
}

impl Device for HoldableGpu {
    fn kernels(&self) -> KernelSet {
        self.gpu.kernels()
    }

    fn shared_blocks(&self) -> SharedBlocks {
        self.gpu.shared_blocks()
    }

    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        let kernel = self.gpu.resolve(op)?;
        let inner = kernel.downcast_ref::<Arc<dyn Kernel>>().unwrap().clone();
        let hold = self.hold.clone();
        let kernel: Arc<dyn Kernel> = Arc::new(Holdable { inner, hold });
        Some(Arc::new(kernel))
    }

    fn open(
        &self,
        share: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Arc<dyn DeviceQueue>> {
        self.gpu.open(share, memory, purpose, bytes)
    }
}

/// A cluster that runs these programs at w0, w1 and the driver, with the dynamic axis `n`.
pub fn of_programs(
    hubs: Vec<Arc<Hub>>,
    in_flight: u32,
    programs: [Program; 2],
    driver: DriverProgram,
) -> Cluster {
    on_devices(hubs, in_flight, programs, driver, false)
}

/// As [`of_programs`]; with `gpu` the workers' devices are simulated GPUs.
pub fn on_devices(
    hubs: Vec<Arc<Hub>>,
    in_flight: u32,
    programs: [Program; 2],
    driver: DriverProgram,
    gpu: bool,
) -> Cluster {
    let participants: Vec<Participant> = hubs
        .iter()
        .map(|h| Participant {
            name: h.me.name.clone(),
            incarnation: h.me.incarnation,
            address: String::new(),
        })
        .collect();
    let axes = Axes {
        bounds: vec![("n".into(), 1 << 20)],
    };
    let ledger = Ledger::new("both", 64 << 20);
    let (mut executors, mut leases, mut pools) = (vec![], vec![], vec![]);
    let (mut engines, mut holds) = (vec![], vec![]);
    for (me, program) in programs.into_iter().enumerate() {
        program.check().unwrap();
        let threads = Threads::start("t", 1).unwrap();
        let compute = Arc::new(threads.clone());
        let hold = Arc::new(Hold::default());
        let device = gpu.then(|| HoldableGpu {
            gpu: SimGpu::new(compute.clone()),
            hold: hold.clone(),
        });
        let engine = Arc::new(Engine::new(&hubs[me].me.name, "here", compute, None));
        engines.push(engine.clone());
        pools.push(threads);
        let mut constants = vec![None; program.values.len()];
        for (value, literal) in &program.literals {
            if let Literal::Inline(tensor) = literal {
                constants[*value as usize] = Some(tensor.clone());
            }
        }
        let program = Arc::new(program);
        let recvs = program.recvs.iter();
        let recvs = recvs
            .map(|r| RecvSpec {
                from: r.from,
                ty: program.values[r.value as usize].ty.clone(),
            })
            .collect();
        let split = device.as_ref().map(|device| device as &dyn Device);
        let mut installed = InstalledProgram::new(program.clone(), constants, split).unwrap();
        for kernel in installed.code.kernels_mut() {
            let (inner, hold) = (kernel.clone(), hold.clone());
            *kernel = Arc::new(Holdable { inner, hold });
        }
        holds.push(hold);
        let uses_device = installed.code.uses_device();
        assert_eq!(uses_device, gpu);
        let installed = Arc::new(installed);
        let links = (0..3).map(|i| hubs[me].link(&hubs[i].me)).collect();
        let pool = Pool::shared(&ledger, Purpose::Leases, BASE).unwrap();
        // As a worker does, which drops the lease then.
        let hub = Arc::downgrade(&hubs[me]);
        let driver_gone = Box::new(move || {
            if let Some(hub) = hub.upgrade() {
                drop(hub.remove_lease(LEASE));
            }
        });
        let share = Share::new(AccountId::named("driver"), LEASE);
        let executor = Executor::new(
            engine,
            installed,
            share,
            pool.clone(),
            links,
            in_flight,
            driver_gone,
        );
        if let Some(device) = device {
            let memory = Ledger::new("device", 2 * BASE);
            let opened = device.open(&of_nobody(), &memory, Purpose::Leases, BASE);
            executor.use_device(opened.unwrap());
        }
        let handler: Arc<dyn StepHandler> = executor.clone();
        let lease = Lease::new(
            LEASE,
            me as u16,
            participants.clone(),
            axes.clone(),
            in_flight,
            recvs,
            pool,
            handler,
        );
        let lease = Arc::new(lease);
        executor.attach(&lease);
        hubs[me].add_lease(lease.clone());
        executors.push(executor);
        leases.push(lease);
    }
    let links = [0, 1]
        .map(|i: usize| hubs[2].link(&hubs[i].me).unwrap())
        .into();
    let pool = Pool::new(&ledger, Purpose::Leases, 0).unwrap();
    let driver = Driver::new(
        &World::real(Arc::new(NoCompute)),
        hubs[2].clone(),
        LEASE,
        participants,
        driver,
        axes,
        in_flight,
        links,
        pool,
    );
    Cluster {
        driver,
        executors,
        leases,
        ledger,
        hubs,
        threads: pools,
        engines,
        holds,
    }
}

pub fn ids(ids: &[i64]) -> Tensor {
    Tensor::from_slice(&[ids.len()], ids).unwrap()
}

impl Cluster {
    /// Lets go of the workers that have dropped the lease because its driver is gone. What came for steps that never
    /// started goes with it.
    pub fn forget_dropped(&mut self) {
        let there: Vec<bool> = self.hubs[..2]
            .iter()
            .map(|hub| hub.lease(LEASE).is_some())
            .collect();
        if self.leases.len() == there.len() {
            let mut of = there.iter();
            self.leases.retain(|_| of.next() == Some(&true));
            let mut of = there.iter();
            self.executors.retain(|_| of.next() == Some(&true));
        }
    }

    pub async fn call(&self, x: &[i64]) -> convoke_common::Result<Vec<i64>> {
        let bound = Some(Duration::from_secs(10));
        let out = self
            .driver
            .call(vec![ids(x)], vec![x.len() as i64], bound)
            .await?;
        Ok(out[0].as_slice::<i64>().unwrap().to_vec())
    }

    /// Waits until all steps have retired, then checks that nothing is left.
    pub async fn check_at_rest(&self) {
        self.driver.quiesce().await;
        for (e, l) in self.executors.iter().zip(&self.leases) {
            assert_eq!(
                (e.live_steps(), l.table.open_steps(), l.pool.live_bytes()),
                (0, 0, 0)
            );
        }
        assert_eq!(self.ledger.total_and_peak().0, 2 * BASE);
    }
}
