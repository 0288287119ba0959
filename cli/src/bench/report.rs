//! The results of the measurements, as `--json` prints them and as a table.

use serde::Serialize;

use super::catalogue::Bench;
use super::turns::Samples;
use crate::process::machine;
use crate::text::output;
use crate::text::values::bytes;

/// How many times slower than usual a floor may be. A slower one shows that the machine is busy or throttled.
const SUSPECT: f64 = 1.3;

/// The definition of a floor, beside which a measurement is reported.
#[derive(Debug, Clone, Copy)]
pub struct Baseline {
    pub name: &'static str,
    /// The floor's usual median in the measurement's unit, on two cores of a virtual machine where nothing else runs.
    pub usual: Option<f64>,
}

/// The measured floor, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Floor {
    name: &'static str,
    p50: f64,
    p99: f64,
    /// Whether the floor is far slower than usual: the machine is busy, or slow today.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    suspect: bool,
}

/// The result of a measurement.
#[derive(Debug, Serialize)]
pub struct Measurement {
    name: String,
    unit: &'static str,
    /// The median.
    p50: f64,
    /// The value that 99 % do not exceed; for a rate, the value that 99 % do not fall below.
    p99: f64,
    n: usize,
    floor: Option<Floor>,
    /// The median divided by the floor's median.
    ratio: Option<f64>,
}

impl Measurement {
    /// Makes the result of a measurement without a floor.
    pub fn alone(bench: &Bench, samples: &Samples) -> Measurement {
        Measurement::named(bench.name.into(), bench.unit, samples)
    }

    /// Makes the result of a measurement without a floor that is not in the catalogue.
    pub fn named(name: String, unit: &'static str, samples: &Samples) -> Measurement {
        Measurement {
            name,
            unit,
            p50: samples.quantile(0.5),
            p99: samples.quantile(slow(unit)),
            n: samples.count(),
            floor: None,
            ratio: None,
        }
    }

    /// Makes the result of a measurement that took turns with its floor, if there is one.
    pub fn beside(
        bench: &Bench,
        (ours, floor): &(Samples, Samples),
        beside: Option<Baseline>,
    ) -> Measurement {
        let alone = Measurement::alone(bench, ours);
        let Some(beside) = beside else {
            return alone;
        };
        let p50 = floor.quantile(0.5);
        Measurement {
            ratio: (p50 > 0.).then_some(alone.p50 / p50),
            floor: Some(Floor {
                name: beside.name,
                p50,
                p99: floor.quantile(slow(bench.unit)),
                suspect: beside.usual.is_some_and(|usual| p50 > SUSPECT * usual),
            }),
            ..alone
        }
    }

    /// The measurement's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The quantile of the slowest 1 %: 0.01 for rates, where low values are slow, and 0.99 for durations.
fn slow(unit: &str) -> f64 {
    if unit.ends_with("/s") { 0.01 } else { 0.99 }
}

/// The machine on which `bench` runs; a cluster's processes may be on others.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    version: &'static str,
}

/// The report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    results: Vec<Measurement>,
}

impl Report {
    /// Makes a report that describes this machine.
    pub fn new(results: Vec<Measurement>) -> Report {
        Report {
            machine: Machine {
                cpu: machine::cpu(),
                cores: machine::cores(),
                memory_bytes: machine::memory(),
                kernel: machine::kernel(),
                version: env!("CARGO_PKG_VERSION"),
            },
            results,
        }
    }

    /// Formats the report as a table.
    pub fn text(&self) -> String {
        let m = &self.machine;
        let mut text = format!(
            "{}, {} cores, {}, {}, convoke {}\n",
            m.cpu,
            m.cores,
            bytes(m.memory_bytes),
            m.kernel,
            m.version
        );
        let head = [
            "NAME",
            "P50",
            "P99",
            "UNIT",
            "N",
            "FLOOR",
            "FLOOR P50",
            "FLOOR P99",
            "RATIO",
        ];
        let rows: Vec<Vec<String>> = self.results.iter().map(row).collect();
        text.push_str(&output::table(&head, &[1, 2, 4, 6, 7, 8], &rows));
        let suspect = |m: &Measurement| m.floor.as_ref().is_some_and(|f| f.suspect);
        if self.results.iter().any(suspect) {
            text.push_str("* over 1.3 times what this floor takes on a quiet machine of two cores: busy, or slow today\n");
        }
        text
    }
}

fn row(m: &Measurement) -> Vec<String> {
    let floor = |of: &dyn Fn(&Floor) -> String| m.floor.as_ref().map_or(String::new(), of);
    vec![
        m.name.clone(),
        number(m.p50),
        number(m.p99),
        m.unit.to_owned(),
        m.n.to_string(),
        floor(&|f| f.name.to_owned()),
        floor(&|f| format!("{}{}", number(f.p50), if f.suspect { "*" } else { "" })),
        floor(&|f| number(f.p99)),
        m.ratio.map_or(String::new(), |r| format!("{r:.2}")),
    ]
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100. => format!("{value:.0}"),
        v if v >= 10. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::ALL;
    use super::*;

    const BESIDE: Baseline = Baseline {
        name: "floor",
        usual: Some(10.),
    };

    #[test]
    fn a_slow_floor_is_suspect() {
        for (floor, suspect) in [(13., false), (13.1, true)] {
            let both = (Samples::of(26.2), Samples::of(floor));
            let measured = Measurement::beside(&ALL[0], &both, Some(BESIDE));
            let json = serde_json::to_value(&measured).unwrap();
            assert_eq!(json["floor"]["suspect"] == true, suspect, "{json}");
            assert_eq!(json["ratio"], 26.2 / floor);
            let text = Report::new(vec![measured]).text();
            assert_eq!(text.contains("\n* over"), suspect, "{text}");
        }
    }

    #[test]
    fn without_a_floor_there_is_neither_floor_nor_ratio() {
        let measured = Measurement::alone(&ALL[0], &Samples::of(0.5));
        let json = serde_json::to_value(&measured).unwrap();
        assert!(json["floor"].is_null() && json["ratio"].is_null(), "{json}");
        assert_eq!((number(123.4), number(0.5)), ("123".into(), "0.50".into()));
    }
}
