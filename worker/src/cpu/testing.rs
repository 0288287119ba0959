//! Launches of single ops, for tests.

use std::sync::atomic::AtomicBool;

use convoke_common::Error;
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;

use super::kernel::{KernelFailure, Launch, Operands};
use super::resolution::resolve;

/// Runs `op` and returns its results; operands are moved in.
pub(crate) fn launch(
    op: &str,
    attrs: Attrs,
    inputs: Vec<Option<Tensor>>,
    outputs: usize,
) -> Result<Vec<Tensor>, Error> {
    launch_within(1 << 40, op, attrs, inputs, outputs)
}

/// As [`launch`], with a ledger of `memory` bytes.
pub(crate) fn launch_within(
    memory: u64,
    op: &str,
    attrs: Attrs,
    inputs: Vec<Option<Tensor>>,
    outputs: usize,
) -> Result<Vec<Tensor>, Error> {
    launch_in(&pool_of(memory), op, attrs, inputs, outputs)
}

/// A pool of a ledger of `memory` bytes.
pub(crate) fn pool_of(memory: u64) -> Pool {
    Pool::new(&Ledger::new("test", memory), Purpose::Handles, 0).unwrap()
}

/// As [`launch`], with a pool that the caller made.
pub(crate) fn launch_in(
    pool: &Pool,
    op: &str,
    attrs: Attrs,
    mut inputs: Vec<Option<Tensor>>,
    outputs: usize,
) -> Result<Vec<Tensor>, Error> {
    let dtypes: Vec<Option<DType>> = inputs
        .iter()
        .map(|t| t.as_ref().map(Tensor::dtype))
        .collect();
    let kernel =
        resolve(op, &attrs, &dtypes, outputs).map_err(|e| Error::internal(e.to_string()))?;
    let cancel = AtomicBool::new(false);
    let exec = Exec::single(&cancel);
    match kernel.launch(&mut Launch {
        inputs: Operands::given(&mut inputs),
        sizes: None,
        exec,
        pool,
    }) {
        Ok(outputs) => Ok(outputs.into_iter().collect()),
        Err(KernelFailure::Error(e)) => Err(*e),
        Err(KernelFailure::Cancelled) => panic!("nobody cancelled"),
    }
}

/// The only result of `op`; all operands are given.
pub(crate) fn one(op: &str, attrs: Attrs, inputs: &[&Tensor]) -> Result<Tensor, Error> {
    let inputs = inputs.iter().map(|t| Some((*t).clone())).collect();
    Ok(launch(op, attrs, inputs, 1)?.remove(0))
}

/// A vector of these elements.
pub(crate) fn vec1<T: convoke_graph::Element>(data: &[T]) -> Tensor {
    Tensor::from_slice(&[data.len()], data).unwrap()
}

/// A tensor of shape `shape` whose elements count up from zero.
pub(crate) fn counting(shape: &[usize]) -> Tensor {
    let data: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32).collect();
    Tensor::from_slice(shape, &data).unwrap()
}
