//! `convoke token`: makes, lists and revokes tokens through the coordinator's Unix socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use convoke_common::identity::{JoinToken, Role, TokenInfo};
use convoke_common::world::{Disk, FileMode, Store, StoreError, SystemClock, SystemRng, WallClock};
use convoke_coordinator::admin::{AdminClient, socket_in};
use serde::Serialize;

use crate::args::{AdminArgs, TokenCommand, TokenRole};
use crate::process::machine;
use crate::text::budget;
use crate::text::failure::Failure;
use crate::text::output;

/// The coordinator's state folder: the one that is given, or the default.
pub fn coordinator_dir(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    match given {
        Some(dir) => Ok(dir),
        None => Ok(machine::state_dir("coordinator")?),
    }
}

/// Makes a client of the coordinator's Unix socket.
pub fn client(at: AdminArgs) -> Result<AdminClient, Failure> {
    let dir = coordinator_dir(at.state_dir)?;
    // A socket that another user put there would receive what only the coordinator may know. If the folder does not
    // exist, the client's own error says so.
    if dir.exists() {
        machine::check_private(&dir)?;
    }
    Ok(AdminClient::new(&socket_in(&dir)))
}

#[derive(Serialize)]
struct CreateOutput {
    token: String,
}

#[derive(Serialize)]
struct TokenFileOutput {
    token_file: String,
}

/// Writes a token to a file that only this user can read. A token that cannot be written is revoked, since nobody has
/// it.
async fn write(client: &AdminClient, file: &Path, token: &str) -> Result<(), Failure> {
    let disk = Disk::new(Arc::new(SystemRng::default()));
    let line = format!("{token}\n");
    let Err(e) = disk.write_atomic(file, line.as_bytes(), FileMode::Secret) else {
        return Ok(());
    };
    let why = match e {
        StoreError::NotFound { .. } => {
            format!("cannot write {}: its folder does not exist", file.display())
        }
        e => chain(&e),
    };
    let then = match token.parse::<JoinToken>() {
        Ok(token) => {
            let id = token.id.to_string();
            match client.revoke_token(&id).await {
                Ok(()) => format!("the token {id}, which was made for it, is revoked"),
                Err(e) => format!(
                    "`convoke token revoke {id}` ends the token that was made for it: {}",
                    e.message
                ),
            }
        }
        Err(_) => "`convoke token list` shows the token that was made for it".to_owned(),
    };
    let e = Error::new(Code::Io, why);
    let advice = format!("name a file in a folder that you may write; {then}");
    Err(e.advise(advice).into())
}

#[derive(Serialize)]
struct ListOutput {
    tokens: Vec<TokenEntry>,
}

/// The JSON form of a token.
#[derive(Serialize)]
struct TokenEntry {
    id: String,
    role: String,
    #[serde(rename = "created_unix_seconds")]
    created: u64,
    #[serde(rename = "expires_unix_seconds")]
    expires: Option<u64>,
    revoked: bool,
    /// How long a member that joined with the token may stay, in seconds; `None` means for ever.
    #[serde(rename = "member_ttl_seconds")]
    member_ttl: Option<u64>,
    /// The limits that all holders of the token share, where they are not the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<budget::BudgetOutput>,
}

impl From<TokenInfo> for TokenEntry {
    fn from(t: TokenInfo) -> TokenEntry {
        TokenEntry {
            id: t.id.to_string(),
            role: t.role.to_string(),
            created: t.created,
            expires: t.expires,
            revoked: t.revoked,
            member_ttl: t.member_ttl,
            budget: (!t.budget.is_default()).then(|| (&t.budget).into()),
        }
    }
}

#[derive(Serialize)]
struct RevokeOutput {
    revoked: String,
}

/// Makes, lists or revokes tokens.
pub async fn token(command: TokenCommand, json: bool) -> Result<(), Failure> {
    match command {
        TokenCommand::Create {
            role,
            ttl,
            member_ttl,
            budget,
            out,
            at,
        } => {
            let role = match role {
                TokenRole::Worker => Role::Worker,
                TokenRole::Client => Role::Client,
            };
            let client = client(at)?;
            let created = client.create_token(role, ttl.0, budget.into(), member_ttl.0);
            let token = created.await?;
            match (out, json) {
                (Some(file), _) => {
                    write(&client, &file, &token).await?;
                    match json {
                        true => output::json(&TokenFileOutput {
                            token_file: file.display().to_string(),
                        }),
                        false => output::print(&format!("the token is in {}", file.display())),
                    }
                }
                (None, true) => output::json(&CreateOutput { token }),
                (None, false) => output::print(&token),
            }
        }
        TokenCommand::List { at } => {
            let tokens = client(at)?.list_tokens().await?;
            match json {
                true => output::json(&ListOutput {
                    tokens: tokens.into_iter().map(TokenEntry::from).collect(),
                }),
                false => output::print(&list(&tokens, SystemClock.unix_seconds())),
            }
        }
        TokenCommand::Revoke { id, at } => {
            client(at)?.revoke_token(&id).await?;
            match json {
                true => output::json(&RevokeOutput { revoked: id }),
                false => output::print(&format!("token {id} is revoked")),
            }
        }
    }
}

fn list(tokens: &[TokenInfo], now: u64) -> String {
    let row = |t: &TokenInfo| {
        let state = match t.expires {
            _ if t.revoked => "revoked".to_owned(),
            None => "open for ever".to_owned(),
            Some(end) if end <= now => "expired".to_owned(),
            Some(end) => format!("open for {}", left(end - now)),
        };
        let age = format!("{} ago", left(now.saturating_sub(t.created)));
        let stay = t.member_ttl.map_or("any time".to_owned(), left);
        let budget = budget::words(&t.budget);
        vec![
            t.id.to_string(),
            t.role.to_string(),
            state,
            stay,
            age,
            budget,
        ]
    };
    let mut rows: Vec<Vec<String>> = tokens.iter().map(row).collect();
    let mut head = vec!["ID", "ROLE", "JOINING", "MEMBERS STAY", "MADE", "BUDGET"];
    if tokens.iter().all(|t| t.budget.is_default()) {
        head.pop();
        rows.iter_mut().for_each(|row| drop(row.pop()));
    }
    output::table(&head, &[], &rows)
}

/// Formats a time in the largest suitable unit.
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
    use convoke_common::identity::{Amount, Budget};

    #[test]
    fn tokens_say_how_long_they_are_good() {
        let token = |id: &str, expires, revoked| TokenInfo {
            id: id.parse().unwrap(),
            role: Role::Worker,
            created: 1000,
            expires,
            revoked,
            member_ttl: expires.map(|_| 7200),
            budget: Budget::default(),
        };
        let mut tokens = [
            token("aaaaaaaa", None, false),
            token("bbbbbbbb", Some(1060), false),
            token("cccccccc", Some(9000), false),
            token("dddddddd", None, true),
        ];
        assert_eq!(
            list(&tokens, 1100),
            "  ID        ROLE    JOINING        MEMBERS STAY  MADE
  aaaaaaaa  worker  open for ever  any time      100 s ago
  bbbbbbbb  worker  expired        2 h           100 s ago
  cccccccc  worker  open for 2 h   2 h           100 s ago
  dddddddd  worker  revoked        any time      100 s ago
"
        );
        tokens[0].budget.memory = Some(Amount::Percent(50));
        assert!(list(&tokens, 1100).contains("memory 50%"));
    }
}
