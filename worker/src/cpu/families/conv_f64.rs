//! Convolutions in f64: patches unfolded into scratch memory, then a matrix product. They are rare, and so kept simple.

use convoke_graph::Outputs;
use convoke_graph::ops::attrs::ConvAttrs;
use convoke_kernels::gemm::{Batch, Strided, gemm_generic};

use crate::cpu::kernel::{KernelFailure, OpLaunch, one, write};

/// The sizes of the spatial axes, padded in front to three axes.
struct Space {
    input: [usize; 3],
    kernel: [usize; 3],
    output: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    pads: [usize; 3],
}

fn three(list: &[usize], fill: usize) -> [usize; 3] {
    let mut out = [fill; 3];
    out[3 - list.len()..].copy_from_slice(list);
    out
}

impl Space {
    /// The input position that tap `k` of output position `o` reads along `axis`; `None` in the padding.
    fn source(&self, axis: usize, o: usize, k: usize) -> Option<usize> {
        let at =
            (o * self.strides[axis] + k * self.dilations[axis]).checked_sub(self.pads[axis])?;
        (at < self.input[axis]).then_some(at)
    }

    /// Fills one row of the unfolded input: the elements of `channel` that tap `k` reads, for every output position.
    fn unfold(&self, channel: &[f64], k: [usize; 3], row: &mut [f64]) {
        let [_, height, width] = self.input;
        let mut row = row.iter_mut();
        for o0 in 0..self.output[0] {
            let plane = self.source(0, o0, k[0]);
            for o1 in 0..self.output[1] {
                let line = plane
                    .zip(self.source(1, o1, k[1]))
                    .map(|(p, l)| (p * height + l) * width);
                for (o2, y) in (0..self.output[2]).zip(&mut row) {
                    let at = line.zip(self.source(2, o2, k[2]));
                    *y = at.map_or(0.0, |(line, at)| channel[line + at]);
                }
            }
        }
    }
}

/// Convolves X `[n, c, ..]` by W `[m, c / group, ..]`, and adds B `[m]` if given; the registry's rule has checked the
/// sizes.
pub(super) fn conv(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let (x, w, b) = (
        call.slice::<f64>(0)?,
        call.slice::<f64>(1)?,
        call.optional_slice::<f64>(2)?,
    );
    let attrs = ConvAttrs::new(call.attrs, call.shape(1)?.get(2..).unwrap_or(&[]))?;
    let mut y = call.output(0)?;
    let ([batch, channels, input @ ..], [_, m, output @ ..]) = (call.shape(0)?, call.out_shape(0))
    else {
        return Err(KernelFailure::values(
            "a convolution needs at least three axes",
        ));
    };
    if input.len() > 3 {
        return Err(KernelFailure::values(
            "a convolution has at most three spatial axes",
        ));
    }
    let window = &attrs.window;
    let pads: Vec<usize> = input
        .iter()
        .enumerate()
        .map(|(axis, len)| window.pads(axis, *len).0)
        .collect();
    let space = Space {
        input: three(input, 1),
        kernel: three(&window.kernel, 1),
        output: three(output, 1),
        strides: three(&window.strides, 1),
        dilations: three(&window.dilations, 1),
        pads: three(&pads, 0),
    };
    let (in_plane, plane): (usize, usize) = (input.iter().product(), output.iter().product());
    let taps: usize = space.kernel.iter().product();
    let (depth, rows) = (channels / attrs.group, m / attrs.group);
    let out = write::<f64>(&mut y)?;
    let mut scratch = call.scratch::<f64>(depth * taps * plane)?;
    let patches = write::<f64>(&mut scratch)?;
    for item in 0..batch * attrs.group {
        let group = item % attrs.group;
        let source = &x[item * depth * in_plane..][..depth * in_plane];
        for (at, row) in patches.chunks_exact_mut(plane.max(1)).enumerate() {
            call.launch.exec.check()?;
            let (channel, k) = (at / taps, at % taps);
            let k = [
                k / (space.kernel[1] * space.kernel[2]),
                k / space.kernel[2] % space.kernel[1],
                k % space.kernel[2],
            ];
            space.unfold(&source[channel * in_plane..][..in_plane], k, row);
        }
        let filter = &w[group * rows * depth * taps..][..rows * depth * taps];
        let result = &mut out[item * rows * plane..][..rows * plane];
        let (a, b) = (
            Strided::row_major(filter, depth * taps),
            Strided::row_major(&*patches, plane),
        );
        gemm_generic(
            call.launch.exec,
            &Batch::ONE,
            (rows, plane, depth * taps),
            a,
            b,
            result,
        )?;
    }
    if let Some(b) = b {
        for (item, values) in out.chunks_exact_mut(plane.max(1)).enumerate() {
            let bias = b[item % m];
            values.iter_mut().for_each(|y| *y += bias);
        }
    }
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};
    use convoke_graph::{DType, Tensor};

    use crate::cpu::testing::{counting, launch};

    fn cast(t: Tensor, to: DType) -> Tensor {
        let attrs = Attrs::default().with("to", Attr::DType(to));
        launch("Cast", attrs, vec![Some(t)], 1).unwrap().remove(0)
    }

    #[test]
    fn equals_f32_where_that_is_exact() {
        for spatial in [&[7][..], &[5, 6], &[3, 4, 5]] {
            let shape = |head: [usize; 2], tail: &[usize]| [&head[..], tail].concat();
            let kernel = vec![2; spatial.len()];
            let inputs = || {
                [
                    counting(&shape([2, 4], spatial)),
                    counting(&shape([6, 2], &kernel)),
                    counting(&[6]),
                ]
            };
            let attrs = Attrs::default()
                .with("group", Attr::Int(2))
                .with("strides", Attr::Ints(vec![2; spatial.len()]))
                .with("auto_pad", Attr::Str("SAME_UPPER".into()));
            let plain = launch("Conv", attrs.clone(), inputs().map(Some).into(), 1)
                .unwrap()
                .remove(0);
            let wide = inputs().map(|t| Some(cast(t, DType::F64))).into();
            let wide = launch("Conv", attrs, wide, 1).unwrap().remove(0);
            assert_eq!(cast(wide, DType::F32), plain, "{spatial:?}");
        }
    }
}
