use super::*;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Mutex;

use convoke_common::identity::{
    ClusterCa, PeerName, RevocationList, Role, TlsConfigs, dial, greet,
};
use convoke_common::memory::{Ledger, Purpose};
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use convoke_graph::DType;
use convoke_graph::artifact::ArtifactId;
use convoke_graph::graph::{TensorType, Value};
use convoke_graph::ids::FunctionId;
use convoke_graph::program::NUMERICS_PROFILE;
use convoke_rendezvous::artifacts::{self, ArtifactSource};

use crate::weights::cache::Cache;
use crate::weights::load_buffer::LoadBuffer;
use crate::weights::loader::{ClientSource, LoadedBytes};

/// More than any of these loads takes.
const BOUND: Duration = Duration::from_secs(20);

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("convoke-feed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn data(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

fn meta(bytes: &[u8], path: &str) -> ArtifactMeta {
    let chunks = bytes.chunks(CHUNK as usize);
    let hashes = chunks.map(|c| *blake3::hash(c).as_bytes()).collect();
    ArtifactMeta::new(path.into(), bytes.len() as u64, hashes)
}

/// A client with one file, which records the chunks that it is asked for.
#[derive(Default)]
struct Client {
    file: Vec<u8>,
    asked: Mutex<Vec<u64>>,
    /// Length of the file as this client can read it, if it is cut short.
    ends: Option<u64>,
}

impl ArtifactSource for Client {
    fn chunk(&self, _: ArtifactId, index: u64) -> Result<bytes::Bytes> {
        self.asked.lock().unwrap().push(index);
        if self.ends.is_some_and(|e| index >= e) {
            return Err(Error::new(Code::Io, "the file changed"));
        }
        let chunk = self.file.chunks(CHUNK as usize).nth(index as usize);
        Ok(chunk.unwrap_or_default().to_vec().into())
    }
}

fn client(file: &[u8]) -> Client {
    Client {
        file: file.to_vec(),
        ..Client::default()
    }
}

/// A load: these ranges as the literals of a program, in this order.
struct Rig {
    world: World,
    meta: ArtifactMeta,
    ranges: Vec<(u64, u64)>,
    root: Option<PathBuf>,
    cache: Option<Arc<Cache>>,
    client: Option<ClientSource>,
    loaded: Arc<LoadedBytes>,
    ledger: Ledger,
    load_buffer: Arc<LoadBuffer>,
}

impl Rig {
    fn new(meta: ArtifactMeta, ranges: &[(u64, u64)]) -> Rig {
        // The smallest load buffer has seven chunks.
        let ledger = Ledger::new("w0", 64 << 20);
        Rig {
            world: World::real(Arc::new(NoCompute)),
            meta,
            ranges: ranges.to_vec(),
            root: None,
            cache: None,
            client: None,
            loaded: Arc::default(),
            load_buffer: Arc::new(LoadBuffer::reserve(&ledger)),
            ledger,
        }
    }

    fn local(self, client: &Arc<Client>) -> Rig {
        let client = Some(ClientSource::Local(client.clone()));
        Rig { client, ..self }
    }

    fn cached(self, folder: &Folder) -> Rig {
        let cache = Cache::open(self.world.store.clone(), folder.0.clone(), 1 << 30);
        let cache = Some(Arc::new(cache.unwrap()));
        Rig { cache, ..self }
    }

    fn program(&self) -> Arc<Program> {
        let value = |(_, len): &(u64, u64)| Value {
            name: "w".into(),
            ty: TensorType::fixed(DType::U8, &[*len as usize]),
        };
        let literal = |(v, (offset, len)): (usize, &(u64, u64))| {
            let range = Literal::Range {
                artifact: 0,
                offset: *offset,
                len: *len,
            };
            (v as u32, range)
        };
        Arc::new(Program {
            name: "test".into(),
            function: FunctionId([7; 32]),
            profile: NUMERICS_PROFILE.into(),
            values: self.ranges.iter().map(value).collect(),
            literals: self.ranges.iter().enumerate().map(literal).collect(),
            artifacts: vec![self.meta.clone()],
            nodes: vec![],
            init_nodes: 0,
            recvs: vec![],
            sends: vec![],
        })
    }

    fn start(&self) -> (Feed, Arc<Loader>) {
        let loader = Arc::new(Loader::new(
            self.world.clone(),
            self.root.clone(),
            self.cache.clone(),
            self.client.clone(),
            self.loaded.clone(),
            self.load_buffer.clone(),
        ));
        let pool = Pool::new(&self.ledger, Purpose::Weights, 0).unwrap();
        let wanted = (0..self.ranges.len() as u32).collect();
        let feed = Feed::start(loader.clone(), self.program(), wanted, pool);
        (feed, loader)
    }

    async fn load(&self) -> Result<Vec<Vec<u8>>> {
        let program = self.program();
        let (mut feed, loader) = self.start();
        let counter = Counter::default();
        let mut values = vec![None; program.values.len()];
        for (v, literal) in &program.literals {
            feed.load(*v, literal, &mut values, &counter).await?;
        }
        loader.written().await;
        let all: u64 = self.ranges.iter().map(|(_, len)| len).sum();
        assert_eq!(counter.done.load(Ordering::Relaxed), all);
        let bytes = |t: Option<Tensor>| t.unwrap().bytes().to_vec();
        Ok(values.into_iter().map(bytes).collect())
    }

    /// Loads, compares the values with the file, and checks that nothing is left.
    async fn check(&self, file: &[u8]) {
        let loaded = tokio::time::timeout(BOUND, self.load()).await.unwrap();
        for ((offset, len), bytes) in self.ranges.iter().zip(loaded.unwrap()) {
            let expected = &file[*offset as usize..(offset + len) as usize];
            assert!(bytes == expected, "{len} bytes at {offset}");
        }
        self.nothing_is_left().await;
    }

    async fn fails(&self, code: Code) -> Error {
        let loaded = tokio::time::timeout(BOUND, self.load()).await.unwrap();
        let e = loaded.unwrap_err();
        assert_eq!(e.code, code, "{e}");
        self.nothing_is_left().await;
        e
    }

    /// Checks that every slot is free again, at the latest once running jobs end, and that no tensor is held.
    async fn nothing_is_left(&self) {
        let allotment = self.load_buffer.allotment(u64::MAX);
        let all = tokio::time::timeout(BOUND, allotment.permits(7)).await;
        assert!(all.unwrap().is_some());
        let used = self.ledger.used();
        assert_eq!(used.get(&Purpose::Weights).copied().unwrap_or(0), 0);
    }
}

const MIB: u64 = CHUNK;
/// Ranges of every kind: within, across and along chunks, and small ones beside, before and after large ones.
const RANGES: [(u64, u64); 9] = [
    (0, 3 * MIB + 5),
    (3 * MIB + 5, 100),
    (5 * MIB, 9 * MIB),
    (3 * MIB + 105, MIB),
    (14 * MIB - 3, 6),
    (8, 0),
    (14 * MIB + 3, 4 * MIB),
    (10, 60),
    (19 * MIB, 17),
];

fn file() -> Vec<u8> {
    data(19 * CHUNK as usize + 17)
}

#[tokio::test]
async fn a_client_is_asked_for_each_chunk_once_where_it_can_be() {
    let file = file();
    let source = Arc::new(client(&file));
    let rig = Rig::new(meta(&file, ""), &RANGES).local(&source);
    rig.check(&file).await;
    let mut asked = source.asked.lock().unwrap().clone();
    asked.sort_unstable();
    // Two chunks are read again for literals that are needed later and do not ride.
    let mut expected: Vec<u64> = (0..20).chain([3, 13]).collect();
    expected.sort_unstable();
    assert_eq!(asked, expected);
    assert_eq!(rig.loaded.get().clients, 21 * MIB + 17);
}

#[tokio::test]
async fn a_second_load_finds_all_in_the_cache_but_what_was_damaged() {
    let (file, folder) = (file(), Folder::new("cache"));
    let source = Arc::new(client(&file));
    let rig = Rig::new(meta(&file, ""), &RANGES)
        .local(&source)
        .cached(&folder);
    rig.check(&file).await;
    source.asked.lock().unwrap().clear();
    rig.check(&file).await;
    assert_eq!(*source.asked.lock().unwrap(), Vec::<u64>::new());
    let name = blake3::hash(&file[6 * CHUNK as usize..][..CHUNK as usize]).to_hex();
    std::fs::write(folder.0.join(name.as_str()), b"no").unwrap();
    rig.check(&file).await;
    assert_eq!(*source.asked.lock().unwrap(), [6]);
}

#[tokio::test]
async fn a_shared_file_needs_no_client() {
    let (file, folder) = (file(), Folder::new("shared"));
    std::fs::write(folder.0.join("weights"), &file).unwrap();
    let rig = Rig {
        root: Some(folder.0.clone()),
        ..Rig::new(meta(&file, "weights"), &RANGES)
    };
    rig.check(&file).await;
    let from = rig.loaded.get();
    assert!(from.shared_path > 19 * MIB && from.cache == 0 && from.clients == 0);
    let mut changed = file.clone();
    changed[6 << 20] ^= 1;
    std::fs::write(folder.0.join("weights"), &changed).unwrap();
    let e = rig.fails(Code::CorruptArtifact).await;
    assert!(e.advice.contains("weights changed"), "{e}");
}

#[tokio::test]
async fn a_chunk_that_does_not_match_its_hash_ends_the_load() {
    let file = file();
    let mut wrong = file.clone();
    wrong[12 << 20] ^= 1;
    let folder = Folder::new("corrupt");
    let rig = Rig::new(meta(&file, ""), &RANGES).cached(&folder);
    rig.local(&Arc::new(client(&wrong)))
        .fails(Code::CorruptArtifact)
        .await;
}

#[tokio::test]
async fn a_client_that_cannot_read_ends_the_load() {
    let file = file();
    let source = Client {
        ends: Some(9),
        ..client(&file)
    };
    let rig = Rig::new(meta(&file, ""), &RANGES);
    rig.local(&Arc::new(source)).fails(Code::Io).await;
    Rig::new(meta(&file, ""), &RANGES)
        .fails(Code::NotFound)
        .await;
}

#[tokio::test]
async fn a_load_that_is_given_up_leaves_nothing() {
    let (file, folder) = (file(), Folder::new("given-up"));
    let rig = Rig::new(meta(&file, ""), &RANGES).local(&Arc::new(client(&file)));
    let rig = rig.cached(&folder);
    let program = rig.program();
    let (mut feed, loader) = rig.start();
    let mut values = vec![None; program.values.len()];
    let (v, literal) = &program.literals[0];
    let counter = Counter::default();
    let loaded = feed.load(*v, literal, &mut values, &counter);
    loaded.await.unwrap();
    drop((feed, loader, values));
    rig.nothing_is_left().await;
}

async fn endpoint(world: &World, ca: &ClusterCa, role: Role) -> Endpoint {
    let name: PeerName = "peer".parse().unwrap();
    let identity = ca.issue_own(world, role, name).unwrap();
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let options = EndpointOptions::default();
    world.net.endpoint(any, &tls, &options).await.unwrap()
}

/// Serves `source` to the rig over QUIC, for at most `requests` requests, and then closes the connection.
async fn remote(rig: Rig, source: Arc<Client>, requests: usize) -> Rig {
    let world = rig.world.clone();
    let ca = ClusterCa::create(&world).unwrap();
    let (worker, client) = (
        endpoint(&world, &ca, Role::Worker).await,
        endpoint(&world, &ca, Role::Client).await,
    );
    let accept = async {
        greet(worker.accept().await.unwrap(), BOUND)
            .await
            .unwrap()
            .connection
    };
    let (here, there) = tokio::join!(
        accept,
        dial(&client, worker.local_addr(), Role::Worker, BOUND)
    );
    let (there, w) = (there.unwrap().connection, world.clone());
    let served = world.spawn(async move {
        let _kept = client;
        for _ in 0..requests {
            let Ok((send, mut recv)) = there.accept_bi().await else {
                return;
            };
            recv.read_exact(&mut [0]).await.unwrap();
            w.spawn(artifacts::serve(w.clone(), source.clone(), send, recv));
        }
        there.close(0u32.into(), b"enough");
    });
    drop(served);
    let _kept = worker;
    let client = Some(ClientSource::Remote(here));
    Rig { client, ..rig }
}

#[tokio::test]
async fn a_client_streams_and_its_loss_ends_the_load() {
    let file = file();
    let source = Arc::new(client(&file));
    let rig = Rig::new(meta(&file, ""), &RANGES);
    remote(rig, source.clone(), usize::MAX)
        .await
        .check(&file)
        .await;
    let rig = Rig::new(meta(&file, ""), &RANGES);
    let rig = remote(rig, source, 2).await;
    rig.fails(Code::PeerLost).await;
    let source = Client {
        ends: Some(9),
        ..client(&file)
    };
    let rig = Rig::new(meta(&file, ""), &RANGES);
    let rig = remote(rig, Arc::new(source), usize::MAX).await;
    rig.fails(Code::Io).await;
}
