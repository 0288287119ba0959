//! What the holders of one token may make each process hold and do.
//!
//! A budget is set when the token is made, and travels in the certificates of the members that join with it: a process
//! that verifies a certificate knows the budget without asking the coordinator.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::identity::certificate::subject::BadSubject;

/// An amount of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// This many bytes.
    Bytes(u64),
    /// This percentage of what the process may use, from 1 to 100.
    Percent(u8),
}

impl Amount {
    /// The amount in bytes, for a process that may use `all` bytes.
    pub fn of(self, all: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => {
                let part = u128::from(all) * u128::from(percent.min(100)) / 100;
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        }
    }
}

/// What the holders of one token may make each process hold and do. A limit that is absent has a default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Memory at each worker for weights, tensors, handles and definitions.
    pub memory: Option<Amount>,
    /// Memory at the coordinator for requests that arrive or are served, and for plans that are kept.
    pub requests: Option<Amount>,
    /// How many connections each process accepts.
    pub connections: Option<u32>,
    /// How many eager sessions each worker accepts.
    pub sessions: Option<u32>,
    /// How many joins the coordinator accepts in a minute.
    pub joins: Option<u32>,
    /// The share of each worker's compute, relative to the holders of other tokens that want to compute at the same
    /// time.
    pub weight: Option<Weight>,
    /// When membership ends, in seconds since 1970, if the token bounds it. Only budgets in certificates have this
    /// value: the end is known when the certificate is issued.
    pub until: Option<u64>,
}

/// How many times as much compute the holders of a token get as those of a token of weight 1; from 1 to 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

impl Weight {
    /// The largest weight.
    pub const MOST: u32 = 1000;

    /// The weight of this many times, or `None` if that is not between 1 and [`Weight::MOST`].
    pub fn new(times: u32) -> Option<Weight> {
        (1..=Weight::MOST).contains(&times).then_some(Weight(times))
    }

    /// The weight as a number.
    pub fn times(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight(1)
    }
}

impl TryFrom<u32> for Weight {
    type Error = BadSubject;

    fn try_from(times: u32) -> Result<Weight, BadSubject> {
        Weight::new(times).ok_or(BadSubject::Budget)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

impl Budget {
    /// The part of a worker's memory that a client's token may use by default; the rest lets the holders of other
    /// tokens begin.
    pub const MEMORY: Amount = Amount::Percent(96);
    /// The part of the coordinator's memory that a token may use by default.
    pub const REQUESTS: Amount = Amount::Percent(25);
    /// The eager sessions at one worker that a token may have by default.
    pub const SESSIONS: u32 = 64;
    /// The joins in a minute that a token may have by default.
    pub const JOINS: u32 = 600;

    /// Whether no limit is set.
    pub fn is_default(&self) -> bool {
        *self == Budget::default()
    }

    fn fields(&self) -> [(char, Option<u64>); 9] {
        let amount = |amount: Option<Amount>| match amount {
            Some(Amount::Bytes(bytes)) => (Some(bytes), None),
            Some(Amount::Percent(percent)) => (None, Some(u64::from(percent))),
            None => (None, None),
        };
        let (memory, requests) = (amount(self.memory), amount(self.requests));
        [
            ('m', memory.0),
            ('p', memory.1),
            ('r', requests.0),
            ('q', requests.1),
            ('c', self.connections.map(u64::from)),
            ('s', self.sessions.map(u64::from)),
            ('j', self.joins.map(u64::from)),
            ('w', self.weight.map(|w| w.0.into())),
            ('u', self.until),
        ]
    }
}

/// Writes the budget in the form that certificates carry: a letter and a number for each limit that is set.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.fields().into_iter();
        set.filter_map(|(letter, value)| Some((letter, value?)))
            .try_for_each(|(letter, value)| write!(f, "{letter}{value}"))
    }
}

impl FromStr for Budget {
    type Err = BadSubject;

    fn from_str(text: &str) -> Result<Budget, BadSubject> {
        // The longest budget has nine numbers of at most twenty digits.
        if text.len() > 9 * 21 {
            return Err(BadSubject::Budget);
        }
        let mut budget = Budget::default();
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let digits = rest.get(letter.len_utf8()..).unwrap_or_default();
            let end = digits.find(|c: char| !c.is_ascii_digit());
            let (number, after) = digits.split_at(end.unwrap_or(digits.len()));
            let value: u64 = number.parse().map_err(|_| BadSubject::Budget)?;
            let count = || u32::try_from(value).map_err(|_| BadSubject::Budget);
            let percent = || {
                let percent = u8::try_from(value).ok().filter(|p| (1..=100).contains(p));
                percent.map(Amount::Percent).ok_or(BadSubject::Budget)
            };
            match letter {
                'm' => budget.memory = Some(Amount::Bytes(value)),
                'p' => budget.memory = Some(percent()?),
                'r' => budget.requests = Some(Amount::Bytes(value)),
                'q' => budget.requests = Some(percent()?),
                'c' => budget.connections = Some(count()?),
                's' => budget.sessions = Some(count()?),
                'j' => budget.joins = Some(count()?),
                'u' => budget.until = Some(value),
                'w' => budget.weight = Some(count()?.try_into()?),
                _ => return Err(BadSubject::Budget),
            }
            rest = after;
        }
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let all = Budget {
            memory: Some(Amount::Percent(50)),
            requests: Some(Amount::Bytes(u64::MAX)),
            connections: Some(3),
            sessions: Some(0),
            joins: Some(u32::MAX),
            weight: Weight::new(1000),
            until: Some(1_800_000_000),
        };
        assert_eq!(all.to_string().parse(), Ok(all));
        assert_eq!("".parse(), Ok(Budget::default()));
        let memory = Some(Amount::Bytes(512));
        let some = Budget {
            memory,
            ..Budget::default()
        };
        assert_eq!(("m512", Ok(some)), (&*some.to_string(), "m512".parse()));
        for bad in [
            "m",
            "512",
            "p0",
            "p101",
            "x1",
            "c4294967296",
            "w0",
            "w1001",
            "m-1",
            "m1é",
        ] {
            assert_eq!(bad.parse::<Budget>(), Err(BadSubject::Budget), "{bad}");
        }
    }

    #[test]
    fn a_share_is_of_the_process() {
        assert_eq!(Amount::Percent(50).of(1 << 30), 1 << 29);
        assert_eq!(Amount::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Amount::Bytes(7).of(1), 7);
    }
}
