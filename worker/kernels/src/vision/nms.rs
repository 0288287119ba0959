//! `NonMaxSuppression`: the boxes with the highest scores that do not overlap one with a higher score.

use std::cmp::Ordering;

use crate::Exec;
use crate::error::Result;
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
        self.batch * self.classes * self.most.min(self.boxes)
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

    /// Whether the intersection with `other` is more than `overlap` of the union. Borders that are NaN overlap nothing.
    fn overlaps(&self, other: &Borders, overlap: f32) -> bool {
        let wide = self.right.min(other.right) - self.left.max(other.left);
        let high = self.bottom.min(other.bottom) - self.top.max(other.top);
        let shared = wide * high;
        let (a, b) = (self.area(), other.area());
        let union = a + b - shared;
        let real = wide > 0.0 && high > 0.0 && shared > 0.0 && a > 0.0 && b > 0.0 && union > 0.0;
        real && shared / union > overlap
    }
}

/// Chooses boxes `[batch, boxes, 4]` by scores `[batch, classes, boxes]`. Writes image, class and box of each one to
/// `chosen`, which has room for [`Suppression::bound`] of them, and returns their number. `order` and `spare` are scratch
/// for one number a box.
pub fn suppress(
    exec: &Exec,
    s: &Suppression,
    boxes: &[f32],
    scores: &[f32],
    (order, spare): (&mut [i64], &mut [i64]),
    chosen: &mut [i64],
) -> Result<usize> {
    assert_eq!(boxes.len(), s.batch * s.boxes * 4, "boxes");
    assert_eq!(scores.len(), s.batch * s.classes * s.boxes, "scores");
    assert_eq!(chosen.len(), 3 * s.bound(), "room for what is chosen");
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
                    order[candidates] = b as i64;
                    candidates += 1;
                }
            }
            let order = &mut order[..candidates];
            // NaN comes last.
            let key = |b: i64| {
                let score = scores[b as usize];
                if score.is_nan() {
                    f32::NEG_INFINITY
                } else {
                    score
                }
            };
            sort_indices(exec, order, &mut spare[..candidates], 1, |a, b| {
                key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal)
            })?;
            let first = count;
            for (i, b) in order.iter().enumerate() {
                if count - first >= s.most {
                    break;
                }
                if i % 64 == 0 {
                    exec.check()?;
                }
                let candidate = borders(*b);
                let mut kept = chosen[3 * first..3 * count].chunks_exact(3);
                if kept.any(|k| candidate.overlaps(&borders(k[2]), s.overlap)) {
                    continue;
                }
                chosen[3 * count..][..3].copy_from_slice(&[image as i64, class as i64, *b]);
                count += 1;
            }
        }
    }
    Ok(count)
}
