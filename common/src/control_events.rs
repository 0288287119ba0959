//! Events of calls to the coordinator, emitted by `tracing` for tests that check membership and leases as a history. Nothing
//! subscribes to them in production unless `--log` names their target: an event that is off costs a load and a branch.
//!
//! | `kind` | where | fields |
//! |---|---|---|
//! | `register` | worker: it is about to ask for its registration | `name`, `incarnation` |
//! | `registered` | worker: the coordinator has registered it | `name`, `incarnation` |
//! | `leave` | worker: it is about to say that it takes no new work | `name`, `incarnation` |
//! | `granted` | driver: it has the coordinator's word for a lease | `lease`, `name` of the driver |
//! | `release` | driver: it gives a lease up | `lease` |
//! | `released` | driver: the coordinator has confirmed that | `lease` |

/// The target of every event of this kind.
pub const TARGET: &str = "convoke::control_event";

/// Emits an event of a call to the coordinator.
#[macro_export]
macro_rules! control_event {
    ($kind:literal $(, $name:ident = $value:expr)* $(,)?) => {
        tracing::trace!(target: $crate::control_events::TARGET, kind = $kind $(, $name = $value)*)
    };
}
