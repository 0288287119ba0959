//! Measures in turns, so that a machine whose speed drifts drifts for a measurement and its floor alike, and computes
//! quantiles of the values.

use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use tokio::time::timeout;

/// How long one turn of a measurement or floor may take.
const BOUND: Duration = Duration::from_secs(120);

/// The values of a measurement or floor, in the measurement's unit.
#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// The value that the fraction `part` of all values does not exceed; 0 if there are no values.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        let rank = (values.len() as f64 * part).ceil() as usize;
        values.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// The number of values.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Makes samples of a single value.
    pub fn of(value: f64) -> Samples {
        Samples(vec![value])
    }
}

/// Runs `rounds` turns of both, alternating. A tenth as many turns before them warm up and are not counted.
pub async fn beside(
    rounds: u32,
    mut work: impl AsyncFnMut() -> Result<Vec<f64>>,
    mut floor: impl AsyncFnMut() -> Result<Vec<f64>>,
) -> Result<(Samples, Samples)> {
    let (mut ours, mut floors) = (Samples::default(), Samples::default());
    let warm_up = rounds.div_ceil(10);
    for turn in 0..warm_up.saturating_add(rounds) {
        let new = (bounded(work()).await?, bounded(floor()).await?);
        if turn >= warm_up {
            ours.0.extend(new.0);
            floors.0.extend(new.1);
        }
    }
    Ok((ours, floors))
}

/// Runs turns of a measurement without a floor.
pub async fn alone(rounds: u32, work: impl AsyncFnMut() -> Result<Vec<f64>>) -> Result<Samples> {
    let (ours, _) = beside(rounds, work, async || Ok(vec![])).await?;
    Ok(ours)
}

/// Waits for work of a turn, and fails with [`Code::DeadlineExceeded`] after two minutes.
pub async fn bounded<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(BOUND, work).await.unwrap_or_else(|_| {
        let msg = format!("a turn of the measurement has not ended in {BOUND:?}");
        Err(Error::new(Code::DeadlineExceeded, msg)
            .advise("`convoke status` says how the workers are"))
    })
}

/// Converts a time to microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Converts a time to milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The nanoseconds that each of `count` repetitions took.
pub fn nanos_each(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_tenth_is_not_counted_and_turns_alternate() {
        let order = std::cell::RefCell::new(Vec::new());
        let mut turn = 0.;
        let work = async || {
            order.borrow_mut().push("work");
            turn += 1.;
            Ok(vec![turn, turn])
        };
        let floor = async || {
            order.borrow_mut().push("floor");
            Ok(vec![7.])
        };
        let (ours, floors) = beside(20, work, floor).await.unwrap();
        assert_eq!((ours.count(), floors.count()), (40, 20));
        assert_eq!((ours.quantile(0.01), ours.quantile(1.)), (3., 22.));
        assert_eq!(order.borrow()[..3], ["work", "floor", "work"]);
        assert_eq!(floors.quantile(0.5), 7.);
    }

    #[test]
    fn quantiles_are_values_that_were_taken() {
        let samples = Samples((1..=100).rev().map(f64::from).collect());
        assert_eq!((samples.quantile(0.5), samples.quantile(0.99)), (50., 99.));
        assert_eq!(Samples::default().quantile(0.5), 0.);
    }
}
