//! The results that a loop collects over its iterations.

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::Function;
use convoke_graph::program::Axes;
use convoke_graph::{DType, Dim, Shape, Tensor};
use convoke_kernels::Exec;

use super::runs::Values;
use crate::cpu::kernel::KernelFailure;
use crate::cpu::{packed, text};

/// Bytes that are copied between two checks of the cancel flag.
const PIECE: usize = 1 << 20;
/// Number of iterations that room is made for at first, where their number is not known.
const FIRST: usize = 8;

/// The results that a loop collects: each becomes one tensor with a new first axis. They are copied into memory of the
/// pool as soon as they are there.
pub(super) struct IterationResults {
    /// By result, its dtype and shape in an iteration that never ran, for a loop without iterations.
    none: Vec<(DType, Shape)>,
    /// By result, its slices so far, in a tensor with room for more; packed elements have a byte each. A result of strings
    /// has none.
    made: Vec<Tensor>,
    /// By result, its slices so far where they are strings.
    strings: Vec<Vec<Tensor>>,
    /// Number of iterations so far.
    count: usize,
    /// The number of iterations, if it is known in advance.
    length: Option<usize>,
    /// By result, whether its last slice stands first; only possible where `length` is known.
    pub to_first: Vec<bool>,
}

impl IterationResults {
    /// Collects the results from number `first` on; `shapes` are those of the body's parameters.
    pub fn new(
        body: &Function,
        first: usize,
        shapes: impl Iterator<Item = Shape>,
        length: Option<usize>,
    ) -> IterationResults {
        let f = body;
        let mut axes = Bindings::new();
        // The dimensions of parameters that are expressions, with their sizes.
        let mut known: Vec<(&Dim, usize)> = Vec::new();
        for (id, shape) in f.params.iter().zip(shapes) {
            let declared = &f.ty(*id).shape;
            // A parameter whose shape changes between iterations counts with that of the first one.
            Axes::unify(declared, &shape, &mut axes);
            let open = |d: &Dim| d.as_const().is_none() && d.as_symbol().is_none();
            let sizes = declared.iter().zip(shape);
            known.extend(sizes.filter(|(d, _)| open(d)));
        }
        // A dimension that no parameter decides is 0.
        let dim = |d: &Dim| {
            let given = known.iter().find(|(expression, _)| *expression == d);
            let sized = || d.eval(&axes).and_then(|d| usize::try_from(d).ok());
            given.map(|(_, size)| *size).or_else(sized)
        };
        let none = f.results.iter().skip(first).map(|(_, id)| {
            let ty = f.ty(*id);
            (
                ty.dtype,
                ty.shape.iter().map(|d| dim(d).unwrap_or(0)).collect(),
            )
        });
        IterationResults {
            none: none.collect(),
            made: vec![],
            strings: vec![],
            count: 0,
            length,
            to_first: vec![],
        }
    }

    /// Adds the results of one iteration.
    pub fn add(
        &mut self,
        results: impl Iterator<Item = Tensor>,
        exec: Exec<'_>,
        pool: &Pool,
    ) -> Result<(), KernelFailure> {
        for (r, t) in results.enumerate() {
            let t = match t.dtype().is_packed() {
                true => packed::spread(&t, pool)?,
                false => t,
            };
            if self.count == 0 {
                self.strings.push(vec![]);
                let room = match t.dtype() {
                    DType::Str => 0,
                    _ => self.length.unwrap_or(FIRST),
                };
                self.made
                    .push(pool.tensor(t.dtype(), &stacked(room, t.shape()))?);
            }
            let Some(all) = self.made.get_mut(r) else {
                return Err(Error::internal("a body yields another number of results").into());
            };
            if (all.dtype(), &all.shape()[1..]) != (t.dtype(), t.shape()) {
                let (a, b) = (all.signature(), t.signature());
                let msg =
                    format!("a collected result is {b} in one iteration, in others a slice of {a}");
                return Err(KernelFailure::values(msg));
            }
            if let (DType::Str, Some(slices)) = (t.dtype(), self.strings.get_mut(r)) {
                slices.push(t);
                continue;
            }
            let room = all.shape()[0];
            if self.count == room {
                *all = resized(all, room, room.saturating_mul(2), exec, pool)?;
            }
            let at = match (self.to_first.get(r), self.length) {
                (Some(true), Some(length)) => length - 1 - self.count,
                _ => self.count,
            };
            let size = t.byte_len();
            let own = own(all)?.get_mut(at * size..(at + 1) * size);
            let none = || Error::internal("more iterations than were known");
            own.ok_or_else(none)?.copy_from_slice(t.bytes());
        }
        self.count += 1;
        Ok(())
    }

    pub fn finish(self, exec: Exec<'_>, pool: &Pool) -> Result<Values, KernelFailure> {
        let count = self.count;
        if count == 0 {
            let none = self.none.iter();
            return none
                .map(|(dtype, shape)| Ok(pool.tensor(*dtype, &stacked(0, shape))?))
                .collect();
        }
        let all = self.made.into_iter().zip(self.strings).zip(&self.none);
        all.enumerate()
            .map(|(r, ((t, mut slices), (dtype, _)))| {
                if t.dtype() == DType::Str {
                    if self.to_first.get(r) == Some(&true) {
                        slices.reverse();
                    }
                    let shape = stacked(count, &t.shape()[1..]);
                    return text::joined(&slices, &shape, exec, pool);
                }
                let t = match t.shape()[0] == count {
                    true => t,
                    false => resized(&t, count, count, exec, pool)?,
                };
                packed::gathered(t, *dtype, pool)
            })
            .collect()
    }
}

fn stacked(count: usize, shape: &[usize]) -> Shape {
    std::iter::once(count)
        .chain(shape.iter().copied())
        .collect()
}

/// The bytes of a tensor whose buffer no one else holds.
fn own(t: &mut Tensor) -> Result<&mut [u8], KernelFailure> {
    let shared = || Error::internal("a result's buffer is shared");
    Ok(t.bytes_mut().ok_or_else(shared)?)
}

/// Copies the first `count` slices of a tensor into one with room for `room` slices.
fn resized(
    t: &Tensor,
    count: usize,
    room: usize,
    exec: Exec<'_>,
    pool: &Pool,
) -> Result<Tensor, KernelFailure> {
    let shape: Shape = t.shape().into();
    let mut new = pool.tensor(t.dtype(), &stacked(room, &shape[1..]))?;
    let used = t.byte_len() / shape[0].max(1) * count;
    let pieces = own(&mut new)?[..used]
        .chunks_mut(PIECE)
        .zip(t.bytes()[..used].chunks(PIECE));
    for (new, old) in pieces {
        exec.check()?;
        new.copy_from_slice(old);
    }
    Ok(new)
}
