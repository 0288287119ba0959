//! The different elements of a tensor.

use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::{axis, flag};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::movement::gather;
use convoke_kernels::unique::{SliceIndex, Slices, UniqueKernels, unique};

use super::index::indices;
use crate::cpu::dispatch::{by_dtype, by_size};
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, bits, body, write, write_bits,
};

pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => of_slices::<T>(|t| Ok(t.as_slice()?))?);
    match (found, dtype) {
        (Some(found), _) => Ok(found),
        (None, DType::Bool) => of_slices::<u8>(|t| Ok(bits(t))),
        (None, _) => Err(spec.no_dtype(dtype)),
    }
}

/// Makes the kernel, whose elements `read` reads.
fn of_slices<T: Element + UniqueKernels>(
    read: fn(&Tensor) -> Result<&[T], KernelFailure>,
) -> Result<KernelBody, OpError> {
    body(move |call| {
        let t = call.input(0)?;
        different(&call, t, read(t)?)
    })
}

fn different<T: UniqueKernels>(
    call: &OpLaunch<'_, '_>,
    t: &Tensor,
    x: &[T],
) -> Result<Outputs, KernelFailure> {
    let shape = t.shape();
    let along = match call.attrs.get("axis") {
        None => None,
        Some(_) => Some(axis(call.attrs, 0, shape.len())?),
    };
    let slices = match along {
        None => Slices {
            outer: 1,
            count: x.len(),
            inner: 1,
        },
        Some(a) => Slices {
            outer: shape[..a].iter().product(),
            count: shape[a],
            inner: shape[a + 1..].iter().product(),
        },
    };
    let longs = || call.scratch::<i64>(slices.count);
    let (mut first, mut place, mut times, mut spare) = (longs()?, longs()?, longs()?, longs()?);
    let found = SliceIndex {
        first: write(&mut first)?,
        place: write(&mut place)?,
        times: write(&mut times)?,
        spare: write(&mut spare)?,
    };
    let sorted = flag(call.attrs, "sorted", true);
    let n = unique(&call.launch.exec, slices, x, sorted, found)?;
    let cut = |t: &Tensor| -> Result<Tensor, KernelFailure> {
        let mut y = call.launch.pool.tensor(DType::I64, &[n])?;
        write::<i64>(&mut y)?.copy_from_slice(&t.as_slice::<i64>()?[..n]);
        Ok(y)
    };
    let first = cut(&first)?;
    // The slices of a flattened tensor are its elements.
    let flat = [x.len()];
    let (from, a) = match along {
        None => (&flat[..], 0),
        Some(a) => (shape, a),
    };
    let mut to = from.to_vec();
    to[a] = n;
    let mut y = call.launch.pool.tensor(t.dtype(), &to)?;
    by_size!(t.dtype(), T => gather::<T>(
        &call.launch.exec,
        bits(t),
        from,
        a,
        indices(&first)?,
        write_bits(&mut y)?,
    )?);
    let mut all = vec![y];
    if call.outputs.len() > 1 {
        all.push(first);
    }
    if call.outputs.len() > 2 {
        all.push(place);
    }
    if call.outputs.len() > 3 {
        all.push(cut(&times)?);
    }
    Ok(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{launch, vec1};

    fn ints(shape: &[usize], v: &[i64]) -> Tensor {
        Tensor::from_slice(shape, v).unwrap()
    }

    #[test]
    fn elements_and_slices() {
        let all = |attrs, x: &Tensor| launch("Unique", attrs, vec![Some(x.clone())], 4).unwrap();
        let x = ints(&[2, 3], &[2, 1, 2, 1, 5, 2]);
        let y = all(Attrs::default(), &x);
        assert_eq!(y[0], vec1(&[1i64, 2, 5]));
        assert_eq!(y[1], vec1(&[1i64, 0, 4]));
        assert_eq!(y[2], vec1(&[1i64, 0, 1, 0, 2, 1]));
        assert_eq!(y[3], vec1(&[2i64, 3, 1]));
        let y = all(Attrs::default().with("sorted", Attr::Int(0)), &x);
        assert_eq!(y[0], vec1(&[2i64, 1, 5]));
        let x = ints(&[2, 3], &[4, 1, 4, 0, 7, 0]);
        let y = all(Attrs::default().with("axis", Attr::Int(-1)), &x);
        assert_eq!(y[0], ints(&[2, 2], &[1, 4, 7, 0]));
        assert_eq!(y[2], vec1(&[1i64, 0, 1]));
        let bools = Tensor::from_bools(&[3], &[true, false, true]).unwrap();
        let y = all(Attrs::default(), &bools);
        assert_eq!(y[0], Tensor::from_bools(&[2], &[false, true]).unwrap());
    }
}
