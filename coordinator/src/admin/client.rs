//! The client side of the admin socket, which the command line uses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use convoke_common::identity::{Budget, Role, TokenInfo};
use convoke_common::rpc::ClusterStatus;
use convoke_common::{Code, Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ANSWER_LIMIT, Answer, EXCHANGE_BOUND, Request};

/// A client of one coordinator's admin socket.
#[derive(Debug, Clone)]
pub struct AdminClient {
    socket: PathBuf,
}

impl AdminClient {
    /// Returns a client for the coordinator with this socket. Each request opens a connection of its own.
    pub fn new(socket: &Path) -> AdminClient {
        AdminClient {
            socket: socket.to_owned(),
        }
    }

    /// Creates a join token and returns the line to hand to newcomers. The token admits nobody after `ttl`; `budget`
    /// bounds what all of its holders use together, and `member_ttl` how long each of them stays a member.
    pub async fn create_token(
        &self,
        role: Role,
        ttl: Option<Duration>,
        budget: Budget,
        member_ttl: Option<Duration>,
    ) -> Result<String> {
        let request = Request::CreateToken {
            role,
            ttl_seconds: ttl.map(|t| t.as_secs()),
            budget,
            member_ttl_seconds: member_ttl.map(|t| t.as_secs()),
        };
        match self.ask(&request).await? {
            Answer::Token(token) => Ok(token),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists all tokens, without their secrets.
    pub async fn list_tokens(&self) -> Result<Vec<TokenInfo>> {
        match self.ask(&Request::ListTokens).await? {
            Answer::Tokens(tokens) => Ok(tokens),
            other => Err(unexpected(&other)),
        }
    }

    /// Revokes a token and the certificates that were issued for it.
    pub async fn revoke_token(&self, id: &str) -> Result<()> {
        match self
            .ask(&Request::RevokeToken { id: id.to_owned() })
            .await?
        {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a worker out of service until [`AdminClient::undrain`]. Returns whether the worker is connected; if so, it
    /// finishes the steps in flight and ends.
    pub async fn drain(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        match self.ask(&Request::Drain { name }).await? {
            Answer::There(there) => Ok(there),
            other => Err(unexpected(&other)),
        }
    }

    /// Puts a worker back into service. Returns whether plans use it from now on: `false` if it is not connected or is
    /// ending.
    pub async fn undrain(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        match self.ask(&Request::Undrain { name }).await? {
            Answer::There(there) => Ok(there),
            other => Err(unexpected(&other)),
        }
    }

    /// Lifts the quarantine of all nodes with this name. Returns the number of functions in which one was lifted.
    pub async fn lift_quarantine(&self, node: &str) -> Result<u32> {
        let node = node.to_owned();
        match self.ask(&Request::LiftQuarantine { node }).await? {
            Answer::Lifted(functions) => Ok(functions),
            other => Err(unexpected(&other)),
        }
    }

    /// Forgets a worker that is gone: its name is free, and `status` no longer lists it.
    pub async fn forget(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        match self.ask(&Request::Forget { name }).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the text of a backup, which contains the private key of the cluster's certificate authority.
    pub async fn backup(&self) -> Result<String> {
        match self.ask(&Request::Backup).await? {
            Answer::Backup(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a new certificate authority. Certificates that the former authority signed stay valid until
    /// [`AdminClient::retire_ca`].
    pub async fn rotate_ca(&self) -> Result<()> {
        match self.ask(&Request::RotateCa).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Invalidates what the former certificate authority signed. Fails while members may still need it, unless
    /// `at_once`.
    pub async fn retire_ca(&self, at_once: bool) -> Result<()> {
        match self.ask(&Request::RetireCa { at_once }).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that the coordinator answers and that it can write its state to disk.
    pub async fn health(&self) -> Result<()> {
        match self.ask(&Request::Health).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the status of the whole cluster.
    pub async fn status(&self) -> Result<ClusterStatus> {
        match self.ask(&Request::Status).await? {
            Answer::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, request: &Request) -> Result<Answer> {
        let exchange = async {
            let stream = UnixStream::connect(&self.socket).await?;
            let (recv, mut send) = stream.into_split();
            let mut line = serde_json::to_string(request)?;
            line.push('\n');
            send.write_all(line.as_bytes()).await?;
            let mut answer = String::new();
            BufReader::new(recv.take(ANSWER_LIMIT))
                .read_line(&mut answer)
                .await?;
            Ok::<Answer, std::io::Error>(serde_json::from_str(&answer)?)
        };
        let unreachable = |why: String| {
            let msg = format!(
                "cannot ask the coordinator at {}: {why}",
                self.socket.display()
            );
            Error::unreachable(None, msg)
                .advise("run this on the coordinator's machine, as its user, with its --state-dir")
        };
        match timeout(EXCHANGE_BOUND, exchange).await {
            Ok(Ok(Answer::Failed(error))) => Err(error),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(unreachable(e.to_string())),
            Err(_) => Err(unreachable("it does not answer".to_owned())),
        }
    }
}

fn unexpected(answer: &Answer) -> Error {
    // The message names only the kind of answer: a token must not reach a log.
    let kind = match answer {
        Answer::Token(_) => "a token",
        Answer::Tokens(_) => "a list of tokens",
        Answer::There(_) => "where a worker is",
        Answer::Lifted(_) => "a number of functions",
        Answer::Backup(_) => "a backup",
        Answer::Status(_) => "a status",
        Answer::Done => "nothing",
        Answer::Failed(_) => "an error",
    };
    Error::new(
        Code::ProtocolViolation,
        format!("the coordinator answered with {kind}"),
    )
    .advise("run the same release as the coordinator")
}
