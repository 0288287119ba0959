//! The kernels of signals and attention.

use crate::digest::{Digest, tame};
use convoke_kernels::Exec;
use convoke_kernels::attention::{Attention, Bias, attention};
use convoke_kernels::element::Float;
use convoke_kernels::error::Result;
use convoke_kernels::movement::{Places, write_steps};
use convoke_kernels::shape::Axis;
use convoke_kernels::signal::{Dft, Fold, col2im, dft};

/// Transforms and sums of blocks of a type.
pub fn signals<T: Float>(exec: &Exec, digest: &mut Digest) -> Result {
    for (len, inner) in [(400, 1), (512, 3), (211, 2)] {
        let axis = Axis {
            outer: 5,
            len,
            inner,
        };
        let x = tame::<T>(axis.count() * 2, 2.0, len as u64);
        let plans = [false, true].map(|inverse| Dft::new(len, axis, true, inverse, false));
        for plan in plans.into_iter().flatten() {
            let mut scratch = vec![0.0; plan.scratch_len().unwrap_or(0)];
            let mut y = vec![T::ZERO; x.len()];
            dft(exec, &x, &plan, &mut scratch, &mut y)?;
            digest.add("dft", &y);
        }
    }
    let fold = Fold {
        image: &[19, 90],
        block: &[3, 4],
        strides: &[2, 1],
        dilations: &[1, 2],
        pads: &[(1, 1), (0, 3)],
        positions: &[10, 87],
    };
    let x = tame::<T>(7 * 12 * 870, 2.0, 37);
    let mut y = vec![T::ZERO; 7 * 19 * 90];
    col2im(exec, &x, &fold, &mut y)?;
    digest.add("col2im", &y);
    Ok(())
}

/// Attention over a cache that is written before.
pub fn cached_attention(exec: &Exec, digest: &mut Digest) -> Result {
    let (batch, heads, group, queries, keys, size) = (2, 3, 4, 9, 210, 32);
    let mut k = tame::<f32>(batch * heads * keys * size, 1.0, 41);
    let v = tame::<f32>(k.len(), 1.0, 43);
    let cache = Axis {
        outer: batch * heads,
        len: keys,
        inner: size,
    };
    let places = Places {
        first: Some(&[200, 5]),
        batch,
        circular: true,
        axis: 2,
    };
    let update = tame::<f32>(batch * heads * queries * size, 1.0, 47);
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let mut written = bits(&k);
    write_steps(exec, &mut written, cache, &bits(&update), queries, places)?;
    digest.add("write_steps", &written);
    for (k, bits) in k.iter_mut().zip(written) {
        *k = f32::from_bits(bits);
    }
    let q = tame::<f32>(batch * heads * group * queries * size, 1.0, 53);
    let bias = tame::<f32>(batch * queries * keys, 1.0, 59);
    for softcap in [0.0, 5.0] {
        let shape = Attention {
            batch,
            heads,
            group,
            queries,
            keys,
            size,
            value_size: size,
            scale: 0.18,
            softcap,
            bias: Some(Bias {
                data: &bias,
                strides: [queries * keys, 0, keys, 1],
            }),
        };
        let mut scratch = vec![0.0; shape.scratch_len()];
        let mut y = vec![0.0; q.len()];
        attention(exec, &shape, (&q, &k, &v), &mut scratch, &mut y)?;
        digest.add("attention", &y);
    }
    Ok(())
}
