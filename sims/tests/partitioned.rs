//! A loop whose tables fit no worker runs on several, with the results of a direct evaluation.

use std::time::Duration;

use convoke_sims::cluster::{Cluster, Setup};
use convoke_sims::oracle::{ExpectedOutcome, expect};
use convoke_sims::workload::{ModelSpec, inputs};

/// A time longer than joining or a call may take.
const NEVER: Duration = Duration::from_secs(60);

/// Memory of a worker, which has room for two tables, and the number of the tables of the loop.
const MEMORY_MIB: u32 = 24;
const TABLES: u8 = 6;

fn spec() -> ModelSpec {
    ModelSpec {
        tables: TABLES,
        ..ModelSpec::narrow(5, 8)
    }
}

#[test]
fn a_loop_that_fits_no_worker_runs_on_several() {
    let mut cluster = Cluster::new(Setup {
        seed: 43,
        workers: 4,
        clients: 1,
        memory: u64::from(MEMORY_MIB) << 20,
        ..Setup::default()
    });
    assert!(cluster.settle(NEVER));
    let model = spec().build();
    let given = inputs(&model, 1, 2, false);
    let ExpectedOutcome::Results(want) = expect(&model, &given) else {
        panic!("it has no trap");
    };
    let own = model.clone();
    let calling = cluster.on_client(0, move |c| async move {
        let load = c.load_function((*own.function).clone(), vec![]);
        let loaded = load.numerics(convoke::Numerics::Exact).await?;
        let plan = loaded.plan().await.expect("it is loaded");
        let parts: Vec<usize> = plan.bodies.iter().map(|b| b.parts.len()).collect();
        let made = loaded.call(given).await?;
        loaded.unload().await?;
        Ok::<_, convoke::Error>((parts, made))
    });
    assert!(cluster.run_until(NEVER, |_| calling.is_over()), "it hangs");
    let (parts, made) = calling.take().expect("the client lives").expect("no fault");
    assert!(parts.len() == 1 && parts[0] >= 2, "{parts:?}");
    let made: Vec<_> = made.0.into_iter().map(|(_, t)| t).collect();
    assert_eq!(made, want);
}
