//! The admin socket: what only the coordinator's owner may do.
//!
//! A Unix socket of mode 0600; one request and one answer per connection, each one line of JSON. The peer's user id is
//! checked as well.

mod client;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use convoke_common::Error;
use convoke_common::identity::{Budget, Role, TokenInfo};
use convoke_common::rpc::ClusterStatus;
use serde::{Deserialize, Serialize};

pub use client::Client;
pub use server::Listener;

/// The socket's name in the run or state folder.
pub const SOCKET: &str = "admin.sock";

/// Longest request line.
const REQUEST_LIMIT: u64 = 4 << 10;

/// Longest answer: a backup, with all tokens, names and deaths that there may be.
const ANSWER_LIMIT: u64 = 64 << 20;

/// How long one exchange may take: workers are told of a revocation before it is answered.
const EXCHANGE_BOUND: Duration = Duration::from_secs(15);

/// What may be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    CreateToken {
        role: Role,
        ttl_seconds: Option<u64>,
        #[serde(default)]
        budget: Budget,
        #[serde(default)]
        member_ttl_seconds: Option<u64>,
    },
    ListTokens,
    RevokeToken {
        id: String,
    },
    Drain {
        name: String,
    },
    Undrain {
        name: String,
    },
    LiftQuarantine {
        node: String,
    },
    Forget {
        name: String,
    },
    Backup,
    Health,
    Status,
    RotateCa,
    RetireCa {
        at_once: bool,
    },
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Token(String),
    Tokens(Vec<TokenInfo>),
    /// Of a drained worker, whether it is there and told to end; of one asked back, whether plans use it.
    There(bool),
    /// In how many functions a node may run again.
    Lifted(u32),
    /// The text of a backup.
    Backup(String),
    Status(Box<ClusterStatus>),
    Done,
    Failed(Error),
}

/// Where a coordinator with this folder has its socket.
pub fn socket_in(folder: &Path) -> PathBuf {
    folder.join(SOCKET)
}

/// Whether a line is a request, for fuzzing.
pub(crate) fn is_request(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    serde_json::from_str::<Request>(&line).is_ok()
}

/// Whether a line is an answer, for fuzzing.
pub(crate) fn is_answer(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    match serde_json::from_str(&line) {
        Ok(Answer::Failed(error)) => !error.to_string().is_empty(),
        Ok(_) => true,
        Err(_) => false,
    }
}
