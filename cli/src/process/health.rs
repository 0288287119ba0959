//! The health of a worker process, which `convoke status --health` reads from a Unix socket in its state folder.
//!
//! The worker answers each connection with one line, `ok` or a problem, and closes it. The socket also guards the
//! folder: a second worker that can connect to it refuses to use the folder.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use convoke_common::error::{Code, Error};
use convoke_common::world::bind_private;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::process::machine;

/// The socket's name in the state folder.
const SOCKET: &str = "worker.sock";
/// The answer of a healthy worker.
const OK: &str = "ok";
/// How long one exchange over the socket may take.
const BOUND: Duration = Duration::from_secs(3);
/// Most bytes of an answer that are read.
const LONGEST: u64 = 4096;

/// The worker's side of the socket. Dropping it removes the socket from the folder.
pub struct Health {
    socket: UnixListener,
    path: PathBuf,
}

impl Drop for Health {
    fn drop(&mut self) {
        // Another process may have removed the socket already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Health {
    /// Claims the state folder for this process, and makes the folder if it does not exist.
    ///
    /// # Errors
    /// [`Code::AddressInUse`] if another worker uses the folder; [`Code::Io`] if the folder or socket cannot be made.
    pub async fn claim(state_dir: &Path) -> Result<Health, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let path = state_dir.join(SOCKET);
        let failed = |e: std::io::Error| {
            Error::new(Code::Io, format!("cannot use {}: {e}", path.display())).advise(
                "choose a --state-dir with a short path, on a local disk, that this user may write",
            )
        };
        let mut folder = std::fs::DirBuilder::new();
        folder
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(failed)?;
        machine::check_private(state_dir)?;
        if UnixStream::connect(&path).await.is_ok() {
            let msg = format!("another worker uses {}", state_dir.display());
            return Err(Error::new(Code::AddressInUse, msg).advise(
                "stop it, or give this one its own folder with --state-dir DIR or --name NAME",
            ));
        }
        let socket = bind_private(&path).map_err(failed)?;
        Ok(Health { socket, path })
    }

    /// Answers connections for ever, each with the problem that `wrong` returns at that time, if any.
    pub async fn answer(&self, wrong: impl Fn() -> Option<Error>) -> Infallible {
        loop {
            let Ok((mut stream, _)) = self.socket.accept().await else {
                // The process may be out of file descriptors, for example.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let line = match wrong() {
                None => OK.to_owned(),
                Some(e) => format!("no contact with the coordinator: {}", e.message),
            };
            // A peer that does not read its line within the bound is dropped.
            let _ = timeout(BOUND, stream.write_all(line.as_bytes())).await;
        }
    }
}

/// Whether this folder has a worker's socket; its process may have ended.
pub fn is_worker(state_dir: &Path) -> bool {
    state_dir.join(SOCKET).exists()
}

/// Asks the worker process with this state folder how it is; the error says what is wrong.
pub async fn ask(state_dir: &Path) -> Result<(), Error> {
    let path = state_dir.join(SOCKET);
    let exchange = async {
        let stream = UnixStream::connect(&path).await?;
        let mut line = String::new();
        stream.take(LONGEST).read_to_string(&mut line).await?;
        Ok::<_, std::io::Error>(line)
    };
    let unhealthy = |why: String| {
        let msg = format!("the worker at {}: {why}", path.display());
        Err(Error::unreachable(None, msg))
    };
    match timeout(BOUND, exchange).await {
        Ok(Ok(line)) if line == OK => Ok(()),
        Ok(Ok(line)) => unhealthy(line),
        Ok(Err(e)) => unhealthy(e.to_string()),
        Err(_) => unhealthy("it does not answer".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_process_per_folder_and_it_says_how_it_is() {
        let dir = std::env::temp_dir().join(format!("convoke-health-{}", std::process::id()));
        let health = Health::claim(&dir).await.unwrap();
        let second = Health::claim(&dir).await.err().unwrap();
        assert_eq!(second.code, Code::AddressInUse);
        // The connection that the second claim made is answered too.
        tokio::select! {
            biased;
            r = ask(&dir) => assert_eq!(r, Ok(())),
            never = health.answer(|| None) => match never {},
        }
        let lost = || Some(Error::unreachable(None, "nobody at 10.0.0.1"));
        let r = tokio::select! {
            biased;
            r = ask(&dir) => r,
            never = health.answer(lost) => match never {},
        };
        let text = r.unwrap_err().message;
        assert!(
            text.ends_with("no contact with the coordinator: nobody at 10.0.0.1"),
            "{text}"
        );
        drop(health);
        assert!(!is_worker(&dir) && ask(&dir).await.is_err());
        Health::claim(&dir).await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
