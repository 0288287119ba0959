//! The kernels that a node needs of the worker that runs it, and the workers that have them.
//!
//! A worker runs an op of the registry where its host has a kernel for it: the host decides the sizes of what the device
//! computes, and runs what the device has no kernel for. Custom ops have kernels on hosts alone.

use convoke_common::{Code, Error, Result};
use convoke_graph::DType;
use convoke_graph::graph::{Function, Node};
use convoke_graph::ops::{self, CustomOp};

use super::cluster::{ClusterModel, WorkerModel};
use super::device_nodes::first_dtype;

/// How many names a message lists before it says how many more there are.
const LISTED: usize = 8;

/// A kernel that a node needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NeededKernel<'a> {
    Custom(&'a str),
    /// That of an op of the registry, for this dtype of its first operand.
    Registry(&'a str, Option<DType>),
}

impl<'a> NeededKernel<'a> {
    /// Adds the kernels that `node` of `f` needs. If `registry` says so, those of ops of the registry are among them,
    /// also within the functions that the node runs.
    pub fn add(f: &'a Function, node: &'a Node, registry: bool, needed: &mut Vec<Self>) {
        match ops::is_custom(&node.op) {
            true => needed.push(NeededKernel::Custom(&node.op)),
            false if registry => {
                needed.push(NeededKernel::Registry(&node.op, first_dtype(f, node)));
            }
            false => {}
        }
        if registry {
            for (_, within) in node.attrs.functions() {
                let inner = within.nodes.iter().filter(|n| !ops::is_custom(&n.op));
                inner.for_each(|n| NeededKernel::add(within, n, registry, needed));
            }
        }
    }

    /// Returns which workers have the kernel; `None` if all do. `defined` are custom ops as the caller defines them.
    ///
    /// # Errors
    /// `unsupported_op` where no worker has it.
    pub fn workers(
        self,
        f: &Function,
        cluster: &ClusterModel,
        defined: &[CustomOp],
    ) -> Result<Option<Vec<bool>>> {
        let has = |w: &WorkerModel| match self {
            NeededKernel::Registry(op, dtype) => w.kernels.host.contains(op, dtype),
            NeededKernel::Custom(op) => match defined.iter().find(|d| d.name == op) {
                Some(d) => w.ops.contains(d),
                None => w.ops.iter().any(|o| o.name == op),
            },
        };
        let set: Vec<bool> = cluster.workers.iter().map(has).collect();
        match set.contains(&true) {
            false => Err(self.nobody(f, cluster)),
            true => Ok(Some(set).filter(|set| set.contains(&false))),
        }
    }

    /// The error of a kernel that no worker has.
    fn nobody(self, f: &Function, cluster: &ClusterModel) -> Error {
        let all = || {
            let mut all = vec![];
            f.nodes.iter().for_each(|n| {
                let mut needed = vec![];
                NeededKernel::add(f, n, true, &mut needed);
                if needed.contains(&self) {
                    all.push(format!("'{}'", n.name));
                }
            });
            listed(all.into_iter())
        };
        let workers = listed(cluster.workers.iter().map(|w| w.name.clone()));
        match self {
            NeededKernel::Custom(op) => {
                let msg = format!(
                    "no worker has a kernel of the op '{op}', which {} need; there are: {workers}",
                    all()
                );
                undefined(op, msg, cluster)
            }
            NeededKernel::Registry(op, dtype) => {
                let dtype = dtype.map_or(String::new(), |d| format!(" for {d}"));
                let msg = format!(
                    "no worker has a kernel of the op '{op}'{dtype}, which {} need; these lack it: {workers}",
                    all()
                );
                Error::new(Code::UnsupportedOp, msg)
                    .advise("compute it in another dtype, or start a worker that has the kernel")
            }
        }
    }
}

/// The error of a custom op that no worker has as the caller defines it.
fn undefined(op: &str, msg: String, cluster: &ClusterModel) -> Error {
    let other = cluster.workers.iter();
    let other = other.filter(|w| w.ops.iter().any(|o| o.name == op));
    let other: Vec<String> = other.map(|w| w.name.clone()).collect();
    match other.is_empty() {
        true => Error::new(Code::UnsupportedOp, msg)
            .advise("start a worker of a binary that registers it"),
        false => {
            let there = listed(other.into_iter());
            let msg = format!("{msg}; another definition of it is that of {there}");
            Error::new(Code::UnsupportedOp, msg)
                .advise("build client and workers with the same definition")
        }
    }
}

/// Joins the first names, and counts the others.
pub fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let hidden = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    if hidden > 0 {
        names.push(format!("and {hidden} more"));
    }
    names.join(", ")
}
