//! A client that calls a model all the time while one fault strikes.

use convoke_sims::faults::{Fault, Harm, Target, Trigger};
use convoke_sims::scenario::{CallSpec, ClientSpec, ModelUse, Scenario, WorkerSpec};
use convoke_sims::workload::ModelSpec;

/// Milliseconds between two calls.
const PAUSE: u32 = 250;

pub fn spec(dynamic: bool) -> ModelSpec {
    ModelSpec {
        dynamic,
        ..ModelSpec::narrow(5, 16)
    }
}

/// A scenario with three workers, and a client that loads a model over all of them and calls it until well after the
/// fault, without retries.
pub fn scenario(target: Target, harm: Harm, at: u32, lasts: u32) -> Scenario {
    let worker = WorkerSpec {
        memory_mib: 96,
        kernel_ms: 8,
        joins: 0,
        leaves: None,
        own: false,
        simgpu: false,
    };
    let model = ModelUse {
        spec: spec(false),
        at: 0,
        workers: Some(3),
        pin: None,
        in_flight: 1,
        gives_up: None,
    };
    let call = |at: u32| CallSpec {
        at,
        model: 0,
        inputs: 1,
        axis: 2,
        sprung: false,
        deadline: None,
        cancel: None,
        retry: false,
        eager: None,
    };
    let calls = (0..(at + lasts + 6_000) / PAUSE).map(|i| call(i * PAUSE));
    Scenario {
        seed: 424_242,
        workers: vec![worker; 3],
        clients: vec![ClientSpec {
            models: vec![model],
            calls: calls.collect(),
            own: None,
        }],
        faults: vec![Fault {
            target,
            harm,
            when: Trigger::At(at),
            lasts,
        }],
    }
}
