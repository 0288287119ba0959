//! What outlives the coordinator's process: join tokens, and whose the workers' names are.
//!
//! One redb file in the state folder, over the [`Store`], which locks it against a second process; every write is on
//! disk when the call returns. The certificate authority has a file of its own, see
//! [`convoke_common::identity::ClusterCa`]; the state names it, so that neither is used without the other: without the
//! state revoked tokens would count again, and without the authority nobody's certificate would.

mod database;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::identity::{CaHash, TokenStore};
use convoke_common::ids::FunctionId;
use convoke_common::rpc_transport::codec::{self, CodecError};
use convoke_common::world::{Store, StoreError};
use convoke_common::{Code, Error};
use redb::{ReadableDatabase, ReadableTable, TableDefinition};

use crate::membership::{Fingerprint, Gone, KeptMember, Record};
use database::Reopened;

const FILE: &str = "coordinator.redb";

/// The file's name until the layout is in it: one that a crash left half made is not the state.
const UNFINISHED: &str = "coordinator.redb.new";

/// The layout below; another number is refused.
const FORMAT: u64 = 1;

type Table = TableDefinition<'static, &'static str, &'static [u8]>;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// One entry: the whole book, which has a few hundred bytes per token.
const TOKENS: Table = TableDefinition::new("tokens");
/// Name to fingerprints.
const MEMBERS: Table = TableDefinition::new("members");
/// Names that are out of service; nothing is told of them.
const DRAINED: Table = TableDefinition::new("drained");
/// Function and node to the deaths of workers.
const DEATHS: Table = TableDefinition::new("deaths");
/// Name to since when its holder is gone, in seconds since 1970, and whether it had said that it would leave.
const GONE: Table = TableDefinition::new("gone");
/// One entry: the hash of the authority's certificate. A state without it is new, or was left by an earlier release.
const CLUSTER: Table = TableDefinition::new("cluster");
/// Token id to what its holders may have, as it is written in certificates. Absent in state of an earlier release.
const BUDGETS: Table = TableDefinition::new("budgets");
/// Token id to the seconds for which whoever joins with it may stay, of those tokens that bound it. Absent in state of an
/// earlier release.
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
/// Counts the writes that only try whether the disk takes any.
const TRIED_KEY: &str = "tried";
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
    #[error("cannot read or write {}: {source}; is the disk full?", path.display())]
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
    database: Reopened,
}

/// A table, a key in it, and what is to be there.
type Entry<'a> = (Table, &'a str, Option<Vec<u8>>);

/// What it held when it was opened.
#[derive(Default)]
pub struct Kept {
    /// The authority that it belongs to, where it is known.
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
    /// Opens or makes the file in a folder that exists, at `now` in seconds since 1970.
    pub fn open(store: &dyn Store, folder: &Path, now: u64) -> Result<(State, Kept), StateError> {
        let (database, unfinished) = Reopened::open(store, folder)?;
        let state = State { database };
        state.prepare()?;
        let kept = state.read(now)?;
        if let Some(unfinished) = unfinished {
            let named = store.rename(&unfinished, &folder.join(FILE));
            named.map_err(|source| StateError::Open { source })?;
        }
        Ok((state, kept))
    }

    /// Where the file of this folder is, whether or not it is there.
    pub fn path_in(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// Whether this folder holds a state.
    pub fn exists(store: &dyn Store, folder: &Path) -> Result<bool, StateError> {
        match store.open(&State::path_in(folder)) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(source) => Err(StateError::Open { source }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// Makes the tables, of which a state of an earlier release lacks some.
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

    /// All that it holds, at `now` in seconds since 1970.
    pub fn read(&self, now: u64) -> Result<Kept, StateError> {
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
        let mut kept = Kept::default();
        for (_, book) in book {
            kept.tokens = codec::decode(&book).map_err(damaged)?;
        }
        for (id, value) in budgets {
            let text = std::str::from_utf8(&value).ok();
            // What this release cannot read is another's: the defaults hold.
            let known = id.parse().ok().zip(text.and_then(|text| text.parse().ok()));
            if let Some((id, budget)) = known {
                kept.tokens.set_budget(&id, budget);
            }
        }
        for (id, value) in member_ttls {
            let seconds = codec::decode(&value).map_err(damaged)?;
            // Keys that are no ids are those of no token.
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
            ends.insert(name, Gone { ago, left });
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

    /// Writes all of these entries, or none; without a value an entry is removed.
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

    /// Whether what is asked to be kept is: an error says why the last write failed. The disk is tried again for that.
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

    /// Whether the last use of the disk failed.
    pub fn is_in_trouble(&self) -> bool {
        self.database.trouble().is_some()
    }

    /// Names the authority that this state belongs to.
    pub fn put_ca(&self, ca: &CaHash) -> Result<(), StateError> {
        self.put(CLUSTER, CA, Some(self.encode(ca)?))
    }

    fn encode(&self, value: &impl serde::Serialize) -> Result<Vec<u8>, StateError> {
        codec::encode(value).map_err(|source| StateError::Damaged {
            path: self.path().to_owned(),
            source,
        })
    }

    /// Replaces the book of tokens, with their budgets and the bounds of membership.
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

    /// Keeps whose a name is, and that its holder is there.
    pub fn put_member(&self, name: &str, holders: &[Fingerprint]) -> Result<(), StateError> {
        let holders = self.encode(&holders)?;
        self.put_all(&[(MEMBERS, name, Some(holders)), (GONE, name, None)])
    }

    /// Keeps since when the holder of a name is gone, in seconds since 1970, and whether it had said that it would leave.
    pub fn put_gone(&self, name: &str, at: u64, left: bool) -> Result<(), StateError> {
        self.put(GONE, name, Some(self.encode(&(at, left))?))
    }

    /// Forgets a name.
    pub fn remove_member(&self, name: &str) -> Result<(), StateError> {
        let tables = [MEMBERS, DRAINED, GONE];
        self.put_all(&tables.map(|table| (table, name, None)))
    }

    /// Keeps whether a name is out of service.
    pub fn put_drained(&self, name: &str, drained: bool) -> Result<(), StateError> {
        self.put(DRAINED, name, drained.then(Vec::new))
    }

    /// Keeps a node in which workers died.
    pub fn put_deaths(&self, record: &Record) -> Result<(), StateError> {
        let key = deaths_key(&record.function, &record.node);
        self.put(DEATHS, &key, Some(self.encode(record)?))
    }

    /// Forgets one.
    pub fn remove_deaths(&self, function: &FunctionId, node: &str) -> Result<(), StateError> {
        self.put(DEATHS, &deaths_key(function, node), None)
    }
}

#[cfg(test)]
mod tests;
