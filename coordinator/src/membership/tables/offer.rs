//! The offer of a worker, after validation.

use std::sync::Arc;

use convoke_common::device_spec::DeviceId;
use convoke_common::ids::Incarnation;
use convoke_common::memory::SharedBlocks;
use convoke_common::rpc::{Registration, Speed, WorkerKernels};
use convoke_graph::ops::{CustomOp, is_custom_name};

use crate::membership::interface::MembershipError;

/// Longest text of a worker that is kept, in bytes.
pub const LONGEST_TEXT: usize = 256;

/// Most custom ops that a worker may have kernels for.
const MOST_OPS: usize = 1024;

/// Returns the text of a worker, cut to the length that is kept.
pub fn shortened(text: &str) -> String {
    let mut text = text.to_owned();
    text.truncate(text.floor_char_boundary(LONGEST_TEXT));
    text
}

/// The offer of a worker, after validation.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    pub incarnation: Incarnation,
    pub address: String,
    pub host: String,
    pub version: String,
    pub device: DeviceId,
    /// The numerics profile of the device.
    pub device_profile: Arc<str>,
    pub threads: u32,
    pub memory: u64,
    pub device_memory: u64,
    pub device_blocks: SharedBlocks,
    pub load_buffer: u64,
    pub host_speed: Speed,
    pub device_speed: Speed,
    /// The ops of the registry that the worker has kernels for.
    pub kernels: Arc<WorkerKernels>,
    /// The custom ops that the worker has kernels for, sorted by name.
    pub ops: Vec<CustomOp>,
}

impl Offer {
    /// Validates a registration: no value may break later arithmetic, nor a terminal that shows the text.
    pub fn check(
        name: &str,
        address: String,
        register: Registration,
    ) -> Result<Offer, MembershipError> {
        let Registration {
            incarnation,
            host,
            version,
            profile,
            device,
            device_profile,
            threads,
            memory,
            device_memory,
            device_blocks,
            load_buffer,
            host_speed,
            device_speed,
            mut ops,
            kernels,
            ..
        } = register;
        let text = |t: &str| t.len() <= LONGEST_TEXT && !t.chars().any(char::is_control);
        let number = |s: f64| s.is_finite() && s > 0.0;
        let speed = |s: &Speed| number(s.flops) && number(s.memory_bandwidth);
        let what = if !text(&address) {
            "an address that cannot be one"
        } else if !text(&host) {
            "a host name that cannot be one"
        } else if !text(&version) {
            "a release that cannot be one"
        } else if device_profile.is_empty() || !text(&device_profile) {
            "a numerics profile that cannot be one"
        } else if device.is_cpu() && device_profile != profile {
            "a CPU of another numerics profile than its host's"
        } else if device.is_cpu() && device_memory != memory {
            "a CPU with other memory than its host's"
        } else if threads == 0 {
            "no threads"
        } else if !device_blocks.is_possible() {
            "blocks of memory that cannot be some"
        } else if !speed(&host_speed) || !speed(&device_speed) {
            "a speed that is not a positive number"
        } else if device.is_cpu() && device_speed != host_speed {
            "a CPU of another speed than its host's"
        } else if !kernels.host.is_well_formed() || !kernels.device.is_well_formed() {
            "a list of ops that cannot be one"
        } else if device.is_cpu() && kernels.device != kernels.host {
            "a CPU with other ops than its host's"
        } else if ops.len() > MOST_OPS || !ops.iter().all(|op| is_custom_name(&op.name)) {
            "custom ops that cannot be ones"
        } else {
            ops.sort();
            return Ok(Offer {
                incarnation,
                address,
                host,
                version,
                device,
                device_profile: device_profile.into(),
                threads,
                memory,
                device_memory,
                device_blocks,
                load_buffer,
                host_speed,
                device_speed,
                kernels: Arc::new(kernels),
                ops,
            });
        };
        Err(MembershipError::BadRegister {
            name: name.to_owned(),
            what,
        })
    }
}
