//! The state: what outlives the coordinator's process, mainly join tokens and the certificates that hold workers'
//! names.
//!
//! One redb file in the state folder, over the [`Store`], which locks it against a second process; every write is on
//! disk when the call returns. The certificate authority has a file of its own, see
//! [`convoke_common::identity::ClusterCa`]; the state names it, so that neither is used without the other: without the
//! state revoked tokens would be valid again, and without the authority no member's certificate would be.

mod database;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::identity::{CaHash, TokenStore};
use convoke_common::world::{Store, StoreError};
use convoke_common::{Code, Error};
use convoke_graph::codec::{self, CodecError};
use convoke_graph::ids::FunctionId;
use redb::{ReadableDatabase, ReadableTable, TableDefinition};

use crate::membership::{Absence, Fingerprint, KeptMember, Record};
use database::StateDatabase;

const FILE: &str = "coordinator.redb";

/// The file's name until its layout is complete: a file that a crash left half made is not the state.
const UNFINISHED: &str = "coordinator.redb.new";

/// The version of the layout below; any other is refused.
const FORMAT: u64 = 1;

type Table = TableDefinition<'static, &'static str, &'static [u8]>;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// A single entry: the whole book, which has a few hundred bytes per token.
const TOKENS: Table = TableDefinition::new("tokens");
/// From each name to the hashes of the certificates that hold it.
const MEMBERS: Table = TableDefinition::new("members");
/// The names that are out of service, with empty values.
const DRAINED: Table = TableDefinition::new("drained");
/// From function and node to the deaths of workers in the node.
const DEATHS: Table = TableDefinition::new("deaths");
/// From each name whose holder is gone to when it went, in seconds since 1970, and whether the holder had announced
/// that it would leave.
const GONE: Table = TableDefinition::new("gone");
/// A single entry: the hash of the authority's certificate. A state without it is new, or was left by an earlier
/// release.
const CLUSTER: Table = TableDefinition::new("cluster");
/// From each token's id to its budget, in the form of certificates. The table is absent in the state of an earlier
/// release.
const BUDGETS: Table = TableDefinition::new("budgets");
/// From the id of each token that bounds membership to the seconds for which its members may stay. The table is absent
/// in the state of an earlier release.
const MEMBER_TTLS: Table = TableDefinition::new("member-ttls");
const TABLES: [Table; 8] = [
    TOKENS,
    MEMBERS,
    DRAINED,
    DEATHS,
    GONE,
    CLUSTER,
    BUDGETS,
    MEMBER_TTLS,
];
const BOOK: &str = "book";
const CA: &str = "ca";
/// The counter of writes that only test whether the disk accepts any.
const TRIED_KEY: &str = "tried";
const FORMAT_KEY: &str = "format";

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process has locked the state.
    #[error("another coordinator uses the state folder of {}: stop it, or choose another --state-dir", path.display())]
    InUse { path: PathBuf },
    /// Another release wrote the state in a layout that is not known here.
    #[error("{} has the layout {found}, this release knows {FORMAT}: run the release that wrote it", path.display())]
    Format { path: PathBuf, found: u64 },
    /// The file cannot be opened.
    #[error("{}", chain(source))]
    Open {
        #[source]
        source: StoreError,
    },
    /// The database failed.
    #[error("cannot read or write {}: {source}; is the disk full?", path.display())]
    Database {
        path: PathBuf,
        source: Box<redb::Error>,
    },
    /// An entry does not decode.
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

/// The open state file.
pub struct State {
    database: StateDatabase,
}

/// A table, a key in it, and the value to write, or `None` to remove the key.
type Entry<'a> = (Table, &'a str, Option<Vec<u8>>);

/// The content of the state.
#[derive(Default)]
pub struct StoredState {
    /// The authority that the state belongs to, if it is known.
    pub ca: Option<CaHash>,
    pub tokens: TokenStore,
    pub members: Vec<KeptMember>,
    pub drained: Vec<String>,
    pub deaths: Vec<Record>,
}

fn deaths_key(function: &FunctionId, node: &str) -> String {
    let function: String = function.0.iter().map(|b| format!("{b:02x}")).collect();
    format!("{function} {node}")
}

impl State {
    /// Opens or creates the file in a folder that exists; `now` is in seconds since 1970.
    pub fn open(
        store: &dyn Store,
        folder: &Path,
        now: u64,
    ) -> Result<(State, StoredState), StateError> {
        let (database, unfinished) = StateDatabase::open(store, folder)?;
        let state = State { database };
        state.prepare()?;
        let kept = state.read(now)?;
        if let Some(unfinished) = unfinished {
            let named = store.rename(&unfinished, &folder.join(FILE));
            named.map_err(|source| StateError::Open { source })?;
        }
        Ok((state, kept))
    }

    /// Returns the path of this folder's state file, whether or not it exists.
    pub fn path_in(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// Returns whether this folder holds a state.
    pub fn exists(store: &dyn Store, folder: &Path) -> Result<bool, StateError> {
        match store.open(&State::path_in(folder)) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(source) => Err(StateError::Open { source }),
        }
    }

    /// Returns the path of the state file.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// Checks the layout and creates the tables, of which the state of an earlier release lacks some.
    fn prepare(&self) -> Result<(), StateError> {
        let found = self.database.with(|db| {
            let write = db.begin_write()?;
            let found = {
                let mut meta = write.open_table(META)?;
                let found = meta.get(FORMAT_KEY)?.map(|v| v.value());
                if found.is_none() {
                    meta.insert(FORMAT_KEY, FORMAT)?;
                }
                found
            };
            if found.is_none_or(|found| found == FORMAT) {
                for table in TABLES {
                    write.open_table(table)?;
                }
            }
            write.commit()?;
            Ok(found)
        })?;
        match found.filter(|f| *f != FORMAT) {
            None => Ok(()),
            Some(found) => Err(StateError::Format {
                path: self.path().to_owned(),
                found,
            }),
        }
    }

    /// Reads the whole content; `now` is in seconds since 1970.
    pub fn read(&self, now: u64) -> Result<StoredState, StateError> {
        let [
            book,
            members,
            drained,
            deaths,
            gone,
            cluster,
            budgets,
            member_ttls,
        ] = self.database.with(|db| {
            let read = db.begin_read()?;
            let all = |table: Table| {
                let mut all = Vec::new();
                for entry in read.open_table(table)?.iter()? {
                    let (key, value) = entry?;
                    all.push((key.value().to_owned(), value.value().to_vec()));
                }
                Ok::<_, redb::Error>(all)
            };
            let [a, b, c, d, e, f, g, h] = TABLES.map(all);
            Ok([a?, b?, c?, d?, e?, f?, g?, h?])
        })?;
        let damaged = |source| StateError::Damaged {
            path: self.path().to_owned(),
            source,
        };
        let mut kept = StoredState::default();
        for (_, book) in book {
            kept.tokens = codec::decode(&book).map_err(damaged)?;
        }
        for (id, value) in budgets {
            let text = std::str::from_utf8(&value).ok();
            // A budget that this release cannot read was written by another one: the defaults apply.
            let known = id.parse().ok().zip(text.and_then(|text| text.parse().ok()));
            if let Some((id, budget)) = known {
                kept.tokens.set_budget(&id, budget);
            }
        }
        for (id, value) in member_ttls {
            let seconds = codec::decode(&value).map_err(damaged)?;
            // Ignore a key that is no token's id.
            if let Ok(id) = id.parse() {
                kept.tokens.set_member_ttl(&id, seconds);
            }
        }
        for (_, ca) in cluster {
            kept.ca = Some(codec::decode(&ca).map_err(damaged)?);
        }
        let mut ends = BTreeMap::new();
        for (name, value) in gone {
            let (at, left): (u64, bool) = codec::decode(&value).map_err(damaged)?;
            let ago = Duration::from_secs(now.saturating_sub(at));
            ends.insert(name, Absence { ago, left });
        }
        for (name, value) in members {
            let gone = ends.remove(&name);
            let fingerprints = codec::decode(&value).map_err(damaged)?;
            kept.members.push(KeptMember {
                name,
                fingerprints,
                gone,
            });
        }
        kept.drained = drained.into_iter().map(|(name, _)| name).collect();
        for (_, value) in deaths {
            kept.deaths.push(codec::decode(&value).map_err(damaged)?);
        }
        Ok(kept)
    }

    /// Writes all of these entries or none; an entry without a value is removed.
    fn put_all(&self, entries: &[Entry<'_>]) -> Result<(), StateError> {
        self.database.with(|db| {
            let write = db.begin_write()?;
            for (table, key, value) in entries {
                let mut table = write.open_table(*table)?;
                match value {
                    Some(value) => table.insert(*key, value.as_slice())?,
                    None => table.remove(*key)?,
                };
            }
            write.commit()?;
            Ok(())
        })
    }

    fn put(&self, table: Table, key: &str, value: Option<Vec<u8>>) -> Result<(), StateError> {
        self.put_all(&[(table, key, value)])
    }

    /// Checks that the state can be written. After a failure the disk is tried again; the error says why it failed.
    pub fn check(&self) -> Result<(), StateError> {
        if self.database.trouble().is_none() {
            return Ok(());
        }
        self.database.with(|db| {
            let write = db.begin_write()?;
            {
                let mut meta = write.open_table(META)?;
                let tried = meta.get(TRIED_KEY)?.map_or(0, |v| v.value());
                meta.insert(TRIED_KEY, tried.wrapping_add(1))?;
            }
            write.commit()?;
            Ok(())
        })
    }

    /// Returns whether the last use of the disk failed.
    pub fn is_in_trouble(&self) -> bool {
        self.database.trouble().is_some()
    }

    /// Writes the hash of the authority that this state belongs to.
    pub fn put_ca(&self, ca: &CaHash) -> Result<(), StateError> {
        self.put(CLUSTER, CA, Some(self.encode(ca)?))
    }

    fn encode(&self, value: &impl serde::Serialize) -> Result<Vec<u8>, StateError> {
        codec::encode(value).map_err(|source| StateError::Damaged {
            path: self.path().to_owned(),
            source,
        })
    }

    /// Replaces the book of tokens, their budgets and their bounds of membership.
    pub fn put_tokens(&self, tokens: &TokenStore) -> Result<(), StateError> {
        let mut entries: Vec<Entry<'_>> = vec![(TOKENS, BOOK, Some(self.encode(tokens)?))];
        for (id, budget) in tokens.budgets() {
            entries.push((BUDGETS, id.as_str(), Some(budget.to_string().into_bytes())));
        }
        for (id, seconds) in tokens.member_ttls() {
            entries.push((MEMBER_TTLS, id.as_str(), Some(self.encode(seconds)?)));
        }
        self.put_all(&entries)
    }

    /// Writes which certificates hold a name, and that its holder is not gone.
    pub fn put_member(&self, name: &str, holders: &[Fingerprint]) -> Result<(), StateError> {
        let holders = self.encode(&holders)?;
        self.put_all(&[(MEMBERS, name, Some(holders)), (GONE, name, None)])
    }

    /// Writes since when the holder of a name is gone, in seconds since 1970, and whether it had announced that it
    /// would leave.
    pub fn put_gone(&self, name: &str, at: u64, left: bool) -> Result<(), StateError> {
        self.put(GONE, name, Some(self.encode(&(at, left))?))
    }

    /// Removes a name.
    pub fn remove_member(&self, name: &str) -> Result<(), StateError> {
        let tables = [MEMBERS, DRAINED, GONE];
        self.put_all(&tables.map(|table| (table, name, None)))
    }

    /// Writes whether a name is out of service.
    pub fn put_drained(&self, name: &str, drained: bool) -> Result<(), StateError> {
        self.put(DRAINED, name, drained.then(Vec::new))
    }

    /// Writes the record of a node in which workers died.
    pub fn put_deaths(&self, record: &Record) -> Result<(), StateError> {
        let key = deaths_key(&record.function, &record.node);
        self.put(DEATHS, &key, Some(self.encode(record)?))
    }

    /// Removes the record of a node.
    pub fn remove_deaths(&self, function: &FunctionId, node: &str) -> Result<(), StateError> {
        self.put(DEATHS, &deaths_key(function, node), None)
    }
}

#[cfg(test)]
mod tests;
