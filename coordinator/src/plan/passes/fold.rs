//! Integer shape arithmetic whose results inference knows in full becomes constants inside the graph.

use convoke_graph::DType;
use convoke_graph::graph::{Function, INLINE_LIMIT};
use convoke_graph::ops::{self, HostValue};
use convoke_graph::tensor::Tensor;

use super::edit::Edit;
use super::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let known = ops::fold_host(&f);
    let mut e = Edit::new(f);
    let mut folded = 0;
    for i in 0..e.f.nodes.len() {
        let outputs = e.f.nodes[i].outputs.iter();
        let tensors = outputs.map(|o| tensor(known.get(*o)?, e.f.ty(*o).dtype));
        let Some(tensors) = tensors.collect::<Option<Vec<_>>>() else {
            continue;
        };
        let outputs = e.f.nodes[i].outputs.clone();
        e.remove(i);
        outputs
            .into_iter()
            .zip(tensors)
            .for_each(|(o, t)| e.define(o, t));
        folded += 1;
    }
    let report = (folded > 0).then(|| format!("evaluated {}", pass::count(folded, "shape node")));
    (e.finish(), report)
}

/// Returns the known integers as a tensor, if it is small and every element fits `dtype`.
fn tensor(value: &HostValue, dtype: DType) -> Option<Tensor> {
    let ints = value.ints()?;
    if dtype.is_float() || dtype.is_narrow() || dtype.bytes_for(ints.len())? > INLINE_LIMIT {
        return None;
    }
    let mut bytes = Vec::with_capacity(dtype.bytes_for(ints.len())?);
    for v in ints {
        match dtype {
            DType::I8 => bytes.extend(i8::try_from(v).ok()?.to_le_bytes()),
            DType::I16 => bytes.extend(i16::try_from(v).ok()?.to_le_bytes()),
            DType::I32 => bytes.extend(i32::try_from(v).ok()?.to_le_bytes()),
            DType::I64 => bytes.extend(v.to_le_bytes()),
            DType::U8 => bytes.extend(u8::try_from(v).ok()?.to_le_bytes()),
            DType::U16 => bytes.extend(u16::try_from(v).ok()?.to_le_bytes()),
            DType::U32 => bytes.extend(u32::try_from(v).ok()?.to_le_bytes()),
            DType::U64 => bytes.extend(u64::try_from(v).ok()?.to_le_bytes()),
            DType::Bool if (0..=1).contains(&v) => bytes.push(v as u8),
            _ => return None,
        }
    }
    Tensor::from_bytes(dtype, &value.shape, &bytes).ok()
}
