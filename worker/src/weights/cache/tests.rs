use super::*;
use convoke_common::world::{Disk, SystemRng};

fn chunk(i: u8) -> (ChunkHash, Vec<u8>) {
    let bytes = vec![i; 100];
    (*blake3::hash(&bytes).as_bytes(), bytes)
}

fn open(folder: &Path) -> Arc<Cache> {
    bounded(folder, 250)
}

fn bounded(folder: &Path, bound: u64) -> Arc<Cache> {
    let store = Arc::new(Disk::new(Arc::new(SystemRng::default())));
    Arc::new(Cache::open(store, folder.to_owned(), bound).unwrap())
}

fn read(c: &Cache, hash: &ChunkHash) -> Option<Vec<u8>> {
    let mut buffer = vec![0; CHUNK as usize];
    let len = c.read(hash, &mut buffer)?;
    buffer.truncate(len);
    Some(buffer)
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("convoke-cache-{name}-{}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    /// Bytes of all chunks in the folder.
    fn size(&self) -> u64 {
        let chunks = std::fs::read_dir(&self.0).unwrap().map(Result::unwrap);
        let chunks = chunks.filter(|e| e.file_name().len() == 64);
        chunks.map(|e| e.metadata().unwrap().len()).sum()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bounded_by_use_but_pins_stay() {
    let dir = Folder::new("bounded");
    let c = open(&dir.0);
    let [(a, ab), (b, bb), (d, db)] = [chunk(1), chunk(2), chunk(3)];
    c.write(&a, &ab);
    c.write(&b, &bb);
    assert_eq!(read(&c, &a), Some(ab.clone()));
    c.write(&d, &db);
    assert_eq!((read(&c, &b), c.bytes()), (None, 200));
    let pins = c.pin(vec![a, d]);
    c.write(&b, &bb);
    assert_eq!(read(&c, &b), None);
    drop(pins);
    drop(c);
    // A cache that is opened again finds the chunks, and refuses a changed one.
    let c = open(&dir.0);
    assert_eq!(read(&c, &d), Some(db));
    std::fs::write(dir.0.join(hex(&a)), [9; 100]).unwrap();
    assert_eq!((read(&c, &a), c.bytes()), (None, 100));
    assert!(!dir.0.join(hex(&a)).exists());
}

#[test]
fn what_another_worker_wrote_stays() {
    let dir = Folder::new("shared");
    let (one, other) = (bounded(&dir.0, 1 << 20), bounded(&dir.0, 1 << 20));
    let (a, ab) = chunk(1);
    one.write(&a, &ab);
    // The second worker does not know of the chunk yet, and writes the same one.
    other.write(&a, &ab);
    assert_eq!(read(&one, &a), Some(ab.clone()));
    assert_eq!(read(&other, &a), Some(ab.clone()));
    assert_eq!((one.bytes(), other.bytes(), dir.size()), (100, 100, 100));
    // A chunk that the other worker evicted is only missing.
    std::fs::remove_file(dir.0.join(hex(&a))).unwrap();
    assert_eq!((read(&one, &a), one.bytes()), (None, 0));
    assert!(!one.warned.load(Ordering::Relaxed) && !other.warned.load(Ordering::Relaxed));
}

#[test]
fn the_bound_is_that_of_the_folder_and_the_order_of_use_everybodys() {
    let dir = Folder::new("together");
    let (one, other) = (open(&dir.0), open(&dir.0));
    let [(a, ab), (b, bb), (d, db)] = [chunk(1), chunk(2), chunk(3)];
    one.write(&a, &ab);
    one.write(&b, &bb);
    assert_eq!(read(&one, &a), Some(ab.clone()));
    other.write(&d, &db);
    assert_eq!(dir.size(), 200);
    // The other worker knew that `a` had been used last.
    assert_eq!((read(&one, &a), read(&one, &b)), (Some(ab), None));
    assert_eq!(read(&other, &d), Some(db));
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the threads stand for processes that share the folder"
)]
fn workers_that_write_at_once_keep_every_chunk() {
    let dir = Folder::new("at-once");
    let caches = [(); 2].map(|()| bounded(&dir.0, 1 << 20));
    let chunks: Vec<_> = (0..200).map(chunk).collect();
    std::thread::scope(|s| {
        for cache in caches.iter().flat_map(|c| [c, c]) {
            let chunks = &chunks;
            s.spawn(move || {
                for (hash, bytes) in chunks {
                    cache.write(hash, bytes);
                }
            });
        }
    });
    for cache in &caches {
        for (hash, bytes) in &chunks {
            assert_eq!(read(cache, hash).as_ref(), Some(bytes));
        }
        assert!(!cache.warned.load(Ordering::Relaxed));
    }
    assert_eq!(dir.size(), 200 * 100);
    assert!(!dir.0.join(PART).exists());
}

#[test]
fn a_chunk_that_was_cut_short_is_in_nobodys_way() {
    let dir = Folder::new("cut");
    let c = open(&dir.0);
    std::fs::write(dir.0.join(PART), b"half").unwrap();
    // A worker died before it had counted its chunks.
    std::fs::write(dir.0.join(LOCK), b"").unwrap();
    let [(a, ab), (b, bb), (d, db)] = [chunk(1), chunk(2), chunk(3)];
    for (hash, bytes) in [(&a, &ab), (&b, &bb), (&d, &db)] {
        c.write(hash, bytes);
        assert_eq!(read(&c, hash).as_ref(), Some(bytes));
    }
    assert_eq!((c.bytes(), dir.size()), (200, 200));
}

#[test]
fn trouble_is_said_once() {
    let dir = Folder::new("trouble");
    let c = open(&dir.0);
    std::fs::create_dir(dir.0.join(PART)).unwrap();
    for i in 1..3 {
        let (hash, bytes) = chunk(i);
        c.write(&hash, &bytes);
        assert_eq!((read(&c, &hash), c.bytes()), (None, 0));
    }
    assert!(c.warned.load(Ordering::Relaxed));
    std::fs::remove_dir(dir.0.join(PART)).unwrap();
    let (hash, bytes) = chunk(1);
    c.write(&hash, &bytes);
    assert_eq!(read(&c, &hash), Some(bytes));
}

#[test]
fn a_chunk_that_is_being_written_is_not_written_twice() {
    let mut index = Index::default();
    let (a, _) = chunk(1);
    assert!(index.claim(&a, 100));
    assert!(!index.claim(&a, 100) && !index.is_on_disk(&a));
    index.written(&a, false);
    assert!(index.claim(&a, 100));
    index.written(&a, true);
    assert!(index.is_on_disk(&a) && !index.claim(&a, 100));
    assert_eq!(index.bytes, 100);
}
