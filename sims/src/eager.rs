//! A call made op by op: the model's nodes, issued on devices that a seed draws, on handles that move between them.
//!
//! What it yields is what the model yields, bit for bit.

use convoke::{Attrs, Device, Error, HostTensor, Operand, Tensor, issue, with_device};
use convoke_common::error::{Code, Result};
use convoke_common::graph::{Function, Literal, Node, ValueId};

use crate::draw::Draw;
use crate::workload::Model;

/// Runs the nodes of `model` one by one.
pub async fn run(
    cluster: &convoke::Cluster,
    model: &Model,
    given: Vec<(String, HostTensor)>,
    seed: u64,
) -> Result<Vec<HostTensor>> {
    let devices = cluster.devices().await?;
    if devices.is_empty() {
        return Err(Error::new(Code::NoWorkers, "no worker is there"));
    }
    let f = &*model.function;
    let mut d = Draw::new(seed);
    let mut values = Values::new(f, given, &devices, &mut d)?;
    for node in &f.nodes {
        values.node(node, &devices[d.below(devices.len() as u64) as usize])?;
    }
    let mut results = Vec::new();
    for (_, id) in &f.results {
        results.push(match &values.0[id.ix()] {
            Value::Handle(t) => t.fetch::<HostTensor>().await?,
            Value::Literal(t) => t.clone(),
            Value::None => return Err(missing(f, id.ix())),
        });
    }
    Ok(results)
}

fn missing(f: &Function, value: usize) -> Error {
    Error::internal(format!("'{}' has no value", f.values[value].name))
}

#[derive(Clone)]
enum Value {
    None,
    Handle(Tensor),
    /// Travels with the op that reads it.
    Literal(HostTensor),
}

/// By value of the function.
struct Values(Vec<Value>);

impl Values {
    /// Parameters, each on a device of its own choice, and literals.
    fn new(
        f: &Function,
        given: Vec<(String, HostTensor)>,
        devices: &[Device],
        d: &mut Draw,
    ) -> Result<Values> {
        let mut values = vec![Value::None; f.values.len()];
        for (id, (_, t)) in f.params.iter().zip(given) {
            let device = &devices[d.below(devices.len() as u64) as usize];
            values[id.ix()] = Value::Handle(device.put(t)?);
        }
        for (id, literal) in &f.literals {
            if let Literal::Inline(t) = literal {
                values[id.ix()] = Value::Literal(t.clone());
            }
        }
        Ok(Values(values))
    }

    fn node(&mut self, node: &Node, device: &Device) -> Result<()> {
        let operand = |id: ValueId| match &self.0[id.ix()] {
            Value::None => Operand::None,
            Value::Handle(t) => Operand::Tensor(t),
            Value::Literal(t) => Operand::Value(t.clone()),
        };
        let operands = node.inputs.iter();
        let operands: Vec<_> = operands
            .map(|id| id.map_or(Operand::None, operand))
            .collect();
        let attrs: Attrs = node.attrs.clone();
        let made = with_device(device, || {
            issue(&node.op, attrs, &operands, node.outputs.len())
        })?;
        for (id, t) in node.outputs.iter().zip(made) {
            self.0[id.ix()] = Value::Handle(t);
        }
        Ok(())
    }
}
