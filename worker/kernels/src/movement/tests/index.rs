//! Gathering and scattering.

use super::*;
use crate::Exec;
use crate::element::f16;

#[test]
fn gathers() {
    let shape = [5, 7, 30];
    let x = numbered(count(&shape));
    let indices = [3i64, -1, 0, 6, -7, 2];
    check(
        "gather",
        &[5, 6, 30],
        |i| ravel(&[i[0], indices[i[1]].rem_euclid(7) as usize, i[2]], &shape),
        |exec, y| gather(exec, &x, &shape, 1, Indices::I64(&indices), y).unwrap(),
    );
    let narrow = indices.map(|i| i as i32);
    check(
        "gather",
        &[35, 6],
        |i| ravel(&[i[0], indices[i[1]].rem_euclid(30) as usize], &[35, 30]),
        |exec, y| gather(exec, &x, &[35, 30], 1, Indices::I32(&narrow), y).unwrap(),
    );
    let y_shape = [4, 6, 30];
    let picks: Vec<i64> = (0..count(&y_shape) as i64)
        .map(|i| i * 31 % 14 - 7)
        .collect();
    let source = |i: &[usize]| {
        ravel(
            &[i[0], picks[ravel(i, &y_shape)].rem_euclid(7) as usize, i[2]],
            &shape,
        )
    };
    check("gather elements", &y_shape, source, |exec, y| {
        gather_elements(exec, &x, &shape, 1, Indices::I64(&picks), y, &y_shape).unwrap()
    });
    let rows = [4i64, -1, 0, 3, -5, -7];
    let at = |i: usize| {
        [
            rows[2 * i].rem_euclid(5) as usize,
            rows[2 * i + 1].rem_euclid(7) as usize,
        ]
    };
    check(
        "gather nd",
        &[3, 30],
        |i| ravel(&[at(i[0])[0], at(i[0])[1], i[1]], &shape),
        |exec, y| gather_nd(exec, &x, &shape, 0, Indices::I64(&rows), 2, y).unwrap(),
    );
    let batched = [1i64, 2, 3, 4, -1];
    check(
        "gather nd in batches",
        &[5, 30],
        |i| ravel(&[i[0], batched[i[0]].rem_euclid(7) as usize, i[1]], &shape),
        |exec, y| gather_nd(exec, &x, &shape, 1, Indices::I64(&batched), 1, y).unwrap(),
    );
}

#[test]
fn indices_out_of_range_are_errors() {
    let x = numbered(6);
    let outside = |index, len, axis| Err(KernelError::IndexOutOfRange { index, len, axis });
    for index in [3, -4, i64::MAX, i64::MIN] {
        let bad = [index];
        let bad = Indices::I64(&bad);
        assert_eq!(
            gather(&exec(), &x, &[2, 3], 1, bad, &mut [0; 2]),
            outside(index, 3, 1)
        );
        assert_eq!(
            gather_elements(&exec(), &x, &[2, 3], 1, bad, &mut [0], &[1, 1]),
            outside(index, 3, 1)
        );
        assert_eq!(
            gather_nd(&exec(), &x, &[3, 2], 0, bad, 1, &mut [0; 2]),
            outside(index, 3, 0)
        );
        let mut y = numbered(6);
        let none = ScatterReduction::None;
        assert_eq!(
            scatter_elements(&exec(), none, &mut y, &[2, 3], 1, bad, &[9], &[1, 1]),
            outside(index, 3, 1)
        );
        assert_eq!(
            scatter_nd(&exec(), none, &mut y, &[3, 2], bad, 1, &[9, 9]),
            outside(index, 3, 0)
        );
        assert_eq!(y, x);
    }
    // An empty axis has no valid index at all.
    assert_eq!(
        gather(&exec(), &x[..0], &[0], 0, Indices::I32(&[0]), &mut [0]),
        outside(0, 0, 0)
    );
}

#[test]
fn checks_of_many_indices_stop_when_they_are_cancelled() {
    let all = vec![-1i32; 1 << 21];
    let all = Indices::I32(&all);
    check_stops(|exec| all.check(exec, 1, 0));
    check_stops(|exec| crate::movement::gather::check_rows(exec, all, &[1, 1], 0, 2));
}

#[test]
fn steps_are_written_into_a_cache() {
    let axis = Axis {
        outer: 4,
        len: 5,
        inner: 2,
    };
    let update: Vec<u16> = (0..4 * 3 * 2).map(|i| 100 + i).collect();
    let written = |exec: &Exec, first: &[i64], circular| {
        let mut cache: Vec<u16> = (0..40).collect();
        let places = Places {
            first: Some(first),
            batch: 2,
            circular,
            axis: 1,
        };
        let result = write_steps(exec, &mut cache, axis, &update, 3, places);
        result.map(|()| cache)
    };
    let want = |first: [usize; 2]| {
        let mut cache: Vec<u16> = (0..40).collect();
        for (outer, step, i) in (0..24).map(|i| (i / 6, i / 2 % 3, i % 2)) {
            let place = (first[outer / 2] + step) % 5;
            cache[(outer * 5 + place) * 2 + i] = update[(outer * 3 + step) * 2 + i];
        }
        cache
    };
    each_exec(|exec| {
        assert_eq!(written(exec, &[0, 2], false).unwrap(), want([0, 2]));
        assert_eq!(written(exec, &[4, 13], true).unwrap(), want([4, 3]));
        assert_eq!(written(exec, &[-1, 0], true).unwrap(), want([4, 0]));
        for first in [[0, 3], [-1, 0], [i64::MAX, 0], [0, i64::MIN]] {
            let error = written(exec, &first, false).unwrap_err();
            assert!(
                matches!(error, KernelError::IndexOutOfRange { len: 5, .. }),
                "{error}"
            );
        }
    });
}

#[test]
fn scatters() {
    let mut y = [1.0f32, 2.0, 3.0, 4.0, 5.0];
    let indices = Indices::I64(&[1, -4, 3]);
    for (reduction, want) in [
        (ScatterReduction::None, [1.0, 7.0, 3.0, -1.0, 5.0]),
        (ScatterReduction::Add, [1.0, 20.0, 3.0, -2.0, 5.0]),
        (ScatterReduction::Mul, [1.0, 840.0, 3.0, 2.0, 5.0]),
        (ScatterReduction::Min, [1.0, 6.0, 3.0, -1.0, 5.0]),
        (ScatterReduction::Max, [1.0, 7.0, 3.0, -1.0, 5.0]),
    ] {
        scatter_elements(
            &exec(),
            reduction,
            &mut y,
            &[5],
            0,
            indices,
            &[6.0, 7.0, -1.0],
            &[3],
        )
        .unwrap();
        assert_eq!(y, want, "{reduction:?}");
    }
    let mut y: Vec<f16> = vec![f16::ZERO; 4 * 3];
    let ones = [f16::ONE; 6];
    scatter_nd(
        &exec(),
        ScatterReduction::Add,
        &mut y,
        &[4, 3],
        Indices::I32(&[2, -2]),
        1,
        &ones,
    )
    .unwrap();
    assert_eq!(
        y.iter().map(|y| y.to_f32()).collect::<Vec<_>>(),
        [0., 0., 0., 0., 0., 0., 2., 2., 2., 0., 0., 0.]
    );
    let (shape, update_shape) = ([3, 4, 5], [2, 4, 3]);
    let updates = numbered(24);
    let picks: Vec<i32> = (0..24).map(|i| i * 7 % 5).collect();
    let mut y = vec![1000; 60];
    let mut want = y.clone();
    for flat in 0..24 {
        let mut at = unravel(flat, &update_shape);
        at[2] = picks[flat] as usize;
        want[ravel(&at, &shape)] = updates[flat];
    }
    let picks = Indices::I32(&picks);
    scatter_elements(
        &exec(),
        ScatterReduction::None,
        &mut y,
        &shape,
        2,
        picks,
        &updates,
        &update_shape,
    )
    .unwrap();
    assert_eq!(y, want);
}
