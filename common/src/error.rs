//! The error that crosses hops: what happened, where, and what to do next.
//!
//! Modules keep their own error types; at a boundary that a person or another process sees, they become
//! an [`Error`], which stays structured over the wire and in `--json`.

use std::fmt;

use convoke_graph::ops::RegisterError;
use convoke_graph::program::{AxesError, ProgramError};
use convoke_graph::tensor::TensorError;
use serde::{Deserialize, Serialize};

use convoke_graph::printable::{self, Message, Printable};

/// The kind of an error. The names of the kinds in `--json` never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A model file is missing, truncated, or not what it claims to be.
    InvalidModel,
    /// A model needs ops that are not supported.
    UnsupportedOp,
    /// A graph breaks a rule of its ops.
    InvalidGraph,
    /// A fed tensor has the wrong name, dtype or shape.
    InvalidInput,
    /// A request is malformed.
    InvalidArgument,
    /// A file cannot be read or written.
    Io,
    /// The cluster has no workers, or fewer than were asked for.
    NoWorkers,
    /// The workers' memory does not hold the program.
    ClusterTooSmall,
    /// A reservation exceeds a worker's memory limit, or the budget of a token.
    OutOfMemory,
    /// A token or certificate is wrong, expired, revoked, or of another role.
    Unauthorized,
    /// A peer cannot be reached.
    Unreachable,
    /// A peer speaks another protocol or computes under another numerics profile.
    VersionMismatch,
    /// A port or a state folder is already in use.
    AddressInUse,
    /// A kernel returned an error.
    KernelFailed,
    /// A kernel panicked.
    KernelPanicked,
    /// A participant was lost.
    PeerLost,
    /// Tensors that only a lost worker held, or that were donated to a step that failed, are gone.
    StateLost,
    /// The caller cancelled.
    Cancelled,
    /// The deadline of a call passed.
    DeadlineExceeded,
    /// A worker is shutting down.
    WorkerLeaving,
    /// A kernel does not return; its worker takes no more work.
    Wedged,
    /// A node killed more than one worker and is not run again.
    Quarantined,
    /// The lease has ended: it was released, or a participant was lost.
    LeaseRetired,
    /// Too much is in flight already, or a limit of members, connections or joins is reached.
    Busy,
    /// The room for ops in flight is full, and the caller asked not to wait: try again when some have ended.
    WouldBlock,
    /// The thing that the caller named does not exist.
    NotFound,
    /// A peer sent something that it must not send.
    ProtocolViolation,
    /// An artifact's bytes do not match its hash.
    CorruptArtifact,
    /// `--verify` found a difference.
    VerifyFailed,
    /// A defect of Convoke.
    Internal,
}

impl Code {
    /// The stable name, as in `--json`.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(s)) => s,
            _ => "internal".into(),
        }
    }

    /// Whether an error of this kind is a consequence, which is not reported while a cause is known.
    pub fn is_secondary(self) -> bool {
        matches!(self, Code::Cancelled | Code::PeerLost | Code::LeaseRetired)
    }
}

/// The place of an error in the cluster and in the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    pub worker: Option<String>,
    pub host: Option<String>,
    pub device: Option<String>,
    /// The node's name as in the model.
    pub node: Option<String>,
    pub op: Option<String>,
    /// Signatures of the node's operands, such as `f32[2, 3]`.
    pub operands: Vec<String>,
    /// The line of the caller's program that issued the op, such as `src/main.rs:12`.
    pub origin: Option<String>,
}

/// An error with its message, place and remedy. People read its `Debug` as well, since a program's `main` reports an
/// error in that form: it writes what `Display` writes, and a line for each further error.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    pub code: Code,
    pub message: String,
    /// Advice on what to do next; empty when there is nothing to add.
    pub advice: String,
    pub site: Option<Box<Site>>,
    /// Participants that were stopped because of this error.
    pub stopped: Vec<String>,
    /// Further causes in the same step that arrived later.
    #[serde(deserialize_with = "convoke_graph::nesting::bounded_list")]
    pub attached: Vec<Error>,
}

/// Encoded bytes of an error besides its texts: its code, and what says which parts it has.
const ENCODED_FIXED: usize = 64;

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error without place or advice.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
            advice: String::new(),
            site: None,
            stopped: vec![],
            attached: vec![],
        }
    }

    /// Adds what to do next.
    pub fn advise(mut self, advice: impl Into<String>) -> Error {
        self.advice = advice.into();
        self
    }

    /// Sets the place, unless one nearer to the cause is known. A nearer one that names no worker gets the worker, the host and
    /// the device of `site`.
    pub fn at(mut self, site: Site) -> Error {
        match &mut self.site {
            None => self.site = Some(Box::new(site)),
            Some(nearer) if nearer.worker.is_none() => {
                nearer.worker = site.worker;
                nearer.host = nearer.host.take().or(site.host);
                nearer.device = nearer.device.take().or(site.device);
            }
            Some(_) => {}
        }
        self
    }

    /// Whether the message names the place already, so that the site would only repeat it.
    fn names(&self, site: &Site) -> bool {
        let Some(node) = &site.node else {
            return false;
        };
        let bare = Site {
            node: Some(node.clone()),
            op: site.op.clone(),
            ..Site::default()
        };
        *site == bare && has_word(&self.message, &Printable(node).to_string())
    }

    /// Makes the participant that the error is about its place, unless a place is known. That participant may be
    /// another process than the one that reports the error, and a client that plans anew avoids it.
    pub fn about(self, participant: impl Into<String>) -> Error {
        self.at(Site {
            worker: Some(participant.into()),
            ..Site::default()
        })
    }

    /// Makes the error of lost contact with a participant, which becomes the error's place: by it, others know which
    /// participant the error is about.
    pub fn lost(peer: impl Into<String>, why: impl fmt::Display) -> Error {
        let peer = peer.into();
        let msg = format!("lost contact with {peer}: {why}");
        Error::new(Code::PeerLost, msg).about(peer)
    }

    /// Makes the error of a peer that cannot be reached: the only way to make one, so that each says whether the peer is
    /// a worker, which becomes the error's place. `None` stands for the coordinator, for a name that leads to nobody, and
    /// for a peer that only the caller can name, with [`Error::about`].
    pub fn unreachable(worker: Option<&str>, message: impl Into<String>) -> Error {
        let error = Error::new(Code::Unreachable, message);
        match worker {
            Some(worker) => error.about(worker),
            None => error,
        }
    }

    /// Puts the name of the member that noticed a loss in front of the message, unless it has one already.
    pub fn said_by(mut self, who: &str) -> Error {
        if self.message.starts_with("lost contact with ") {
            self.message = format!("{who} {}", self.message);
        }
        self
    }

    /// The most bytes that the error takes encoded, with its further causes.
    pub fn encoded_len(&self) -> usize {
        let of = |text: &String| size_of::<u64>() + text.len();
        let site = self.site.as_ref().map_or(0, |s| {
            let names = [&s.worker, &s.host, &s.device, &s.node, &s.op, &s.origin];
            let named: usize = names.into_iter().flatten().map(of).sum();
            named + s.operands.iter().map(of).sum::<usize>()
        });
        let stopped: usize = self.stopped.iter().map(of).sum();
        let attached: usize = self.attached.iter().map(Error::encoded_len).sum();
        ENCODED_FIXED + of(&self.message) + of(&self.advice) + site + stopped + attached
    }

    /// The error in at most `most` encoded bytes, which must be some hundreds. One that is longer loses its further causes, the
    /// names of those that it stopped and all but four operands, and the ends of its texts.
    pub fn shortened(mut self, most: usize) -> Error {
        if self.encoded_len() <= most {
            return self;
        }
        // Twelve texts with their lengths are left.
        let most = most.saturating_sub(ENCODED_FIXED + 12 * size_of::<u64>());
        let cut = |text: &mut String, most| text.truncate(text.floor_char_boundary(most));
        self.attached.clear();
        self.stopped.clear();
        cut(&mut self.message, most / 4);
        cut(&mut self.advice, most / 4);
        if let Some(s) = &mut self.site {
            s.operands.truncate(4);
            s.operands.iter_mut().for_each(|text| cut(text, most / 32));
            let names = [&mut s.worker, &mut s.host, &mut s.device];
            let places = [&mut s.node, &mut s.op, &mut s.origin];
            for text in names.into_iter().chain(places).flatten() {
                cut(text, most / 16);
            }
        }
        self
    }

    /// Makes the error of a worker that ends in an orderly way and runs no further step.
    pub fn leaving(worker: &str) -> Error {
        Error::new(Code::WorkerLeaving, format!("worker {worker} is leaving"))
            .advise("call again: another plan uses the workers that stay")
    }

    /// Makes the error of a defect in Convoke.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::Internal, message).advise("this is a defect in Convoke; please report it")
    }
}

/// Whether a text has a name as a word of its own, not as a part of a longer name.
fn has_word(text: &str, name: &str) -> bool {
    let of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '/';
    let mut found = text.match_indices(name);
    found.any(|(at, name)| {
        let (before, behind) = (&text[..at], &text[at + name.len()..]);
        !before.ends_with(of_name) && !behind.starts_with(of_name)
    })
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(n) = &self.node {
            parts.push(format!("node '{}'", Printable(n)));
        }
        if let Some(op) = &self.op {
            let operands = printable::list(self.operands.iter().map(String::as_str));
            parts.push(format!("op {}({operands})", Printable(op)));
        }
        if let Some(origin) = &self.origin {
            parts.push(format!("issued at {}", Printable(origin)));
        }
        if let Some(w) = &self.worker {
            parts.push(format!("worker {}", Printable(w)));
        }
        if let Some(h) = &self.host {
            parts.push(format!("host {}", Printable(h)));
        }
        if let Some(d) = &self.device {
            parts.push(format!("device {}", Printable(d)));
        }
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every part of the text may come from a peer, or quote a file.
        write!(f, "{}", Message(&self.message))?;
        if let Some(site) = self.site.as_ref().filter(|site| !self.names(site)) {
            write!(f, " [{site}]")?;
        }
        if !self.stopped.is_empty() {
            let stopped = printable::list(self.stopped.iter().map(String::as_str));
            write!(f, "; stopped: {stopped}")?;
        }
        if !self.attached.is_empty() {
            let s = if self.attached.len() == 1 { "" } else { "s" };
            write!(f, "; {} further error{s}", self.attached.len())?;
        }
        if !self.advice.is_empty() {
            write!(f, "\n  {}", Message(&self.advice))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        for more in &self.attached {
            write!(f, "\n  also: {more:?}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<TensorError> for Error {
    fn from(e: TensorError) -> Error {
        use TensorError as T;
        let code = match e {
            T::OutOfMemory { .. } | T::TooLarge { .. } => Code::OutOfMemory,
            _ => Code::InvalidArgument,
        };
        Error::new(code, e.to_string())
    }
}

impl From<RegisterError> for Error {
    fn from(e: RegisterError) -> Error {
        Error::new(Code::InvalidArgument, e.to_string())
    }
}

impl From<ProgramError> for Error {
    fn from(e: ProgramError) -> Error {
        Error::new(Code::ProtocolViolation, e.to_string())
    }
}

impl From<AxesError> for Error {
    fn from(e: AxesError) -> Error {
        let code = match e {
            AxesError::Count { .. } => Code::ProtocolViolation,
            AxesError::OutOfBound { .. } => Code::InvalidInput,
        };
        Error::new(code, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_one_line_with_advice_below() {
        let e = Error::new(
            Code::KernelFailed,
            "index 9 is out of range for axis of length 4",
        )
        .at(Site {
            worker: Some("w1".into()),
            node: Some("/embed/Gather".into()),
            op: Some("Gather".into()),
            operands: vec!["f32[4, 8]".into(), "i64[1]".into()],
            ..Site::default()
        })
        .advise("feed indices below 4");
        assert_eq!(
            e.to_string(),
            "index 9 is out of range for axis of length 4 [node '/embed/Gather', \
             op Gather(f32[4, 8], i64[1]), worker w1]\n  feed indices below 4"
        );
        assert_eq!(e.code.name(), "kernel_failed");
    }

    #[test]
    fn the_place_is_left_out_only_where_the_message_has_the_node() {
        let check = |message: &str, shown: bool| {
            let error = Error::new(Code::InvalidModel, message).at(Site {
                node: Some("/conv".into()),
                ..Site::default()
            });
            assert_eq!(error.to_string().contains('['), shown, "{message}");
        };
        check("node '/conv' has no input", false);
        check("/conv: it has no input", false);
        check("node '/conv1' has no input", true);
        check("node '/deep/conv' has no input", true);
        check("an input of /a/conv, or '/conv'", false);
        check("it has no input", true);
    }

    #[test]
    fn debug_reads_as_display_and_lists_the_further_errors() {
        let mut e = Error::new(Code::OutOfMemory, "worker w0 has 1 MiB free").advise("add workers");
        assert_eq!(format!("{e:?}"), e.to_string());
        let mut nested = Error::lost("w1", "no answer for 2s");
        nested.attached.push(Error::new(Code::Io, "disk\nfull"));
        e.attached = vec![nested, Error::new(Code::Busy, "queue full").advise("wait")];
        assert_eq!(
            format!("{e:?}"),
            "worker w0 has 1 MiB free; 2 further errors\n  add workers\n  \
             also: lost contact with w1: no answer for 2s [worker w1]; 1 further error\n  \
             also: disk\n  full\n  \
             also: queue full\n  wait"
        );
    }

    #[test]
    fn the_nearest_place_wins_and_gets_the_worker_that_it_lacks() {
        let place = |worker: &str, node: &str| Site {
            worker: Some(worker.to_owned()),
            device: Some("cpu:0".to_owned()),
            node: Some(node.to_owned()),
            ..Site::default()
        };
        let inner = Site {
            node: Some("inner".to_owned()),
            ..Site::default()
        };
        let error = || Error::new(Code::KernelFailed, "why");
        let check = |error: Error, expected: Site| assert_eq!(*error.site.unwrap(), expected);
        check(
            error().at(place("w0", "a")).at(place("w1", "b")),
            place("w0", "a"),
        );
        check(error().at(inner).at(place("w1", "b")), place("w1", "inner"));
    }

    #[test]
    fn a_long_error_keeps_the_start_of_each_of_its_texts() {
        let long = |start: &str| format!("{start}{}", "\u{e4}".repeat(10_000));
        let mut error = Error::new(Code::KernelFailed, long("why")).advise(long("do"));
        error = error.at(Site {
            worker: Some("w0".to_owned()),
            node: Some(long("node")),
            operands: vec![long("f32"); 100],
            ..Site::default()
        });
        error.stopped = vec![long("w1")];
        error.attached = vec![error.clone(); 3];
        let whole = error.encoded_len();
        assert_eq!(error.clone().shortened(whole), error);
        for most in [256, 1000, 4096] {
            let short = error.clone().shortened(most);
            assert!(
                short.encoded_len() <= most,
                "{most}: {}",
                short.encoded_len()
            );
            assert_eq!(short.code, error.code);
            assert!(short.message.starts_with("why"));
            let site = short.site.unwrap();
            assert_eq!(site.worker.as_deref(), Some("w0"));
            assert!(site.node.unwrap().starts_with("node"));
        }
    }

    #[test]
    fn what_a_peer_must_not_send_differs_from_what_a_caller_must_not_feed() {
        let axes = convoke_graph::program::Axes {
            bounds: vec![("n".into(), 8)],
        };
        let code = |values: &[i64]| Error::from(axes.bind(values).unwrap_err()).code;
        assert_eq!(code(&[1, 2]), Code::ProtocolViolation);
        assert_eq!(code(&[9]), Code::InvalidInput);
        assert_eq!(code(&[-1]), Code::InvalidInput);
        let malformed = ProgramError::Malformed("more init nodes than nodes".into());
        assert_eq!(Error::from(malformed).code, Code::ProtocolViolation);
    }

    #[test]
    fn names_from_outside_do_nothing_to_the_terminal() {
        let e = Error::new(Code::InvalidInput, "no input '\u{1b}[31mx'").at(Site {
            worker: Some("w\u{202e}1".into()),
            node: Some("a\nerror: b".into()),
            ..Site::default()
        });
        assert_eq!(
            e.to_string(),
            "no input '\\u{1b}[31mx' [node 'a\\nerror: b', worker w\\u{202e}1]"
        );
        // Programs get the names without escapes.
        let json = serde_json::to_value(&e).unwrap();
        assert_eq!(json["site"]["node"], "a\nerror: b");
    }

    /// All codes in order. The match compiles only if it names every code.
    fn all() -> Vec<Code> {
        use Code::*;
        let after = |code: Code| match code {
            InvalidModel => Some(UnsupportedOp),
            UnsupportedOp => Some(InvalidGraph),
            InvalidGraph => Some(InvalidInput),
            InvalidInput => Some(InvalidArgument),
            InvalidArgument => Some(Io),
            Io => Some(NoWorkers),
            NoWorkers => Some(ClusterTooSmall),
            ClusterTooSmall => Some(OutOfMemory),
            OutOfMemory => Some(Unauthorized),
            Unauthorized => Some(Unreachable),
            Unreachable => Some(VersionMismatch),
            VersionMismatch => Some(AddressInUse),
            AddressInUse => Some(KernelFailed),
            KernelFailed => Some(KernelPanicked),
            KernelPanicked => Some(PeerLost),
            PeerLost => Some(StateLost),
            StateLost => Some(Cancelled),
            Cancelled => Some(DeadlineExceeded),
            DeadlineExceeded => Some(WorkerLeaving),
            WorkerLeaving => Some(Wedged),
            Wedged => Some(Quarantined),
            Quarantined => Some(LeaseRetired),
            LeaseRetired => Some(Busy),
            Busy => Some(WouldBlock),
            WouldBlock => Some(NotFound),
            NotFound => Some(ProtocolViolation),
            ProtocolViolation => Some(CorruptArtifact),
            CorruptArtifact => Some(VerifyFailed),
            VerifyFailed => Some(Internal),
            Internal => None,
        };
        std::iter::successors(Some(InvalidModel), |code| after(*code)).collect()
    }

    #[test]
    fn the_manual_and_the_schema_have_every_code() {
        let manual = include_str!("../../docs/errors.md");
        let rows = manual.lines().filter_map(|l| l.strip_prefix("| `"));
        let listed: Vec<&str> = rows.filter_map(|l| Some(l.split_once('`')?.0)).collect();
        let names: Vec<String> = all().into_iter().map(Code::name).collect();
        assert_eq!(listed, names);
        let schema: serde_json::Value =
            serde_json::from_str(include_str!("../../docs/schema.json")).unwrap();
        let codes = &schema["$defs"]["code"]["enum"];
        assert_eq!(*codes, serde_json::json!(names));
    }
}
