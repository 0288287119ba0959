//! Scan: its axes, and its form of opset 8.

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};

use super::super::builder::Builder;
use super::super::import::Importer;
use super::super::normalize::{Expansion, ImportedNode, Made, Outputs, axis_of};
use super::super::proto::{GraphProto, NodeProto};
use super::control::{Bound, ControlNode};
use crate::error::ModelError;

/// The operands of a Scan in its newest form, and where its slices lie.
struct ScanOperands {
    carried: Vec<ValueId>,
    scanned: Vec<ValueId>,
    /// By scanned operand, the axis of its slices, and whether the last slice comes first.
    from: Vec<(i64, bool)>,
    /// By collected result, the axis of its slices, and whether the last slice stands first.
    to: Vec<(i64, bool)>,
}

impl<'a> Importer<'a> {
    /// Imports a Scan node.
    pub(in super::super) fn scanned(
        &mut self,
        name: &str,
        node: &'a NodeProto,
        inputs: &[Option<ValueId>],
        bound: &Bound<'a>,
    ) -> Result<(), ModelError> {
        let n = ControlNode { name, node, bound };
        let g = n.graph("body")?;
        let old = self.b.opset.is_some_and(|v| v < 9);
        let (lengths, inputs) = match old {
            true => (inputs.first().copied().flatten(), inputs.get(1..)),
            false => (None, Some(inputs)),
        };
        let given = inputs.unwrap_or_default().iter().copied();
        let given = given.collect::<Option<Vec<_>>>();
        let mut carried = given.ok_or_else(|| n.error("an operand is left out"))?;
        let count = n.attribute("num_scan_inputs").map_or(0, |a| a.i());
        let count = usize::try_from(count).ok();
        let count = count.filter(|c| (1..=carried.len()).contains(c));
        let count = count.ok_or_else(|| n.error("num_scan_inputs is not a number of operands"))?;
        let scanned = carried.split_off(carried.len() - count);
        let kept = self.kept_results(&n, g, (0, 0), carried.len(), count)?;
        let made = g.output.len() - carried.len();
        let (from, to) = match old {
            true => (n.directions("directions", count)?, vec![false; made]),
            false => (
                n.directions("scan_input_directions", count)?,
                n.directions("scan_output_directions", made)?,
            ),
        };
        let axes = n.entries("scan_input_axes", count)?.into_iter().zip(from);
        let to = n.entries("scan_output_axes", made)?.into_iter().zip(to);
        let to = to.zip(&kept[carried.len()..]).filter(|(_, kept)| **kept);
        let operands = ScanOperands {
            carried,
            scanned,
            from: axes.collect(),
            to: to.map(|(to, _)| to).collect(),
        };
        let names = self.result_names(&node.output, &kept);
        let out = match old {
            true => self.batched_scan(&n, g, lengths, operands, &kept, &names)?,
            false => self.scan(&n, g, operands, &kept, &names)?,
        };
        self.define_kept(&node.output, &kept, &out)
    }

    /// Adds a Scan, after moving the scanned axes of its operands to the front, and before moving those of its results
    /// from there.
    fn scan(
        &mut self,
        n: &ControlNode<'a, '_>,
        g: &'a GraphProto,
        operands: ScanOperands,
        kept: &[bool],
        outputs: &[String],
    ) -> Result<Vec<ValueId>, ModelError> {
        let ScanOperands {
            carried,
            scanned,
            from,
            to,
        } = operands;
        let mut over = Vec::new();
        for (id, (axis, _)) in scanned.into_iter().zip(&from) {
            let moved = axis_moved(&self.b, n, id, *axis)?;
            over.push(match moved {
                None => id,
                Some((axis, rank)) => {
                    let others = (0..rank).filter(|a| *a != axis);
                    let perm = [axis].into_iter().chain(others).collect();
                    let perm = Attrs::default().with("perm", Attr::Ints(perm));
                    let name = format!("{}/Transpose", n.name);
                    let made = [name.clone()];
                    self.b
                        .emit("Transpose", &name, perm, vec![Some(id)], &made)?[0]
                }
            });
        }
        let slice = |ty: &TensorType| {
            let shape = ty.shape.get(1..).unwrap_or_default().to_vec();
            TensorType::new(ty.dtype, shape)
        };
        let slices: Vec<_> = over.iter().map(|id| self.b.ty(*id).map(slice)).collect();
        let types = carried.iter().map(|id| self.b.ty(*id).cloned()).collect();
        let name = n.name;
        let body = self.settled(types, 0, |i, types| {
            i.body(name, |i| {
                let types = types.iter().chain(&slices).zip(&g.input);
                let params: Vec<_> = types
                    .map(|(ty, g)| i.b.param_of(&format!("{name}/{}", g.name()), ty.clone()))
                    .collect();
                i.graph(g, &params, kept, name, "Scan")
            })
        })?;
        let directions = |d: &[(i64, bool)]| Attr::Ints(d.iter().map(|d| i64::from(d.1)).collect());
        let attrs = Attrs::default()
            .with("num_scan_inputs", Attr::Int(over.len() as i64))
            .with("scan_input_directions", directions(&from))
            .with("scan_output_directions", directions(&to));
        let state = carried.len();
        let mut names = outputs.to_vec();
        for (name, (axis, _)) in names.iter_mut().skip(state).zip(&to) {
            if *axis != 0 {
                *name = format!("{}/{name}", n.name);
            }
        }
        let operands = carried.into_iter().chain(over).map(Some);
        let mut out = body.emit(&mut self.b, "Scan", name, attrs, operands, &names)?;
        for (k, (axis, _)) in to.iter().enumerate() {
            let id = out[state + k];
            if let Some((axis, rank)) = axis_moved(&self.b, n, id, *axis)? {
                let perm = (1..=axis).chain([0]).chain(axis + 1..rank).collect();
                let perm = Attrs::default().with("perm", Attr::Ints(perm));
                let name = format!("{}/Transpose", n.name);
                let named = &outputs[state + k..][..1];
                out[state + k] = self
                    .b
                    .emit("Transpose", &name, perm, vec![Some(id)], named)?[0];
            }
        }
        Ok(out)
    }

    /// Adds a Scan in the form of opset 8: the first axis of all operands and results is that of the batch, whose
    /// elements are scanned by themselves. With `lengths`, a list, each of them is scanned up to its own length, and what is
    /// collected is zero behind it.
    fn batched_scan(
        &mut self,
        n: &ControlNode<'a, '_>,
        g: &'a GraphProto,
        lengths: Option<ValueId>,
        mut operands: ScanOperands,
        kept: &[bool],
        outputs: &[String],
    ) -> Result<Vec<ValueId>, ModelError> {
        let given = operands.carried.iter().chain(&operands.scanned);
        let given: Vec<ValueId> = given.copied().chain(lengths).collect();
        let element = |ty: &TensorType| {
            let shape = ty.shape.get(1..).unwrap_or_default().to_vec();
            TensorType::new(ty.dtype, shape)
        };
        let types: Vec<_> = given.iter().map(|id| self.b.ty(*id).map(element)).collect();
        let body = self.body(n.name, |i| {
            let params = types.into_iter().enumerate();
            let params = params.map(|(p, ty)| i.b.param_of(&format!("{}/element{p}", n.name), ty));
            let mut carried: Vec<ValueId> = params.collect();
            let length = lengths.and_then(|_| carried.pop());
            operands.scanned = carried.split_off(operands.carried.len());
            operands.carried = carried;
            let names: Vec<String> = (0..outputs.len())
                .map(|o| format!("{}/result{o}", n.name))
                .collect();
            let Some(length) = length else {
                return i.scan(n, g, operands, kept, &names);
            };
            let out = i.scan_of_length(n, g, length, operands, kept, &names);
            i.reported(out, "", "Scan", n.name, &names)
        })?;
        let attrs = Attrs::default().with("num_scan_inputs", Attr::Int(given.len() as i64));
        let operands = given.into_iter().map(Some);
        body.emit(&mut self.b, "Scan", n.name, attrs, operands, outputs)
    }

    /// Adds a Scan of the first slices, as many as `length` says, and fills what it collects up with zeros.
    fn scan_of_length(
        &mut self,
        n: &ControlNode<'a, '_>,
        g: &'a GraphProto,
        length: ValueId,
        mut operands: ScanOperands,
        kept: &[bool],
        outputs: &[String],
    ) -> Outputs {
        let first = operands.scanned.first().copied();
        let first = first.ok_or_else(|| n.error("scans nothing"))?;
        let c = ImportedNode::of_expansion(n.name, vec![]);
        let mut e = Expansion {
            b: &mut self.b,
            c: &c,
        };
        e.ty(first)?;
        let most = e.length(first, 0)?;
        let own = e.reshaped(length, &[1])?;
        let left = e.plain("Sub", &[most, own])?;
        let sizes = e.joined(0, &[own, left])?;
        for x in &mut operands.scanned {
            *x = e.leading(*x, sizes)?;
        }
        let state = operands.carried.len();
        let mut out = self.scan(n, g, operands, kept, outputs)?;
        let mut e = Expansion {
            b: &mut self.b,
            c: &c,
        };
        for x in out.iter_mut().skip(state) {
            *x = e.filled_up(*x, most, left)?;
        }
        Ok(out)
    }
}

impl Expansion<'_> {
    /// The first rows of `x`: `sizes` are their number and that of the others. Where `x` has another number of rows, or one
    /// of the sizes is negative, the run refuses them.
    fn leading(&mut self, x: ValueId, sizes: ValueId) -> Made {
        let name = format!("{}/Split", self.c.name);
        let parts = [name.clone(), format!("{name}/rest")];
        let operands = vec![Some(x), Some(sizes)];
        let made = self.b.emit("Split", &name, axis_of(0), operands, &parts)?;
        let first = made.first().copied();
        Ok(first.ok_or_else(|| self.c.error("has no operand"))?)
    }

    /// `x` with as many zeros behind its rows as `left` says, so that there are `most`; both are lists of one number.
    fn filled_up(&mut self, x: ValueId, most: ValueId, left: ValueId) -> Made {
        let rank = self.shape(x)?.len();
        let mut pads = vec![self.ints("zeros", &vec![0; rank])?, left];
        let mut shape = vec![most];
        if rank > 1 {
            pads.push(self.ints("zeros", &vec![0; rank - 1])?);
            let inner = Attrs::default().with("start", Attr::Int(1));
            shape.push(self.op("Shape", inner, &[x])?);
        }
        let pads = self.joined(0, &pads)?;
        let shape = self.joined(0, &shape)?;
        let rows = self.plain("Pad", &[x, pads])?;
        self.with_zero(rows, shape)
    }
}

/// The axis from the front and the rank of a value, where the axis is not the first one and the rank is known.
fn axis_moved(
    b: &Builder,
    n: &ControlNode<'_, '_>,
    id: ValueId,
    axis: i64,
) -> Result<Option<(i64, i64)>, ModelError> {
    let Some(rank) = b.ty(id).map(|ty| ty.shape.len() as i64) else {
        return Ok(None);
    };
    let front = if axis < 0 { axis + rank } else { axis };
    if !(0..rank).contains(&front) {
        return Err(n.error(format!("axis {axis} of a value of rank {rank}")));
    }
    Ok((front != 0).then_some((front, rank)))
}
