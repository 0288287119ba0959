//! `NonMaxSuppression`: the boxes with the highest scores that do not overlap one with a higher score.

use crate::Exec;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::sort::sort_indices;

/// Sizes and limits of a call.
#[derive(Debug, Clone, Copy)]
pub struct Suppression {
    /// Images.
    pub batch: usize,
    /// Classes.
    pub classes: usize,
    /// Boxes of an image.
    pub boxes: usize,
    /// Whether boxes are given by centre, width and height, and not by two corners.
    pub centred: bool,
    /// The most boxes of each class of each image.
    pub most: usize,
    /// The share of the union beyond which an intersection suppresses a box.
    pub overlap: f32,
    /// The score that boxes must exceed; `None` where any will do.
    pub score: Option<f32>,
}

impl Suppression {
    /// The most boxes that can be chosen.
    pub fn bound(&self) -> usize {
        self.batch * self.classes * self.kept()
    }

    /// The most boxes of one class of an image that can be chosen.
    fn kept(&self) -> usize {
        self.most.min(self.boxes)
    }

    /// The numbers of scratch that [`suppress`] takes for the boxes that it has chosen.
    pub fn scratch(&self) -> usize {
        COLUMNS * self.kept()
    }
}

/// A box by its borders.
#[derive(Clone, Copy)]
struct Borders {
    left: f32,
    right: f32,
    top: f32,
    bottom: f32,
}

impl Borders {
    fn new(b: &[f32], centred: bool) -> Borders {
        let ordered = |a: f32, b: f32| if a >= b { (b, a) } else { (a, b) };
        let (left, right, top, bottom);
        if centred {
            let (w, h) = (b[2] / 2.0, b[3] / 2.0);
            (left, right) = (b[0] - w, b[0] + w);
            (top, bottom) = (b[1] - h, b[1] + h);
        } else {
            (left, right) = ordered(b[1], b[3]);
            (top, bottom) = ordered(b[0], b[2]);
        }
        Borders {
            left,
            right,
            top,
            bottom,
        }
    }

    fn area(&self) -> f32 {
        (self.right - self.left) * (self.bottom - self.top)
    }

    /// Writes the borders and the area as row `i` of columns of `room` numbers.
    fn keep(&self, columns: &mut [f32], room: usize, i: usize) {
        let row = [self.left, self.right, self.top, self.bottom, self.area()];
        for (column, x) in columns.chunks_exact_mut(room).zip(row) {
            column[i] = x;
        }
    }
}

/// Columns of what is kept of a chosen box.
const COLUMNS: usize = 5;
/// Chosen boxes that a candidate is compared with before it is looked whether one covers it.
const TOGETHER: usize = 16;

multiversion! {
    /// Whether the intersection with one of `count` chosen boxes is more than `overlap` of the union. Borders that are NaN overlap
    /// nothing.
    fn overlaps<>(b: &Borders, columns: &[f32], room: usize, count: usize, overlap: f32) -> bool {
        let (left, rest) = columns.split_at(room);
        let (right, rest) = rest.split_at(room);
        let (top, rest) = rest.split_at(room);
        let (bottom, areas) = rest.split_at(room);
        let area = (b.right - b.left) * (b.bottom - b.top);
        for first in (0..count).step_by(TOGETHER) {
            let some = first..count.min(first + TOGETHER);
            let (left, right) = (&left[some.clone()], &right[some.clone()]);
            let (top, bottom) = (&top[some.clone()], &bottom[some.clone()]);
            let areas = &areas[some];
            let mut any = false;
            for i in 0..areas.len() {
                let wide = b.right.min(right[i]) - b.left.max(left[i]);
                let high = b.bottom.min(bottom[i]) - b.top.max(top[i]);
                let shared = wide * high;
                let union = area + areas[i] - shared;
                let real = (wide > 0.0) & (high > 0.0) & (shared > 0.0);
                let real = real & (area > 0.0) & (areas[i] > 0.0) & (union > 0.0);
                any |= real & (shared / union > overlap);
            }
            if any {
                return true;
            }
        }
        false
    }
}

/// A number that sorts boxes by descending scores, of which NaN is the last, and boxes of equal scores by their own number.
fn place(score: f32, number: u32) -> i64 {
    let score = if score.is_nan() {
        f32::NEG_INFINITY
    } else {
        score
    };
    // Both zeros are one score.
    let bits = (score + 0.0).to_bits() as i32;
    // The order of floats is that of whole numbers, if the bits of negative ones are turned round.
    let ascending = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    i64::from(!ascending) << 32 | i64::from(number)
}

/// Chooses boxes `[batch, boxes, 4]` by scores `[batch, classes, boxes]`. Writes image, class and box of each one to
/// `chosen`, which has room for [`Suppression::bound`] of them, and returns their number. `order` and `spare` are scratch
/// for one number a box, `columns` for [`Suppression::scratch`] numbers. An image has fewer than 2^32 boxes.
pub fn suppress(
    exec: &Exec,
    s: &Suppression,
    boxes: &[f32],
    scores: &[f32],
    (order, spare): (&mut [i64], &mut [i64]),
    columns: &mut [f32],
    chosen: &mut [i64],
) -> Result<usize> {
    assert_eq!(boxes.len(), s.batch * s.boxes * 4, "boxes");
    assert_eq!(scores.len(), s.batch * s.classes * s.boxes, "scores");
    assert_eq!(chosen.len(), 3 * s.bound(), "room for what is chosen");
    assert_eq!(columns.len(), s.scratch(), "room for what is kept");
    assert!(u32::try_from(s.boxes).is_ok(), "boxes of an image");
    // There may be any number of images without boxes.
    if s.bound() == 0 {
        exec.check()?;
        return Ok(0);
    }
    let mut count = 0;
    for image in 0..s.batch {
        let boxes = &boxes[image * s.boxes * 4..][..s.boxes * 4];
        let borders = |b: i64| Borders::new(&boxes[4 * b as usize..][..4], s.centred);
        for class in 0..s.classes {
            exec.check()?;
            let scores = &scores[(image * s.classes + class) * s.boxes..][..s.boxes];
            let mut candidates = 0;
            for (b, score) in scores.iter().enumerate() {
                if s.score.is_none_or(|least| *score > least) {
                    order[candidates] = place(*score, b as u32);
                    candidates += 1;
                }
            }
            let order = &mut order[..candidates];
            sort_indices(exec, order, &mut spare[..candidates], 1, |a, b| a.cmp(&b))?;
            let mut kept = 0;
            for (i, place) in order.iter().enumerate() {
                if kept >= s.most {
                    break;
                }
                if i % 64 == 0 {
                    exec.check()?;
                }
                let number = i64::from(*place as u32);
                let candidate = borders(number);
                if overlaps(&candidate, columns, s.kept(), kept, s.overlap) {
                    continue;
                }
                candidate.keep(columns, s.kept(), kept);
                chosen[3 * count..][..3].copy_from_slice(&[image as i64, class as i64, number]);
                (kept, count) = (kept + 1, count + 1);
            }
        }
    }
    Ok(count)
}
