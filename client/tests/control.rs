//! Control flow on devices: the same eagerly, and within functions.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use convoke::{
    Cluster, Code, DType, Embedded, HostTensor, Result, Tensor, cond, for_loop, scan, while_loop,
};

async fn cluster(workers: usize) -> Cluster {
    Embedded::new(workers).threads(1).start().await.unwrap()
}

/// Checks the results of `f` on these tensors: issued op by op, and as a function, with the operands on one worker or
/// on two.
async fn check(
    operands: &[HostTensor],
    f: fn(&[Tensor]) -> Result<Vec<Tensor>>,
    want: &[HostTensor],
) {
    let cluster = cluster(2).await;
    for devices in [["w0", "w0"], ["w0", "w1"]] {
        let each = operands.iter().zip(devices.iter().cycle());
        let put = each.map(|(t, d)| cluster.device(d).unwrap().put(t.clone()).unwrap());
        let put: Vec<Tensor> = put.collect();
        let eager = f(&put).unwrap();
        let traced = cluster.function(f).call(&put).await.unwrap();
        for made in [eager, traced] {
            assert_eq!(made.len(), want.len());
            for (t, want) in made.iter().zip(want) {
                assert_eq!(t.fetch::<HostTensor>().await.unwrap(), *want, "{devices:?}");
            }
        }
    }
    cluster.shutdown().await;
}

fn floats(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).unwrap()
}

fn ints(shape: &[usize], data: &[i64]) -> HostTensor {
    HostTensor::from_slice(shape, data).unwrap()
}

#[tokio::test]
async fn one_branch_runs() {
    let f = |t: &[Tensor]| {
        let positive = t[0].reduce_sum(None, false, None)?.greater(0.0)?;
        // The other branch would fail: a division of integers by zero.
        let other = t[1].clone();
        cond(
            &positive,
            &t[..1],
            |t| Ok(vec![t[0].mul(2.0)?, other.add(1)?]),
            |t| Ok(vec![t[0].neg()?, other.div(&other.sub(&other)?)?]),
        )
    };
    check(
        &[floats(&[3], &[1.0, 2.0, 3.0]), ints(&[1], &[7])],
        f,
        &[floats(&[3], &[2.0, 4.0, 6.0]), ints(&[1], &[8])],
    )
    .await;
}

#[tokio::test]
async fn what_only_the_other_branch_needs_is_not_computed() {
    let cluster = cluster(1).await;
    let device = cluster.device("w0").unwrap();
    // Outside of the branches, the one that is not taken needs a division of integers by zero, which fails where it
    // runs.
    let f = cluster.function(|t| {
        let (pred, x) = (&t[0], &t[1]);
        let never = x.div(&x.sub(x)?)?;
        let once = x.mul(3)?;
        cond(
            pred,
            &[],
            |_| Ok(vec![once.add(1)?]),
            |_| Ok(vec![never.add(1)?]),
        )
    });
    let x = device.put(ints(&[2], &[5, 7])).unwrap();
    for (taken, want) in [(true, Ok([16, 22])), (false, Err(Code::KernelFailed))] {
        let pred = device.put(HostTensor::from_bools(&[], &[taken]).unwrap());
        let made = f.call(&[pred.unwrap(), x.clone()]).await;
        let fetched = match made {
            Ok(made) => made[0].fetch::<HostTensor>().await,
            Err(e) => Err(e),
        };
        let want = want.map(|n| ints(&[2], &n));
        assert_eq!(fetched.map_err(|e| e.code), want);
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_only_the_other_branch_needs_is_not_computed_on_other_workers_either() {
    let cluster = cluster(3).await;
    let device = cluster.device("w0").unwrap();
    let weight = |seed: usize| {
        let data: Vec<f32> = (0..1 << 20).map(|i| (i * seed % 7) as f32).collect();
        floats(&[1024, 1024], &data)
    };
    let (home, weights) = (device.clone(), [3, 5].map(weight));
    // Two workers could compute both products at once. The division that follows fails wherever it is computed.
    let f = cluster.function(move |t| {
        let (pred, x) = (&t[0], &t[1]);
        let never = |w: &HostTensor| {
            let product = x.matmul(&home.constant(w.clone())?)?;
            let codes = product.cast(DType::I32)?;
            codes.div(&codes.sub(&codes)?)
        };
        let (a, b) = (never(&weights[0])?, never(&weights[1])?);
        cond(
            pred,
            &[],
            |_| Ok(vec![x.add(1.0)?.cast(DType::I32)?]),
            |_| Ok(vec![a.add(&b)?]),
        )
    });
    let x = device
        .put(floats(&[64, 1024], &vec![2.0; 64 << 10]))
        .unwrap();
    for (taken, want) in [(true, Ok(())), (false, Err(Code::KernelFailed))] {
        let pred = device.put(HostTensor::from_bools(&[], &[taken]).unwrap());
        let made = f.call(&[pred.unwrap(), x.clone()]).await;
        let fetched = match made {
            Ok(made) => made[0].fetch::<HostTensor>().await,
            Err(e) => Err(e),
        };
        assert_eq!(fetched.map(|_| ()).map_err(|e| e.code), want);
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn passes_keep_the_bits_of_bodies() {
    /// Numbers that a sum in another order would round otherwise.
    fn wild(shape: &[usize]) -> HostTensor {
        let n: usize = shape.iter().product();
        let data: Vec<f32> = (0..n)
            .map(|i| ((i * 37 % 101) as f32 - 50.) / 7.3)
            .collect();
        floats(shape, &data)
    }
    let cluster = cluster(1).await;
    let device = cluster.device("w0").unwrap();
    let put = |t: HostTensor| device.put(t).unwrap();
    // Loops and scans with constant weights, with nodes that do not change from iteration to iteration, and with
    // chains.
    let home = device.clone();
    let f = move |t: &[Tensor]| -> Result<Vec<Tensor>> {
        let (w, b) = (home.constant(wild(&[16, 16]))?, home.constant(wild(&[16]))?);
        let scale = t[1].clone();
        let layer = |x: &Tensor| {
            let fixed = w.mul(0.01)?.transpose([1, 0])?;
            let gate = scale.sigmoid()?.mul(0.5)?;
            x.matmul(&fixed)?
                .add(&b)?
                .relu()?
                .mul(&gate)?
                .tanh()?
                .add(x)
        };
        let looped = for_loop(4, &t[..1], |_, t| Ok(vec![layer(&t[0])?]))?;
        let (last, all) = scan(&looped, &looped, |state, x| {
            let next = layer(&state[0].add(&x[0])?)?;
            Ok((vec![next.clone()], vec![next.reduce_sum(1, false, None)?]))
        })?;
        let none = for_loop(0, &last, |_, t| Ok(vec![layer(&t[0])?]))?;
        Ok(last.into_iter().chain(all).chain(none).collect())
    };
    let given = [put(wild(&[3, 16])), put(wild(&[16]))];
    let eager = f(&given).unwrap();
    let called = cluster.function(f).call(&given).await.unwrap();
    for (a, b) in eager.iter().zip(&called) {
        let (a, b) = (
            a.fetch::<HostTensor>().await.unwrap(),
            b.fetch::<HostTensor>().await.unwrap(),
        );
        assert_eq!((a.shape(), a.bytes()), (b.shape(), b.bytes()));
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_loop_runs_as_long_as_its_condition_holds() {
    // The loop counts the Collatz steps until 1.
    let f = |t: &[Tensor]| {
        while_loop(
            t,
            |t| t[0].greater(1),
            |t| {
                let even = t[0].mod_(2, None)?.equal(0)?;
                let next = cond(
                    &even,
                    &t[..1],
                    |t| Ok(vec![t[0].div(2)?]),
                    |t| Ok(vec![t[0].mul(3)?.add(1)?]),
                )?;
                Ok(vec![next[0].clone(), t[1].add(1)?])
            },
        )
    };
    let scalar = |n: i64| ints(&[], &[n]);
    check(&[scalar(27), scalar(0)], f, &[scalar(1), scalar(111)]).await;
    // This loop has no iteration at all.
    check(&[scalar(1), scalar(5)], f, &[scalar(1), scalar(5)]).await;
}

#[tokio::test]
async fn a_counted_loop_takes_tensors_from_outside() {
    let f = |t: &[Tensor]| {
        let weight = t[1].clone();
        for_loop(3, &t[..1], |i, t| {
            let i = i.cast(convoke::DType::F32)?;
            Ok(vec![t[0].matmul(&weight)?.add(&i)?])
        })
    };
    let (x, w) = (
        floats(&[1, 2], &[1.0, 2.0]),
        floats(&[2, 2], &[0.0, 1.0, 1.0, 0.0]),
    );
    check(&[x, w], f, &[floats(&[1, 2], &[5.0, 4.0])]).await;
}

#[tokio::test]
async fn sizes_may_change_in_a_loop() {
    let f = |t: &[Tensor]| {
        for_loop(&t[1], &t[..1], |_, t| {
            Ok(vec![Tensor::concat(&[&t[0], &t[0]], 0)?])
        })
    };
    check(
        &[floats(&[1], &[2.5]), ints(&[], &[3])],
        f,
        &[floats(&[8], &[2.5; 8])],
    )
    .await;
}

#[tokio::test]
async fn a_scan_collects() {
    // The scan collects running sums of rows, and the squares of the rows.
    let f = |t: &[Tensor]| {
        let (last, all) = scan(&t[..1], &t[1..], |state, x| {
            let sum = state[0].add(&x[0])?;
            Ok((vec![sum.clone()], vec![sum, x[0].mul(&x[0])?]))
        })?;
        Ok(last.into_iter().chain(all).collect())
    };
    check(
        &[
            floats(&[2], &[10.0, 20.0]),
            floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ],
        f,
        &[
            floats(&[2], &[19.0, 32.0]),
            floats(&[3, 2], &[11.0, 22.0, 14.0, 26.0, 19.0, 32.0]),
            floats(&[3, 2], &[1.0, 4.0, 9.0, 16.0, 25.0, 36.0]),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_does_not_fit_is_told_at_the_call() {
    let cluster = cluster(1).await;
    let device = cluster.device("w0").unwrap();
    let x = device.put(floats(&[2], &[1.0, 2.0])).unwrap();
    let yes = device
        .put(HostTensor::from_bools(&[], &[true]).unwrap())
        .unwrap();
    let check = |made: Result<Vec<Tensor>>, want: &str| {
        let line = line!() - 1;
        let e = made.unwrap_err();
        assert!(e.to_string().contains(want), "{line}: {e}");
    };
    let own = |t: &[Tensor]| Ok(t.to_vec());
    let t = std::slice::from_ref(&x);
    check(
        cond(&x, t, own, own),
        "operand 'cond' is f32; it must be one of bool",
    );
    check(
        cond(&yes, t, own, |_| Ok(vec![])),
        "yields 1 results, the other 0",
    );
    check(
        cond(&yes, t, own, |t| Ok(vec![t[0].greater(0.0)?])),
        "result 0 is f32[2] in one branch, bool[2] in the other",
    );
    check(
        for_loop(2, t, |_, t| Ok(vec![t[0].cast(convoke::DType::F64)?])),
        "carried value 0 is f32[2]",
    );
    check(
        for_loop(2, t, |_, _| Ok(vec![])),
        "yields 0 tensors, 1 are carried",
    );
    check(while_loop(t, |t| t[0].add(1.0), own), "must be one of bool");
    check(
        scan(&[], std::slice::from_ref(&yes), |_, x| {
            Ok((vec![], x.to_vec()))
        })
        .map(|r| r.1),
        "no axis to scan",
    );
    // An error of the body itself names the body's line.
    let e = for_loop(2, t, |_, t| Ok(vec![t[0].matmul(&t[0].reshape([3])?)?])).unwrap_err();
    assert!(
        e.to_string().contains("Reshape") && e.to_string().contains("control.rs"),
        "{e}"
    );
    cluster.shutdown().await;
}

#[tokio::test]
async fn an_error_in_a_loop_names_its_op_and_line() {
    let cluster = cluster(1).await;
    let device = cluster.device("w0").unwrap();
    let start = device.put(ints(&[], &[3])).unwrap();
    let line = line!() + 1;
    let body = |_: &Tensor, t: &[Tensor]| Ok(vec![t[0].sub(1)?.add(&t[0].div(&t[0])?)?.sub(1)?]);
    let f = move |t: &[Tensor]| for_loop(9, t, body);
    let eager = f(std::slice::from_ref(&start)).unwrap();
    let eager = eager[0].fetch::<HostTensor>().await.unwrap_err();
    let called = cluster.function(f).call(&[start]).await.unwrap_err();
    for e in [eager, called] {
        assert_eq!(e.code, Code::KernelFailed, "{e}");
        let site = e.site.unwrap();
        assert_eq!(site.op.as_deref(), Some("Div"));
        assert_eq!(site.worker.as_deref(), Some("w0"));
        assert!(site.node.unwrap().contains(&format!("control.rs:{line}")));
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_loop_without_end_is_ended() {
    let cluster = cluster(1).await;
    let device = cluster.device("w0").unwrap();
    let x = device.put(ints(&[], &[0])).unwrap();
    let f = cluster
        .function(|t| while_loop(t, |t| t[0].greater_or_equal(0), |t| Ok(vec![t[0].mul(1)?])));
    f.plan(std::slice::from_ref(&x)).await.unwrap();
    let call = f.call(std::slice::from_ref(&x));
    let cut = tokio::time::timeout(Duration::from_millis(200), call).await;
    assert!(cut.is_err());
    // The worker is free again.
    let next = x.add(1).unwrap();
    assert_eq!(next.fetch::<HostTensor>().await.unwrap(), ints(&[], &[1]));
    cluster.shutdown().await;
}

#[tokio::test]
async fn results_that_nobody_uses_are_no_trouble() {
    let f = |t: &[Tensor]| {
        let kept = for_loop(3, t, |_, t| Ok(vec![t[0].mul(2.0)?, t[1].add(1)?]))?;
        Ok(vec![kept[0].clone()])
    };
    check(
        &[floats(&[2], &[1.0, 2.0]), ints(&[1], &[7])],
        f,
        &[floats(&[2], &[8.0, 16.0])],
    )
    .await;
}

#[tokio::test]
async fn what_changes_later_than_the_first_iteration_is_carried_as_well() {
    // The first tensor grows only once the second has grown.
    let f = |t: &[Tensor]| {
        for_loop(3, t, |_, t| {
            Ok(vec![t[1].clone(), Tensor::concat(&[&t[1], &t[1]], 0)?])
        })
    };
    let grown = |n: usize| floats(&[n], &vec![3.0; n]);
    check(
        &[floats(&[1], &[5.0]), floats(&[1], &[3.0])],
        f,
        &[grown(4), grown(8)],
    )
    .await;
}

#[tokio::test]
async fn a_size_that_an_iteration_changes_is_not_known_within() {
    let f = |t: &[Tensor]| {
        for_loop(3, t, |_, t| {
            let twice = Tensor::concat(&[&t[0], &t[0]], 0)?;
            let by = match t[0].shape() {
                // A known size would hold for the first iteration alone.
                Some(shape) => shape[0] as i64,
                None => -1,
            };
            Ok(vec![twice.mul(by)?])
        })
    };
    check(&[ints(&[1], &[5])], f, &[ints(&[8], &[-5; 8])]).await;
}

#[tokio::test]
async fn all_sizes_that_data_decided_are_told() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let x = a.put([1f32]).unwrap();
    let made = for_loop(3, &[x.clone(), x], |_, t| {
        let twice = |t: &Tensor| Tensor::concat(&[t, t], 0);
        Ok(vec![twice(&t[0])?, twice(&t[1])?])
    });
    let made = made.unwrap();
    made[0].ready().await.unwrap();
    assert!(made.iter().all(|t| t.shape() == Some(&[8][..])), "{made:?}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn no_iteration_collects_nothing_of_the_right_shape() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let f = cluster.function(|t| {
        let (_, made) = scan(&[], &t[..1], |_, x| Ok((vec![], vec![x[0].mul(2.0)?])))?;
        Ok(made)
    });
    let f = f
        .dynamic(0, 0, "rows")
        .unwrap()
        .dynamic(0, 1, "columns")
        .unwrap();
    for rows in [0, 3] {
        let x = HostTensor::from_slice(&[rows, 5], &vec![1f32; rows * 5]).unwrap();
        let made = f.call(&[a.put(x).unwrap()]).await.unwrap();
        let want = HostTensor::from_slice(&[rows, 5], &vec![2f32; rows * 5]).unwrap();
        assert_eq!(made[0].fetch::<HostTensor>().await.unwrap(), want);
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_loop_whose_body_does_nothing_ends_with_its_call() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let on = a.put(true).unwrap();
    let f = cluster.function(|t| while_loop(t, |t| Ok(t[0].clone()), |t| Ok(t.to_vec())));
    let options = convoke::CallOptions {
        deadline: Some(Duration::from_millis(300)),
        ..Default::default()
    };
    let f = f.options(options).unwrap();
    let e = f.call(&[on]).await.unwrap_err();
    assert_eq!(e.code, Code::DeadlineExceeded, "{e}");
    assert!(e.advice.contains("`convoke status`"), "{e}");
    // The worker is free for others.
    let two = a.put(1f32).unwrap().add(1.0).unwrap();
    let fetched = tokio::time::timeout(Duration::from_secs(30), two.fetch::<f32>());
    assert_eq!(fetched.await.unwrap().unwrap(), 2.0);
    cluster.shutdown().await;
}

#[tokio::test]
async fn loops_within_loops_are_bounded() {
    fn nested(x: &Tensor, levels: usize) -> Result<Tensor> {
        let body = |_: &Tensor, t: &[Tensor]| {
            let mut x = t[0].clone();
            for _ in 0..100 {
                x = x.add(1.0)?;
            }
            match levels {
                1 => Ok(vec![x]),
                _ => Ok(vec![nested(&x, levels - 1)?]),
            }
        };
        Ok(for_loop(1, std::slice::from_ref(x), body)?.remove(0))
    }
    let cluster = cluster(1).await;
    let x = cluster.device("w0").unwrap().put(0f32).unwrap();
    let f = |levels: usize| cluster.function(move |t| Ok(vec![nested(&t[0], levels)?]));
    let made = f(3).call(std::slice::from_ref(&x)).await.unwrap();
    assert_eq!(made[0].fetch::<f32>().await.unwrap(), 300.0);
    let e = f(5).call(std::slice::from_ref(&x)).await.map(drop);
    let refused = |e: &convoke::Error| e.message.contains("within each other");
    assert!(e.is_ok() || e.as_ref().is_err_and(refused), "{e:?}");
    let e = f(6).call(&[x]).await.unwrap_err();
    assert!(e.message.contains("5 deep"), "{e}");
    cluster.shutdown().await;
}
