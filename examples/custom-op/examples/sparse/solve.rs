//! The solver of the example.

use convoke::{Attr, Attrs, Cluster, DType, Result, Tensor};
use convoke_custom_op::SOFT_THRESHOLD;

/// The number of equations, of unknowns, and of unknowns that are not zero.
const ROWS: usize = 120;
const UNKNOWNS: usize = 200;
const SPARSE: usize = 6;

fn soft_threshold(x: &Tensor, lambda: f32) -> Result<Tensor> {
    let attrs = Attrs::default().with("lambda", Attr::Float(lambda));
    convoke::op(&SOFT_THRESHOLD, attrs, [x])
}

/// One iteration, which moves x towards the minimum of |a x - b|² / 2 + lambda |x|.
fn step(a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor> {
    const RATE: f32 = 0.1;
    let gradient = a.t()?.matmul(&(a.matmul(x)? - b)?)?;
    soft_threshold(&(x - (gradient * RATE)?)?, 0.02 * RATE)
}

pub async fn run(cluster: &Cluster) -> Result<()> {
    let device = &cluster.devices().await?[0];
    let truth: Vec<f32> = (0..UNKNOWNS)
        .map(|i| match i % (UNKNOWNS / SPARSE + 1) {
            7 => (i as f32).sin() + 2.0,
            _ => 0.0,
        })
        .collect();
    let scale = 1.0 / (ROWS as f32).sqrt();
    let a = (device.random_normal([ROWS, UNKNOWNS], DType::F32, 1)? * scale)?;
    let b = a.matmul(&device.put(truth.clone())?.reshape([UNKNOWNS as i64, 1])?)?;

    // An eager op: its rule is checked at this line.
    let zero = device
        .put(vec![0f32; UNKNOWNS])?
        .reshape([UNKNOWNS as i64, 1])?;
    let first = step(&a, &b, &zero)?;
    let wrong = soft_threshold(&first, -1.0).expect_err("a threshold below zero");
    println!("at the call: {wrong}");

    // A traced function: the coordinator plans it without knowing the op.
    let descend = cluster.function(|t: &[Tensor]| {
        let mut x = t[2].clone();
        for _ in 0..50 {
            x = step(&t[0], &t[1], &x)?;
        }
        Ok(vec![x])
    });
    let mut x = first;
    for _ in 0..20 {
        x = descend.call(&[a.clone(), b.clone(), x]).await?.remove(0);
    }
    let found: Vec<f32> = x.reshape([-1])?.fetch().await?;
    for (i, (found, truth)) in found.iter().zip(&truth).enumerate() {
        if *truth != 0.0 {
            println!("x[{i}] = {found:.3}, was {truth:.3}");
        }
        assert!((found - truth).abs() < 0.2, "x[{i}] = {found}, was {truth}");
    }
    let zeros = found.iter().filter(|x| **x == 0.0).count();
    println!("{zeros} of {UNKNOWNS} are zero");
    assert!(zeros > UNKNOWNS / 2);
    Ok(())
}
