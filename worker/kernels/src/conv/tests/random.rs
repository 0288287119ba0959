//! Convolutions of drawn sizes, on every path that takes them.

use super::narrow::check_planned;
use super::*;
use crate::testing::uniform;

/// How many convolutions a test draws.
pub(crate) const DRAWS: u64 = 2000;

/// A convolution of few elements, in one to three dimensions.
pub(crate) struct DrawnConv {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    groups: usize,
    dims: [Vec<usize>; 6],
}

/// Numbers that follow from a seed.
struct Draws(std::vec::IntoIter<f64>);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        let number = self.0.next().expect("few sizes") / 2.0 + 0.5;
        (number * n as f64) as usize
    }

    fn one_of<const N: usize>(&mut self, all: [usize; N]) -> usize {
        all[self.below(N)]
    }
}

impl DrawnConv {
    /// Draws the sizes that follow from a seed. Ones are likely among them, since paths differ there.
    pub(crate) fn new(seed: u64) -> DrawnConv {
        let mut draws = Draws(uniform(64, seed).into_iter());
        let rank = 1 + draws.below(3);
        let groups = draws.one_of([1, 1, 2, 3, 5]);
        let group_in = draws.one_of([1, 1, 2, 4, 7]);
        let mut each = |size: fn(&mut Draws) -> usize| -> Vec<usize> {
            (0..rank).map(|_| size(&mut draws)).collect()
        };
        let mut dims = [
            each(|d| d.one_of([1, 1, 3, 6, 7])),
            each(|d| d.one_of([1, 1, 2, 3, 3, 5])),
            each(|d| d.one_of([1, 1, 2, 3])),
            each(|d| d.one_of([1, 1, 2])),
            each(|d| d.one_of([0, 0, 1, 3])),
            each(|d| d.one_of([0, 0, 2, 3])),
        ];
        dims[0][rank - 1] = draws.one_of([1, 5, 16, 33, 40]);
        DrawnConv {
            batch: 1 + draws.below(2),
            in_channels: groups * group_in,
            out_channels: groups * draws.one_of([1, 1, 3, 6, 13, 25]),
            groups,
            dims,
        }
    }

    /// The sizes; `None` where the kernel is larger than the padded input.
    pub(crate) fn sizes(&self) -> Option<ConvSizes<'_>> {
        let [input, kernel, strides, dilations, pads_begin, pads_end] = &self.dims;
        let sizes = ConvSizes {
            batch: self.batch,
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            groups: self.groups,
            input,
            kernel,
            strides,
            dilations,
            pads_begin,
            pads_end,
        };
        ConvShape::new(&sizes).is_ok().then_some(sizes)
    }
}

#[test]
fn drawn_convolutions_have_the_bits_of_the_chain() {
    let mut checked = 0;
    for drawn in (0..DRAWS).map(DrawnConv::new) {
        if let Some(sizes) = drawn.sizes() {
            check(&sizes);
            checked += 1;
        }
    }
    assert!(checked > DRAWS / 2, "{checked}");
}

#[test]
fn drawn_convolutions_of_16_bits_have_the_bits_of_converted_ones() {
    let planned = |sizes: ConvSizes<'_>| {
        let s = ConvShape::new(&sizes).ok()?;
        NarrowConv::new(&s).map(|plan| check_planned::<crate::element::bf16>(&s, &plan))
    };
    let drawn = (0..DRAWS).map(DrawnConv::new);
    let checked = drawn.filter_map(|d| planned(d.sizes()?)).count();
    assert!(checked > 100, "{checked}");
}
