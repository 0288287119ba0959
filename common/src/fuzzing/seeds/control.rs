//! Corpus inputs for every request and response of the control plane.

use std::sync::Arc;
use std::time::Duration;

use convoke_graph::DType;
use convoke_graph::codec;
use convoke_graph::ids::FunctionId;
use convoke_graph::ops::{CustomOp, KernelSet};
use serde::Serialize;
use tarpc::Response;

use super::{Seed, chosen, graph};
use crate::device_spec::DeviceId;
use crate::error::{Code, Error, Site};
use crate::identity::fuzzing::world;
use crate::identity::{Role, TokenStore};
use crate::ids::{Incarnation, LeaseId, PlanId, StepKey};
use crate::members::OpenConnections;
use crate::memory::{Pool, Purpose, TokenHolding};
use crate::rpc::services::{
    CoordinatorRequest as Ask, CoordinatorResponse as Tell, JoiningRequest, JoiningResponse,
    WorkerRequest, WorkerResponse,
};
use crate::rpc::{
    BodyPartSummary, BodySummary, ClusterStatus, CutEdge, Death, DeathStatus, HeldLease,
    InstallAnswer, Intent, JoinAnswer, JoinRequest, LeaseGrant, LeaseStatus, LinkReport,
    LinkStatus, MeasuredLink, MemberState, MemberStatus, Numerics, PartSummary, PinPart,
    PinSummary, PlanAnswer, PlanOptions, PlanSummary, Profiles, ProgramStatus, ProgramStoreStatus,
    Progress, QuarantineStatus, Registration, RegistrationAnswer, RendezvousStatus, Sources, Speed,
    Stage, StageSummary, StepFailure, WeightsStatus, WorkerCount, WorkerKernels, WorkerStatus,
};
use crate::world::AccountId;

const LEASE: LeaseId = LeaseId(5);
const PLAN: PlanId = PlanId(6);
const LIFE: Incarnation = Incarnation(7);
const FUNCTION: FunctionId = FunctionId([8; 32]);

/// A request as a frame contains it. Its deadline is encoded as a duration from now.
fn request(decoder: u8, request: &impl Serialize) -> Vec<u8> {
    let trace = tarpc::trace::Context::default();
    let message = (0u32, Duration::from_secs(10), trace, 1u64, request);
    chosen(decoder, &codec::encode(&message).unwrap())
}

fn response(decoder: u8, response: impl Serialize) -> Vec<u8> {
    let message = Response {
        request_id: 1,
        message: Ok(response),
    };
    chosen(decoder, &codec::encode(&message).unwrap())
}

fn error() -> Error {
    let site = Site {
        worker: Some("w0".into()),
        host: Some("host".into()),
        device: Some("cpu".into()),
        node: Some("/embed/Gather".into()),
        op: Some("Gather".into()),
        operands: vec!["f32[4, 8]".into()],
        origin: Some("src/main.rs:12".into()),
    };
    let mut error = Error::new(Code::KernelFailed, "index 9 is out of range").at(site);
    error.stopped = vec!["w1".into()];
    error.attached = vec![Error::lost("w1", "no answer for 2s").advise("look")];
    error
}

fn joining() -> JoiningRequest {
    let ca = crate::identity::CaHash::from_bytes([4; 32]);
    let mut tokens = TokenStore::default();
    let token = tokens.create(world().rng.as_ref(), ca, Role::Worker, None, 5);
    let request = JoinRequest {
        token_id: token.id,
        secret: token.secret,
        role: Role::Worker,
        name: "w0".into(),
        csr: vec![0x30, 0],
        former: vec![0x30, 1],
        version: crate::VERSION.into(),
    };
    JoiningRequest::Join { request }
}

fn joined() -> JoinAnswer {
    JoinAnswer {
        name: "w0".into(),
        certificate: vec![0x30, 0],
        authorities: vec![vec![0x30, 0]],
    }
}

fn custom_ops() -> Vec<CustomOp> {
    vec![CustomOp {
        name: "example.Clamp".into(),
        fingerprint: 7,
    }]
}

fn register() -> Ask {
    let request = Registration {
        incarnation: LIFE,
        advertise: ":7000".into(),
        host: "host".into(),
        version: crate::VERSION.into(),
        profile: convoke_graph::program::NUMERICS_PROFILE.into(),
        device: DeviceId::default(),
        device_profile: convoke_graph::program::NUMERICS_PROFILE.into(),
        threads: 4,
        memory: 1 << 30,
        device_memory: 1 << 30,
        device_blocks: Pool::SHARED_BLOCKS,
        load_buffer: 1 << 24,
        host_speed: Speed {
            flops: 1e11,
            memory_bandwidth: 1e10,
        },
        device_speed: Speed {
            flops: 1e13,
            memory_bandwidth: 1e12,
        },
        deaths: vec![Death {
            incarnation: Incarnation(6),
            signal: 11,
            function: FUNCTION,
            node: "/layer/0/MatMul".into(),
        }],
        leases: vec![HeldLease {
            lease: LEASE,
            model: "test".into(),
            driver: ("client".into(), LIFE),
        }],
        ops: custom_ops(),
        kernels: WorkerKernels {
            host: KernelSet::all(),
            device: KernelSet::only([("Relu", [DType::F32, DType::F16].into_iter().collect())]),
        },
    };
    Ask::Register { request }
}

fn plan() -> Ask {
    let options = PlanOptions {
        intent: Intent::InstallInTurn { wait_ms: 1000 },
        workers: WorkerCount::Exactly(2),
        pins: vec![("/layer/*".into(), "w0".into())],
        stages: vec![Stage {
            device: Some("w1".into()),
            nodes: vec!["add".into()],
        }],
        list_nodes: true,
        axes: graph::axes(),
        tighter: vec![graph::axes()],
        expected: vec![("n".into(), 3)],
        numerics: Numerics::Exact,
        in_flight: 2,
        avoid: vec![("w1".into(), LIFE)],
        ops: custom_ops(),
        profiles: Profiles::Profile("p:1".into()),
    };
    Ask::Plan {
        function: Arc::new(graph::layer()),
        options,
        driver: LIFE,
    }
}

fn planned() -> PlanAnswer {
    let part = PartSummary {
        name: "w0".into(),
        address: "10.0.0.1:7000".into(),
        device: DeviceId::default(),
        profile: convoke_graph::program::NUMERICS_PROFILE.into(),
        threads: 4,
        nodes: 1,
        first_node: "add".into(),
        last_node: "add".into(),
        weights_bytes: 16,
        artifact_bytes: 16,
        activation_bytes: 64,
        needed_bytes: 80,
        memory: 1 << 30,
        free: 1 << 29,
        device_needed_bytes: 72,
        device_memory: 1 << 28,
        device_free: 1 << 27,
        peak_bytes: 80,
        step_ns: 1000,
    };
    let edge = CutEdge {
        tensor: "x".into(),
        from: "w0".into(),
        to: "w1".into(),
        bytes: 64,
    };
    PlanAnswer {
        plan: PLAN,
        participants: graph::participants(),
        driver: graph::driver(),
        axes: graph::axes(),
        summary: PlanSummary {
            parts: vec![part],
            cut_edges: vec![edge.clone()],
            pins: vec![PinSummary {
                pattern: "/head/*".into(),
                devices: "w*".into(),
                parts: vec![PinPart {
                    worker: "w0".into(),
                    nodes: 1,
                }],
            }],
            stages: vec![StageSummary {
                device: Some("w1".into()),
                worker: "w1".into(),
                nodes: 1,
            }],
            step_ns: 1000,
            single_ns: Some(900),
            passes: vec!["fused 1".into()],
            warnings: vec!["slow".into()],
            bodies: vec![BodySummary {
                node: "loop".into(),
                function: "body".into(),
                owner: "w0".into(),
                parts: vec![BodyPartSummary {
                    worker: "w0".into(),
                    nodes: 2,
                    first_node: "add".into(),
                    last_node: "sum".into(),
                    weights_bytes: 64,
                }],
                cut_edges: vec![edge],
                step_ns: 10,
            }],
        },
        nodes: vec![vec!["add".into()]],
    }
}

fn worker_status() -> WorkerStatus {
    WorkerStatus {
        incarnation: LIFE,
        memory_budget: 1 << 30,
        memory_used: [(Purpose::Base, 1), (Purpose::Leases, 2)].into(),
        memory_peak: 3,
        device_memory: Some(crate::rpc::DeviceMemory {
            budget: 1 << 30,
            used: [(Purpose::Weights, 1 << 20)].into(),
            peak: 1 << 21,
        }),
        resident: 4,
        resident_peak: 5,
        programs: vec![ProgramStatus {
            lease: LEASE,
            name: "test".into(),
            driver: "client".into(),
            nodes: 1,
            weights_bytes: 16,
            shared_weights_bytes: 8,
        }],
        live_steps: 1,
        live_handles: 0,
        handle_bytes: 0,
        steps_done: 2,
        steps_failed: [("invalid_argument".into(), 1)].into(),
        links: vec![LinkStatus {
            peer: "w1".into(),
            address: "10.0.0.2:7000".into(),
            path: "quic".into(),
            round_trip: 1000,
            tripwire: true,
            sent: 1,
            received: 2,
            sent_datagrams: 1,
            received_datagrams: 1,
            queued_bytes: 3,
        }],
        refused: [("stale_step".into(), 1)].into(),
        cache_bytes: 6,
        loaded: Sources {
            shared_path: 1,
            cache: 2,
            clients: 3,
        },
        weights: WeightsStatus {
            held_bytes: 16,
            shared_bytes: 8,
            unused_bytes: 4,
        },
        rendezvous: RendezvousStatus {
            leases: 1,
            open_steps: 2,
            waiting_receives: 3,
            arriving_tensors: 1,
            waiting_tensors: 4,
            aborts: 5,
        },
        program_store: ProgramStoreStatus {
            held: 2,
            held_bytes: 9,
            unused: 1,
            received: 3,
            received_bytes: 7,
        },
        holdings: vec![TokenHolding {
            token: "token234".parse().expect("a token id"),
            member: "client-1".into(),
            limit: 4,
            used: [(Purpose::Definitions, 2)].into(),
        }],
        connections: vec![],
        compute: vec![],
    }
}

fn cluster_status() -> ClusterStatus {
    let member = MemberStatus {
        name: "w0".into(),
        incarnation: LIFE,
        address: "10.0.0.1:7000".into(),
        host: "host".into(),
        version: crate::VERSION.into(),
        device: DeviceId::default(),
        device_profile: convoke_graph::program::NUMERICS_PROFILE.into(),
        threads: 4,
        memory: 1 << 30,
        device_memory: 1 << 30,
        host_flops: 1e10,
        flops: 1e11,
        memory_bandwidth: 1e10,
        last_seen_ms: 12,
        state: MemberState::Leaving,
        remark: "its former process died".into(),
        tripwire: true,
        ops: custom_ops(),
        status: Some(worker_status()),
    };
    let death = DeathStatus {
        worker: "w0".into(),
        signal: "SIGSEGV".into(),
        age: 3,
    };
    ClusterStatus {
        version: "0.1.0".into(),
        profile: convoke_graph::program::NUMERICS_PROFILE.into(),
        state_failure: Some("no space left".into()),
        members: vec![member],
        links: vec![MeasuredLink {
            from: "w0".into(),
            to: "w1".into(),
            latency: 500,
            bandwidth: 1e9,
        }],
        leases: vec![LeaseStatus {
            lease: LEASE,
            model: "test".into(),
            driver: "client".into(),
            workers: vec!["w0".into()],
        }],
        quarantine: vec![QuarantineStatus {
            node: "/layer/0/MatMul".into(),
            function: FUNCTION,
            refused: true,
            deaths: vec![death],
        }],
        refused: [("handshake".into(), 1)].into(),
        weight_bytes_relayed: 0,
        bytes_received: 1,
        bytes_sent: 2,
        holdings: vec![],
        connections: vec![OpenConnections {
            token: "token234".parse().expect("a token id"),
            role: Role::Client,
            connections: 1,
            limit: 2,
        }],
    }
}

fn link_report() -> LinkReport {
    LinkReport {
        peer: "w1".into(),
        round_trip: 1000,
        bandwidth: 1e9,
        failure: Some("no answer".into()),
    }
}

fn asked() -> Vec<(&'static str, Ask)> {
    vec![
        ("register", register()),
        ("leave", Ask::Leave {}),
        ("wedged", Ask::Wedged { why: error() }),
        (
            "steps-failed",
            Ask::Failed {
                steps: vec![StepFailure {
                    step: StepKey { lease: LEASE, n: 7 },
                    function: "test".into(),
                    error: error(),
                    client: "client".into(),
                    token: AccountId::named("token234"),
                    others: 3,
                }],
            },
        ),
        (
            "report-links",
            Ask::ReportLinks {
                links: vec![link_report()],
            },
        ),
        ("renew", Ask::Renew { csr: vec![0x30, 0] }),
        (
            "await-workers",
            Ask::AwaitWorkers {
                count: 2,
                wait_ms: 100,
            },
        ),
        ("plan", plan()),
        ("install", Ask::Install { plan: PLAN }),
        ("progress", Ask::Progress { plan: PLAN }),
        ("release", Ask::Release { lease: LEASE }),
        (
            "resume",
            Ask::Resume {
                driver: LIFE,
                held: vec![LEASE],
                version: crate::VERSION.into(),
            },
        ),
        ("status", Ask::Status {}),
    ]
}

fn told() -> Vec<(&'static str, Tell)> {
    let registered = RegistrationAnswer {
        name: "w0".into(),
        address: "10.0.0.1:7000".into(),
        revoked: vec!["abc234".parse().expect("an id")],
        peers: graph::participants(),
        drained: false,
    };
    let leased = LeaseGrant {
        lease: LEASE,
        in_flight: 2,
    };
    vec![
        ("registered", Tell::Register(Ok(registered))),
        ("left", Tell::Leave(Ok(()))),
        ("joined", Tell::Renew(Ok(joined()))),
        ("workers", Tell::AwaitWorkers(Ok(2))),
        ("planned", Tell::Plan(Ok(planned()))),
        ("refused", Tell::Plan(Err(error()))),
        ("leased", Tell::Install(Ok(leased))),
        ("progressed", Tell::Progress(Ok(Progress::default()))),
        ("cluster", Tell::Status(Ok(cluster_status()))),
    ]
}

fn to_worker() -> Vec<(&'static str, WorkerRequest)> {
    vec![
        (
            "grant",
            WorkerRequest::Install {
                grant: graph::grant(),
                programs: vec![],
            },
        ),
        (
            "grant-with-program",
            WorkerRequest::Install {
                grant: graph::grant(),
                programs: vec![graph::hashed().program().clone(); 2],
            },
        ),
        ("grant-progress", WorkerRequest::Progress { plan: PLAN }),
        ("free", WorkerRequest::Release { lease: LEASE }),
        (
            "probe",
            WorkerRequest::Probe {
                peers: graph::participants(),
            },
        ),
        (
            "revoke",
            WorkerRequest::Revoke {
                token_ids: vec!["abc234".parse().expect("an id")],
            },
        ),
        ("drain", WorkerRequest::Drain {}),
        ("worker-status", WorkerRequest::Status {}),
    ]
}

fn from_worker() -> Vec<(&'static str, WorkerResponse)> {
    vec![
        (
            "installed",
            WorkerResponse::Install(Ok(InstallAnswer::Installed)),
        ),
        (
            "needs-program",
            WorkerResponse::Install(Ok(InstallAnswer::NeedsProgram)),
        ),
        ("failed", WorkerResponse::Install(Err(error()))),
        ("probed", WorkerResponse::Probe(Ok(vec![link_report()]))),
        ("worker", WorkerResponse::Status(Ok(worker_status()))),
    ]
}

pub(super) fn seeds() -> Vec<Seed> {
    let cancel = codec::encode(&(1u32, tarpc::trace::Context::default(), 1u64)).unwrap();
    let mut seeds = vec![
        ("join", request(0, &joining())),
        ("cancel", chosen(2, &cancel)),
        (
            "certificate",
            response(1, JoiningResponse::Join(Ok(joined()))),
        ),
    ];
    seeds.extend(asked().iter().map(|(name, m)| (*name, request(2, m))));
    seeds.extend(told().iter().map(|(name, m)| (*name, response(3, m))));
    seeds.extend(to_worker().iter().map(|(name, m)| (*name, request(4, m))));
    seeds.extend(
        from_worker()
            .iter()
            .map(|(name, m)| (*name, response(5, m))),
    );
    let seed = |(name, input): (&str, _)| ("control", name.to_owned(), input);
    seeds.into_iter().map(seed).collect()
}
