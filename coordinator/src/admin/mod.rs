//! The admin socket: requests that only the coordinator's owner may make.
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

pub use client::AdminClient;
pub use server::Listener;

/// The socket's file name in the run folder or the state folder.
pub const SOCKET: &str = "admin.sock";

/// Largest request line, in bytes.
const REQUEST_LIMIT: u64 = 4 << 10;

/// Largest answer line, in bytes: a backup with the most tokens, names and deaths that the state may hold.
const ANSWER_LIMIT: u64 = 64 << 20;

/// How long one exchange may take. A revocation is answered only after the workers were informed.
const EXCHANGE_BOUND: Duration = Duration::from_secs(15);

/// A request on the admin socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
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

/// The answer to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Token(String),
    Tokens(Vec<TokenInfo>),
    /// To `Drain`: whether the worker is connected and was told to end. To `Undrain`: whether plans use it.
    There(bool),
    /// The number of functions in which a node may run again.
    Lifted(u32),
    /// The text of a backup.
    Backup(String),
    Status(Box<ClusterStatus>),
    Done,
    Failed(Error),
}

/// Returns the path of the admin socket of a coordinator with this run or state folder.
pub fn socket_in(folder: &Path) -> PathBuf {
    folder.join(SOCKET)
}
