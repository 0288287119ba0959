//! The kernels that move elements.

use crate::digest::{Digest, data, tame};
use convoke_kernels::Exec;
use convoke_kernels::binary::{Logic, logic, select};
use convoke_kernels::error::Result;
use convoke_kernels::movement::{self, BlockOrder, Indices, PadMode, ScatterReduction};
use convoke_kernels::movement::{gather, scatter_elements, transpose};
use convoke_kernels::resize::nearest;
use convoke_kernels::shape::{Axis, Operand};

pub fn movement(exec: &Exec, digest: &mut Digest) -> Result {
    let x = data::<u32>(17 * 90 * 33, 4e9, 29);
    let mut y = vec![0; x.len()];
    for perm in [[0, 2, 1], [1, 0, 2], [2, 1, 0]] {
        transpose(exec, &x, &[17, 90, 33], &perm, &mut y)?;
        digest.add("transpose", &y);
    }
    let indices: Vec<i64> = (0..40).map(|i| i * 7 % 90).collect();
    gather(
        exec,
        &x,
        &[17, 90, 33],
        1,
        Indices::I64(&indices),
        &mut y[..17 * 40 * 33],
    )?;
    digest.add("gather", &y);
    let near = |len: usize, k: usize| (0..len * k / 2).map(|i| 2 * i / k).collect::<Vec<_>>();
    for factors in [[4, 4], [3, 6], [1, 2]] {
        let changes = [(1, near(30, factors[0])), (2, near(33, factors[1]))];
        let mut y = vec![0; 17 * changes[0].1.len() * changes[1].1.len()];
        nearest(exec, &x[..17 * 30 * 33], &[17, 30, 33], &changes, &mut y)?;
        digest.add("nearest", &y);
    }
    let mut sums = vec![0.0f32; 90];
    let updates = tame::<f32>(40, 1.0, 31);
    scatter_elements(
        exec,
        ScatterReduction::Add,
        &mut sums,
        &[90],
        0,
        Indices::I64(&indices),
        &updates,
        &[40],
    )?;
    digest.add("scatter", &sums);
    let condition: Vec<u8> = x.iter().map(|x| (x & 1) as u8).collect();
    let shape = [x.len()];
    let (yes, no) = (Operand::new(&x, &shape), Operand::new(&[7], &[]));
    select(
        exec,
        Operand::new(&condition, &shape),
        yes,
        no,
        &mut y,
        &shape,
    )?;
    digest.add("select", &y);
    for op in [Logic::And, Logic::Or, Logic::Xor] {
        let mut truth = vec![0; condition.len() - 1];
        let shape = [truth.len()];
        let (a, b) = (
            Operand::new(&condition[1..], &shape),
            Operand::new(&condition[..shape[0]], &shape),
        );
        logic(exec, op, a, b, &mut truth, &shape)?;
        digest.add(&format!("{op:?}"), &truth);
    }
    rest_of_movement(exec, digest, &x)
}

fn rest_of_movement(exec: &Exec, digest: &mut Digest, x: &[u32]) -> Result {
    let shape = [17, 90, 33];
    let mut y = vec![0; 20 * 92 * 40];
    for mode in [
        PadMode::Constant(5),
        PadMode::Reflect,
        PadMode::Edge,
        PadMode::Wrap,
    ] {
        movement::pad(exec, mode, x, &shape, &[1, 2, 3], &mut y, &[20, 92, 40])?;
        digest.add("pad", &y);
    }
    movement::slice(
        exec,
        x,
        &shape,
        &[16, 1, 0],
        &[-2, 3, 1],
        &mut y[..8 * 20 * 33],
        &[8, 20, 33],
    )?;
    digest.add("slice", &y[..8 * 20 * 33]);
    movement::expand(exec, &x[..33], &[33, 1], &mut y[..33 * 50], &[33, 50])?;
    digest.add("expand", &y[..33 * 50]);
    movement::tile(exec, &x[..66], &[2, 33], &[3, 2], &mut y[..396])?;
    digest.add("tile", &y[..396]);
    movement::copy(exec, &x[..9000], &mut y[..9000])?;
    movement::concat(exec, 30, &[&x[..300], &x[300..900]], &mut y[..900])?;
    digest.add("concat", &y[..9000]);
    let (left, right) = y[..900].split_at_mut(300);
    movement::split(exec, 30, &x[..900], &mut [left, right])?;
    digest.add("split", &y[..900]);
    let picks: Vec<i32> = (0..900).map(|i| i * 7 % 30 - 15).collect();
    let picks = Indices::I32(&picks);
    movement::gather_elements(
        exec,
        &x[..900],
        &[30, 30],
        0,
        picks,
        &mut y[..900],
        &[30, 30],
    )?;
    digest.add("gather_elements", &y[..900]);
    movement::gather_nd(exec, &x[..900], &[30, 30], 0, picks, 2, &mut y[..450])?;
    digest.add("gather_nd", &y[..450]);
    movement::scatter_nd(
        exec,
        ScatterReduction::Add,
        &mut y[..900],
        &[30, 30],
        picks,
        2,
        &x[..450],
    )?;
    digest.add("scatter_nd", &y[..900]);
    movement::trilu(exec, true, 1, &x[..900], 30, 30, &mut y[..900])?;
    digest.add("trilu", &y[..900]);
    let order = BlockOrder::ColumnRowDepth;
    movement::depth_to_space(exec, &x[..960], [2, 8, 6, 10], 2, order, &mut y[..960])?;
    digest.add("depth_to_space", &y[..960]);
    movement::space_to_depth(exec, &x[..960], [2, 8, 6, 10], 2, &mut y[..960])?;
    digest.add("space_to_depth", &y[..960]);
    movement::one_hot(
        exec,
        picks,
        Axis {
            outer: 900,
            len: 9,
            inner: 1,
        },
        1,
        2,
        &mut y[..8100],
    )?;
    digest.add("one_hot", &y[..8100]);
    movement::eye(exec, 1, 30, -2, &mut y[..900])?;
    digest.add("eye", &y[..900]);
    movement::compress(
        exec,
        &x[..900],
        Axis::of(&[30, 30], 1),
        &[1, 0, 1],
        &mut y[..60],
    )?;
    digest.add("compress", &y[..60]);
    movement::reverse_sequence(
        exec,
        &x[..900],
        &[30, 3, 10],
        true,
        &[30, 1, 17],
        &mut y[..900],
    )?;
    digest.add("reverse_sequence", &y[..900]);
    movement::fill(exec, 3, &mut y[..900])?;
    digest.add("fill", &y[..900]);
    let mut at = vec![0; 2 * movement::count_nonzero(exec, &x[..900])?];
    movement::nonzero(exec, &x[..900], &[30, 30], &mut at)?;
    digest.add("nonzero", &at);
    Ok(())
}
