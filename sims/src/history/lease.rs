//! The register of one lease: what the coordinator promises of it.
//!
//! ```text
//! Unborn ──> Born, listed ──the driver has it──> granted ──release──> Over
//!                 └──its install failed, or was given up────────────────^
//! ```
//!
//! Invariants
//! 1. A lease that was granted ends when its driver releases it, or when its driver and its workers have lost each other
//!    ([`LeaseOp::End`]), and by nothing else. What is over stays over.
//! 2. A restarted coordinator lists a lease again once a worker has reported it. Where a worker may not have heard of
//!    the release, that goes for a lease that is over as well ([`LeaseOp::Return`]), until the worker is told.
//! 3. A lease has one driver from its begin to its end.

use super::checker::Register;

/// What happens to a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseOp {
    /// The lease was granted to this driver.
    Grant(String),
    /// The driver gives the lease up.
    Release,
    /// The driver is gone, or its workers have lost it.
    End,
    /// A worker that has not heard of the end reports the lease to a restarted coordinator.
    Return,
    /// The coordinator's process is replaced by another one.
    Restart,
    /// A status lists the lease as this driver's, or does not list it.
    Read(Option<String>),
}

/// The stage of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Unborn,
    Born {
        /// Whether the coordinator knows of it: one that was restarted does not until a worker reports it.
        listed: bool,
        /// Whether its driver has it. Until then its install may fail.
        granted: bool,
    },
    Over,
}

/// What the coordinator knows of a lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    stage: Stage,
    /// The driver, once it is known.
    driver: Option<String>,
}

/// The register of a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRegister;

impl Lease {
    fn at(&self, stage: Stage) -> Vec<Lease> {
        let driver = self.driver.clone();
        vec![Lease { stage, driver }]
    }

    /// Returns this lease as the driver's, unless it is another one's.
    fn of(&self, driver: &str, stage: Stage) -> Vec<Lease> {
        let is_other = |d: &String| d != driver;
        match self.driver.as_ref().is_some_and(is_other) {
            true => vec![],
            false => vec![Lease {
                stage,
                driver: Some(driver.to_owned()),
            }],
        }
    }
}

impl Register for LeaseRegister {
    type State = Lease;
    type Op = LeaseOp;

    fn start(&self) -> Lease {
        Lease {
            stage: Stage::Unborn,
            driver: None,
        }
    }

    fn apply(&self, state: &Lease, op: &LeaseOp) -> Vec<Lease> {
        let returned = Stage::Born {
            listed: true,
            granted: false,
        };
        match (op, state.stage) {
            (LeaseOp::Grant(driver), Stage::Unborn) => {
                let granted = Stage::Born {
                    listed: true,
                    granted: true,
                };
                state.of(driver, granted)
            }
            (LeaseOp::Grant(driver), Stage::Born { listed, .. }) => {
                let granted = true;
                state.of(driver, Stage::Born { listed, granted })
            }
            (LeaseOp::Grant(_), Stage::Over) => vec![],
            (LeaseOp::Release | LeaseOp::End, _) => state.at(Stage::Over),
            (LeaseOp::Return, Stage::Over) => state.at(returned),
            (LeaseOp::Restart, Stage::Born { granted, .. }) => {
                let listed = false;
                state.at(Stage::Born { listed, granted })
            }
            (LeaseOp::Return | LeaseOp::Restart, _) => vec![state.clone()],
            (LeaseOp::Read(Some(driver)), Stage::Born { listed: true, .. }) => {
                state.of(driver, state.stage)
            }
            (LeaseOp::Read(Some(_)), _) => vec![],
            (LeaseOp::Read(None), Stage::Born { listed: true, .. }) => vec![],
            (LeaseOp::Read(None), _) => vec![state.clone()],
        }
    }

    fn drift(&self, state: &Lease) -> Vec<Lease> {
        let born = |listed, granted| Stage::Born { listed, granted };
        match state.stage {
            Stage::Unborn => state.at(born(true, false)),
            Stage::Born { listed, granted } => {
                let over = (!granted).then_some(Stage::Over);
                let reported = (!listed).then_some(born(true, granted));
                let drifted = over.into_iter().chain(reported);
                drifted.flat_map(|stage| state.at(stage)).collect()
            }
            Stage::Over => vec![],
        }
    }
}
