//! The counts of verdicts, and the table that shows them.

use std::collections::BTreeMap;

/// The result of a case.
pub enum Verdict {
    /// The outputs are right; `apart` says whether the case ran apart, too.
    Right { apart: bool },
    /// The case failed, for this reason.
    Wrong(String),
    /// The case needs an op, a dtype or a kind of value that is not supported.
    Unsupported(String),
}

impl Verdict {
    /// The verdict on a case beside the list of those that may be unsupported: an unsupported case that is not `listed` is
    /// wrong, and so is a listed one that runs.
    pub fn beside(self, listed: bool) -> Verdict {
        match (self, listed) {
            (Verdict::Unsupported(why), false) => Verdict::Wrong(why),
            (Verdict::Right { .. }, true) => {
                Verdict::Wrong("it runs now: take it off the list of expected failures".into())
            }
            (verdict, _) => verdict,
        }
    }
}

#[derive(Default)]
struct Row {
    right: usize,
    wrong: usize,
    unsupported: usize,
    /// How many of the right cases ran apart, too.
    apart: usize,
}

/// The counts of verdicts, by op.
#[derive(Default)]
pub struct Report {
    rows: BTreeMap<String, Row>,
    notes: Vec<String>,
}

impl Report {
    /// Counts the verdict on a case.
    pub fn add(&mut self, op: &str, case: &str, verdict: Verdict, verbose: bool) {
        let row = self.rows.entry(op.into()).or_default();
        match verdict {
            Verdict::Right { apart } => {
                row.right += 1;
                row.apart += usize::from(apart);
                if !apart && verbose {
                    self.notes.push(format!("alone only: {case}"));
                }
            }
            Verdict::Wrong(why) => {
                row.wrong += 1;
                self.notes.push(format!("wrong: {case}: {why}"));
            }
            Verdict::Unsupported(why) => {
                row.unsupported += 1;
                if verbose {
                    self.notes.push(format!("unsupported: {case}: {why}"));
                }
            }
        }
    }

    /// The numbers of right, wrong and unsupported cases.
    pub fn totals(&self) -> (usize, usize, usize) {
        self.rows.values().fold((0, 0, 0), |(r, w, n), row| {
            (r + row.right, w + row.wrong, n + row.unsupported)
        })
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{:<28} {:>6} {:>6} {:>6} {:>6} {:>15}",
            "op", "cases", "right", "apart", "wrong", "unsupported"
        )?;
        for (op, row) in &self.rows {
            let Row {
                right,
                wrong,
                unsupported,
                apart,
            } = row;
            let cases = right + wrong + unsupported;
            writeln!(
                f,
                "{op:<28} {cases:>6} {right:>6} {apart:>6} {wrong:>6} {unsupported:>15}"
            )?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        let (right, wrong, unsupported) = self.totals();
        let apart: usize = self.rows.values().map(|row| row.apart).sum();
        writeln!(
            f,
            "of those right, {apart} ran also between two other workers, one for operands and one for results, to the same bits; \
             of {} nothing is left to run in a step, or there is no operand",
            right - apart
        )?;
        write!(f, "{right} right, {wrong} wrong, {unsupported} unsupported")
    }
}
