//! Ensembles of decision trees.
//!
//! The nodes of all trees are in one list. A branch is the number of a node or, from -1 downwards, of a leaf: -1 is leaf 0,
//! -2 is leaf 1. A leaf has any number of weights, each of one target.
//!
//! A comparison by != holds with NaN, whatever [`NAN_IS_TRUE`] says, as in ONNX Runtime. ONNX says that a NaN leads to the
//! second branch without that bit.
//!
//! Invariants
//! 1. A branch leads to a later node or to a leaf. Each step of a walk checks that, so that every walk ends and reads
//!    nothing outside, whatever the lists hold.
//! 2. The weights of a target are folded in the order of the trees.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{KernelError, Result};
use crate::split::{Pace, tiles2};
use crate::{Cancelled, Exec};

/// Nodes, trees, weights and results between two checks of the cancel flag.
const STEPS: usize = 1 << 14;

/// The bit of a node's mode that sends NaN to its first branch.
pub const NAN_IS_TRUE: u8 = 0x80;

/// How the weights of one target become its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeFold {
    Sum,
    /// The sum, divided by the number of trees.
    Average,
    Min,
    Max,
}

/// Elements that trees compare and add.
pub trait TreeElement:
    Copy
    + PartialOrd
    + Send
    + Sync
    + Default
    + From<f32>
    + std::ops::Add<Output = Self>
    + std::ops::Div<Output = Self>
{
}
impl TreeElement for f32 {}
impl TreeElement for f64 {}

/// An ensemble.
pub struct Trees<'a, T> {
    /// By node, the feature that it compares.
    pub features: &'a [i64],
    /// By node, the comparison (0 to 5 for <=, <, >=, >, = and !=) and [`NAN_IS_TRUE`].
    pub modes: &'a [u8],
    /// By node, what its feature is compared with.
    pub splits: &'a [T],
    /// By node, where it leads where the comparison holds, and where not.
    pub branches: &'a [i64],
    /// By tree, where it begins.
    pub roots: &'a [i64],
    /// By leaf, where its weights begin; and the number of weights.
    pub leaves: &'a [i64],
    /// By weight, its target.
    pub targets: &'a [i64],
    pub weights: &'a [T],
    pub fold: TreeFold,
}

/// What a walk ends with: a node that is none, or leads back, or a cancellation.
enum Stop {
    Broken(usize),
    Cancelled,
}

impl From<Cancelled> for Stop {
    fn from(_: Cancelled) -> Stop {
        Stop::Cancelled
    }
}

impl<T: TreeElement> Trees<'_, T> {
    /// The leaf that the walk from `root` ends at.
    #[inline]
    fn leaf(&self, pace: &mut Pace, root: i64, x: &[T]) -> std::result::Result<usize, Stop> {
        let (mut at, mut least) = (root, 0);
        loop {
            let Ok(node) = usize::try_from(at) else {
                return Ok(!at as usize);
            };
            let next = (node >= least).then(|| self.step(node, x)).flatten();
            at = next.ok_or(Stop::Broken(node))?;
            least = node + 1;
            pace.count(1)?;
        }
    }

    /// Where a node leads; `None` where there is no such node, or it compares no feature that there is.
    #[inline]
    fn step(&self, node: usize, x: &[T]) -> Option<i64> {
        let feature = usize::try_from(*self.features.get(node)?).ok()?;
        let (x, split) = (*x.get(feature)?, *self.splits.get(node)?);
        let mode = *self.modes.get(node)?;
        let is_nan = x.partial_cmp(&x).is_none();
        let holds = match mode & !NAN_IS_TRUE {
            0 => x <= split,
            1 => x < split,
            2 => x >= split,
            3 => x > split,
            4 => x == split,
            5 => x != split,
            _ => return None,
        };
        let first = holds || (is_nan && mode & NAN_IS_TRUE != 0);
        self.branches.get(2 * node + usize::from(!first)).copied()
    }

    /// The targets and weights of a leaf; `None` where there is no such leaf.
    #[inline]
    fn of_leaf(&self, leaf: usize) -> Option<impl Iterator<Item = (&i64, &T)>> {
        let place = |at: usize| usize::try_from(*self.leaves.get(at)?).ok();
        let all = place(leaf)?..place(leaf.checked_add(1)?)?;
        let weights = self.weights.get(all.clone())?.iter();
        Some(self.targets.get(all)?.iter().zip(weights))
    }

    /// Folds the weights of a leaf into the results of a row.
    #[inline]
    fn fold(
        &self,
        pace: &mut Pace,
        leaf: usize,
        y: &mut [T],
        reached: &mut [u8],
    ) -> std::result::Result<(), Stop> {
        // A leaf is named in errors by the node behind the last one.
        let broken = || Stop::Broken(self.modes.len());
        for (target, w) in self.of_leaf(leaf).ok_or_else(broken)? {
            pace.count(1)?;
            let target = usize::try_from(*target).unwrap_or(usize::MAX);
            let y = y.get_mut(target).ok_or_else(broken)?;
            let reached = reached.get_mut(target).ok_or_else(broken)?;
            let better = match self.fold {
                TreeFold::Sum | TreeFold::Average => {
                    *y = *y + *w;
                    false
                }
                TreeFold::Min => *reached == 0 || *w < *y,
                TreeFold::Max => *reached == 0 || *w > *y,
            };
            if better {
                *y = *w;
            }
            *reached = 1;
        }
        Ok(())
    }

    /// Computes one row.
    fn row(
        &self,
        pace: &mut Pace,
        x: &[T],
        y: &mut [T],
        reached: &mut [u8],
    ) -> std::result::Result<(), Stop> {
        for (y, reached) in y.chunks_mut(STEPS).zip(reached.chunks_mut(STEPS)) {
            pace.count(y.len())?;
            y.fill(T::default());
            reached.fill(0);
        }
        for root in self.roots {
            pace.count(1)?;
            let leaf = self.leaf(pace, *root, x)?;
            self.fold(pace, leaf, y, reached)?;
        }
        if self.fold == TreeFold::Average {
            let count = T::from(self.roots.len() as f32);
            for y in y.chunks_mut(STEPS) {
                pace.count(y.len())?;
                y.iter_mut().for_each(|y| *y = *y / count);
            }
        }
        Ok(())
    }
}

/// Walks every tree with each row of `x`, which has `features` elements. `y` and `reached` have `targets` elements for each
/// row: the folded weights of a target, and whether any leaf has some.
pub fn trees<T: TreeElement>(
    exec: &Exec,
    trees: &Trees<'_, T>,
    x: &[T],
    features: usize,
    targets: usize,
    y: &mut [T],
    reached: &mut [u8],
) -> Result {
    let rows = y.len().checked_div(targets).unwrap_or(0);
    let grain = (4096 / trees.roots.len().max(1)).max(1);
    let broken = AtomicUsize::new(usize::MAX);
    tiles2(
        exec,
        (y, targets),
        (reached, targets),
        rows,
        grain,
        |range, y, reached| {
            let mut pace = Pace::new(exec, STEPS);
            let rows = y
                .chunks_exact_mut(targets)
                .zip(reached.chunks_exact_mut(targets));
            for (row, (y, reached)) in range.zip(rows) {
                let x = x
                    .get(row * features..(row + 1) * features)
                    .unwrap_or_default();
                match trees.row(&mut pace, x, y, reached) {
                    Ok(()) => {}
                    Err(Stop::Cancelled) => return,
                    Err(Stop::Broken(node)) => {
                        broken.fetch_min(node, Ordering::Relaxed);
                        return;
                    }
                }
            }
        },
    )?;
    exec.check()?;
    match broken.into_inner() {
        usize::MAX => Ok(()),
        node => Err(KernelError::BrokenTree { node }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_stops, each_exec, exec};

    const NAN: f32 = f32::NAN;

    fn two_nodes<'a>(modes: &'a [u8], branches: &'a [i64], fold: TreeFold) -> Trees<'a, f32> {
        Trees {
            features: &[1, 0],
            modes,
            splits: &[0.5, -1.],
            branches,
            roots: &[0, -1],
            leaves: &[0, 1, 3, 3],
            targets: &[0, 0, 1],
            weights: &[1., 2., 4.],
            fold,
        }
    }

    #[test]
    fn rows_reach_leaves() {
        use TreeFold::*;
        let check = |modes: &[u8], fold, want: &[f32], reached: &[u8]| {
            let x = [0., 0., 0., 1., -2., 1., 0., NAN];
            each_exec(|exec| {
                let (mut y, mut r) = ([9f32; 8], [9u8; 8]);
                let t = two_nodes(modes, &[-1, 1, -2, -3], fold);
                trees(exec, &t, &x, 2, 2, &mut y, &mut r).unwrap();
                assert_eq!((&y[..], &r[..]), (want, reached), "{modes:?} {fold:?}");
            });
        };
        let reached = [1, 0, 1, 0, 1, 1, 1, 0];
        check(&[0, 1], Sum, &[2., 0., 1., 0., 3., 4., 1., 0.], &reached);
        let halves = [1., 0., 0.5, 0., 1.5, 2., 0.5, 0.];
        check(&[0, 1], Average, &halves, &reached);
        check(&[0, 1], Max, &[1., 0., 1., 0., 2., 4., 1., 0.], &reached);
        check(&[0, 1], Min, &[1., 0., 1., 0., 1., 4., 1., 0.], &reached);
        let nan_is_true = [NAN_IS_TRUE, 1];
        check(
            &nan_is_true,
            Sum,
            &[2., 0., 1., 0., 3., 4., 2., 0.],
            &reached,
        );
        let (others, reached) = ([3., 4., 2., 0., 2., 0., 3., 4.], [1, 1, 1, 0, 1, 0, 1, 1]);
        check(&[2, 3], Sum, &others, &reached);
    }

    #[test]
    fn walks_that_lead_nowhere_are_refused() {
        let check = |branches: &[i64], features: usize, modes: &[u8], node: usize| {
            let t = two_nodes(modes, branches, TreeFold::Sum);
            let (mut y, mut r) = ([0f32; 2], [0u8; 2]);
            let x = vec![1.; features];
            let done = trees(&exec(), &t, &x, features, 2, &mut y, &mut r);
            assert_eq!(done, Err(KernelError::BrokenTree { node }), "{branches:?}");
        };
        check(&[-1, 0, -2, -3], 2, &[0, 1], 0);
        check(&[-1, 1, 1, 1], 2, &[0, 1], 1);
        check(&[-1, 2, -2, -3], 2, &[0, 1], 2);
        check(&[-1, i64::MAX, -2, -3], 2, &[0, 1], usize::MAX >> 1);
        check(&[-1, -4, -2, -3], 2, &[0, 1], 2);
        check(&[-1, i64::MIN, -2, -3], 2, &[0, 1], 2);
        check(&[-1, 1, -2, -3], 1, &[0, 1], 0);
        check(&[-1, 1, -2, -3], 2, &[9, 1], 0);
        check(&[-1], 2, &[0, 1], 0);
    }

    #[test]
    fn long_walks_stop() {
        let n = 1 << 19;
        let (features, modes, splits) = (vec![0; n], vec![0u8; n], vec![0f32; n]);
        let next = |i: usize| if i + 1 == n { -1 } else { i as i64 + 1 };
        let branches: Vec<i64> = (0..n).flat_map(|i| [next(i); 2]).collect();
        let t = Trees {
            features: &features,
            modes: &modes,
            splits: &splits,
            branches: &branches,
            roots: &[0],
            leaves: &[0, 1],
            targets: &[0],
            weights: &[1.],
            fold: TreeFold::Sum,
        };
        check_stops(|exec| trees(exec, &t, &[0.], 1, 1, &mut [0.], &mut [0]));
    }

    #[test]
    fn long_lists_stop() {
        let n = 1 << 19;
        let check = |roots: &[i64], leaf: usize, targets: usize| {
            let t = Trees {
                features: &[],
                modes: &[],
                splits: &[],
                branches: &[],
                roots,
                leaves: &[0, leaf as i64],
                targets: &vec![0; leaf],
                weights: &vec![1f32; leaf],
                fold: TreeFold::Average,
            };
            let (mut y, mut reached) = (vec![0.; targets], vec![0; targets]);
            let y = std::cell::RefCell::new((&mut y, &mut reached));
            check_stops(|exec| {
                let (y, reached) = &mut *y.borrow_mut();
                trees(exec, &t, &[], 0, targets, y, reached)
            });
        };
        check(&vec![-1; n], 1, 1);
        check(&[-1], n, 1);
        check(&[-1], 1, n);
        // Short walks, of which each would end before its own check.
        let n = 1 << 14;
        let t = two_nodes(&[0, 1], &[-1, 1, -2, -3], TreeFold::Sum);
        let roots = vec![0; n];
        let t = Trees { roots: &roots, ..t };
        let x = vec![1.; 32];
        check_stops(|exec| {
            let (mut y, mut reached) = ([0.; 32], [0; 32]);
            trees(exec, &t, &x, 2, 2, &mut y, &mut reached)
        });
    }
}
