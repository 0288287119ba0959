//! What outlives the coordinator's process: join tokens, and whose the workers' names are.
//!
//! One redb file in the state folder. redb does its own file I/O and locks the file against a second process; every
//! write is on disk when the call returns. The certificate authority has a file of its own, see
//! [`convoke_common::identity::ClusterCa`].

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use convoke_common::identity::TokenStore;
use convoke_common::rpc_transport::codec::{self, CodecError};
use convoke_common::{Code, Error};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use crate::membership::Fingerprint;

const FILE: &str = "coordinator.redb";

/// The layout below; another number is refused.
const FORMAT: u64 = 1;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// One entry: the whole book, which has a few hundred bytes per token.
const TOKENS: TableDefinition<&str, &[u8]> = TableDefinition::new("tokens");
/// Name to fingerprints.
const MEMBERS: TableDefinition<&str, &[u8]> = TableDefinition::new("members");
const BOOK: &str = "book";
const FORMAT_KEY: &str = "format";

/// Why the state could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process has it.
    #[error("another coordinator uses the state folder of {}: stop it, or choose another --state-dir", path.display())]
    InUse { path: PathBuf },
    /// Written by another release.
    #[error("{} has the layout {found}, this release knows {FORMAT}: run the release that wrote it", path.display())]
    Format { path: PathBuf, found: u64 },
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The database's own error.
    #[error("cannot read or write {}: {source}", path.display())]
    Database {
        path: PathBuf,
        source: Box<redb::Error>,
    },
    /// An entry that does not decode.
    #[error("{} is damaged; restore it from a backup", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: CodecError,
    },
}

impl From<StateError> for Error {
    fn from(e: StateError) -> Error {
        let code = match e {
            StateError::InUse { .. } => Code::AddressInUse,
            _ => Code::Io,
        };
        Error::new(code, e.to_string())
    }
}

/// The open file.
pub struct State {
    path: PathBuf,
    db: Database,
}

/// What it held when it was opened.
#[derive(Default)]
pub struct Kept {
    pub tokens: TokenStore,
    pub members: Vec<(String, Vec<Fingerprint>)>,
}

impl State {
    /// Opens or makes the file in a folder that exists.
    pub fn open(folder: &Path) -> Result<(State, Kept), StateError> {
        let path = folder.join(FILE);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| StateError::Open {
                path: path.clone(),
                source,
            })?;
        let db = Database::builder().create_file(file).map_err(|e| match e {
            DatabaseError::DatabaseAlreadyOpen => StateError::InUse { path: path.clone() },
            e => StateError::Database {
                path: path.clone(),
                source: Box::new(e.into()),
            },
        })?;
        let state = State { path, db };
        let kept = state.load()?;
        Ok((state, kept))
    }

    fn wrap<T>(&self, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StateError> {
        work().map_err(|e| StateError::Database {
            path: self.path.clone(),
            source: Box::new(e),
        })
    }

    fn load(&self) -> Result<Kept, StateError> {
        let found = self.wrap(|| {
            let write = self.db.begin_write()?;
            let found = {
                let mut meta = write.open_table(META)?;
                let found = meta.get(FORMAT_KEY)?.map(|v| v.value());
                if found.is_none() {
                    meta.insert(FORMAT_KEY, FORMAT)?;
                    write.open_table(TOKENS)?;
                    write.open_table(MEMBERS)?;
                }
                found
            };
            write.commit()?;
            Ok(found)
        })?;
        if let Some(found) = found.filter(|f| *f != FORMAT) {
            return Err(StateError::Format {
                path: self.path.clone(),
                found,
            });
        }
        let (book, members) = self.wrap(|| {
            let read = self.db.begin_read()?;
            let book = read
                .open_table(TOKENS)?
                .get(BOOK)?
                .map(|v| v.value().to_vec());
            let mut members = Vec::new();
            for entry in read.open_table(MEMBERS)?.iter()? {
                let (name, value) = entry?;
                members.push((name.value().to_owned(), value.value().to_vec()));
            }
            Ok((book, members))
        })?;
        let damaged = |source| StateError::Damaged {
            path: self.path.clone(),
            source,
        };
        let mut kept = Kept::default();
        if let Some(book) = book {
            kept.tokens = codec::decode(&book).map_err(damaged)?;
        }
        for (name, value) in members {
            kept.members
                .push((name, codec::decode(&value).map_err(damaged)?));
        }
        Ok(kept)
    }

    fn put(
        &self,
        table: TableDefinition<&str, &[u8]>,
        key: &str,
        value: Option<&[u8]>,
    ) -> Result<(), StateError> {
        self.wrap(|| {
            let write = self.db.begin_write()?;
            {
                let mut table = write.open_table(table)?;
                match value {
                    Some(value) => table.insert(key, value)?,
                    None => table.remove(key)?,
                };
            }
            write.commit()?;
            Ok(())
        })
    }

    fn encode(&self, value: &impl serde::Serialize) -> Result<Vec<u8>, StateError> {
        codec::encode(value).map_err(|source| StateError::Damaged {
            path: self.path.clone(),
            source,
        })
    }

    /// Replaces the book of tokens.
    pub fn put_tokens(&self, tokens: &TokenStore) -> Result<(), StateError> {
        self.put(TOKENS, BOOK, Some(&self.encode(tokens)?))
    }

    /// Keeps whose a name is.
    pub fn put_member(&self, name: &str, holders: &[Fingerprint]) -> Result<(), StateError> {
        self.put(MEMBERS, name, Some(&self.encode(&holders)?))
    }

    /// Forgets a name.
    pub fn remove_member(&self, name: &str) -> Result<(), StateError> {
        self.put(MEMBERS, name, None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use convoke_common::identity::{CaHash, Role};
    use convoke_common::world::SystemRng;

    use super::*;
    use crate::service::testing::Scratch;

    #[test]
    fn what_was_kept_comes_back_and_nobody_else_may_read_it() {
        let scratch = Scratch::new();
        let (state, kept) = State::open(scratch.path()).unwrap();
        assert!(kept.members.is_empty() && kept.tokens.list().is_empty());
        let mut tokens = kept.tokens;
        tokens.create(
            &SystemRng::default(),
            CaHash::from_bytes([1; 32]),
            Role::Worker,
            None,
            5,
        );
        state.put_tokens(&tokens).unwrap();
        state.put_member("w0", &[[1; 32], [2; 32]]).unwrap();
        state.put_member("w1", &[[3; 32]]).unwrap();
        state.remove_member("w1").unwrap();
        assert!(matches!(
            State::open(scratch.path()),
            Err(StateError::InUse { .. })
        ));
        drop(state);

        let (_state, kept) = State::open(scratch.path()).unwrap();
        assert_eq!(kept.tokens.list(), tokens.list());
        assert_eq!(kept.members, [("w0".to_owned(), vec![[1; 32], [2; 32]])]);
        let mode = std::fs::metadata(scratch.path().join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
