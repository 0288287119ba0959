//! `convoke drain`, `undrain`, `forget` and `quarantine`: requests through the coordinator's Unix socket.

use serde::Serialize;

use crate::args::{DrainArgs, QuarantineCommand};
use crate::commands::token::client;
use crate::text::failure::Failure;
use crate::text::output;

#[derive(Serialize)]
struct DrainOutput {
    drained: String,
    /// Whether the worker is connected, and was told to end.
    there: bool,
}

/// Takes a worker out of service.
pub async fn drain(args: DrainArgs, json: bool) -> Result<(), Failure> {
    let name = args.name;
    let there = client(args.at)?.drain(&name).await?;
    match (json, there) {
        (true, _) => output::json(&DrainOutput {
            drained: name,
            there,
        }),
        (false, true) => output::print(&format!(
            "worker {name} finishes its steps and ends; `convoke undrain {name}` lets it serve again"
        )),
        (false, false) => output::print(&format!(
            "worker {name} is not there; it will not serve until `convoke undrain {name}`"
        )),
    }
}

#[derive(Serialize)]
struct UndrainOutput {
    undrained: String,
    /// Whether plans use the worker from now on; if not, it must be started first.
    serves: bool,
}

/// Puts a drained worker back into service.
pub async fn undrain(args: DrainArgs, json: bool) -> Result<(), Failure> {
    let name = args.name;
    let serves = client(args.at)?.undrain(&name).await?;
    match (json, serves) {
        (true, _) => output::json(&UndrainOutput {
            undrained: name,
            serves,
        }),
        (false, true) => output::print(&format!("worker {name} serves again")),
        (false, false) => output::print(&format!("worker {name} serves again once it is started")),
    }
}

#[derive(Serialize)]
struct ForgetOutput {
    forgotten: String,
}

/// Removes a lost worker's name from the coordinator.
pub async fn forget(args: DrainArgs, json: bool) -> Result<(), Failure> {
    let name = args.name;
    client(args.at)?.forget(&name).await?;
    match json {
        true => output::json(&ForgetOutput { forgotten: name }),
        false => output::print(&format!("worker {name} is forgotten")),
    }
}

#[derive(Serialize)]
struct LiftOutput {
    lifted: String,
    functions: u32,
}

/// Lifts the quarantine of nodes, so that they may run again.
pub async fn quarantine(command: QuarantineCommand, json: bool) -> Result<(), Failure> {
    let QuarantineCommand::Lift { node, at } = command;
    let functions = client(at)?.lift_quarantine(&node).await?;
    match json {
        true => output::json(&LiftOutput {
            lifted: node,
            functions,
        }),
        false => output::print(&format!("node {node} may run again, in {functions} models")),
    }
}
