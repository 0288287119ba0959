//! The kernels of classical models.

use crate::digest::{Digest, data};
use convoke_kernels::Exec;
use convoke_kernels::error::Result;
use convoke_kernels::trees::{NAN_IS_TRUE, TreeFold, Trees, trees};

/// Full trees of four levels, whose weights are of three targets.
pub fn ensembles(exec: &Exec, digest: &mut Digest) -> Result {
    const TREES: usize = 9;
    let nodes = 15 * TREES;
    let features: Vec<i64> = (0..nodes).map(|i| (i * 7 % 5) as i64).collect();
    let nan = |i: usize| if i.is_multiple_of(3) { NAN_IS_TRUE } else { 0 };
    let modes: Vec<u8> = (0..nodes).map(|i| (i % 6) as u8 | nan(i)).collect();
    let branch = |node: usize, side: usize| {
        let (tree, at) = (node / 15, 2 * (node % 15) + 1 + side);
        match at < 15 {
            true => (tree * 15 + at) as i64,
            false => !((tree * 16 + at - 15) as i64),
        }
    };
    let branches: Vec<i64> = (0..nodes)
        .flat_map(|n| [branch(n, 0), branch(n, 1)])
        .collect();
    let splits = data::<f32>(nodes, 2.0, 51);
    let roots: Vec<i64> = (0..TREES).map(|t| (t * 15) as i64).collect();
    let leaves: Vec<i64> = (0..=16 * TREES).map(|l| 2 * l as i64).collect();
    let weights = data::<f32>(32 * TREES, 1.0, 53);
    let targets: Vec<i64> = (0..weights.len()).map(|i| (i % 3) as i64).collect();
    let x = data::<f32>(5 * 400, 2.0, 57);
    for fold in [
        TreeFold::Sum,
        TreeFold::Average,
        TreeFold::Min,
        TreeFold::Max,
    ] {
        let all = Trees {
            features: &features,
            modes: &modes,
            splits: &splits,
            branches: &branches,
            roots: &roots,
            leaves: &leaves,
            targets: &targets,
            weights: &weights,
            fold,
        };
        let (mut y, mut reached) = (vec![0f32; 1200], vec![0u8; 1200]);
        trees(exec, &all, &x, 5, 3, &mut y, &mut reached)?;
        digest.add("trees", &y);
    }
    Ok(())
}
