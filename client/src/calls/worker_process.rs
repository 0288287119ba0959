//! A worker process, as plans name it that are to avoid it.

use convoke_common::grant::Participant;
use convoke_common::ids::Incarnation;

/// The name and the incarnation of a worker process.
pub(crate) type WorkerProcess = (String, Incarnation);

/// The worker process of a participant.
pub(crate) fn named(p: &Participant) -> WorkerProcess {
    (p.name.clone(), p.incarnation)
}
