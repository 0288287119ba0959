//! The copy of the repository in which mutants are built in.
//!
//! It stays between runs, and its unchanged files are those of the repository, so that only what was changed compiles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::areas::package_folder;
use crate::mutate::{Mutant, mutate};

/// The module that each crate with mutants has in the copy: whether a mutant is on, and which of them a test reaches.
const SWITCH: &str = r#"
#[doc(hidden)]
#[allow(clippy::all)]
pub(crate) mod mutation_switch {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static SEEN: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    static CHOSEN: OnceLock<(Option<usize>, Option<std::path::PathBuf>)> = OnceLock::new();

    pub(crate) fn on(number: usize) -> bool {
        let (chosen, told) = CHOSEN.get_or_init(|| {
            let chosen = std::env::var("CONVOKE_MUTATION").ok();
            let told = std::env::var_os("CONVOKE_MUTATION_SEEN").map(Into::into);
            (chosen.and_then(|n| n.parse().ok()), told)
        });
        if let Some(told) = told
            && !SEEN[number].swap(true, Ordering::Relaxed)
        {
            use std::io::Write;
            let file = std::fs::OpenOptions::new().create(true).append(true).open(told);
            let _ = file.and_then(|mut f| f.write_all(format!("{number}\n").as_bytes()));
        }
        *chosen == Some(number)
    }
}
"#;

/// Removes files from `folder` of the copy that the repository no longer has.
fn remove_others(copy: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, files)?;
        } else if !files.contains(path.strip_prefix(copy)?) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The copy, and the repository that it is of.
pub struct Tree {
    pub root: PathBuf,
    pub copy: PathBuf,
}

impl Tree {
    /// Brings the copy up to date with the repository.
    pub fn new(root: &Path) -> Result<Tree> {
        let copy = root.join("target/mutation/tree");
        let list = ["ls-files", "-co", "--exclude-standard", "-z"];
        let listed = Command::new("git").args(list).current_dir(root).output()?;
        ensure!(listed.status.success(), "git cannot list the files");
        let listed = String::from_utf8(listed.stdout)?;
        let files = listed.split('\0').filter(|f| !f.is_empty());
        let files: BTreeSet<PathBuf> = files
            .filter(|f| root.join(f).is_file())
            .map(PathBuf::from)
            .collect();
        if copy.is_dir() {
            remove_others(&copy, &copy, &files)?;
        }
        for file in &files {
            let (from, to) = (root.join(file), copy.join(file));
            let folder = to.parent().context("a file lies in a folder")?;
            std::fs::create_dir_all(folder)?;
            // A link is the same file, with its time: cargo sees no change.
            let _ = std::fs::remove_file(&to);
            std::fs::hard_link(&from, &to).or_else(|_| std::fs::copy(&from, &to).map(drop))?;
        }
        Ok(Tree {
            root: root.to_owned(),
            copy,
        })
    }

    /// Writes the files with all of their mutants but those that are `skipped`, and returns the mutants.
    pub fn write(&self, files: &[String], skipped: &BTreeSet<String>) -> Result<Vec<Mutant>> {
        let (mut mutants, mut texts) = (vec![], BTreeMap::new());
        for file in files {
            let text = std::fs::read_to_string(self.root.join(file)).context(file.clone())?;
            let (found, changed) = mutate(file, &text, mutants.len(), skipped)?;
            mutants.extend(found);
            texts.insert(file.clone(), changed);
        }
        let switch = SWITCH.replace("COUNT", &mutants.len().max(1).to_string());
        let folders: BTreeSet<&str> = files.iter().filter_map(|f| package_folder(f)).collect();
        for folder in folders {
            let lib = format!("{folder}/src/lib.rs");
            let text = match texts.remove(&lib) {
                Some(text) => text,
                None => std::fs::read_to_string(self.root.join(&lib))?,
            };
            texts.insert(lib, text + &switch);
        }
        let written = self.copy.join("../written");
        for (file, text) in &texts {
            // What the last run wrote is kept with its time where it is the same.
            let (kept, to) = (written.join(file), self.copy.join(file));
            if std::fs::read_to_string(&kept).ok().as_deref() != Some(text) {
                std::fs::create_dir_all(kept.parent().context("a folder")?)?;
                let _ = std::fs::remove_file(&kept);
                std::fs::write(&kept, text)?;
            }
            let _ = std::fs::remove_file(&to);
            std::fs::hard_link(&kept, &to)?;
        }
        Ok(mutants)
    }
}
