//! Results to stdout, notes to stderr. Neither panics when nobody reads.

use std::io::{self, Write};

use convoke_common::Printable;
use convoke_common::printable::screen;
use serde::Serialize;

use crate::failure::Failure;

/// A line on stderr.
pub fn note(line: &str) {
    // Without a stderr there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{}", screen(line));
}

/// Lines on stdout, for people: whatever a terminal would obey is escaped.
pub fn print(text: &str) -> Result<(), Failure> {
    write_out(&screen(text))
}

fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let written = write!(out, "{text}{end}").and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::io("cannot write to stdout", &e),
    })
}

/// One JSON value on stdout, on one line: exactly what there is, for programs.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    match serde_json::to_string(value) {
        Ok(text) => write_out(&text),
        Err(e) => Err(Failure::io("cannot write the result as JSON", &e)),
    }
}

/// A table with aligned columns; the columns named in `right` are numbers. Cells are [`Printable`]: many are names that
/// others chose.
pub fn table(head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let row = |r: &Vec<String>| r.iter().map(|c| Printable(c).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|r| r.get(column));
        let widest = cells.map(|c| c.chars().count()).max().unwrap_or(0);
        widest.max(head[column].chars().count())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::from(" ");
        for (i, cell) in row.iter().enumerate() {
            let w = widths.get(i).copied().unwrap_or(0);
            line.push(' ');
            if right.contains(&i) {
                line.push_str(&format!("{cell:>w$}"));
            } else {
                line.push_str(&format!("{cell:<w$}"));
            }
            line.push(' ');
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn cells_are_escaped_and_stay_in_their_row() {
        let rows = [vec!["w\u{1b}[2J\nx".into(), "1".into()]];
        assert_eq!(
            super::table(&["NAME", "NODES"], &[1], &rows),
            "  NAME           NODES\n  w\\u{1b}[2J\\nx      1\n"
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["w0".into(), "12".into()],
            vec!["worker".into(), "3".into()],
        ];
        assert_eq!(
            super::table(&["NAME", "NODES"], &[1], &rows),
            "  NAME    NODES\n  w0         12\n  worker      3\n"
        );
    }
}
