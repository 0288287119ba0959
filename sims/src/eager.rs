//! A call on handles: it issues the model's nodes on devices that a seed draws, one by one or in a function's trace.
//!
//! Its results equal those of the loaded model, bit for bit.

use convoke::{Attrs, Device, Error, HostTensor, Operand, Tensor, issue, with_device};
use convoke_common::error::{Code, Result};
use convoke_graph::graph::{Function, Literal, Node, ValueId};
use serde::{Deserialize, Serialize};

use crate::draw::Draw;
use crate::workload::Model;

/// How a call is made without the model being loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallMode {
    /// The nodes are issued one by one.
    Issued,
    /// The nodes are traced as a function of handles, which is then called.
    Traced,
}

/// Runs `model` on the inputs `given`. `seed` draws the device of each parameter and of each node.
pub async fn run(
    cluster: &convoke::Cluster,
    model: &Model,
    given: Vec<(String, HostTensor)>,
    (how, seed): (CallMode, u64),
) -> Result<Vec<HostTensor>> {
    let devices = cluster.devices().await?;
    if devices.is_empty() {
        return Err(Error::new(Code::NoWorkers, "no worker is there"));
    }
    let mut d = Draw::new(seed);
    let some = |d: &mut Draw| d.below(devices.len() as u64) as usize;
    let params = given.into_iter().map(|(_, t)| devices[some(&mut d)].put(t));
    let params: Vec<Tensor> = params.collect::<Result<_>>()?;
    let results = match how {
        CallMode::Issued => {
            let places = model.function.nodes.iter();
            let places: Vec<_> = places.map(|_| Some(some(&mut d))).collect();
            nodes(&model.function, &params, &devices, &places)?
        }
        CallMode::Traced => {
            // The placer chooses a worker for each node that is given no device.
            let place = |_: &Node| d.chance(30).then(|| some(&mut d));
            let places: Vec<_> = model.function.nodes.iter().map(place).collect();
            let f = model.function.clone();
            let body = move |params: &[Tensor]| nodes(&f, params, &devices, &places);
            cluster.function(body).call(&params).await?
        }
    };
    let mut values = Vec::new();
    for t in results {
        values.push(t.fetch::<HostTensor>().await?);
    }
    Ok(values)
}

/// Issues the nodes of a function, each on the device in `places` if there is one, and returns the function's results.
fn nodes(
    f: &Function,
    params: &[Tensor],
    devices: &[Device],
    places: &[Option<usize>],
) -> Result<Vec<Tensor>> {
    let mut values = Values::new(f, params);
    for (node, place) in f.nodes.iter().zip(places) {
        values.node(node, place.map(|p| &devices[p]))?;
    }
    let result = |(_, id): &(String, ValueId)| match &values.0[id.ix()] {
        EagerValue::Handle(t) => Ok(t.clone()),
        EagerValue::Literal(t) => devices[0].put(t),
        EagerValue::None => Err(missing(f, id.ix())),
    };
    f.results.iter().map(result).collect()
}

fn missing(f: &Function, value: usize) -> Error {
    Error::internal(format!("'{}' has no value", f.values[value].name))
}

#[derive(Clone)]
enum EagerValue {
    None,
    Handle(Tensor),
    /// A constant, which travels with the op that reads it.
    Literal(HostTensor),
}

/// The values of a function, by [`ValueId`].
struct Values(Vec<EagerValue>);

impl Values {
    /// Starts with the parameters and literals; the outputs of nodes are added as they are issued.
    fn new(f: &Function, params: &[Tensor]) -> Values {
        let mut values = vec![EagerValue::None; f.values.len()];
        for (id, t) in f.params.iter().zip(params) {
            values[id.ix()] = EagerValue::Handle(t.clone());
        }
        for (id, literal) in &f.literals {
            if let Literal::Inline(t) = literal {
                values[id.ix()] = EagerValue::Literal(t.clone());
            }
        }
        Values(values)
    }

    fn node(&mut self, node: &Node, device: Option<&Device>) -> Result<()> {
        let operand = |id: ValueId| match &self.0[id.ix()] {
            EagerValue::None => Operand::None,
            EagerValue::Handle(t) => Operand::Tensor(t),
            EagerValue::Literal(t) => Operand::Value(t.clone()),
        };
        let operands = node.inputs.iter();
        let operands: Vec<_> = operands
            .map(|id| id.map_or(Operand::None, operand))
            .collect();
        let attrs: Attrs = node.attrs.clone();
        let run = || issue(&node.op, attrs, &operands, node.outputs.len());
        let made = match device {
            Some(device) => with_device(device, run),
            None => run(),
        }?;
        for (id, t) in node.outputs.iter().zip(made) {
            self.0[id.ix()] = EagerValue::Handle(t);
        }
        Ok(())
    }
}
