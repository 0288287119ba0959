//! Measuring in turns, so that a machine that drifts drifts for both sides, and what is made of the values.

use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use tokio::time::timeout;

/// How long one side's turn may take.
const BOUND: Duration = Duration::from_secs(120);

/// Values of one thing, in its unit.
#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// The value that so large a part of all does not exceed; 0 of none.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        let rank = (values.len() as f64 * part).ceil() as usize;
        values.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A single one.
    pub fn of(value: f64) -> Samples {
        Samples(vec![value])
    }
}

/// Takes turns of both, with a tenth as many before them that warm up and are not counted.
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

/// Turns of what has no floor.
pub async fn alone(rounds: u32, work: impl AsyncFnMut() -> Result<Vec<f64>>) -> Result<Samples> {
    let (ours, _) = beside(rounds, work, async || Ok(vec![])).await?;
    Ok(ours)
}

/// Waits for something that ends by itself, and not for ever.
pub async fn bounded<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(BOUND, work).await.unwrap_or_else(|_| {
        let msg = format!("a turn of the measurement has not ended in {BOUND:?}");
        Err(Error::new(Code::DeadlineExceeded, msg)
            .advise("`convoke status` says how the workers are"))
    })
}

/// In microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// In milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Nanoseconds each, of so many.
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
