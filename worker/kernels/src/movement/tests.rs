//! Operators without indices; the tests of the others are in `index`.

use super::*;
use crate::error::KernelError;
use crate::shape::{Axis, count};
use crate::testing::{check_stops, each_exec, exec};

mod index;

/// 0, 1, 2, …, so that an element shows which position it came from.
fn numbered(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}

fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |at, (i, dim)| at * dim + i)
}

/// Runs at all thread counts and compares with `source`, the index in `x` of each output.
fn check(
    what: &str,
    y_shape: &[usize],
    source: impl Fn(&[usize]) -> usize,
    run: impl Fn(&crate::Exec, &mut [u32]),
) {
    let want: Vec<u32> = (0..count(y_shape))
        .map(|flat| source(&unravel(flat, y_shape)) as u32)
        .collect();
    each_exec(|exec| {
        let mut y = vec![u32::MAX; want.len() + 1];
        run(exec, &mut y[1..]);
        assert_eq!(y[1..], want, "{what}");
    });
}

#[test]
fn transposes() {
    let cases: [(&[usize], &[usize]); 14] = [
        (&[5, 7], &[1, 0]),
        (&[130, 257], &[1, 0]),
        (&[2, 33, 40], &[0, 2, 1]),
        (&[2, 12, 65, 64], &[0, 2, 1, 3]),
        (&[2, 3, 20, 18], &[0, 2, 3, 1]),
        (&[2, 20, 18, 3], &[0, 3, 1, 2]),
        (&[4, 5, 6], &[2, 1, 0]),
        (&[3, 2, 333], &[0, 2, 1]),
        (&[2, 4, 70, 5], &[0, 2, 3, 1]),
        (&[3, 4, 5, 6], &[3, 1, 0, 2]),
        (&[2, 3, 4], &[0, 1, 2]),
        (&[], &[]),
        (&[3, 0, 2], &[2, 1, 0]),
        (&[100, 1, 170], &[2, 1, 0]),
    ];
    for (shape, perm) in cases {
        let x = numbered(count(shape));
        let y_shape: Vec<usize> = perm.iter().map(|&p| shape[p]).collect();
        let source = |index: &[usize]| {
            let mut from = vec![0; shape.len()];
            perm.iter().zip(index).for_each(|(&p, &i)| from[p] = i);
            ravel(&from, shape)
        };
        check("transpose", &y_shape, source, |exec, y| {
            transpose(exec, &x, shape, perm, y).unwrap()
        });
    }
    let (mut y, mut z) = ([0u8; 6], [0u64; 6]);
    transpose(&exec(), &[1, 2, 3, 4, 5, 6], &[2, 3], &[1, 0], &mut y).unwrap();
    transpose(&exec(), &[1, 2, 3, 4, 5, 6], &[2, 3], &[1, 0], &mut z).unwrap();
    assert_eq!((y, z), ([1, 4, 2, 5, 3, 6], [1, 4, 2, 5, 3, 6]));
}

#[test]
fn depth_and_space() {
    let x = numbered(2 * 8 * 3 * 5);
    let shape = [2, 8, 3, 5];
    for order in [BlockOrder::DepthColumnRow, BlockOrder::ColumnRowDepth] {
        let source = |i: &[usize]| {
            let block = i[2] % 2 * 2 + i[3] % 2;
            let c = if order == BlockOrder::DepthColumnRow {
                block * 2 + i[1]
            } else {
                i[1] * 4 + block
            };
            ravel(&[i[0], c, i[2] / 2, i[3] / 2], &shape)
        };
        check("depth to space", &[2, 2, 6, 10], source, |exec, y| {
            depth_to_space(exec, &x, shape, 2, order, y).unwrap()
        });
    }
    let (mut there, mut back) = (vec![0; x.len()], vec![0; x.len()]);
    depth_to_space(
        &exec(),
        &x,
        shape,
        2,
        BlockOrder::DepthColumnRow,
        &mut there,
    )
    .unwrap();
    space_to_depth(&exec(), &there, [2, 2, 6, 10], 2, &mut back).unwrap();
    assert_eq!(back, x);
}

#[test]
fn slices_expansions_and_tiles() {
    let shape = [7, 9, 50];
    let x = numbered(count(&shape));
    let cases: [([usize; 3], [isize; 3], [usize; 3]); 5] = [
        ([0, 0, 0], [1, 1, 1], [7, 9, 50]),
        ([1, 2, 3], [2, 1, 3], [3, 7, 15]),
        ([6, 8, 49], [-1, -2, -7], [7, 4, 8]),
        ([2, 0, 10], [1, 1, 1], [5, 9, 40]),
        ([2, 0, 10], [1, 1, 1], [5, 0, 40]),
    ];
    for (starts, steps, y_shape) in cases {
        let source = |i: &[usize]| {
            let at: Vec<usize> = (0..3)
                .map(|a| (starts[a] as isize + i[a] as isize * steps[a]) as usize)
                .collect();
            ravel(&at, &shape)
        };
        check("slice", &y_shape, source, |exec, y| {
            slice(exec, &x, &shape, &starts, &steps, y, &y_shape).unwrap()
        });
    }
    let x = numbered(3 * 5);
    check(
        "expand",
        &[4, 3, 2, 5],
        |i| ravel(&[i[1], i[3]], &[3, 5]),
        |exec, y| expand(exec, &x, &[3, 1, 5], y, &[4, 3, 2, 5]).unwrap(),
    );
    check(
        "tile",
        &[6, 200],
        |i| ravel(&[i[0] % 3, i[1] % 5], &[3, 5]),
        |exec, y| tile(exec, &x, &[3, 5], &[2, 40], y).unwrap(),
    );
    let error = tile(&exec(), &[1u8], &[1; 9], &[1; 9], &mut [0]);
    assert_eq!(error, Err(KernelError::RankTooLarge { rank: 9, max: 8 }));
    let x = numbered(40_000);
    check(
        "copy",
        &[40_000],
        |i| i[0],
        |exec, y| copy(exec, &x, y).unwrap(),
    );
}

#[test]
fn concatenation_and_its_inverse() {
    for outer in [1, 4, 300] {
        let widths = [3, 0, 50, 7];
        let parts: Vec<Vec<u32>> = widths
            .iter()
            .scan(0, |at, w| {
                Some(
                    ((*at)..{
                        *at += (outer * w) as u32;
                        *at
                    })
                        .collect(),
                )
            })
            .collect();
        let inputs: Vec<&[u32]> = parts.iter().map(Vec::as_slice).collect();
        each_exec(|exec| {
            let mut y = vec![0; outer * 60];
            concat(exec, outer, &inputs, &mut y).unwrap();
            for (row, y) in y.chunks(60).enumerate() {
                assert_eq!(y[..3], parts[0][row * 3..row * 3 + 3]);
                assert_eq!(y[3..53], parts[2][row * 50..row * 50 + 50]);
                assert_eq!(y[53..], parts[3][row * 7..row * 7 + 7]);
            }
            let mut back: Vec<Vec<u32>> = widths.iter().map(|w| vec![0; outer * w]).collect();
            let mut outputs: Vec<&mut [u32]> = back.iter_mut().map(Vec::as_mut_slice).collect();
            split(exec, outer, &y, &mut outputs).unwrap();
            assert_eq!(back, parts);
        });
    }
}

#[test]
fn paddings() {
    let x = numbered(5);
    for (mode, begin, want) in [
        (PadMode::Constant(9), 2, vec![9, 9, 0, 1, 2, 3, 4, 9]),
        (
            PadMode::Reflect,
            6,
            vec![2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1, 0],
        ),
        (PadMode::Edge, 2, vec![0, 0, 0, 1, 2, 3, 4, 4, 4]),
        (PadMode::Wrap, 2, vec![3, 4, 0, 1, 2, 3, 4, 0, 1]),
        (PadMode::Constant(9), -2, vec![2, 3, 4, 9]),
        (PadMode::Constant(9), -1, vec![1, 2]),
        (PadMode::Constant(9), 3, vec![9, 9]),
        (PadMode::Constant(9), -7, vec![9, 9]),
    ] {
        let mut y = vec![77; want.len()];
        pad(&exec(), mode, &x, &[5], &[begin], &mut y, &[want.len()]).unwrap();
        assert_eq!(y, want, "{mode:?} {begin}");
    }
    let shape = [20, 30, 40];
    let x = numbered(count(&shape));
    let clamp = |i: usize, before: usize, len: usize| i.saturating_sub(before).min(len - 1);
    check(
        "pad",
        &[23, 31, 45],
        |i| {
            ravel(
                &[clamp(i[0], 1, 20), clamp(i[1], 0, 30), clamp(i[2], 3, 40)],
                &shape,
            )
        },
        |exec, y| {
            pad(
                exec,
                PadMode::Edge,
                &x,
                &shape,
                &[1, 0, 3],
                y,
                &[23, 31, 45],
            )
            .unwrap()
        },
    );
    let empty: [u32; 0] = [];
    let error = pad(&exec(), PadMode::Edge, &empty, &[0], &[1], &mut [0], &[1]);
    assert_eq!(
        error,
        Err(KernelError::PadTooLarge {
            axis: 0,
            len: 0,
            pad: 1
        })
    );
    let mut y = [0u32; 2];
    pad(
        &exec(),
        PadMode::Constant(3),
        &empty,
        &[0],
        &[1],
        &mut y,
        &[2],
    )
    .unwrap();
    assert_eq!(y, [3, 3]);
}

#[test]
fn triangles() {
    let (rows, columns) = (4, 5);
    let x: Vec<u16> = (1..=40).collect();
    for k in [-6, -1, 0, 2, 7, i64::MAX, i64::MIN] {
        for upper in [false, true] {
            let mut y = [9; 40];
            trilu(&exec(), upper, k, &x, rows, columns, &mut y).unwrap();
            for (flat, y) in y.into_iter().enumerate() {
                let diagonal = (flat % columns) as i128 - (flat / columns % rows) as i128;
                let keep = if upper {
                    diagonal >= i128::from(k)
                } else {
                    diagonal <= i128::from(k)
                };
                assert_eq!(y, if keep { x[flat] } else { 0 }, "{k} {upper}");
            }
        }
    }
}

#[test]
fn creation() {
    let mut y = [0u8; 6];
    fill(&exec(), 7, &mut y).unwrap();
    assert_eq!(y, [7; 6]);
    eye(&exec(), 1, 3, 1, &mut y).unwrap();
    assert_eq!(y, [0, 1, 0, 0, 0, 1]);
    let mut y = [9u32; 12];
    let indices = Indices::I64(&[2, -1, 5, 0]);
    one_hot(
        &exec(),
        indices,
        Axis {
            outer: 2,
            len: 3,
            inner: 2,
        },
        0,
        1,
        &mut y,
    )
    .unwrap();
    assert_eq!(y, [0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(range_len(3, 9, 3), 2);
    assert_eq!(range_len(10, 4, -2), 3);
    assert_eq!(
        (range_len(0, 5, -1), range_len(0, 5, 0), range_len(5, 5, 1)),
        (0, 0, 0)
    );
    assert_eq!(
        (
            range_len_float(1.0, 2.0, 0.3),
            range_len_float(1.0, 0.0, 0.5)
        ),
        (4, 0)
    );
    let mut y = [0i32; 3];
    range(&exec(), 10, -2, &mut y).unwrap();
    assert_eq!(y, [10, 8, 6]);
    let mut y = vec![0f32; 40_000];
    range(&exec(), 0.5, 0.25, &mut y).unwrap();
    assert_eq!(y[39_999], 0.5 + 39_999.0 * 0.25);
}

#[test]
fn positions_and_selection() {
    let x = [0.0f32, 3.0, -0.0, f32::NAN, 0.0, 1.0];
    assert_eq!(count_nonzero(&exec(), &x).unwrap(), 3);
    let mut y = [9; 6];
    nonzero(&exec(), &x, &[2, 3], &mut y).unwrap();
    assert_eq!(y, [0, 1, 1, 1, 0, 2]);
    let x = numbered(2 * 4 * 3);
    let mut y = [0; 12];
    compress(&exec(), &x, Axis::of(&[2, 4, 3], 1), &[0, 1, 1], &mut y).unwrap();
    assert_eq!(y, [3, 4, 5, 6, 7, 8, 15, 16, 17, 18, 19, 20]);
    compress(
        &exec(),
        &x,
        Axis {
            outer: 1,
            len: 24,
            inner: 1,
        },
        &[0; 24],
        &mut [],
    )
    .unwrap();
}

#[test]
fn a_selection_along_a_long_axis_stops_when_it_is_cancelled() {
    // Long conditions that keep few of many short slices.
    let (outer, len) = (64, 1 << 16);
    let mut condition = vec![0u8; len];
    (condition[3], condition[len - 1]) = (1, 1);
    let x = numbered(outer * len);
    let axis = Axis::of(&[outer, len], 1);
    check_stops(|exec| compress(exec, &x, axis, &condition, &mut vec![0u32; 2 * outer]));
    each_exec(|exec| {
        let mut y = vec![0u32; 2 * outer];
        compress(exec, &x, axis, &condition, &mut y).unwrap();
        let want = (0..outer).flat_map(|o| [o * len + 3, (o + 1) * len - 1]);
        assert!(y.iter().map(|y| *y as usize).eq(want));
    });
    // One slice, and one condition that keeps all of it.
    let all = vec![1u8; x.len()];
    let y = std::cell::RefCell::new(vec![0u32; x.len()]);
    for axis in [Axis::of(&[1, x.len()], 0), Axis::of(&[x.len()], 0)] {
        check_stops(|exec| compress(exec, &x, axis, &all[..axis.len], &mut y.borrow_mut()));
        compress(&exec(), &x, axis, &all[..axis.len], &mut y.borrow_mut()).unwrap();
        assert!(*y.borrow() == x);
    }
    check_stops(|exec| count_nonzero(exec, &x).map(|_| ()));
}

#[test]
fn reversals() {
    let shape = [4, 3, 2];
    let x = numbered(24);
    let lengths = [4i64, 1, 3];
    let source = |i: &[usize]| {
        let length = lengths[i[1]] as usize;
        ravel(
            &[
                if i[0] < length {
                    length - 1 - i[0]
                } else {
                    i[0]
                },
                i[1],
                i[2],
            ],
            &shape,
        )
    };
    check("reverse", &shape, source, |exec, y| {
        reverse_sequence(exec, &x, &shape, true, &lengths, y).unwrap()
    });
    let mut y = [0; 6];
    reverse_sequence(&exec(), &x[..6], &[2, 3], false, &[2, 3], &mut y).unwrap();
    assert_eq!(y, [1, 0, 2, 5, 4, 3]);
    let error = reverse_sequence(&exec(), &x[..6], &[2, 3], false, &[2, 4], &mut y);
    assert_eq!(
        error,
        Err(KernelError::SequenceLength {
            length: 4,
            batch: 1,
            max: 3
        })
    );
}
