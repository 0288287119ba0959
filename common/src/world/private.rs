//! Whether other users of the host can change what this process trusts: keys, the CA, sockets.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::store::StoreError;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const ANYBODY_ELSE: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Checks that other users cannot change the file or folder, see [`Store::check_private`](super::Store::check_private).
pub(super) fn check(path: &Path) -> Result<(), StoreError> {
    let failed = |e: io::Error| StoreError::io("examine", path, e);
    // Links are resolved first, since what matters is who can change the place to which they lead.
    let real = std::fs::canonicalize(path).map_err(failed)?;
    for (i, at) in real.ancestors().enumerate() {
        let meta = std::fs::symlink_metadata(at).map_err(failed)?;
        if let Err(reason) = check_one(at, &meta, i > 0) {
            let path = at.to_owned();
            return Err(StoreError::Unsafe { path, reason });
        }
    }
    Ok(())
}

/// Checks one folder or file. `above` says that it is a folder above the checked path.
fn check_one(path: &Path, meta: &Metadata, above: bool) -> Result<(), String> {
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let (path, mode) = (path.display(), meta.mode() & 0o7777);
    if meta.uid() != user && meta.uid() != 0 {
        return Err(format!(
            "it belongs to user {}, not to user {user}, who runs this; run `chown {user} {path}`, or name another folder",
            meta.uid()
        ));
    }
    if meta.is_file() {
        return match mode & ANYBODY_ELSE {
            0 => Ok(()),
            _ => Err(format!(
                "others may read or write it (mode {mode:04o}); run `chmod 600 {path}`"
            )),
        };
    }
    // A group with the user's own number has no other members, as most systems set users up.
    let own_group = meta.gid() == group && group == user;
    let others = (mode & GROUP_WRITES != 0 && !own_group) || mode & OTHERS_WRITE != 0;
    // In a folder with the sticky bit nobody can move or remove the files of other users.
    if others && !(above && mode & STICKY != 0) {
        return Err(format!(
            "others may write into it (mode {mode:04o}); run `chmod go-w {path}`, or name another folder"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::testing::Scratch;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[track_caller]
    fn refused(path: &Path, why: &str) {
        let e = check(path).expect_err(why);
        assert!(matches!(e, StoreError::Unsafe { .. }), "{e:?}");
        assert!(e.to_string().contains(why), "{e}");
    }

    #[test]
    fn what_others_may_change_is_refused() {
        let scratch = Scratch::new();
        let (above, state) = (scratch.path("above"), scratch.path("above/state"));
        std::fs::create_dir_all(&state).unwrap();
        for mode in [0o700, 0o750, 0o755] {
            set(&state, mode);
            check(&state).unwrap();
        }
        set(&state, 0o777);
        refused(
            &state,
            "others may write into it (mode 0777); run `chmod go-w ",
        );
        // The sticky bit protects existing files of others, but lets others make new ones.
        set(&state, 0o1777);
        refused(&state, "others may write into it (mode 1777)");
        set(&state, 0o700);
        set(&above, 0o777);
        refused(
            &state,
            "/above is not safe to use: others may write into it",
        );
        set(&above, 0o1777);
        check(&state).unwrap();
        set(&above, 0o755);

        let key = state.join("key");
        std::fs::write(&key, b"secret").unwrap();
        set(&key, 0o644);
        refused(
            &key,
            "others may read or write it (mode 0644); run `chmod 600 ",
        );
        set(&key, 0o600);
        check(&key).unwrap();
        // A link is as safe as the place to which it leads.
        let link = scratch.path("link");
        symlink(&state, &link).unwrap();
        check(&link).unwrap();
        set(&state, 0o777);
        refused(&link, "/above/state is not safe to use");
        set(&state, 0o700);
        assert!(check(&scratch.path("absent")).unwrap_err().is_not_found());
        if rustix::process::geteuid().is_root() {
            chown(&state, Some(12345), None).unwrap();
            refused(&state, "it belongs to user 12345, not to user 0");
        }
    }
}
