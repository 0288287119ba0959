//! The server side of the admin socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::world::bind_private;
use convoke_common::{Code, Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Answer, EXCHANGE_BOUND, REQUEST_LIMIT, Request};
use crate::service::Service;
use convoke_common::tasks::Tasks;

/// How many exchanges are served at once.
const AT_ONCE: usize = 16;

/// The pause after a failed accept, whose cause may be a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket; its file is removed when the listener is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // This fails if somebody else already removed the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Listener {
    /// Listens at `path` and replaces a socket file that no process listens at any more.
    pub async fn bind(path: &Path) -> Result<Listener> {
        let failed = |e: io::Error| {
            let e = Error::new(
                Code::Io,
                format!("cannot listen at {}: {e}", path.display()),
            );
            e.advise("choose a --state-dir with a short path on a local disk")
        };
        if UnixStream::connect(path).await.is_ok() {
            let message = format!("another coordinator listens at {}", path.display());
            return Err(Error::new(Code::AddressInUse, message)
                .advise("stop it, or choose another --state-dir"));
        }
        let socket = bind_private(path).map_err(failed)?;
        Ok(Listener {
            socket,
            path: path.to_owned(),
        })
    }

    /// Accepts and answers requests until the task that runs this is stopped.
    pub async fn run(self, service: Arc<Service>, tasks: Tasks) {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        while let Ok(place) = places.clone().acquire_owned().await {
            let stream = match self.socket.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the admin socket accepts nobody");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let service = service.clone();
            tasks.spawn(async move {
                let _place = place;
                match timeout(EXCHANGE_BOUND, exchange(&service, stream)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "an admin request was cut short"),
                    Err(_) => tracing::debug!("an admin request took too long"),
                }
            });
        }
    }
}

async fn exchange(service: &Arc<Service>, stream: UnixStream) -> io::Result<()> {
    let (peer, own) = (stream.peer_cred()?.uid(), rustix::process::geteuid());
    let (recv, mut send) = stream.into_split();
    let answer = if peer == own.as_raw() || peer == 0 {
        let mut line = String::new();
        BufReader::new(recv.take(REQUEST_LIMIT))
            .read_line(&mut line)
            .await?;
        match serde_json::from_str(&line) {
            Ok(request) => perform(service, request).await,
            Err(e) => Err(Error::new(
                Code::InvalidArgument,
                format!("not a request: {e}"),
            )),
        }
    } else {
        let e = Error::new(
            Code::Unauthorized,
            format!("user {peer} does not own this coordinator"),
        );
        Err(e.advise("run this as the coordinator's user"))
    };
    let mut line = serde_json::to_string(&answer.unwrap_or_else(Answer::Failed))?;
    line.push('\n');
    send.write_all(line.as_bytes()).await
}

async fn perform(service: &Arc<Service>, request: Request) -> Result<Answer> {
    match request {
        Request::CreateToken {
            role,
            ttl_seconds,
            budget,
            member_ttl_seconds,
        } => {
            let token = service
                .authority
                .create(role, ttl_seconds.map(Duration::from_secs), budget)
                .await?;
            if let Some(seconds) = member_ttl_seconds {
                let ttl = Duration::from_secs(seconds);
                service.authority.bound_membership(&token.id, ttl).await?;
            }
            tracing::info!(token = %token.id, %role, "token created");
            Ok(Answer::Token(token.to_string()))
        }
        Request::ListTokens => Ok(Answer::Tokens(service.authority.list().await)),
        Request::RevokeToken { id } => {
            let id = id
                .parse()
                .map_err(|e| Error::new(Code::InvalidArgument, format!("'{id}': {e}")))?;
            service.revoke(&id).await?;
            Ok(Answer::Done)
        }
        Request::Drain { name } => Ok(Answer::There(service.drain(&name).await?)),
        Request::Undrain { name } => Ok(Answer::There(service.undrain(&name).await?)),
        Request::Forget { name } => service.forget(name).await.map(|()| Answer::Done),
        Request::RotateCa => {
            let hash = service.authority.rotate().await?;
            tracing::info!(?hash, "the certificate authority was replaced");
            Ok(Answer::Done)
        }
        Request::RetireCa { at_once } => {
            service.retire_ca(at_once).await?;
            Ok(Answer::Done)
        }
        Request::Backup => Ok(Answer::Backup(service.backup().await?)),
        Request::Health => service.health().await.map(|()| Answer::Done),
        Request::Status => Ok(Answer::Status(Box::new(service.status().await?))),
        Request::LiftQuarantine { node } => Ok(Answer::Lifted(service.lift(node).await?)),
    }
}
