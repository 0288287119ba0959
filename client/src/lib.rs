//! Convoke: the devices of many machines as one.
//!
//! ```no_run
//! # async fn run() -> convoke::Result<()> {
//! let cluster = convoke::connect("10.0.0.1:7070", convoke::Token::from_file("client.token")?).await?;
//! let model = cluster.load("model.onnx").workers(3).await?;
//! let x = convoke::Tensor::zeros(convoke::DType::F32, &[1, 1, 8, 8])?;
//! let out = model.call([("image", x)]).await?;
//! println!("{:?}", out["logits"]);
//! # Ok(()) }
//! ```
//!
//! A model is split over workers; the result has the same bits as on one. An error anywhere ends the call with
//! its root cause: worker, node, op, shapes. Futures may be awaited on any executor.

#![deny(missing_docs)]

mod attempts;
mod builder;
mod cluster;
mod coordinator;
#[cfg(feature = "embedded")]
mod embedded;
mod explain;
mod function;
#[doc(hidden)]
pub mod fuzzing;
mod lease;
mod model;
pub mod numpy;
mod runtime;
mod session;

pub use attempts::Rerun;
pub use builder::{ModelBuilder, Phase};
pub use cluster::{Cluster, Token, connect, connect_in};
pub use convoke_common::graph::{Function, TensorType};
pub use convoke_common::rpc::{ClusterStatus, CutEdge, PartSummary, PlanSummary};
pub use convoke_common::{Code, DType, Dim, Element, Error, Result, Site, Tensor};
pub use convoke_models::Source;
#[cfg(feature = "embedded")]
pub use embedded::{Embedded, embedded};
pub use model::{CallOptions, Model, Outputs, Retry, Signature};
