//! The control plane: requests and responses of each service, as frames contain them.

use serde::de::DeserializeOwned;
use tarpc::{ClientMessage, RequestName, Response};

use super::graph::{trust_driver, trust_function, trust_programs};
use super::target::{MemoryBound, Target, choose};
use crate::error::Result;
use crate::rpc::services::{
    CoordinatorRequest, CoordinatorResponse, JoiningRequest, JoiningResponse, WorkerRequest,
    WorkerResponse,
};
use crate::rpc::transport::InboundMessage;

pub(super) const TARGET: Target = Target {
    name: "control",
    budget: MemoryBound {
        fixed: 8 << 20,
        factor: 1 << 10,
    },
    entry: |input| choose(DECODERS, input),
};

const DECODERS: &[fn(&[u8]) -> bool] = &[
    |b| request::<JoiningRequest>(b, |_| true),
    |b| response::<JoiningResponse>(b, |_| true),
    |b| request(b, coordinator_request),
    |b| response(b, coordinator_response),
    |b| request(b, worker_request),
    |b| response::<WorkerResponse>(b, |_| true),
];

fn request<R: DeserializeOwned + RequestName>(bytes: &[u8], trust: fn(&R) -> bool) -> bool {
    match ClientMessage::<R>::decode(bytes) {
        Ok(ClientMessage::Request(request)) => {
            std::hint::black_box(request.message.name());
            trust(&request.message)
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

fn response<R: DeserializeOwned>(bytes: &[u8], trust: fn(&R) -> bool) -> bool {
    match Response::<R>::decode(bytes) {
        Ok(response) => response.message.as_ref().map_or(true, trust),
        Err(_) => false,
    }
}

fn coordinator_request(request: &CoordinatorRequest) -> bool {
    match request {
        CoordinatorRequest::Plan { function, .. } => trust_function(function),
        CoordinatorRequest::Wedged { why } => shown(&Err::<(), _>(why.clone())),
        _ => true,
    }
}

fn coordinator_response(response: &CoordinatorResponse) -> bool {
    match response {
        CoordinatorResponse::Plan(Ok(planned)) => {
            std::hint::black_box(planned.axes.at_bounds());
            trust_driver(&planned.driver)
        }
        CoordinatorResponse::Plan(planned) => shown(planned),
        CoordinatorResponse::Install(leased) => shown(leased),
        _ => true,
    }
}

fn worker_request(request: &WorkerRequest) -> bool {
    match request {
        WorkerRequest::Install { grant, programs } => trust_programs(grant, programs),
        _ => true,
    }
}

/// Formats the error, as errors are shown to users.
fn shown<T>(result: &Result<T>) -> bool {
    if let Err(error) = result {
        std::hint::black_box(error.to_string());
    }
    true
}
