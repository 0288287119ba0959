//! Shows progress on stderr, if stderr is a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use convoke::Phase;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text::output;

const BYTES: &str = "{msg:24} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}";
const STEPS: &str = "{msg:24} [{bar:30}] {pos}/{len} {per_sec}, {eta} left";
const BUSY: &str = "{spinner} {msg}";
const STAGE: &str = "{msg}";
const RUNNING: &str = "running";
/// How often a spinner moves.
const TICK: Duration = Duration::from_millis(100);

/// One line that shows what the command is doing; it disappears when it is dropped.
#[derive(Clone)]
pub struct Progress(Arc<Line>);

struct Line(ProgressBar);

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress {
    /// Makes an empty line.
    pub fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress(Arc::new(Line(bar)))
    }

    fn style(&self, template: &str) {
        // The templates are constants, which the test checks.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.0.set_style(style.progress_chars("=> "));
        }
    }

    /// Shows a spinner beside `what`, for work of unknown length.
    pub fn busy(&self, what: impl Into<String>) {
        let bar = &self.0.0;
        self.style(BUSY);
        bar.set_message(what.into());
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
    }

    /// Shows the stage of the work. The line does not move until the next call, so that drawing does not disturb what
    /// is measured meanwhile.
    pub fn at(&self, what: impl Into<String>) {
        self.style(STAGE);
        self.0.0.set_message(what.into());
        self.0.0.tick();
    }

    fn bytes(&self, what: &'static str, done: u64, total: u64) {
        let bar = &self.0.0;
        if bar.length() != Some(total) || bar.message() != what {
            self.style(BYTES);
            bar.set_message(what);
            bar.set_length(total);
        }
        bar.set_position(done);
    }

    /// Shows the phase of a model that is loading.
    pub fn phase(&self, phase: Phase) {
        match phase {
            Phase::Hashing { done, total } => self.bytes("reading the model", done, total),
            Phase::Workers { have, need } => self.busy(format!("{have} of {need} workers")),
            Phase::Planning => self.busy("planning"),
            Phase::Waiting { cause, most } => {
                let cause = cause.message;
                self.note(&format!("waiting for memory, at most {most:?}: {cause}"));
                self.busy("waiting for memory");
            }
            Phase::Loading { done, total } => self.bytes("loading weights", done, total),
            Phase::Rerun(rerun) => self.note(&rerun.to_string()),
            Phase::Remark(remark) => self.note(&remark),
        }
    }

    /// Writes a line to stderr that stays there, above the progress line.
    pub fn note(&self, line: &str) {
        self.0.0.suspend(|| output::note(line));
    }

    /// Removes the line for good.
    pub fn clear(&self) {
        self.0.0.disable_steady_tick();
        self.0.0.finish_and_clear();
    }

    /// Shows how many steps of a run are done.
    pub fn steps(&self, done: u64, total: u64) {
        let bar = &self.0.0;
        if bar.message() != RUNNING {
            self.style(STEPS);
            bar.set_message(RUNNING);
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed() {
        for t in [BYTES, STEPS, BUSY, STAGE] {
            assert!(ProgressStyle::with_template(t).is_ok(), "{t}");
        }
    }
}
