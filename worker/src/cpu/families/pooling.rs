//! Pooling over windows and over whole planes.

use convoke_graph::ops::PoolOp;
use convoke_graph::ops::attrs::PoolAttrs;
use convoke_graph::{DType, Element, Outputs};
use convoke_kernels::element::{Float, Number};
use convoke_kernels::pooling::{
    StorageOrder, Window, average_pool, global_average_pool, global_max_pool, lp_pool, max_pool,
    max_pool_with_indices,
};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write};

pub(super) fn find(op: PoolOp, spec: &Spec<'_>) -> FamilyAnswer {
    let dtype = spec.dtype(0)?;
    let found = match op {
        PoolOp::MaxPool => by_dtype!(number dtype, T => body(max::<T>)?),
        op => by_dtype!(float dtype, T => body(move |call| floats::<T>(call, op))?),
    };
    found.ok_or_else(|| spec.no_dtype(dtype))
}

/// The attributes, and the pooling window of x `[n, c, ..]`.
fn window(call: &OpLaunch<'_, '_>) -> Result<(PoolAttrs, Window), KernelFailure> {
    let (Some(input), Some(output)) = (call.shape(0)?.get(2..), call.out_shape(0).get(2..)) else {
        return Err(KernelFailure::values(format!(
            "{:?} has no spatial axes",
            call.input(0)?
        )));
    };
    let attrs = PoolAttrs::new(call.attrs, input.len())?;
    let w = &attrs.window;
    let (begins, ends): (Vec<usize>, Vec<usize>) = input
        .iter()
        .enumerate()
        .map(|(axis, len)| w.pads(axis, *len))
        .unzip();
    let pads = [begins, ends].concat();
    let window = Window::new(input, output, &w.kernel, &w.strides, &w.dilations, &pads)?;
    Ok((attrs, window))
}

fn max<T: Element + Number>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let (attrs, window) = window(&call)?;
    let mut y = call.output(0)?;
    if call.outputs.len() < 2 {
        max_pool::<T>(&call.launch.exec, &window, call.slice(0)?, write(&mut y)?)?;
        return one(y);
    }
    let order = if attrs.column_major {
        StorageOrder::ColumnMajor
    } else {
        StorageOrder::RowMajor
    };
    let mut indices = call.launch.pool.tensor(DType::I64, call.out_shape(0))?;
    let (out, places) = (write(&mut y)?, write(&mut indices)?);
    max_pool_with_indices::<T>(
        &call.launch.exec,
        &window,
        order,
        call.slice(0)?,
        out,
        places,
    )?;
    Ok([y, indices].into())
}

fn floats<T: Element + Float>(
    call: OpLaunch<'_, '_>,
    op: PoolOp,
) -> Result<Outputs, KernelFailure> {
    let x = call.slice::<T>(0)?;
    let mut y = call.output(0)?;
    let out = write::<T>(&mut y)?;
    let spatial = call.shape(0)?.iter().skip(2).product();
    match op {
        PoolOp::AveragePool => {
            let (attrs, window) = window(&call)?;
            average_pool(&call.launch.exec, &window, attrs.count_include_pad, x, out)?;
        }
        PoolOp::LpPool => {
            let (attrs, window) = window(&call)?;
            lp_pool(&call.launch.exec, &window, exponent(attrs.p)?, x, out)?;
        }
        PoolOp::GlobalAveragePool => global_average_pool(&call.launch.exec, x, spatial, out)?,
        PoolOp::MaxPool | PoolOp::GlobalMaxPool => {
            global_max_pool(&call.launch.exec, x, spatial, out)?
        }
        PoolOp::GlobalLpPool if spatial == 0 => out.fill(T::ZERO),
        PoolOp::GlobalLpPool => {
            // A single pooling window covers the whole plane.
            let window = Window::new(&[spatial], &[1], &[spatial], &[1], &[1], &[0, 0])?;
            lp_pool(
                &call.launch.exec,
                &window,
                exponent(call.attrs.int("p", 2))?,
                x,
                out,
            )?;
        }
    }
    one(y)
}

fn exponent(p: i64) -> Result<u32, KernelFailure> {
    let valid = u32::try_from(p).ok().filter(|p| *p > 0);
    valid.ok_or_else(|| {
        KernelFailure::values(format!("a norm's exponent must be above zero, not {p}"))
    })
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{counting, launch, one, vec1};

    fn kernel(k: &[i64]) -> Attrs {
        Attrs::default().with("kernel_shape", Attr::Ints(k.into()))
    }

    #[test]
    fn windows_of_one_to_three_dimensions() {
        for (x, k, want) in [
            (&[1, 1, 4][..], &[2][..], &[1, 1, 3][..]),
            (&[1, 2, 4, 4], &[2, 3], &[1, 2, 3, 2]),
            (&[1, 1, 3, 3, 3], &[2, 2, 2], &[1, 1, 2, 2, 2]),
        ] {
            for op in ["MaxPool", "AveragePool", "LpPool"] {
                assert_eq!(
                    one(op, kernel(k), &[&counting(x)]).unwrap().shape(),
                    want,
                    "{op}"
                );
            }
        }
    }

    #[test]
    fn places_and_padding() {
        let x = counting(&[1, 1, 2, 2]);
        let pads = kernel(&[2, 2]).with("pads", Attr::Ints(vec![0, 0, 0, 1]));
        let y = launch("MaxPool", pads.clone(), vec![Some(x.clone())], 2).unwrap();
        assert_eq!(y[1], Tensor::from_slice(&[1, 1, 1, 2], &[3i64, 3]).unwrap());
        let average = |attrs| one("AveragePool", attrs, &[&x]).unwrap();
        assert_eq!(average(pads.clone()).as_slice::<f32>().unwrap(), [1.5, 2.0]);
        assert_eq!(
            average(pads.with("count_include_pad", Attr::Int(1)))
                .as_slice::<f32>()
                .unwrap(),
            [1.5, 1.0]
        );
    }

    #[test]
    fn whole_planes() {
        let x = vec1(&[3f32, 4.0]).reshape(&[1, 1, 2]).unwrap();
        for (op, want) in [
            ("GlobalAveragePool", 3.5f32),
            ("GlobalMaxPool", 4.0),
            ("GlobalLpPool", 5.0),
        ] {
            let y = one(op, Attrs::default(), &[&x]).unwrap();
            assert_eq!(
                (y.shape(), y.as_slice::<f32>().unwrap()[0]),
                (&[1usize, 1, 1][..], want),
                "{op}"
            );
        }
    }
}
