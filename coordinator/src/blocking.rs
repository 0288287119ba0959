//! Work of the coordinator that blocks or computes for long, away from the network's threads.

use convoke_common::Error;
use convoke_common::world::{World, off_thread};

/// As [`blocking`], but keeps what bounds the work until the work is over, even if the caller stops waiting before, and
/// returns it with the result.
pub async fn blocking_within<B: Send + 'static, T: Send + 'static>(
    world: &World,
    bounds: B,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, B), Error> {
    blocking(world, move || (work(), bounds)).await
}

/// Runs work that blocks or computes for long away from the network's threads.
pub async fn blocking<T: Send + 'static>(
    world: &World,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let done = off_thread(&world.store, move |_| Ok(work())).await;
    done.map_err(|_| Error::internal("a piece of work in the coordinator ended without a result"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;

    use convoke_common::world::NoCompute;

    use super::*;

    #[tokio::test]
    async fn what_bounds_a_piece_of_work_is_kept_until_the_work_is_over() {
        let world = World::real(Arc::new(NoCompute));
        let bounds = Arc::new(());
        let (go_on, wait) = mpsc::channel::<()>();
        let work = blocking_within(&world, bounds.clone(), move || wait.recv().is_ok());
        // The caller gives up while the work goes on.
        let waited = tokio::time::timeout(Duration::from_millis(50), work).await;
        assert!(waited.is_err());
        assert_eq!(Arc::strong_count(&bounds), 2);
        go_on.send(()).unwrap();
        let freed = async {
            while Arc::strong_count(&bounds) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let freed = tokio::time::timeout(Duration::from_secs(5), freed).await;
        freed.expect("freed once the work is over");
        let done = blocking_within(&world, 7, || 8).await;
        assert_eq!(done.unwrap(), (8, 7));
    }
}
