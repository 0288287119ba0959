//! Writes the table of an exploration into a manual, between two marks.

use std::path::Path;

use anyhow::Context;

use super::Summary;
use crate::faults::StepState;

const BEGIN: &str = "<!-- table of faults: explore --table -->\n";
const END: &str = "<!-- end of the table of faults -->\n";

/// Replaces what stands between the marks of this file by the counts of an exploration.
pub fn write_table(path: &Path, summary: &Summary) -> anyhow::Result<()> {
    let at = || format!("cannot write the table into {}", path.display());
    let text = std::fs::read_to_string(path).with_context(at)?;
    let table = with_table(&text, summary).with_context(at)?;
    std::fs::write(path, table).with_context(at)
}

fn with_table(text: &str, summary: &Summary) -> anyhow::Result<String> {
    let marks = "it has no marks for one";
    let (head, rest) = text.split_once(BEGIN).context(marks)?;
    let (_, tail) = rest.split_once(END).context(marks)?;
    let what = format!(
        "{} seeds, {:.1} simulated hours, {} runs that broke an invariant:",
        summary.seeds,
        summary.simulated_hours,
        summary.failures.len()
    );
    let states = StepState::ALL.map(StepState::name).join(", ");
    let timers = format!(
        "The same while timers ran, by step state ({states}), with {} scenarios that aimed at cells:",
        summary.aimed
    );
    Ok(format!(
        "{head}{BEGIN}\n{what}\n\n{}\n{timers}\n\n{}\n{END}{tail}",
        summary.cells, summary.timers
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Row;

    #[test]
    fn the_table_replaces_the_one_before() {
        let mut summary = Summary::default();
        let before = format!("a\n{BEGIN}old\n{END}b\n");
        let first = with_table(&before, &summary).unwrap();
        assert!(first.starts_with("a\n") && first.ends_with("b\n") && !first.contains("old"));
        summary.cells.hit(Row::Hang, StepState::Abort);
        let second = with_table(&first, &summary).unwrap();
        assert_eq!(second.matches("kernel hangs").count(), 2);
        assert!(second.contains("|        1 |"), "{second}");
        assert!(with_table("nothing", &summary).is_err());
    }
}
