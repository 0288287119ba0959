//! What outlives the coordinator's process: join tokens, and whose the workers' names are.
//!
//! One redb file in the state folder, over the [`Store`], which locks it against a second process; every write is on
//! disk when the call returns. The certificate authority has a file of its own, see
//! [`convoke_common::identity::ClusterCa`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use convoke_common::admission::chain;
use convoke_common::identity::TokenStore;
use convoke_common::ids::FunctionId;
use convoke_common::rpc_transport::codec::{self, CodecError};
use convoke_common::world::{FileMode, Store, StoreError, StoreFile};
use convoke_common::{Code, Error};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::membership::{Fingerprint, Record};

const FILE: &str = "coordinator.redb";

/// The file's name until the layout is in it: one that a crash left half made is not the state.
const UNFINISHED: &str = "coordinator.redb.new";

/// The layout below; another number is refused.
const FORMAT: u64 = 1;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// One entry: the whole book, which has a few hundred bytes per token.
const TOKENS: TableDefinition<&str, &[u8]> = TableDefinition::new("tokens");
/// Name to fingerprints.
const MEMBERS: TableDefinition<&str, &[u8]> = TableDefinition::new("members");
/// Names that are out of service; nothing is told of them.
const DRAINED: TableDefinition<&str, &[u8]> = TableDefinition::new("drained");
/// Function and node to the deaths of workers.
const DEATHS: TableDefinition<&str, &[u8]> = TableDefinition::new("deaths");
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
    #[error("{}", chain(source))]
    Open {
        #[source]
        source: StoreError,
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

/// The file, as redb uses it.
struct Backend(Arc<dyn StoreFile>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.0.path()).finish()
    }
}

fn failed(error: StoreError) -> io::Error {
    let kind = match &error {
        StoreError::Truncated { .. } => io::ErrorKind::UnexpectedEof,
        StoreError::Io { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.identity().map_err(failed)?.size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out).map_err(failed)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_length(len).map_err(failed)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync().map_err(failed)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data).map_err(failed)
    }
}

/// The state's file, for this process alone; and the name that it has until it is made, where it is new.
fn find_or_make(
    store: &dyn Store,
    folder: &Path,
) -> Result<(Arc<dyn StoreFile>, Option<PathBuf>), StoreError> {
    let (path, unfinished) = (folder.join(FILE), folder.join(UNFINISHED));
    let missing = || match store.open(&path) {
        Ok(_) => Ok(false),
        Err(e) if e.is_not_found() => Ok(true),
        Err(e) => Err(e),
    };
    if missing()? {
        let file = store.open_exclusive(&unfinished, FileMode::Secret)?;
        // Another process may have finished and renamed its own in between.
        if missing()? {
            file.set_length(0)?;
            return Ok((file, Some(unfinished)));
        }
    }
    Ok((store.open_exclusive(&path, FileMode::Secret)?, None))
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
    pub drained: Vec<String>,
    pub deaths: Vec<Record>,
}

fn deaths_key(function: &FunctionId, node: &str) -> String {
    let function: String = function.0.iter().map(|b| format!("{b:02x}")).collect();
    format!("{function} {node}")
}

impl State {
    /// Opens or makes the file in a folder that exists.
    pub fn open(store: &dyn Store, folder: &Path) -> Result<(State, Kept), StateError> {
        let path = folder.join(FILE);
        let file = find_or_make(store, folder).map_err(|source| match source {
            StoreError::InUse { .. } => StateError::InUse { path: path.clone() },
            source => StateError::Open { source },
        })?;
        let (file, unfinished) = file;
        let db = Database::builder().create_with_backend(Backend(file));
        let db = db.map_err(|e| StateError::Database {
            path: path.clone(),
            source: Box::new(e.into()),
        })?;
        let state = State { path, db };
        let kept = state.load()?;
        if let Some(unfinished) = unfinished {
            let named = store.rename(&unfinished, &folder.join(FILE));
            named.map_err(|source| StateError::Open { source })?;
        }
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
                    for table in [TOKENS, MEMBERS, DRAINED, DEATHS] {
                        write.open_table(table)?;
                    }
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
        let (book, members, drained, deaths) = self.wrap(|| {
            let read = self.db.begin_read()?;
            let all = |table: TableDefinition<&str, &[u8]>| {
                let mut all = Vec::new();
                for entry in read.open_table(table)?.iter()? {
                    let (key, value) = entry?;
                    all.push((key.value().to_owned(), value.value().to_vec()));
                }
                Ok::<_, redb::Error>(all)
            };
            let book = read
                .open_table(TOKENS)?
                .get(BOOK)?
                .map(|v| v.value().to_vec());
            Ok((book, all(MEMBERS)?, all(DRAINED)?, all(DEATHS)?))
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
        kept.drained = drained.into_iter().map(|(name, _)| name).collect();
        for (_, value) in deaths {
            kept.deaths.push(codec::decode(&value).map_err(damaged)?);
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

    /// Keeps whether a name is out of service.
    pub fn put_drained(&self, name: &str, drained: bool) -> Result<(), StateError> {
        self.put(DRAINED, name, drained.then_some(&[]))
    }

    /// Keeps a node in which workers died.
    pub fn put_deaths(&self, record: &Record) -> Result<(), StateError> {
        let key = deaths_key(&record.function, &record.node);
        self.put(DEATHS, &key, Some(&self.encode(record)?))
    }

    /// Forgets one.
    pub fn remove_deaths(&self, function: &FunctionId, node: &str) -> Result<(), StateError> {
        self.put(DEATHS, &deaths_key(function, node), None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use convoke_common::identity::{CaHash, Role};
    use convoke_common::world::{Disk, SystemRng};

    use super::*;
    use crate::service::testing::Scratch;

    #[test]
    fn what_was_kept_comes_back_and_nobody_else_may_read_it() {
        let scratch = Scratch::new();
        let disk = Disk::new(Arc::new(SystemRng::default()));
        let (state, kept) = State::open(&disk, scratch.path()).unwrap();
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
        state.put_drained("w0", true).unwrap();
        state.put_drained("w1", true).unwrap();
        state.put_drained("w1", false).unwrap();
        let deaths = |node: &str| Record {
            function: FunctionId([7; 32]),
            node: node.into(),
            deaths: vec![],
        };
        for node in ["n", "gone"] {
            state.put_deaths(&deaths(node)).unwrap();
        }
        state.remove_deaths(&FunctionId([7; 32]), "gone").unwrap();
        assert!(matches!(
            State::open(&disk, scratch.path()),
            Err(StateError::InUse { .. })
        ));
        drop(state);

        let (_state, kept) = State::open(&disk, scratch.path()).unwrap();
        assert_eq!(kept.tokens.list(), tokens.list());
        assert_eq!(kept.members, [("w0".to_owned(), vec![[1; 32], [2; 32]])]);
        assert_eq!(kept.drained, ["w0"]);
        assert_eq!(kept.deaths, [deaths("n")]);
        let mode = std::fs::metadata(scratch.path().join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
