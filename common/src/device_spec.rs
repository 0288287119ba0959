//! Device specifications: the sets of devices that people and programs write as text.
//!
//! ```text
//! w0/cpu:0     one device: kind cpu, number 0, of worker w0
//! w0           all devices of worker w0
//! w*           all devices of the workers whose names match the pattern; `*` stands for any characters
//! cpu, cpu:0   all devices of this kind, and with this number, of any worker
//! kind:cpu     the same as cpu
//! w*/cpu       the devices of this kind of the workers that match
//! *            all devices
//! ```
//!
//! Kinds of devices are open: besides those that this release has, the program of a worker may register others, and only
//! that program knows them. A word that could be a worker's name as well counts as a kind only where this release has
//! the kind; other kinds are written `kind:NAME` or `NAME:0`. A worker whose name is that of a kind of this release is
//! written with a slash: `cpu/` or `cpu/*`.

use std::fmt;
use std::str::FromStr;

use convoke_graph::printable::Printable;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};

/// The kinds of devices that this release has.
pub const KINDS: [&str; 2] = ["cpu", "simgpu"];

/// The most bytes of the name of a kind.
const MOST_KIND: usize = 32;

/// The most bytes of a specification.
const MOST_TEXT: usize = 512;

/// The device of a worker: its kind, and its number among those of the machine. Written as `cpu:0`; without a number, as
/// `simgpu`, it is the first of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceId {
    kind: String,
    number: u32,
}

impl DeviceId {
    /// The kind of the device.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The number of the device among those of its kind.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the device is the host itself.
    pub fn is_cpu(&self) -> bool {
        self.kind == "cpu"
    }
}

impl Default for DeviceId {
    /// The device `cpu:0`.
    fn default() -> DeviceId {
        DeviceId {
            kind: KINDS[0].to_owned(),
            number: 0,
        }
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceId> {
        let (kind, number) = text.split_once(':').unwrap_or((text, "0"));
        match number.parse() {
            Ok(number) if may_be_kind(kind) => Ok(DeviceId {
                kind: kind.to_owned(),
                number,
            }),
            _ => {
                let msg = format!("'{}' is no device", Printable(text));
                let advice = "write a kind of device and its number, as cpu:0";
                Err(Error::new(Code::InvalidArgument, msg).advise(advice))
            }
        }
    }
}

impl TryFrom<String> for DeviceId {
    type Error = Error;

    fn try_from(text: String) -> Result<DeviceId> {
        text.parse()
    }
}

impl From<DeviceId> for String {
    fn from(device: DeviceId) -> String {
        device.to_string()
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.number)
    }
}

/// A set of devices, given by patterns. Which devices are in it depends on the members that the cluster has at the time
/// of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    text: String,
    /// A pattern for the worker's name.
    worker: String,
    kind: Option<String>,
    number: Option<u32>,
}

impl DeviceSpec {
    /// Whether the device of a worker is in the set.
    pub fn contains(&self, worker: &str, device: &DeviceId) -> bool {
        self.kind.as_deref().is_none_or(|k| k == device.kind)
            && self.number.is_none_or(|n| n == device.number)
            && matches_pattern(&self.worker, worker)
    }
}

impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceSpec> {
        let refused = |why: &str| {
            let msg = format!("'{}' is no device specification: {why}", Printable(text));
            Error::new(Code::InvalidArgument, msg)
                .advise("write a worker's name as w0, a pattern as w*, a kind of device as cpu, or both as w0/cpu:0")
        };
        if text.len() > MOST_TEXT {
            return Err(refused("it is too long"));
        }
        let (worker, device) = match text.split_once('/') {
            Some((worker, device)) => (worker, Some(device)),
            // No worker's name has a colon.
            None if KINDS.contains(&text) || text.contains(':') => ("*", Some(text)),
            None => (text, None),
        };
        if worker.is_empty() {
            return Err(refused("it names no worker"));
        }
        if worker.contains(':') {
            return Err(refused("no worker's name has a colon"));
        }
        let device = device.filter(|d| !matches!(*d, "" | "*"));
        let (kind, number) = match device.map(|d| d.strip_prefix("kind:").unwrap_or(d)) {
            None => (None, None),
            Some(device) => {
                let (kind, number) = device.split_once(':').unwrap_or((device, "*"));
                if !may_be_kind(kind) {
                    return Err(refused("a kind of device is expected, as cpu"));
                }
                let number =
                    match number {
                        "*" => None,
                        number => Some(number.parse().map_err(|_| {
                            refused("a device's number is expected after the colon")
                        })?),
                    };
                (Some(kind), number)
            }
        };
        Ok(DeviceSpec {
            text: text.to_owned(),
            worker: worker.to_owned(),
            kind: kind.map(str::to_owned),
            number,
        })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The name of the device of a worker, as `w0/cpu:0`, which is also the specification of exactly this device.
pub fn device_name(worker: &str, device: &DeviceId) -> String {
    format!("{worker}/{device}")
}

/// Whether a text can be the name of a kind of device: a lower-case letter, then lower-case letters, digits, `-` and `_`.
pub fn may_be_kind(text: &str) -> bool {
    let in_name = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    text.len() <= MOST_KIND
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(in_name)
}

/// Whether `pattern`, in which `*` stands for any characters, matches all of `text`.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let yes = [
            ("*", ""),
            ("a*", "abc"),
            ("*c", "abc"),
            ("a*c", "ac"),
            ("*b*", "abc"),
            ("abc", "abc"),
        ];
        let no = [
            ("a", "ab"),
            ("a*b", "abc"),
            ("*x*", "abc"),
            ("ab*ba", "aba"),
            ("", "a"),
        ];
        assert!(yes.iter().all(|(p, t)| matches_pattern(p, t)));
        assert!(!no.iter().any(|(p, t)| matches_pattern(p, t)));
    }

    #[test]
    fn a_specification_may_leave_parts_out() {
        let (cpu, simgpu) = (DeviceId::default(), "simgpu:1".parse().unwrap());
        let fits = |spec: &str, worker: &str, device: &DeviceId| {
            spec.parse::<DeviceSpec>().unwrap().contains(worker, device)
        };
        let of = |spec: &str, worker: &str| fits(spec, worker, &cpu);
        for spec in [
            "w1/cpu:0",
            "w1/cpu",
            "w1/cpu:*",
            "w1/",
            "w1/*",
            "w1",
            "w*",
            "*1",
            "*",
            "*/cpu",
            "cpu",
            "cpu:0",
            "cpu:*",
            "kind:cpu",
            "kind:cpu:0",
            "w1/kind:cpu",
        ] {
            assert!(of(spec, "w1"), "{spec}");
            assert_eq!(spec.parse::<DeviceSpec>().unwrap().to_string(), spec);
        }
        for spec in ["w2", "w2/cpu:0", "cpu:1", "w", "x*", "w1/cpu:7"] {
            assert!(!of(spec, "w1"), "{spec}");
        }
        assert!(of(&device_name("cpu", &cpu), "cpu"));
        for spec in ["w1", "w1/simgpu", "simgpu", "simgpu:1", "w*/simgpu:1", "*"] {
            assert!(fits(spec, "w1", &simgpu), "{spec}");
        }
        for spec in ["cpu", "w1/cpu", "simgpu:0", "w1/simgpu:0"] {
            assert!(!fits(spec, "w1", &simgpu), "{spec}");
        }
        assert!(of("cpu/", "cpu") && !of("cpu/", "w1"));
        let other = "filedev:1".parse().unwrap();
        for spec in ["kind:filedev", "filedev:1", "w1/filedev", "*/filedev:1"] {
            assert!(fits(spec, "w1", &other) && !of(spec, "w1"), "{spec}");
        }
        // It could be a worker's name as well.
        assert!(fits("filedev", "filedev", &cpu) && !fits("filedev", "w1", &other));
    }

    #[test]
    fn a_device_is_a_kind_and_a_number() {
        let shown = |text: &str| text.parse::<DeviceId>().map(|d| d.to_string());
        assert_eq!(shown("cpu").unwrap(), "cpu:0");
        assert_eq!(shown("simgpu:3").unwrap(), "simgpu:3");
        assert_eq!(shown("file-dev_2").unwrap(), "file-dev_2:0");
        let long = "k".repeat(MOST_KIND + 1);
        for text in [
            "",
            "cpu:",
            "cpu:x",
            "cpu:-1",
            "GPU",
            "2gpu",
            "w0/cpu:0",
            "simgpu:0:1",
            &long,
        ] {
            let e = shown(text).unwrap_err();
            assert_eq!(e.code, Code::InvalidArgument, "{text}");
            assert!(e.to_string().contains("as cpu:0"), "{e}");
        }
    }

    #[track_caller]
    fn check_refused(spec: &str, why: &str) {
        let e = spec.parse::<DeviceSpec>().unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument, "{spec}");
        assert!(e.message.contains(why), "{spec}: {e}");
    }

    #[test]
    fn what_is_no_specification_is_refused() {
        check_refused("", "it names no worker");
        check_refused("/cpu:0", "it names no worker");
        check_refused("w1/GPU:0", "a kind of device is expected");
        check_refused("kind:", "a kind of device is expected");
        check_refused("w:1/cpu", "no worker's name has a colon");
        check_refused("w1/cpu:x", "number");
        check_refused(&"w".repeat(10_000), "too long");
    }
}
