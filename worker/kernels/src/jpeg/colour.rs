//! Pixels of planes: coarse planes are interpolated as ONNX and libjpeg-turbo have it, and colours are converted.

use crate::exec::Exec;

use super::{Colours, Component, Jpeg, JpegError, TRUNCATED};

/// How a plane becomes as fine as the picture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finer {
    /// Each sample is repeated along both axes.
    Repeated,
    /// The samples along a row are interpolated: two for each.
    Across,
    /// Rows are interpolated: two for each.
    Down,
    /// Both are.
    Both,
}

/// A plane of samples.
struct Plane<'p> {
    samples: &'p [u8],
    component: Component,
    /// How many times coarser it is than the picture, along each axis.
    times: (usize, usize),
    finer: Finer,
}

impl Plane<'_> {
    /// A row of samples; the last one stands for those behind it.
    fn row(&self, y: usize) -> &[u8] {
        let stride = 8 * self.component.across;
        let begin = y.min(self.component.height.saturating_sub(1)) * stride;
        let row = self.samples.get(begin..begin + self.component.width);
        row.unwrap_or_default()
    }

    /// The sample at each column of row `y` of the picture. `line` is at least as long as a row of the picture.
    fn write(&self, y: usize, line: &mut [u8]) {
        let own = y / self.times.1;
        let near = self.row(own);
        // The neighbour of an upper half is the row above, that of a lower half the row below.
        let far = match (y % 2, own) {
            (0, 0) => self.row(0),
            (0, _) => self.row(own - 1),
            _ => self.row(own + 1),
        };
        match self.finer {
            Finer::Repeated => {
                for (to, v) in line.chunks_mut(self.times.0).zip(near) {
                    to.fill(*v);
                }
            }
            Finer::Down => {
                let half = 1 + (y % 2) as u32;
                for ((to, near), far) in line.iter_mut().zip(near).zip(far) {
                    *to = ((3 * u32::from(*near) + u32::from(*far) + half) >> 2) as u8;
                }
            }
            Finer::Across => across(line, near.len(), [1, 2, 2], |i| {
                near.get(i).copied().unwrap_or_default().into()
            }),
            Finer::Both => across(line, near.len(), [8, 7, 4], |i| {
                let pair = near.get(i).zip(far.get(i));
                pair.map_or(0, |(near, far)| 3 * u32::from(*near) + u32::from(*far))
            }),
        }
    }
}

/// Two samples for each of `len`, a quarter of the way to either neighbour. `halves` are what is added before bits are
/// dropped, first for left and right halves, and how many bits are dropped; outermost halves are the samples themselves.
fn across(
    line: &mut [u8],
    len: usize,
    [left_half, right_half, bits]: [u32; 3],
    at: impl Fn(usize) -> u32,
) {
    for (i, to) in line.chunks_mut(2).enumerate().take(len) {
        let v = at(i);
        let left = at(i.saturating_sub(1));
        let right = at((i + 1).min(len - 1));
        let halves = [3 * v + left + left_half, 3 * v + right + right_half];
        for (to, half) in to.iter_mut().zip(halves) {
            *to = (half >> bits) as u8;
        }
    }
}

/// The colour of brightness and two differences, in the arithmetic of libjpeg.
#[inline]
fn rgb([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let half = 1 << 15;
    let r = y + ((91_881 * cr + half) >> 16);
    let g = y + ((-22_554 * cb - 46_802 * cr + half) >> 16);
    let b = y + ((116_130 * cb + half) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

impl Jpeg<'_> {
    /// Writes the pixels of planes.
    pub(super) fn paint(
        &self,
        exec: &Exec<'_>,
        samples: &[u8],
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let mut planes = Vec::with_capacity(self.count);
        for c in self.components() {
            let times = (self.finest.0 / c.h, self.finest.1 / c.v);
            // Planes of one or two columns have their samples repeated, as libjpeg does it.
            let finer = match times {
                (2, 1) if c.width > 2 => Finer::Across,
                (2, 2) if c.width > 2 => Finer::Both,
                (1, 2) => Finer::Down,
                _ => Finer::Repeated,
            };
            let of = samples.get(64 * c.begin..64 * (c.begin + c.blocks()));
            planes.push(Plane {
                samples: of.ok_or(TRUNCATED)?,
                component: *c,
                times,
                finer,
            });
        }
        let colours = self.colours();
        let mut lines = vec![0u8; self.width * self.count];
        for (y, out) in out.chunks_exact_mut(self.width * self.count).enumerate() {
            exec.check()?;
            for (plane, line) in planes.iter().zip(lines.chunks_exact_mut(self.width)) {
                plane.write(y, line);
            }
            if colours == Colours::Grey {
                out.copy_from_slice(&lines);
                continue;
            }
            let (first, rest) = lines.split_at(self.width);
            let (second, third) = rest.split_at(self.width);
            let all = first.iter().zip(second).zip(third);
            for (pixel, ((a, b), c)) in out.chunks_exact_mut(3).zip(all) {
                let given = [*a, *b, *c];
                pixel.copy_from_slice(&match colours {
                    Colours::YCbCr => rgb(given),
                    _ => given,
                });
            }
        }
        Ok(())
    }
}
