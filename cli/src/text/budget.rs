//! Budgets of tokens: the flags that set them, and the texts that show them.

use std::collections::BTreeMap;

use clap::Args;
use convoke_common::identity::{Amount, Budget, Weight};
use convoke_common::members::OpenConnections;
use convoke_common::memory::TokenHolding;
use serde::Serialize;

use crate::text::output;
use crate::text::values::{bytes, parse_size};

/// The limits that all members of a token share.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Budget of all who join with it, together")]
pub struct BudgetArgs {
    /// Memory at each worker: a size, or a part of the worker's (512MiB, 50%) [default: 96% for clients]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_MEMORY", value_parser = parse_amount)]
    memory: Option<Amount>,
    /// Memory for requests and plans at the coordinator [default: 25%, of 512MiB]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_REQUESTS", value_parser = parse_amount)]
    requests: Option<Amount>,
    /// Connections to each process [default: 512 to the coordinator, 128 to each worker]
    #[arg(long, value_name = "N", env = "CONVOKE_CONNECTIONS")]
    connections: Option<u32>,
    /// Eager sessions at each worker [default: 64]
    #[arg(long, value_name = "N", env = "CONVOKE_SESSIONS")]
    sessions: Option<u32>,
    /// Joins in a minute [default: 600]
    #[arg(long, value_name = "N", env = "CONVOKE_JOINS")]
    joins: Option<u32>,
    /// Compute at each worker while others want it too: N times as much as a token of weight 1 gets, up to 1000
    /// [default: 1]
    #[arg(long, value_name = "N", env = "CONVOKE_WEIGHT", value_parser = parse_weight)]
    weight: Option<Weight>,
}

impl From<BudgetArgs> for Budget {
    fn from(args: BudgetArgs) -> Budget {
        Budget {
            memory: args.memory,
            requests: args.requests,
            connections: args.connections,
            sessions: args.sessions,
            joins: args.joins,
            weight: args.weight,
            until: None,
        }
    }
}

/// A budget in JSON: what is set, each with its unit.
#[derive(Debug, Default, Serialize)]
pub struct BudgetOutput {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_percent: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_percent: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    joins_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
}

/// An amount by its unit: bytes or percent.
fn by_unit(amount: Option<Amount>) -> (Option<u64>, Option<u8>) {
    match amount {
        None => (None, None),
        Some(Amount::Bytes(bytes)) => (Some(bytes), None),
        Some(Amount::Percent(percent)) => (None, Some(percent)),
    }
}

impl From<&Budget> for BudgetOutput {
    fn from(budget: &Budget) -> BudgetOutput {
        let (memory_bytes, memory_percent) = by_unit(budget.memory);
        let (requests_bytes, requests_percent) = by_unit(budget.requests);
        BudgetOutput {
            memory_bytes,
            memory_percent,
            requests_bytes,
            requests_percent,
            connections: budget.connections,
            sessions: budget.sessions,
            joins_per_minute: budget.joins,
            weight: budget.weight.map(Weight::times),
        }
    }
}

/// A size, or a part of what a process has.
fn parse_amount(text: &str) -> Result<Amount, String> {
    let Some(percent) = text.trim().strip_suffix('%') else {
        return parse_size(text).map(Amount::Bytes);
    };
    let percent = percent
        .trim()
        .parse()
        .ok()
        .filter(|p| (1..=100).contains(p));
    let wrong = || format!("'{text}' is no part; write 1% to 100%");
    percent.map(Amount::Percent).ok_or_else(wrong)
}

fn parse_weight(text: &str) -> Result<Weight, String> {
    let weight = text.trim().parse().ok().and_then(Weight::new);
    weight.ok_or_else(|| format!("'{text}' is no weight; write 1 to {}", Weight::MOST))
}

/// Describes the limits that a budget sets; empty if it sets none.
pub fn words(budget: &Budget) -> String {
    let amount = |amount: Amount| match amount {
        Amount::Bytes(n) => bytes(n),
        Amount::Percent(percent) => format!("{percent}%"),
    };
    let parts = [
        budget.memory.map(|m| format!("memory {}", amount(m))),
        budget.requests.map(|r| format!("requests {}", amount(r))),
        budget.connections.map(|n| format!("{n} connections")),
        budget.sessions.map(|n| format!("{n} sessions")),
        budget.joins.map(|n| format!("{n} joins a minute")),
        budget.weight.map(|w| format!("weight {}", w.times())),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// Formats what the members of tokens hold: one row for each token and process.
pub fn table<'a>(
    processes: impl Iterator<Item = (&'a str, &'a [TokenHolding], &'a [OpenConnections])>,
) -> String {
    let mut rows = Vec::new();
    for (process, holdings, connections) in processes {
        let mut tokens: BTreeMap<&str, (Option<&TokenHolding>, Option<&OpenConnections>)> =
            BTreeMap::new();
        for holding in holdings {
            tokens.entry(holding.token.as_str()).or_default().0 = Some(holding);
        }
        for open in connections {
            tokens.entry(open.token.as_str()).or_default().1 = Some(open);
        }
        for (token, (holding, open)) in tokens {
            let none = || "-".to_owned();
            let used = |h: &TokenHolding| {
                let used = h.used.iter().filter(|(_, n)| **n > 0);
                let used = used.map(|(account, n)| format!("{} {}", account.as_str(), bytes(*n)));
                used.collect::<Vec<_>>().join(", ")
            };
            rows.push(vec![
                token.to_owned(),
                process.to_owned(),
                holding.map_or_else(none, |h| {
                    format!("{} of {}", bytes(h.total()), bytes(h.limit))
                }),
                open.map_or_else(none, |o| format!("{} of {}", o.connections, o.limit)),
                holding.map_or_else(none, used),
            ]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    rows.sort();
    let head = ["TOKEN", "AT", "MEMORY", "CONNECTIONS", "FOR"];
    format!("tokens\n{}", output::table(&head, &[2, 3], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::identity::Role;
    use convoke_common::memory::Purpose;

    #[test]
    fn amounts_are_sizes_or_parts() {
        assert_eq!(parse_amount("512MiB"), Ok(Amount::Bytes(512 << 20)));
        assert_eq!(parse_amount(" 50% "), Ok(Amount::Percent(50)));
        for bad in ["0%", "101%", "x%", "%", "-1%", "many"] {
            assert!(parse_amount(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_weight("3"), Ok(Weight::new(3).unwrap()));
        for bad in ["0", "1001", "-1", "much"] {
            assert!(parse_weight(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_budget_in_json_has_what_is_set_with_its_unit() {
        let json = |budget: &Budget| serde_json::to_value(BudgetOutput::from(budget)).unwrap();
        assert_eq!(json(&Budget::default()), serde_json::json!({}));
        let budget = Budget {
            memory: Some(Amount::Percent(50)),
            requests: Some(Amount::Bytes(1 << 20)),
            connections: Some(8),
            sessions: Some(4),
            joins: Some(60),
            weight: Weight::new(3),
            // Only certificates carry this field, so it is not shown.
            until: Some(1),
        };
        assert_eq!(
            json(&budget),
            serde_json::json!({
                "memory_percent": 50,
                "requests_bytes": 1 << 20,
                "connections": 8,
                "sessions": 4,
                "joins_per_minute": 60,
                "weight": 3,
            })
        );
    }

    #[test]
    fn who_holds_what_is_told_by_token_and_process() {
        let holding = TokenHolding {
            token: "aaaa".parse().unwrap(),
            member: "client-1".into(),
            limit: 512 << 20,
            used: [(Purpose::Handles, 300 << 20), (Purpose::Leases, 0)].into(),
        };
        let open = |token: &str| OpenConnections {
            token: token.parse().unwrap(),
            role: Role::Client,
            connections: 2,
            limit: 128,
        };
        let (holdings, at_worker, elsewhere) = ([holding], [open("aaaa")], [open("bbbb")]);
        let processes = [
            ("w0", &holdings[..], &at_worker[..]),
            ("coordinator", &[], &elsewhere[..]),
        ];
        assert_eq!(
            table(processes.into_iter()),
            "tokens
  TOKEN  AT                       MEMORY  CONNECTIONS  FOR
  aaaa   w0           300 MiB of 512 MiB     2 of 128  handles 300 MiB
  bbbb   coordinator                   -     2 of 128  -
"
        );
        assert_eq!(table(std::iter::empty()), "");
    }
}
