//! Loads and saves tensors of devices as safetensors files.
//!
//! Invariants
//! 1. This client never holds a tensor as a whole. Workers read what they load, or are sent chunks; a tensor that is
//!    saved arrives in pieces, of which this client holds two at once.
//! 2. A file that is saved exists as a whole or not at all.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::io::ErrorKind;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_common::world::{FileMode, Store, StoreError, StoreFile, off_thread};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Attrs, Function as Graph, Literal, Node, RunsAt, TensorType};
use convoke_graph::ops::HandleOp;
use convoke_graph::{DType, Dim};
use convoke_models::{StoredTensor, StoredTensors, stored_header, stored_tensors};

use crate::calls::function::Inner;
use crate::calls::options::{CallOptions, FunctionOptions};
use crate::calls::step::{Call, CompiledFunction};
use crate::cluster::Cluster;
use crate::cluster::callbacks;
use crate::device::Device;
use crate::files::drafts;
use crate::tensor::Tensor;
use crate::trace::TracedFunction;

/// How many bytes of a tensor are fetched at once to be saved.
const PIECE: usize = 8 << 20;
/// How many tensors one step loads at most.
const GROUP: usize = 1024;

type Place = dyn Fn(&str, &TensorType) -> Option<Device> + Send + Sync;

/// The options of a load; await it to load the tensors.
#[must_use = "tensors are loaded when this is awaited"]
pub struct LoadTensors {
    cluster: Cluster,
    path: PathBuf,
    root: Option<PathBuf>,
    place: Box<Place>,
    at: &'static Location<'static>,
}

impl Cluster {
    /// Loads tensors of a safetensors file onto devices. `place` returns the device of each tensor, by the tensor's
    /// name and type, or `None` to leave the tensor out; it runs on the thread that awaits the load. Options are set on
    /// what this returns; awaiting that loads the tensors, and returns them by name.
    #[track_caller]
    pub fn load_tensors(
        &self,
        path: impl AsRef<Path>,
        place: impl Fn(&str, &TensorType) -> Option<Device> + Send + Sync + 'static,
    ) -> LoadTensors {
        LoadTensors {
            cluster: self.clone(),
            path: path.as_ref().to_owned(),
            root: None,
            place: Box::new(place),
            at: Location::caller(),
        }
    }

    /// Saves tensors of devices, by name, as a safetensors file. The tensors arrive in pieces of at most 8 MiB; each
    /// piece is written before the next but one is asked for. An existing file is replaced once the new one is
    /// complete.
    pub async fn save_tensors(
        &self,
        path: impl AsRef<Path>,
        tensors: &[(&str, &Tensor)],
    ) -> Result<()> {
        let (store, path) = (self.net.world().store.clone(), path.as_ref().to_owned());
        let named = tensors.iter().map(|(n, t)| ((*n).to_owned(), (*t).clone()));
        let named: Vec<(String, Tensor)> = named.collect();
        self.net
            .run(async move { save(store, path, named).await })
            .await
    }
}

impl LoadTensors {
    /// Names a folder that workers started with the same `--artifact-root` see: they read a file beneath it themselves,
    /// and this client does not send it.
    pub fn artifact_root(mut self, path: impl Into<PathBuf>) -> Self {
        self.root = Some(path.into());
        self
    }

    async fn load(self) -> Result<BTreeMap<String, Tensor>> {
        let net = self.cluster.net.clone();
        let (path, root) = (self.path.clone(), self.root.clone());
        let store = self.cluster.session.world.store.clone();
        let file = net.run(async move {
            let (done, read) = tokio::sync::oneshot::channel();
            store.run_blocking(Box::new(move || {
                // The receiver is gone when the load was given up.
                drop(done.send(stored_tensors(&path, root.as_deref(), None)));
            }));
            let ended = |_| Error::internal("the reader ended without a result");
            Ok(read.await.map_err(ended)??)
        });
        let file = file.await?;
        let (file_name, line) = (self.at.file(), self.at.line());
        let what = format!("the closure that places tensors at {file_name}:{line}");
        // The closure runs on the thread that awaits the load.
        let placed = callbacks::run(&net, &what, || {
            let tensors = file.tensors.iter().enumerate();
            let placed = tensors.filter_map(|(i, t)| Some((i, (self.place)(&t.name, &t.ty)?)));
            placed.collect::<Vec<_>>()
        })?;
        net.run(async move { self.load_placed(&file, placed).await })
            .await
    }

    /// Loads tensors, each by its number in the file, onto their devices.
    async fn load_placed(
        self,
        file: &StoredTensors,
        placed: Vec<(usize, Device)>,
    ) -> Result<BTreeMap<String, Tensor>> {
        let placed = placed.into_iter();
        let placed = placed.filter_map(|(i, device)| Some((file.tensors.get(i)?, device)));
        let placed: Vec<(&StoredTensor, Device)> = placed.collect();
        let mut loaded = BTreeMap::new();
        for group in placed.chunks(GROUP) {
            let tensors = self.group(file, group).await?;
            let names = group.iter().map(|(t, _)| t.name.clone());
            loaded.extend(names.zip(tensors));
        }
        Ok(loaded)
    }

    /// Loads a group of tensors, by a function that has them as constants and returns them.
    async fn group(
        &self,
        file: &StoredTensors,
        group: &[(&StoredTensor, Device)],
    ) -> Result<Vec<Tensor>> {
        let graph = Arc::new(graph(file, group));
        let verified = graph.verify();
        verified.map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))?;
        let mut workers: Vec<&str> = group.iter().map(|(_, device)| device.worker()).collect();
        workers.sort_unstable();
        workers.dedup();
        let pins = workers.iter().map(|w| (node(w, "*"), format!("{w}/*")));
        let options = FunctionOptions {
            pins: pins.collect(),
            in_flight: 1,
            ..FunctionOptions::default()
        };
        let sources = &self.cluster.session.sources;
        let served = sources.serve(vec![file.source.clone()]);
        let loading = CompiledFunction {
            traced: TracedFunction {
                results: group.iter().map(|(t, _)| t.ty.clone()).collect(),
                ..TracedFunction::default()
            },
            inner: Inner::new(&self.cluster, graph, served, options)?,
        };
        let call = Call {
            options: &CallOptions::default(),
            retained: &[],
            axes: &Bindings::new(),
            fed: &[],
            at: self.at,
        };
        let given = loading.call::<HostTensor>(&self.cluster, &[], call);
        given.await
    }
}

impl IntoFuture for LoadTensors {
    type Output = Result<BTreeMap<String, Tensor>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.load())
    }
}

/// The name of the node that loads a tensor onto a worker. `*` and `+` have a meaning in names of nodes.
fn node(worker: &str, tensor: &str) -> String {
    format!("{worker} loads {tensor}")
}

fn graph(file: &StoredTensors, group: &[(&StoredTensor, Device)]) -> Graph {
    let mut graph = Graph {
        name: format!("tensors of {}", file.source.path().display()),
        artifacts: vec![file.source.meta().clone()],
        ..Graph::default()
    };
    for (i, (t, device)) in group.iter().enumerate() {
        let value = graph.add_value(format!("tensor{i}"), t.ty.clone());
        let literal = Literal::Range {
            artifact: 0,
            offset: t.offset,
            len: t.len,
        };
        graph.literals.push((value, literal));
        let number = TensorType::new(DType::U64, vec![]);
        let number = graph.add_value(format!("handle{i}"), number);
        graph.params.push(number);
        let kept = TensorType::new(DType::U8, vec![Dim::Const(0)]);
        let kept = graph.add_value(format!("kept{i}"), kept);
        graph.nodes.push(Node {
            name: node(device.worker(), &t.name.replace(['*', '+'], "_")).into(),
            op: HandleOp::HandleOut.name().into(),
            attrs: Attrs::default(),
            inputs: vec![Some(value), Some(number)],
            outputs: vec![kept],
            runs_at: RunsAt::Step,
        });
        graph.results.push((format!("kept{i}"), kept));
    }
    graph
}

fn unwritten(path: &Path) -> impl Fn(StoreError) -> Error {
    let path = path.display().to_string();
    move |e| Error::new(Code::Io, format!("{path} cannot be saved: {e}"))
}

/// Makes a file beside `target` under a name that no file has.
fn new_file(store: &dyn Store, target: &Path) -> Result<(PathBuf, Arc<dyn StoreFile>), StoreError> {
    let mut last = None;
    for path in drafts(target, "part") {
        match store.create(&path, FileMode::Shared) {
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
                last = Some(StoreError::io("create", &path, source));
            }
            done => return done.map(|file| (path, file)),
        }
    }
    Err(last.unwrap_or(StoreError::Interrupted))
}

/// A file under a temporary name, which is removed unless the file is completed.
struct Draft {
    store: Arc<dyn Store>,
    path: PathBuf,
    file: Arc<dyn StoreFile>,
    complete: bool,
}

impl Draft {
    async fn create(store: &Arc<dyn Store>, target: &Path) -> Result<Draft, StoreError> {
        let target = target.to_owned();
        let (path, file) = off_thread(store, move |s| new_file(s, &target)).await?;
        Ok(Draft {
            store: store.clone(),
            path,
            file,
            complete: false,
        })
    }

    async fn write(&self, at: u64, bytes: HostTensor) -> Result<(), StoreError> {
        let file = self.file.clone();
        off_thread(&self.store, move |_| file.write_at(at, bytes.bytes())).await
    }

    async fn complete(mut self, target: PathBuf) -> Result<(), StoreError> {
        let (file, path) = (self.file.clone(), self.path.clone());
        let renamed = off_thread(&self.store, move |s| {
            file.sync()?;
            s.rename(&path, &target)
        });
        renamed.await?;
        self.complete = true;
        Ok(())
    }

    /// Removes the file; returns once it is removed.
    async fn discard(mut self) {
        self.complete = true;
        let path = self.path.clone();
        // A file that cannot be removed stays, under a name that says what it is.
        let _ = off_thread(&self.store, move |s| s.remove(&path)).await;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.complete {
            let (store, path) = (self.store.clone(), self.path.clone());
            self.store.run_blocking(Box::new(move || {
                // A file that cannot be removed stays, as in `discard`.
                let _ = store.remove(&path);
            }));
        }
    }
}

async fn save(store: Arc<dyn Store>, path: PathBuf, tensors: Vec<(String, Tensor)>) -> Result<()> {
    let mut shapes = Vec::new();
    for (_, t) in &tensors {
        if t.shape().is_none() {
            t.ready().await?;
        }
        let unknown = || {
            let msg = format!("the shape of {} is not known", t.ty());
            Error::new(Code::InvalidArgument, msg)
        };
        shapes.push(t.shape().ok_or_else(unknown)?.to_vec());
    }
    let entries = tensors.iter().zip(&shapes);
    let entries: Vec<(&str, DType, &[usize])> = entries
        .map(|((name, t), shape)| (name.as_str(), t.dtype(), shape.as_slice()))
        .collect();
    let (header, order) = stored_header(&path, &entries)?;
    let failed = unwritten(&path);
    let draft = Draft::create(&store, &path).await.map_err(&failed)?;
    let shaped: Vec<(&Tensor, &[usize])> = order
        .into_iter()
        .map(|i| (&tensors[i].1, shapes[i].as_slice()))
        .collect();
    let written = write(&draft, &header, &shaped, &failed).await;
    match written {
        Ok(()) => draft.complete(path.clone()).await.map_err(&failed),
        Err(error) => {
            draft.discard().await;
            Err(error)
        }
    }
}

/// Writes the header, and the tensors one after the other.
async fn write(
    draft: &Draft,
    header: &[u8],
    tensors: &[(&Tensor, &[usize])],
    failed: &impl Fn(StoreError) -> Error,
) -> Result<()> {
    let header = HostTensor::from_slice(&[header.len()], header)?;
    let mut at = header.byte_len() as u64;
    draft.write(0, header).await.map_err(failed)?;
    // A piece that has arrived is written while the next one comes.
    let mut here: Option<(u64, HostTensor)> = None;
    for (t, shape) in tensors {
        let elements: usize = shape.iter().product();
        // A packed tensor cannot be cut, and comes as a whole.
        let step = match t.dtype().is_packed() {
            true => elements.max(1),
            false => PIECE / t.dtype().width(),
        };
        for from in (0..elements).step_by(step) {
            let to = (from + step).min(elements);
            let coming = piece(t, from, to, elements);
            let written = async {
                match here.take() {
                    Some((at, bytes)) => draft.write(at, bytes).await.map_err(failed),
                    None => Ok(()),
                }
            };
            let (bytes, written) = tokio::join!(coming, written);
            written?;
            let bytes = bytes?;
            let end = at + bytes.byte_len() as u64;
            here = Some((at, bytes));
            at = end;
        }
    }
    match here {
        Some((at, bytes)) => draft.write(at, bytes).await.map_err(failed),
        None => Ok(()),
    }
}

/// Fetches the elements `from..to`, in row-major order, of a tensor of `elements` elements.
async fn piece(t: &Tensor, from: usize, to: usize, elements: usize) -> Result<HostTensor> {
    let bounds = i64::try_from(from).ok().zip(i64::try_from(to).ok());
    let bounds = bounds.ok_or_else(|| Error::internal("a tensor beyond memory"))?;
    let bytes: HostTensor = match to - from == elements {
        true => t.fetch().await?,
        false => t.ravel()?.i(bounds.0..bounds.1)?.fetch().await?,
    };
    match bytes.elements() == to - from {
        true => Ok(bytes),
        false => Err(Error::internal("a piece of another size came")),
    }
}
