//! The coordinator's state folder: the state and the authority, which are opened, backed up and restored together.
//!
//! Invariants
//! 1. Neither is used without the other. An authority without its state would accept revoked tokens again; a state
//!    without its authority would be that of a cluster without members.
//! 2. At the first start the state is created first, and the hash of the authority is written to it last. A start that
//!    was interrupted in between is completed by the next one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use convoke_common::admission::chain;
use convoke_common::identity::{Budget, ClusterCa, IdentityError, TokenId, TokenStore};
use convoke_common::world::{FileMode, World};
use convoke_common::{Code, Error, Result};
use serde::{Deserialize, Serialize};

use crate::membership::{KeptMember, Record};
use crate::state::{State, StoredState};

/// The version of a backup's layout; any other is refused.
const FORMAT: u32 = 1;

/// Largest backup, in bytes. A state has at most a few MiB, since tokens, names and deaths are bounded.
const LARGEST_BACKUP: u64 = 64 << 20;

fn unusable(e: IdentityError) -> Error {
    Error::new(Code::Io, chain(&e))
}

/// The content of a state folder, after it was opened.
pub struct StateDirContents {
    pub ca: ClusterCa,
    pub state: State,
    pub kept: StoredState,
}

/// Opens the state in the folder, or creates it if the folder is empty. The state is locked first, so that of two
/// coordinators only one creates an authority.
pub fn open(world: &World, folder: &Path) -> Result<StateDirContents> {
    let store = world.store.as_ref();
    let made = store.create_dir(folder, FileMode::Secret);
    made.map_err(|e| Error::new(Code::Io, chain(&e)))?;
    let ca = ClusterCa::load(store, folder).map_err(unusable)?;
    if ca.is_some() && !State::exists(store, folder)? {
        return Err(without_state(folder));
    }
    let now = world.wall.unix_seconds();
    let (state, kept) = State::open(store, folder, now)?;
    // Another process may have created the authority meanwhile, and ended.
    let ca = match ca {
        Some(ca) => Some(ca),
        None => ClusterCa::load(store, folder).map_err(unusable)?,
    };
    let is_used = !kept.tokens.list().is_empty() || !kept.members.is_empty();
    let ca = match (ca, kept.ca) {
        (Some(ca), Some(known)) if !ca.answers_to(&known) => return Err(of_another(folder)),
        (Some(ca), _) => ca,
        (None, Some(_)) => return Err(without_authority(folder)),
        (None, None) if is_used => return Err(without_authority(folder)),
        (None, None) => ClusterCa::load_or_create(world, folder).map_err(unusable)?,
    };
    if kept.ca != Some(ca.hash()) {
        state.put_ca(&ca.hash())?;
    }
    Ok(StateDirContents { ca, state, kept })
}

/// Saves an authority that replaces the former one. Blocks.
pub fn put_authority(world: &World, state: &State, ca: &ClusterCa) -> Result<()> {
    let folder = state.path().parent().unwrap_or(Path::new("."));
    // The authority is saved first: it also answers to the hash of the former one, which the state still names.
    ca.save(world.store.as_ref(), folder).map_err(unusable)?;
    Ok(state.put_ca(&ca.hash())?)
}

fn without_state(folder: &Path) -> Error {
    let lost = "state is missing, although its authority is there: without it revoked tokens would count again";
    half_missing(State::path_in(folder), lost, ClusterCa::path(folder))
}

fn without_authority(folder: &Path) -> Error {
    let lost = "authority is missing, although its state is there: no member's certificate would be good any more";
    half_missing(ClusterCa::path(folder), lost, State::path_in(folder))
}

/// The error of a folder in which one of the two files is missing and the other one, `left`, is present.
fn half_missing(missing: PathBuf, what: &str, left: PathBuf) -> Error {
    let msg = format!("{}: the cluster's {what}", missing.display());
    Error::new(Code::Io, msg).advise(format!(
        "move {} away and restore both with `convoke restore BACKUP`; without a backup, remove it to start a new cluster, \
         which every member then joins with a new token",
        left.display()
    ))
}

fn of_another(folder: &Path) -> Error {
    let msg = format!(
        "{} and {} are of different clusters",
        State::path_in(folder).display(),
        ClusterCa::path(folder).display()
    );
    Error::new(Code::Io, msg).advise(
        "put back the one that belongs to the other, or move both away and restore a backup",
    )
}

/// A backup: everything that a coordinator needs to go on elsewhere, including the authority's private key.
#[derive(Serialize, Deserialize)]
struct Backup {
    convoke_backup: u32,
    /// The text of the authority's file.
    ca: String,
    tokens: TokenStore,
    /// The budgets of tokens, which the book does not contain. Absent in a backup of an earlier release.
    #[serde(default)]
    budgets: BTreeMap<TokenId, Budget>,
    #[serde(default)]
    member_ttls: BTreeMap<TokenId, u64>,
    members: Vec<KeptMember>,
    drained: Vec<String>,
    deaths: Vec<Record>,
}

/// Returns the text of a backup of an open state and of the authority beside it. Blocks.
pub fn backup(world: &World, state: &State) -> Result<String> {
    let folder = state.path().parent().unwrap_or(Path::new("."));
    let kept = state.read(world.wall.unix_seconds())?;
    let ca = ClusterCa::load(world.store.as_ref(), folder).map_err(unusable)?;
    let ca = ca.ok_or_else(|| without_authority(folder))?;
    let backup = Backup {
        convoke_backup: FORMAT,
        ca: ca.to_pem(),
        budgets: kept.tokens.budgets().clone(),
        member_ttls: kept.tokens.member_ttls().clone(),
        tokens: kept.tokens,
        members: kept.members,
        drained: kept.drained,
        deaths: kept.deaths,
    };
    serde_json::to_string(&backup).map_err(|e| Error::internal(e.to_string()))
}

/// Returns the text of a backup of a folder that no coordinator uses. Blocks.
pub fn backup_folder(world: &World, folder: &Path) -> Result<String> {
    let store = world.store.as_ref();
    if !State::exists(store, folder)? {
        let msg = format!("{} does not exist", State::path_in(folder).display());
        return Err(Error::new(Code::NotFound, msg)
            .advise("give the coordinator's --state-dir, or start the coordinator"));
    }
    let StateDirContents { state, .. } = open(world, folder)?;
    backup(world, &state)
}

/// Restores state and authority from the backup in `file`, to a folder that holds neither. Blocks.
pub fn restore(world: &World, folder: &Path, file: &Path) -> Result<()> {
    let store = world.store.as_ref();
    let io = |e: convoke_common::world::StoreError| Error::new(Code::Io, chain(&e));
    let bytes = store.read(file, LARGEST_BACKUP).map_err(io)?;
    let bad = |why: String| {
        let msg = format!("{} is no backup of a coordinator: {why}", file.display());
        Error::new(Code::InvalidArgument, msg).advise("give a file that `convoke backup` made")
    };
    let mut backup: Backup = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    if backup.convoke_backup != FORMAT {
        let why = format!(
            "it has the layout {}, this release knows {FORMAT}",
            backup.convoke_backup
        );
        return Err(bad(why));
    }
    let ca = ClusterCa::from_pem(&backup.ca, file).map_err(|e| bad(chain(&e)))?;
    store.create_dir(folder, FileMode::Secret).map_err(io)?;
    let has_authority = ClusterCa::load(store, folder).map_or(true, |ca| ca.is_some());
    if has_authority || State::exists(store, folder)? {
        let msg = format!("{} holds a coordinator's state already", folder.display());
        return Err(Error::new(Code::AddressInUse, msg)
            .advise("give an empty folder with --state-dir, or move what is there away"));
    }
    let now = world.wall.unix_seconds();
    let (state, _) = State::open(store, folder, now)?;
    for (id, budget) in backup.budgets {
        backup.tokens.set_budget(&id, budget);
    }
    for (id, seconds) in backup.member_ttls {
        backup.tokens.set_member_ttl(&id, seconds);
    }
    state.put_tokens(&backup.tokens)?;
    for member in &backup.members {
        state.put_member(&member.name, &member.fingerprints)?;
        if let Some(gone) = &member.gone {
            let at = now.saturating_sub(gone.ago.as_secs());
            state.put_gone(&member.name, at, gone.left)?;
        }
    }
    for name in &backup.drained {
        state.put_drained(name, true)?;
    }
    for record in &backup.deaths {
        state.put_deaths(record)?;
    }
    // The authority is written last: an interrupted restore leaves a folder that no coordinator serves from.
    state.put_ca(&ca.hash())?;
    ca.save(store, folder).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use convoke_common::identity::Role;
    use convoke_common::world::NoCompute;

    use super::*;
    use crate::CoordinatorConfig;
    use crate::service::testing::{Scratch, config, rig_with};

    const CA: &str = "cluster-ca.pem";
    const STATE: &str = "coordinator.redb";

    fn at(folder: &Path) -> CoordinatorConfig {
        CoordinatorConfig {
            state_dir: Some(folder.to_owned()),
            ..config()
        }
    }

    async fn refusal(folder: &Path) -> Error {
        let started = rig_with(at(folder)).await;
        started.err().expect("refused")
    }

    #[tokio::test]
    async fn neither_half_of_the_state_is_used_without_the_other() {
        let scratch = Scratch::new();
        let (dir, other) = (scratch.path().join("a"), scratch.path().join("b"));
        for folder in [&dir, &other] {
            let rig = rig_with(at(folder)).await.unwrap();
            let token = rig.token(Role::Worker).await;
            rig.running.revoke_token(&token.id).await.unwrap();
            rig.running
                .shutdown(std::time::Duration::from_secs(5))
                .await;
        }
        let (state, ca) = (dir.join(STATE), dir.join(CA));
        for (missing, says) in [(&state, "revoked tokens"), (&ca, "no member's certificate")] {
            let aside = scratch.path().join("aside");
            std::fs::rename(missing, &aside).unwrap();
            for _ in 0..2 {
                let error = refusal(&dir).await;
                assert!(error.message.contains(says), "{error}");
                assert!(error.to_string().contains("convoke restore"), "{error}");
                assert!(!missing.exists(), "a refusal makes nothing");
            }
            std::fs::rename(&aside, missing).unwrap();
        }
        std::fs::copy(other.join(CA), &ca).unwrap();
        let error = refusal(&dir).await;
        assert!(error.message.contains("different clusters"), "{error}");
    }

    #[tokio::test]
    async fn what_was_backed_up_is_restored_with_what_was_revoked() {
        let scratch = Scratch::new();
        let (dir, copy) = (scratch.path().join("a"), scratch.path().join("copy"));
        let world = World::real(Arc::new(NoCompute));
        let rig = rig_with(at(&dir)).await.unwrap();
        let hash = rig.running.ca_hash();
        let (good, revoked) = (rig.token(Role::Worker).await, rig.token(Role::Worker).await);
        let member = rig.join(&revoked, Role::Worker, "bad").await.unwrap();
        rig.join(&good, Role::Worker, "good").await.unwrap();
        let budget: Budget = "j3".parse().unwrap();
        let create = rig.running.create_token_with(Role::Client, None, budget);
        let bounded = create.await.unwrap();
        let hour = std::time::Duration::from_secs(3600);
        rig.running
            .bound_membership(&bounded.id, hour)
            .await
            .unwrap();
        rig.running.revoke_token(&revoked.id).await.unwrap();
        let tokens = rig.running.tokens().await;
        rig.running
            .shutdown(std::time::Duration::from_secs(5))
            .await;

        let file = scratch.path().join("backup");
        std::fs::write(&file, backup_folder(&world, &dir).unwrap()).unwrap();
        restore(&world, &copy, &file).unwrap();
        let error = restore(&world, &copy, &file).unwrap_err();
        assert_eq!(error.code, Code::AddressInUse, "{error}");
        let rig = rig_with(at(&copy)).await.unwrap();
        assert_eq!(rig.running.ca_hash(), hash);
        assert_eq!(rig.running.tokens().await, tokens);
        let restored = tokens.iter().find(|t| t.id == bounded.id).unwrap();
        assert_eq!((restored.budget, restored.member_ttl), (budget, Some(3600)));
        assert!(rig.connect(&member).await.is_err(), "it was revoked");
        assert!(rig.join(&revoked, Role::Worker, "bad").await.is_err());
        rig.join(&good, Role::Worker, "good").await.unwrap();

        for (text, says) in [("{}", "convoke_backup"), ("\u{0}", "backup")] {
            std::fs::write(&file, text).unwrap();
            let error = restore(&world, &scratch.path().join("c"), &file).unwrap_err();
            assert!(error.message.contains(says), "{error}");
        }
    }
}
