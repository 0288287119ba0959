//! Makes the rows of the table of detection and recovery times.

use std::io::BufRead;
use std::time::Duration;

/// The times of one round of a fault.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The time until a caller was told of the fault.
    pub detected: Option<Duration>,
    /// The time until the cluster worked as before.
    pub recovered: Option<Duration>,
}

/// All samples of one fault.
#[derive(Debug, Default)]
pub struct Row {
    detected: Vec<Duration>,
    recovered: Vec<Duration>,
    n: usize,
}

impl Row {
    pub fn add(&mut self, sample: Sample) {
        self.detected.extend(sample.detected);
        self.recovered.extend(sample.recovered);
        self.n += 1;
    }

    /// Formats the row `| name | detection p50 | p99 | recovery p50 | p99 | n |`.
    pub fn line(mut self, name: &str) -> String {
        let (detected, recovered) = (cells(&mut self.detected), cells(&mut self.recovered));
        format!("| {name} | {detected} | {recovered} | {} |", self.n)
    }
}

/// Formats p50 and p99: the least times that 50 % and 99 % of all times do not exceed.
fn cells(times: &mut [Duration]) -> String {
    times.sort();
    let at = |part: f64| {
        let rank = (times.len() as f64 * part).ceil() as usize;
        match times.get(rank.max(1) - 1) {
            Some(time) => text(*time),
            None => "–".into(),
        }
    };
    format!("{} | {}", at(0.5), at(0.99))
}

fn text(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Prints the rows of the lines on stdin, "fault, detection in ms, recovery in ms" with tabs between. A time that does
/// not exist is left empty. Returns whether all lines could be read.
pub fn from_stdin() -> bool {
    let mut rows: Vec<(String, Row)> = vec![];
    for line in std::io::stdin().lock().lines() {
        let Some((name, sample)) = line.ok().as_deref().and_then(parse) else {
            return false;
        };
        match rows.iter_mut().find(|(n, _)| *n == name) {
            Some((_, row)) => row.add(sample),
            None => {
                let mut row = Row::default();
                row.add(sample);
                rows.push((name, row));
            }
        }
    }
    for (name, row) in rows {
        println!("{}", row.line(&name));
    }
    true
}

fn parse(line: &str) -> Option<(String, Sample)> {
    let mut fields = line.split('\t');
    let name = fields.next()?.to_owned();
    let mut time = || match fields.next()? {
        "" => Some(None),
        text => Some(Some(Duration::from_millis(text.parse().ok()?))),
    };
    let (detected, recovered) = (time()?, time()?);
    Some((
        name,
        Sample {
            detected,
            recovered,
        },
    ))
}
