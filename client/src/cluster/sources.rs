//! The files that workers may ask this client for: those of the functions that it has loaded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_graph::artifact::ArtifactId;
use convoke_models::Source;
use convoke_rendezvous::artifacts::ArtifactSource;

/// The files that are served, by artifact. An artifact may lie in several files.
#[derive(Default)]
pub(crate) struct Sources(Mutex<BTreeMap<ArtifactId, Vec<Arc<Source>>>>);

/// The files of one function, served until this is dropped.
pub(crate) struct ServedFiles {
    sources: Arc<Sources>,
    own: Vec<Arc<Source>>,
}

impl Sources {
    /// The number of artifacts that are served.
    pub(crate) fn len(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<ArtifactId, Vec<Arc<Source>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves these files until the returned guard is dropped.
    pub(crate) fn serve(self: &Arc<Self>, sources: Vec<Source>) -> ServedFiles {
        let own: Vec<_> = sources.into_iter().map(Arc::new).collect();
        let mut all = self.all();
        for source in &own {
            let files = all.entry(source.meta().id).or_default();
            files.push(source.clone());
        }
        drop(all);
        ServedFiles {
            sources: self.clone(),
            own,
        }
    }
}

impl Drop for ServedFiles {
    fn drop(&mut self) {
        let mut all = self.sources.all();
        for source in &self.own {
            let id = source.meta().id;
            if let Some(files) = all.get_mut(&id) {
                files.retain(|f| !Arc::ptr_eq(f, source));
                if files.is_empty() {
                    all.remove(&id);
                }
            }
        }
    }
}

impl ArtifactSource for Sources {
    fn chunk(&self, id: ArtifactId, index: u64) -> Result<bytes::Bytes> {
        let files = self.all().get(&id).cloned().unwrap_or_default();
        let none = Error::new(Code::NotFound, format!("artifact {id} is not served here"));
        let mut read = Err(none);
        for file in files {
            // A file may have been removed or changed meanwhile; then the next one is read.
            read = file.read_chunk(index).map(Into::into).map_err(Into::into);
            if read.is_ok() {
                break;
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use convoke_models::ArtifactIndex;

    use super::*;

    #[test]
    fn a_file_is_served_as_long_as_somebody_has_loaded_it() {
        let dir = std::env::temp_dir().join(format!("convoke-sources-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let files = ["a", "b"].map(|name| dir.join(name));
        for file in &files {
            std::fs::write(file, b"weights").unwrap();
        }
        let sources = ArtifactIndex::new(None, None)
            .sources(&files, None)
            .unwrap();
        let id = sources[0].meta().id;
        assert_eq!(id, sources[1].meta().id);

        let served = Arc::<Sources>::default();
        let code = |served: &Sources| served.chunk(id, 0).map_err(|e| e.code);
        let [first, second] = [0, 1].map(|i| served.serve(vec![sources[i].clone()]));
        std::fs::remove_file(&files[0]).unwrap();
        assert_eq!(code(&served).unwrap(), "weights");
        drop(second);
        assert!(code(&served).is_err_and(|c| c != Code::NotFound));
        drop(first);
        assert_eq!(code(&served), Err(Code::NotFound));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
