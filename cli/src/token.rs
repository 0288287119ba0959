//! `convoke token`, through the coordinator's own socket.

use std::path::PathBuf;

use convoke_common::identity::{Role, TokenInfo};
use convoke_common::world::{SystemClock, WallClock};
use convoke_coordinator::admin::{Client, socket_in};
use serde::Serialize;

use crate::args::{AdminArgs, TokenCommand, TokenRole};
use crate::failure::Failure;
use crate::{machine, output};

/// The coordinator's state folder.
pub fn coordinator_dir(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    match given {
        Some(dir) => Ok(dir),
        None => Ok(machine::state_dir("coordinator")?),
    }
}

/// The coordinator's own socket.
pub fn client(at: AdminArgs) -> Result<Client, Failure> {
    let dir = coordinator_dir(at.state_dir)?;
    Ok(Client::new(&socket_in(&dir)))
}

#[derive(Serialize)]
struct Created {
    token: String,
}

#[derive(Serialize)]
struct Listed {
    tokens: Vec<Listing>,
}

/// A token in JSON; times in seconds since 1970.
#[derive(Serialize)]
struct Listing {
    id: String,
    role: String,
    created: u64,
    expires: Option<u64>,
    revoked: bool,
}

impl From<TokenInfo> for Listing {
    fn from(t: TokenInfo) -> Listing {
        Listing {
            id: t.id.to_string(),
            role: t.role.to_string(),
            created: t.created,
            expires: t.expires,
            revoked: t.revoked,
        }
    }
}

#[derive(Serialize)]
struct Revoked {
    revoked: String,
}

/// Makes, lists or revokes.
pub async fn token(command: TokenCommand, json: bool) -> Result<(), Failure> {
    match command {
        TokenCommand::Create { role, ttl, at } => {
            let role = match role {
                TokenRole::Worker => Role::Worker,
                TokenRole::Client => Role::Client,
            };
            let token = client(at)?.create_token(role, ttl.0).await?;
            match json {
                true => output::json(&Created { token }),
                false => output::print(&token),
            }
        }
        TokenCommand::List { at } => {
            let tokens = client(at)?.list_tokens().await?;
            match json {
                true => output::json(&Listed {
                    tokens: tokens.into_iter().map(Listing::from).collect(),
                }),
                false => output::print(&list(&tokens, SystemClock.unix_seconds())),
            }
        }
        TokenCommand::Revoke { id, at } => {
            client(at)?.revoke_token(&id).await?;
            match json {
                true => output::json(&Revoked { revoked: id }),
                false => output::print(&format!("token {id} is revoked")),
            }
        }
    }
}

fn list(tokens: &[TokenInfo], now: u64) -> String {
    let row = |t: &TokenInfo| {
        let state = match t.expires {
            _ if t.revoked => "revoked".to_owned(),
            None => "good for ever".to_owned(),
            Some(end) if end <= now => "expired".to_owned(),
            Some(end) => format!("good for {}", left(end - now)),
        };
        let age = format!("{} ago", left(now.saturating_sub(t.created)));
        vec![t.id.to_string(), t.role.to_string(), state, age]
    };
    let rows: Vec<Vec<String>> = tokens.iter().map(row).collect();
    output::table(&["ID", "ROLE", "STATE", "MADE"], &[], &rows)
}

/// A time in its largest unit.
fn left(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_how_long_they_are_good() {
        let token = |id: &str, expires, revoked| TokenInfo {
            id: id.parse().unwrap(),
            role: Role::Worker,
            created: 1000,
            expires,
            revoked,
        };
        let tokens = [
            token("aaaaaaaa", None, false),
            token("bbbbbbbb", Some(1060), false),
            token("cccccccc", Some(9000), false),
            token("dddddddd", None, true),
        ];
        assert_eq!(
            list(&tokens, 1100),
            "  ID        ROLE    STATE          MADE
  aaaaaaaa  worker  good for ever  100 s ago
  bbbbbbbb  worker  expired        100 s ago
  cccccccc  worker  good for 2 h   100 s ago
  dddddddd  worker  revoked        100 s ago
"
        );
    }
}
