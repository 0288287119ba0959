//! Unix sockets that only this user may use, from the moment at which they exist.

use std::fs::{DirBuilder, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;

use tokio::net::UnixListener;

/// Listens at `path` with the mode 0600, whatever the process's umask is, in place of a socket that exists there
/// already.
///
/// A new socket has the mode of the umask until it is changed, and another user could connect before that. So the
/// socket is made in a folder that nobody else may enter, and then moved to its place.
///
/// # Errors
/// Fails if something other than a socket is at `path`, if the folder is not writable, or if the path is longer than a
/// socket's may be.
pub fn bind_private(path: &Path) -> Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            let why = format!("{} is there and is no socket", path.display());
            return Err(Error::new(ErrorKind::AlreadyExists, why));
        }
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // The names are short because a socket's path, with its folder, has at most 107 bytes.
    let folder = path.with_file_name(format!(".s{:x}", std::process::id()));
    let made = folder.join("s");
    match DirBuilder::new().mode(0o700).create(&folder) {
        // The folder was left by a killed process that had the same id.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let _ = std::fs::remove_file(&made);
        }
        done => done?,
    }
    let bound = bind_in(&made, path);
    // Whatever remains after an error is an empty folder, and does no harm.
    let _ = std::fs::remove_file(&made);
    let _ = std::fs::remove_dir(&folder);
    bound
}

fn bind_in(made: &Path, path: &Path) -> Result<UnixListener> {
    let listener = UnixListener::bind(made)?;
    std::fs::set_permissions(made, Permissions::from_mode(0o600))?;
    std::fs::rename(made, path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::testing::Scratch;
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_socket_is_its_users_alone_and_replaces_the_one_before() {
        let scratch = Scratch::new();
        let path = scratch.path("a.sock");
        for _ in 0..2 {
            let listener = bind_private(&path).unwrap();
            let mode = std::fs::symlink_metadata(&path)
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
            let (came, went) = tokio::join!(listener.accept(), UnixStream::connect(&path));
            assert!(came.is_ok() && went.is_ok());
        }
        assert_eq!(std::fs::read_dir(scratch.path("")).unwrap().count(), 1);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"keep me").unwrap();
        let e = bind_private(&path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"keep me");
    }
}
