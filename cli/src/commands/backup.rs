//! `convoke backup` and `restore` copy the coordinator's state and certificate authority to and from one file; `convoke
//! ca` replaces the authority.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use convoke_common::world::{FileMode, NoCompute, World};
use convoke_coordinator::admin::{AdminClient, socket_in};
use convoke_coordinator::{backup_folder, restore as restore_folder};
use serde::Serialize;

use crate::args::AdminArgs;
use crate::commands::token::{client, coordinator_dir};
use crate::text::failure::Failure;
use crate::text::output;

#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Make a new authority. Members and tokens of the former one stay valid until `ca retire`; members get
    /// certificates of the new one as they renew theirs, within three days
    Rotate {
        #[command(flatten)]
        at: AdminArgs,
    },
    /// Refuse from now on everything that the former authority signed: old tokens, and certificates that were not
    /// renewed
    Retire {
        /// Do so although members may not have renewed their certificates yet: those must join with a new token
        #[arg(long, env = "CONVOKE_NOW")]
        now: bool,
        #[command(flatten)]
        at: AdminArgs,
    },
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The backup's file
    pub file: PathBuf,
    #[command(flatten)]
    pub at: AdminArgs,
}

#[derive(Serialize)]
struct BackupOutput<'a> {
    file: &'a Path,
    state_dir: &'a Path,
}

/// Copies the state of a coordinator, which may be running or not, into a file that only this user may read.
pub async fn backup(args: BackupArgs, json: bool) -> Result<(), Failure> {
    let world = World::real(Arc::new(NoCompute));
    let (file, folder) = (args.file, coordinator_dir(args.at.state_dir)?);
    let socket = socket_in(&folder);
    let text = match socket.exists() {
        true => AdminClient::new(&socket).backup().await?,
        false => backup_folder(&world, &folder)?,
    };
    let written = world
        .store
        .write_atomic(&file, text.as_bytes(), FileMode::Secret);
    written.map_err(|e| Error::new(Code::Io, chain(&e)))?;
    match json {
        true => output::json(&BackupOutput {
            file: &file,
            state_dir: &folder,
        }),
        false => output::print(&format!(
            "{} holds the state and the private key of the cluster: keep it safe",
            file.display()
        )),
    }
}

#[derive(Serialize)]
struct CaOutput {
    changed: bool,
}

/// Makes a new certificate authority, or retires the former one.
pub async fn ca(command: CaCommand, json: bool) -> Result<(), Failure> {
    let text = match command {
        CaCommand::Rotate { at } => {
            client(at)?.rotate_ca().await?;
            "there is a new authority; make new tokens and a new backup, and end the former one in a week with \
             `convoke ca retire`"
        }
        CaCommand::Retire { now, at } => {
            client(at)?.retire_ca(now).await?;
            "the former authority is retired: its tokens and certificates are good no longer"
        }
    };
    match json {
        true => output::json(&CaOutput { changed: true }),
        false => output::print(text),
    }
}

/// Makes a state folder from a backup.
pub fn restore(args: BackupArgs, json: bool) -> Result<(), Failure> {
    let world = World::real(Arc::new(NoCompute));
    let (file, folder) = (args.file, coordinator_dir(args.at.state_dir)?);
    restore_folder(&world, &folder, &file)?;
    match json {
        true => output::json(&BackupOutput {
            file: &file,
            state_dir: &folder,
        }),
        false => output::print(&format!(
            "restored into {}; start the coordinator there, and revoke again what was revoked since the backup",
            folder.display()
        )),
    }
}
