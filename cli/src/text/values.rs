//! Parses and prints values in the form in which people write them: sizes, times, bounds and pins.

use std::path::PathBuf;
use std::time::Duration;

use convoke_common::device_spec::DeviceSpec;

/// Parses a number of bytes: `512MiB`, `1.5GiB`, `2g`, `1000000`. `k`, `m`, `g`, `t` and `KiB` etc. are powers of 1024,
/// `KB` etc. are powers of 1000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = split(text);
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("'{unit}' is no unit of size; write 512MiB or 2GiB")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is no size; write 512MiB or 2GiB"))?;
    let bytes = number * scale as f64;
    if !bytes.is_finite() || bytes < 0. || bytes > (1u64 << 53) as f64 {
        return Err(format!("'{text}' is not a size that a machine can have"));
    }
    Ok(bytes.round() as u64)
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    (number, unit.trim_start())
}

/// Parses a time: `500ms`, `30s`, `5m`, `24h`, `7d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time; write 500ms, 30s, 5m, 24h or 7d");
    let (number, unit) = split(text.trim());
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.,
        "m" | "min" => 60.,
        "h" => 3600.,
        "d" => 86400.,
        _ => return Err(bad()),
    };
    let seconds = number.parse::<f64>().map_err(|_| bad())? * scale;
    if !(seconds > 0. && seconds < 1e10) {
        return Err(bad());
    }
    // Less than half a nanosecond is rounded to nothing.
    let time = Duration::from_secs_f64(seconds);
    (!time.is_zero()).then_some(time).ok_or_else(bad)
}

/// Parses the period of something that is repeated, as [`parse_duration`] does; it is at least 100 ms.
pub fn parse_period(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(100);
    let period = parse_duration(text)?;
    match period >= LEAST {
        true => Ok(period),
        false => Err(format!("at least {LEAST:?}")),
    }
}

/// How long a token is valid; `None` means that it does not expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl(pub Option<Duration>);

/// Parses a time of at least one second, or `never`.
pub fn parse_ttl(text: &str) -> Result<Ttl, String> {
    if text.trim() == "never" {
        return Ok(Ttl(None));
    }
    let ttl = parse_duration(text).map_err(|e| format!("{e}, or never"))?;
    if ttl < Duration::from_secs(1) {
        return Err("a token must be good for a second at least".into());
    }
    Ok(Ttl(Some(ttl)))
}

/// The sizes that a dynamic axis may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The axis' symbol.
    pub symbol: String,
    /// The axis' smallest size; 0 where only the largest was given.
    pub least: i64,
    /// The axis' largest size.
    pub most: i64,
}

/// Parses `seq=512`, or a range `seq=1..512` that includes its end.
pub fn parse_bound(text: &str) -> Result<Bound, String> {
    let bad = || format!("'{text}' is no bound; write seq=512 or seq=1..512");
    let (symbol, range) = text.split_once('=').ok_or_else(bad)?;
    let (least, most) = range.split_once("..").unwrap_or(("0", range));
    let least: i64 = least.trim().parse().map_err(|_| bad())?;
    let most = most.trim().trim_start_matches('=');
    let most: i64 = most.parse().map_err(|_| bad())?;
    let symbol = symbol.trim().to_owned();
    if symbol.is_empty() || least < 0 || most < 1 || least > most {
        return Err(bad());
    }
    Ok(Bound {
        symbol,
        least,
        most,
    })
}

/// The devices that may run some nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The pattern of node names; `*` matches any text.
    pub pattern: String,
    /// The devices that may run these nodes.
    pub devices: DeviceSpec,
}

/// Parses `PATTERN=DEVICES`. The last `=` separates them, since node names may contain `=` and device specifications
/// may not.
pub fn parse_pin(text: &str) -> Result<Pin, String> {
    match text.rsplit_once('=') {
        Some((pattern, devices)) if !pattern.is_empty() && !devices.is_empty() => Ok(Pin {
            pattern: pattern.into(),
            devices: devices
                .parse()
                .map_err(|e: convoke::Error| format!("{}; {}", e.message, e.advice))?,
        }),
        _ => Err(format!(
            "'{text}' is no pin; write '/encoder/*=w0' or '/encoder/*=w*/cpu'"
        )),
    }
}

/// Parses `NAME=FILE`.
pub fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.into(), file.into()))
        }
        _ => Err(format!("'{text}' is no input; write NAME=FILE.npy")),
    }
}

/// Formats a number of bytes for people: `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1024. && unit + 1 < UNITS.len() {
        value /= 1024.;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ if value >= 99.95 => format!("{value:.0} {}", UNITS[unit]),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Formats nanoseconds for people: `1.25 ms`.
pub fn nanos(ns: u64) -> String {
    millis(ns as f64 / 1e6)
}

/// Formats milliseconds for people: `1.25 ms`.
pub fn millis(ms: f64) -> String {
    match ms {
        _ if ms < 1. => format!("{:.0} µs", ms * 1000.),
        _ if ms < 1000. => format!("{ms:.2} ms"),
        _ => format!("{:.2} s", ms / 1000.),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", 0),
            ("1000000", 1_000_000),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2g", 2 << 30),
            ("2 GB", 2_000_000_000),
            ("64k", 65536),
        ] {
            assert_eq!(parse_size(text), Ok(expected), "{text}");
        }
        for text in ["", "GiB", "-1", "1e9", "2 potatoes", "9999999TiB", "1.2.3"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_size("2 potatoes").unwrap_err(),
            "'potatoes' is no unit of size; write 512MiB or 2GiB"
        );
    }

    #[test]
    fn times() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0.5ms"), Ok(Duration::from_micros(500)));
        assert!(parse_duration("0.0000001ms").is_err());
        // `up` passes a time on to its workers in this form.
        for time in [1, 500_000, 100_000_000, 8_000_000_000].map(Duration::from_nanos) {
            let text = format!("{}ms", time.as_secs_f64() * 1e3);
            assert_eq!(parse_duration(&text), Ok(time), "{text}");
        }
        assert_eq!(parse_ttl("7d"), Ok(Ttl(Some(Duration::from_secs(604_800)))));
        assert_eq!(parse_ttl("never"), Ok(Ttl(None)));
        for text in ["", "5", "0s", "-1s", "1y", "99999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_ttl("10ms").is_err());
    }

    #[test]
    fn bounds_and_pins() {
        let bound = |least, most| {
            let symbol = "seq".into();
            Ok(Bound {
                symbol,
                least,
                most,
            })
        };
        assert_eq!(parse_bound("seq=512"), bound(0, 512));
        assert_eq!(parse_bound("seq=1..512"), bound(1, 512));
        assert_eq!(parse_bound("seq=2..=8"), bound(2, 8));
        for text in ["seq", "=5", "seq=", "seq=0", "seq=9..3", "seq=a", "seq=1.."] {
            assert!(parse_bound(text).is_err(), "{text}");
        }
        let pin = parse_pin("/layer=1/*=w0").unwrap();
        assert_eq!(
            (&*pin.pattern, &*pin.devices.to_string()),
            ("/layer=1/*", "w0")
        );
        assert!(
            parse_pin("/*=w1/GPU")
                .unwrap_err()
                .contains("a kind of device is expected")
        );
        assert_eq!(
            parse_pin("w0").unwrap_err(),
            "'w0' is no pin; write '/encoder/*=w0' or '/encoder/*=w*/cpu'"
        );
        assert!(parse_named("x=").is_err());
        let (name, file) = parse_named("x=a=b.npy").unwrap();
        assert_eq!((&*name, file.to_str()), ("x", Some("a=b.npy")));
    }

    #[test]
    fn amounts_as_people_read_them() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(700 << 20), "700 MiB");
        assert_eq!(nanos(1500), "2 µs");
        assert_eq!(millis(12.345), "12.35 ms");
        assert_eq!(millis(2500.), "2.50 s");
    }
}
