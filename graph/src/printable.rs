//! Text from outside, made fit to be shown to a person.
//!
//! Names come from model files, array files and peers, and may hold anything: sequences that a terminal obeys,
//! characters that reverse what follows them or are not seen at all, line ends that forge a line of a log, a million
//! characters. This module escapes and bounds such text wherever it is shown. Text that programs read (`--json`) is
//! exact, and never goes through here.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};

/// The most characters of a name that are shown.
pub const MOST_OF_NAME: usize = 160;

/// The most characters of a name that are shown where it is one of many.
pub const MOST_OF_LISTED: usize = 60;

/// The most characters of a message that are shown.
pub const MOST_OF_TEXT: usize = 8000;

/// The most names of a list that are shown.
const MOST_NAMES: usize = 20;

/// Whether a character is shown as a glyph where it stands, and does nothing else.
fn is_plain(c: char) -> bool {
    !(c.is_control()
        || matches!(c,
            // Soft hyphen, and the marks that order right-to-left text: they hide, or move what stands beside them.
            '\u{ad}' | '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Spaces and joiners of no width, line and paragraph separators, other invisible characters.
            | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2028}'..='\u{2029}' | '\u{2060}'..='\u{2065}'
            | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'))
}

fn write_escaped(to: &mut impl Write, c: char) -> fmt::Result {
    if is_plain(c) {
        to.write_char(c)
    } else {
        write!(to, "{}", c.escape_default())
    }
}

/// A name from outside, on one line: characters that a terminal obeys or does not show are escaped as in Rust (`\u{1b}`,
/// `\n`), and of a name longer than [`MOST_OF_NAME`] characters the middle is left out.
///
/// ```
/// # use convoke_graph::Printable;
/// assert_eq!(Printable("in\u{1b}[2Jput\n").to_string(), r"in\u{1b}[2Jput\n");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_name(f, self.0, MOST_OF_NAME)
    }
}

/// One of many names from outside: a [`Printable`] of at most [`MOST_OF_LISTED`] characters.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a>(pub &'a str);

impl Display for Listed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_name(f, self.0, MOST_OF_LISTED)
    }
}

/// Writes a name, of which the middle is left out where it has more than `most` characters, an even number.
fn write_name(f: &mut Formatter<'_>, name: &str, most: usize) -> fmt::Result {
    let short = name.len() <= most || name.chars().nth(most).is_none();
    if short {
        return name.chars().try_for_each(|c| write_escaped(f, c));
    }
    let half = most / 2;
    name.chars()
        .take(half)
        .try_for_each(|c| write_escaped(f, c))?;
    f.write_char('…')?;
    let last = name.char_indices().rev().nth(half - 2);
    let end = last.map_or("", |(at, _)| &name[at..]);
    end.chars().try_for_each(|c| write_escaped(f, c))
}

/// A message that may hold text from outside. It is escaped like a [`Printable`], except for tabs and line ends; the
/// lines after the first are indented, so that none of them reads as a message of its own. It is cut off after
/// [`MOST_OF_TEXT`] characters.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a>(pub &'a str);

impl Display for Message<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, c) in self.0.chars().enumerate() {
            if i == MOST_OF_TEXT {
                let rest = self.0.chars().count() - i;
                return write!(f, "… and {rest} more characters");
            }
            match c {
                '\n' => f.write_str("\n  ")?,
                '\t' => f.write_char(c)?,
                _ => write_escaped(f, c)?,
            }
        }
        Ok(())
    }
}

/// Lists names from outside, separated by commas: the first twenty, and the number of the others.
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut more = 0usize;
    for (i, name) in names.into_iter().enumerate() {
        if i >= MOST_NAMES {
            more += 1;
            continue;
        }
        let comma = if i == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{}", Printable(name));
    }
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Escapes all that a terminal would obey in a text of our own, except line ends and tabs. This is the last wall before
/// the terminal, for names that were not escaped where they entered the text.
pub fn screen(text: &str) -> Cow<'_, str> {
    let kept = |c: char| is_plain(c) || matches!(c, '\n' | '\t');
    if text.chars().all(kept) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if kept(c) => shown.push(c),
            // Writing to a string does not fail.
            _ => drop(write_escaped(&mut shown, c)),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (name, shown) in [
            ("conv1/weight", "conv1/weight"),
            ("größe·重み", "größe·重み"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\u{9b}31mb", "a\\u{9b}31mb"),
            ("a\r\n\tb\u{7f}", "a\\r\\n\\tb\\u{7f}"),
            ("\u{202e}gnp.exe\u{2066}", "\\u{202e}gnp.exe\\u{2066}"),
            (
                "a\u{200b}b\u{feff}\u{2028}",
                "a\\u{200b}b\\u{feff}\\u{2028}",
            ),
        ] {
            assert_eq!(Printable(name).to_string(), shown);
            assert!(screen(shown) == shown);
        }
        assert_eq!(screen("one\n\ttwo\u{1b}c\n"), "one\n\ttwo\\u{1b}c\n");
    }

    #[test]
    fn long_names_lose_their_middle() {
        let exact = "ä".repeat(MOST_OF_NAME);
        assert_eq!(Printable(&exact).to_string(), exact);
        let long = format!("start{}end", "ö".repeat(1 << 20));
        let shown = Printable(&long).to_string();
        assert_eq!(shown.chars().count(), MOST_OF_NAME);
        assert!(shown.starts_with("startö") && shown.contains("ö…ö") && shown.ends_with("öend"));
        let listed = Listed(&long).to_string();
        assert_eq!(listed.chars().count(), MOST_OF_LISTED);
        assert!(listed.starts_with("startö") && listed.ends_with("öend"));
    }

    #[test]
    fn messages_forge_no_lines_and_end() {
        let forged = "bad name 'x\nerror: all is lost\u{1b}[0m'";
        assert_eq!(
            Message(forged).to_string(),
            "bad name 'x\n  error: all is lost\\u{1b}[0m'"
        );
        let long = "x".repeat(MOST_OF_TEXT + 5);
        let shown = Message(&long).to_string();
        assert!(shown.ends_with("x… and 5 more characters"), "{shown}");
    }

    #[test]
    fn lists_are_bounded() {
        assert_eq!(list(["a", "b\n"]), "a, b\\n");
        let many = vec!["n"; 30];
        assert!(list(many).ends_with("n, n and 10 more"));
        assert_eq!(list([]), "");
    }
}
