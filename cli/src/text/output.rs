//! Writes results to stdout and notes to stderr. Neither panics when the reader has closed the stream.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use convoke_graph::Printable;
use convoke_graph::printable::screen;
use serde::Serialize;

use crate::text::failure::Failure;

/// Whether anything was written to stdout; whoever writes there holds it.
static WRITTEN: Mutex<bool> = Mutex::new(false);

/// Writes a line to stderr.
pub fn note(line: &str) {
    // A closed stderr leaves no place for the note or for an error about it.
    let _ = writeln!(io::stderr().lock(), "{}", screen(line));
}

/// Writes lines for people to stdout; control sequences are escaped.
pub fn print(text: &str) -> Result<(), Failure> {
    write_out(&screen(text))
}

/// Writes a part of a text to stdout, at once; control sequences are escaped where a terminal would obey them.
pub fn stream(part: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => write_all(&screen(part)),
        false => write_all(part),
    }
}

fn write_out(text: &str) -> Result<(), Failure> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write_all(&format!("{text}{end}"))
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn write_all(text: &str) -> Result<(), Failure> {
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    *written = true;
    put(text).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::io("cannot write to stdout", &e),
    })
}

/// Writes a JSON value for programs to stdout, on one line and without the escapes of [`print()`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    match serde_json::to_string(value) {
        Ok(text) => write_out(&text),
        Err(e) => Err(Failure::io("cannot write the result as JSON", &e)),
    }
}

/// Ends the process with an exit code. Writes a JSON value before, unless something was written to stdout, or is being
/// written by another thread; nothing is written after it.
pub fn end(value: Option<&impl Serialize>, code: i32) -> ! {
    let unused = WRITTEN.try_lock().ok().filter(|written| !**written);
    if let (Some(_), Some(value)) = (&unused, value)
        && let Ok(text) = serde_json::to_string(value)
    {
        // If the reader has closed it, the exit code still reports the end.
        let _ = put(&format!("{text}\n"));
    }
    std::process::exit(code)
}

/// Writes a terminal control sequence to stdout, unescaped.
pub fn control(sequence: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(sequence.as_bytes());
    written.map_err(|e| Failure::io("cannot write to stdout", &e))
}

/// Width in columns of the narrowest terminal for which tables are laid out.
const WIDTH: usize = 80;

/// Folds lines that are wider than a terminal: the rest follows, indented, on further lines. Rows of tables, which
/// begin with two spaces, are not folded.
pub fn folded(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for line in text.lines() {
        let (mut at, is_row) = (0, line.starts_with("  "));
        for (i, word) in line.split(' ').enumerate() {
            let wide = word.chars().count();
            if i > 0 && at + 1 + wide > WIDTH && !is_row {
                folded.push_str("\n    ");
                at = 4;
            } else if i > 0 {
                folded.push(' ');
                at += 1;
            }
            folded.push_str(word);
            at += wide;
        }
        folded.push('\n');
    }
    folded
}

/// Formats a table with aligned columns; the columns listed in `right` are aligned to the right, as numbers are. Cells
/// are escaped by [`Printable`], since many are names that other users chose. Columns that do not fit into the width
/// follow in a further part of the table, which repeats the first column.
pub fn table(head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let row = |r: &Vec<String>| r.iter().map(|c| Printable(c).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|r| r.get(column));
        let widest = cells.map(|c| c.chars().count()).max().unwrap_or(0);
        widest.max(head[column].chars().count())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    let mut text = String::new();
    let mut from = 1;
    loop {
        let mut columns = vec![0];
        let mut taken = 3 + widths[0];
        while from < head.len() && (columns.len() == 1 || taken + 2 + widths[from] <= WIDTH) {
            taken += 2 + widths[from];
            columns.push(from);
            from += 1;
        }
        for row in std::iter::once(&head).chain(&rows) {
            let mut line = String::from(" ");
            for i in &columns {
                let (cell, w) = (row.get(*i).map_or("", |c| c), widths[*i]);
                line.push_str(&match right.contains(i) {
                    true => format!(" {cell:>w$} "),
                    false => format!(" {cell:<w$} "),
                });
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if from >= head.len() {
            return text;
        }
    }
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
    fn long_lines_go_on_below() {
        let words = "word ".repeat(20);
        let text = super::folded(&format!("{}\n  row {words}\n", words.trim_end()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].len() <= super::WIDTH && lines[1].starts_with("    word"),
            "{text}"
        );
        assert_eq!(lines[2].len(), 106);
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        let rows = [vec!["w0".into(), "x".repeat(70), "y".repeat(20)]];
        let text = super::table(&["NAME", "LONG", "MORE"], &[], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "  NAME  MORE");
        assert_eq!(lines[3], format!("  w0    {}", "y".repeat(20)));
        assert!(lines.iter().all(|l| l.len() <= super::WIDTH), "{text}");
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
