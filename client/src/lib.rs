//! Convoke: the devices of many machines as one.
//!
//! ```no_run
//! # async fn run() -> convoke::Result<()> {
//! let cluster = convoke::connect("10.0.0.1:7070", convoke::Token::from_file("client.token")?).await?;
//! let model = cluster.load("model.onnx").workers(3).await?;
//! let x = convoke::HostTensor::zeros(convoke::DType::F32, &[1, 1, 8, 8])?;
//! let out = model.call([("image", x)]).await?;
//! println!("{:?}", out["logits"]);
//! # Ok(()) }
//! ```
//!
//! A model is split over workers, and its results have the same bits as on one worker. An error anywhere ends the call
//! with its root cause, which names worker, node, op and shapes; in a partial call ([`Model::partial`]) it ends only
//! the results that depend on what failed. Futures may be awaited on any executor.

#![deny(missing_docs)]

mod calls;
mod cluster;
mod device;
mod eager;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod generate;
mod host;
mod model;
mod prepare;
mod primitives;
mod tensor;
mod trace;

pub use calls::options::{CallOptions, Retry};
pub use calls::partial::{Partial, PartialOutputs};
pub use calls::rerun::Rerun;
#[cfg(feature = "embedded")]
pub use cluster::embedded::{Embedded, embedded};
pub use cluster::{Cluster, Token, connect, connect_in};
pub use convoke_common::device_spec::DeviceId;
pub use convoke_common::rpc::{
    BodyPartSummary, BodySummary, ClusterStatus, CutEdge, Numerics, PartSummary, PinPart,
    PinSummary, PlanSummary, StageSummary,
};
pub use convoke_common::{Code, Error, Result, Site};
pub use convoke_graph::graph::{Attr, Attrs, TensorType};
pub use convoke_graph::{DType, Dim, Element, Tensor as HostTensor};
pub use convoke_models::Source;
pub use convoke_models::onnx::{Annotated, BlockWidth, OutputForm};
pub use device::{CacheStats, Device, DeviceSet, HandleUsage, ScopedFuture, with_device};
pub use files::numpy;
pub use files::safetensors::LoadTensors;
pub use generate::{Decoder, EndReason, GenerateOptions, Generation, Sampling};
pub use host::{FromHost, ToHost};
pub use model::Model;
pub use model::builder::ModelBuilder;
pub use model::outputs::Outputs;
pub use model::phase::Phase;
pub use model::signature::{ArrayType, Signature};
pub use prepare::PreparedOp;
pub use tensor::{
    Arg, Axes, HostArg, Index, Indices, Operand, OptArg, OptHostArg, Scalar, Seed, Tensor, display,
    fetch_all, issue, op, options,
};
pub use trace::control::{Count, cond, for_loop, scan, while_loop};
pub use trace::import::{ImportBuilder, Imported};
pub use trace::traced::Function;

/// Functions as graphs, for programs that build graphs themselves.
pub mod graph {
    pub use convoke_graph::graph::{Function, Literal, Node, RunsAt, Value, ValueId};
}

/// Definitions of custom ops: their operands, attributes, rules for dtypes and shapes, and costs. [`op`] issues a
/// custom op.
pub mod ops {
    pub use convoke_graph::ops::def::{attr, operand, required};
    pub use convoke_graph::ops::{
        AttrDef, AttrKind, Cost, HostValue, Infer, InferredOutput, Memory, OpDef, OpError, Operand,
        OperandDef,
    };

    /// Registers a custom op with this process. Registering the same definition again does nothing; another definition
    /// of the same name is refused.
    pub fn register(def: &'static OpDef) -> crate::Result<()> {
        Ok(convoke_graph::ops::register(def)?)
    }
}

/// Kernels of custom ops. A kernel is registered for the workers of this process: those of an embedded cluster, or of a
/// worker binary.
#[cfg(feature = "embedded")]
pub mod kernels {
    pub use convoke_worker::ops::{
        CustomKernel, KernelCall, KernelFailure, Outputs, Spec, elements_mut, kernel, register,
    };
}

/// Devices with memory of their own. A kind of device is registered for the workers of this process: those of an
/// embedded cluster, or of a worker binary.
#[cfg(feature = "embedded")]
pub mod devices {
    pub use convoke_common::memory::{Ledger, Pool, Purpose, Reservation, SharedBlocks};
    pub use convoke_common::world::{Compute, Share};
    pub use convoke_graph::Shape;
    pub use convoke_graph::ops::{DTypeSet, KernelSet};
    pub use convoke_graph::program::NUMERICS_PROFILE;
    pub use convoke_worker::device::{
        CopiedCallback, Device, DeviceContext, DeviceFailure, DeviceKernel, DeviceKind,
        DeviceLaunch, DeviceOp, DeviceOperand, DeviceQueue, DeviceStep, DeviceTensor,
        EventCallback, KernelWatch, LaunchResults, register, suite,
    };
}

/// The guide's code, run as tests.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
