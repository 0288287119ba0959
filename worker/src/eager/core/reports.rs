//! What the client is told of its handles, ops and transfers.

use convoke_common::error::Error;
use convoke_rendezvous::eager::wire::Report;

use super::failure;
use super::state::{Core, Id};

/// Most failures that are reported before the client has read them; each handle tells its own failure besides.
const MOST_FAILED: usize = 64;

impl Core {
    /// Reports that a handle failed, unless the client has many failures to read.
    pub(super) fn tell_failure(&mut self, handle: Id, error: &Error) {
        if self.failures < MOST_FAILED {
            self.failures += 1;
            let error = Box::new(error.clone());
            self.report(Report::Failed { handle, error });
        }
    }

    /// Whether there is anything to report to the client.
    pub fn has_reports(&self) -> bool {
        self.resolved > 0 || !self.reports.is_empty()
    }

    /// Takes the reports for the client.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = std::mem::take(&mut self.reports);
        self.failures = 0;
        self.kept -= std::mem::take(&mut self.reported);
        if self.resolved > 0 {
            reports.push(Report::Resolved(std::mem::take(&mut self.resolved)));
        }
        reports
    }

    /// Adds a report for the client.
    pub fn report(&mut self, report: Report) {
        if let Report::Failed { error, .. } | Report::Undelivered { error, .. } = &report {
            let bytes = failure::footprint(error);
            self.kept += bytes;
            self.reported += bytes;
        }
        self.reports.push(report);
    }
}
