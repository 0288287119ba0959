//! The function of a decoder's steps: the model, whose caches are handles, and of whose logits the last row is a
//! result.
//!
//! ```text
//! number ── HandleIn ── past ─┐          ┌─ present ── HandleOut ── result of no bytes
//!                             ├── model ─┤
//! ids, mask, places ──────────┘          └─ logits ── Gather of the last row ── result
//! ```

use convoke_common::error::{Code, Error, Result};
use convoke_graph::graph::{Attr, Attrs, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::HandleOp;
use convoke_graph::{DType, Dim, Tensor as HostTensor};

use super::layout::Layout;

/// The name of the node that reads a cache.
pub(super) fn reader(cache: usize) -> String {
    format!("decoder: cache {cache} before the step")
}

/// The name of the node that keeps a cache.
pub(super) fn keeper(cache: usize) -> String {
    format!("decoder: cache {cache} after the step")
}

fn node(name: String, op: &str, attrs: Attrs, inputs: &[ValueId], output: ValueId) -> Node {
    Node {
        name: name.into(),
        op: op.into(),
        attrs,
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![output],
        runs_at: RunsAt::Step,
    }
}

fn number(f: &mut Function, name: String) -> ValueId {
    let value = f.add_value(name, TensorType::new(DType::U64, vec![]));
    f.params.push(value);
    value
}

/// Makes the function of a decoder's steps. Its parameters are the numbers of the caches before the step, those of the
/// caches after it, and what each call feeds. Its results are one for each cache, and the logits of the last token.
pub(super) fn of_steps(model: &Function, layout: &Layout) -> Result<Function> {
    let mut f = model.clone();
    let (params, results) = (
        std::mem::take(&mut f.params),
        std::mem::take(&mut f.results),
    );
    let (mut readers, mut keepers) = (Vec::new(), Vec::new());
    for (i, cache) in layout.caches.iter().enumerate() {
        let past = params[cache.param];
        let ty = f.ty(past).clone();
        let number = number(&mut f, format!("decoder: handle of cache {i}"));
        let dims = ty.shape.iter().map(|d| d.to_string().into()).collect();
        let attrs = Attrs::default()
            .with("dtype", Attr::DType(ty.dtype))
            .with("dims", Attr::Strs(dims))
            .with("donate", Attr::Int(1));
        let read = node(reader(i), HandleOp::HandleIn.name(), attrs, &[number], past);
        readers.push((past, read));
    }
    for (i, cache) in layout.caches.iter().enumerate() {
        let number = number(&mut f, format!("decoder: handle of cache {i} after"));
        let nothing = TensorType::new(DType::U8, vec![Dim::Const(0)]);
        let kept = f.add_value(format!("decoder: cache {i} is kept"), nothing);
        let present = [results[cache.result].1, number];
        let op = HandleOp::HandleOut.name();
        keepers.push(node(keeper(i), op, Attrs::default(), &present, kept));
        f.results.push((format!("cache {i}"), kept));
    }
    f.params
        .extend(layout.fed.iter().map(|(param, _)| params[*param]));
    // A cache is read where it is needed first: the placer cuts along the order of the nodes.
    let mut nodes = Vec::with_capacity(f.nodes.len() + 2 * readers.len() + 1);
    for next in std::mem::take(&mut f.nodes) {
        let needed = |(past, _): &(ValueId, Node)| next.inputs.contains(&Some(*past));
        nodes.extend(readers.extract_if(.., |r| needed(r)).map(|(_, read)| read));
        nodes.push(next);
    }
    nodes.extend(readers.into_iter().map(|(_, read)| read));
    nodes.extend(keepers);

    let all = results[layout.logits].1;
    let mut last = f.ty(all).clone();
    last.shape.remove(1);
    let last = f.add_value("decoder: logits of the last token", last);
    let index = f.add_value("decoder: last", TensorType::new(DType::I64, vec![]));
    let end = Literal::Inline(HostTensor::scalar(-1i64));
    f.literals.push((index, end));
    let axis = Attrs::default().with("axis", Attr::Int(1));
    let name = "decoder: last row".to_owned();
    nodes.push(node(name, "Gather", axis, &[all, index], last));
    f.results.push(("logits".into(), last));
    f.nodes = nodes;
    let verified = f.verify();
    verified.map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))?;
    Ok(f)
}
