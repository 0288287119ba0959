//! Text and tokens: the tokenizer of a model, the prompt, and the files beside the model that say where texts end.

use std::cell::Cell;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use convoke::{Code, Error};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::args::GenerateArgs;
use crate::text::failure::Failure;

/// The largest tokenizer that is read; those of the largest vocabularies take some 30 MB.
const MOST_OF_TOKENIZER: u64 = 256 << 20;
/// The largest prompt and the largest configuration that are read.
const MOST_OF_TEXT: u64 = 16 << 20;

/// The files that may name the tokens at which a text ends, and where in them. The first one that does counts.
const CONFIGURATIONS: [(&str, &str); 3] = [
    ("generation_config.json", "/eos_token_id"),
    ("genai_config.json", "/model/eos_token_id"),
    ("config.json", "/eos_token_id"),
];

/// The files that may say how many positions the model knows, and where in them. The first one that does counts.
const POSITIONS: [(&str, &str); 4] = [
    ("genai_config.json", "/model/context_length"),
    ("config.json", "/max_position_embeddings"),
    ("config.json", "/n_positions"),
    ("config.json", "/n_ctx"),
];

fn bad(msg: String) -> Error {
    Error::new(Code::InvalidArgument, msg)
}

thread_local! {
    /// Whether this thread runs a call of the tokenizer.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of the tokenizer, which panics on some damaged files. The panic's message would mean nothing to a user,
/// so it is not printed.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                before(panic);
            }
        }));
    });
    GUARDED.set(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(false);
    match called {
        Ok(made) => made.map_err(|e| e.to_string()),
        Err(_) => Err("it is damaged, or contradicts itself".into()),
    }
}

/// Reads a text that is no longer than this.
fn read(what: &str, mut from: impl Read, most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let taken = from.by_ref().take(most + 1).read_to_end(&mut bytes);
    taken.map_err(|e| Failure::io(&format!("cannot read {what}"), &e))?;
    match bytes.len() as u64 > most {
        true => Err(bad(format!("{what} is larger than {} MiB", most >> 20)).into()),
        false => Ok(bytes),
    }
}

fn read_file(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let what = path.display().to_string();
    let file = std::fs::File::open(path);
    let file = file.map_err(|e| Failure::io(&format!("cannot read {what}"), &e))?;
    read(&what, file, most)
}

/// Finds a file of the model's: beside it, or where that is a folder `onnx`, above that.
fn beside(model: &Path, name: &str) -> Option<PathBuf> {
    let folder = model.parent()?;
    let above = folder.parent().filter(|_| folder.ends_with("onnx"));
    let candidates = [Some(folder), above].into_iter().flatten();
    candidates.map(|f| f.join(name)).find(|p| p.is_file())
}

/// Reads the text to go on from.
pub fn prompt(args: &GenerateArgs) -> Result<String, Failure> {
    let bytes = match (&args.prompt, &args.prompt_file) {
        (Some(text), None) => return Ok(text.clone()),
        (None, Some(path)) if path.as_os_str() == "-" => {
            read("stdin", std::io::stdin().lock(), MOST_OF_TEXT)?
        }
        (None, Some(path)) => read_file(path, MOST_OF_TEXT)?,
        _ => {
            let msg = "give the text to go on from: one of --prompt TEXT and --prompt-file FILE";
            return Err(Failure::Usage(msg.into()));
        }
    };
    let text = String::from_utf8(bytes);
    text.map_err(|_| bad("the prompt is no UTF-8 text".into()).into())
}

/// Reads the model's tokenizer.
pub fn tokenizer(args: &GenerateArgs) -> Result<Tokenizer, Failure> {
    let model = &args.load.model;
    let found = args
        .tokenizer
        .clone()
        .or_else(|| beside(model, "tokenizer.json"));
    let path = found.ok_or_else(|| {
        let msg = format!("there is no tokenizer.json beside {}", model.display());
        bad(msg).advise("name the model's tokenizer with --tokenizer FILE.json")
    })?;
    let bytes = read_file(&path, MOST_OF_TOKENIZER)?;
    let made = guarded(|| {
        let mut tokenizer = Tokenizer::from_bytes(bytes)?;
        // A prompt is neither cut off nor filled up.
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        Ok(tokenizer)
    });
    made.map_err(|e| {
        let msg = format!("{} is no tokenizer: {e}", path.display());
        bad(msg)
            .advise("give the tokenizer.json that Hugging Face's tokenizers writes")
            .into()
    })
}

/// The tokens of a text, with those that the tokenizer puts around texts.
pub fn encoded(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    let encoded = guarded(|| tokenizer.encode(text, true));
    let encoded = encoded.map_err(|e| {
        bad(format!("the prompt cannot be tokenized: {e}"))
            .advise("use the tokenizer that belongs to the model")
    })?;
    Ok(encoded.get_ids().to_vec())
}

/// The tokens at which a text ends: those of the flags, and those of the files beside the model.
pub fn stops(args: &GenerateArgs, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let mut stops = configured(&args.load.model)?;
    let known = |id: &u32| tokenizer.id_to_token(*id).is_some();
    for text in &args.stop {
        let id = tokenizer.token_to_id(text);
        let id = id.or_else(|| text.parse().ok().filter(known));
        let id = id.ok_or_else(|| {
            let shown = text.escape_debug();
            bad(format!("--stop '{shown}' is no token of the tokenizer"))
                .advise("write one token of its vocabulary, or a token's id")
        })?;
        stops.push(id);
    }
    Ok(stops)
}

/// The tokens that a configuration names at `at`, one or a list.
fn end_tokens(json: &[u8], at: &str) -> Result<Vec<u32>, String> {
    let value: Value = serde_json::from_slice(json).map_err(|e| format!("it is no JSON: {e}"))?;
    let ids = match value.pointer(at) {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Array(ids)) => ids.as_slice(),
        Some(id) => std::slice::from_ref(id),
    };
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
    ids.ok_or_else(|| "eos_token_id is no token id".into())
}

/// How many tokens a sequence of the model may have, where a configuration beside it says so.
pub fn positions(model: &Path) -> Result<Option<usize>, Failure> {
    for (name, at) in POSITIONS {
        let Some(path) = beside(model, name) else {
            continue;
        };
        let json: Option<Value> = serde_json::from_slice(&read_file(&path, MOST_OF_TEXT)?).ok();
        let positions = json.as_ref().and_then(|json| json.pointer(at)?.as_u64());
        if let Some(n) = positions.filter(|n| *n > 0) {
            return Ok(usize::try_from(n).ok());
        }
    }
    Ok(None)
}

fn configured(model: &Path) -> Result<Vec<u32>, Failure> {
    for (name, at) in CONFIGURATIONS {
        let Some(path) = beside(model, name) else {
            continue;
        };
        let bytes = read_file(&path, MOST_OF_TEXT)?;
        // Other programs read what they need of such a file, so one that says nothing of use here is not an error.
        match end_tokens(&bytes, at) {
            Ok(ids) if ids.is_empty() => continue,
            Ok(ids) => return Ok(ids),
            Err(why) => tracing::warn!(
                "{} names no end of texts: {why}; --stop TOKEN names one",
                path.display()
            ),
        }
    }
    Ok(vec![])
}

/// A text that grows by tokens. A character that takes several tokens comes with the last of them.
pub struct GrowingText<'t> {
    tokenizer: &'t Tokenizer,
    /// The tokens of the last piece that was shown, which decide for some tokenizers whether a space comes next, and those that
    /// are not shown. A piece ends with a whole character: some tokenizers turn all bytes of a run into nothing legible where it
    /// begins within one.
    tokens: Vec<u32>,
    /// How many of the tokens are shown.
    shown: usize,
}

/// How many tokens of a prompt are decoded again with the first one after it, and more where they are bytes.
const CONTEXT: usize = 8;
/// How many tokens may wait for the rest of a character, which has four bytes at most.
const MOST_HELD: usize = 8;

/// The character that a text shows in place of bytes that are no character.
const NO_CHARACTER: char = '\u{fffd}';

impl<'t> GrowingText<'t> {
    /// The text after a prompt.
    pub fn after(tokenizer: &'t Tokenizer, prompt: &[u32]) -> GrowingText<'t> {
        let is_byte = |id: u32| {
            let token = tokenizer.id_to_token(id);
            token.is_some_and(|token| token.starts_with("<0x"))
        };
        let mut first = prompt.len().saturating_sub(CONTEXT);
        while first > 0 && is_byte(prompt[first]) && is_byte(prompt[first - 1]) {
            first -= 1;
        }
        let tokens = prompt[first..].to_vec();
        GrowingText {
            tokenizer,
            shown: tokens.len(),
            tokens,
        }
    }

    /// Adds a token. Returns the text that is complete with it.
    pub fn push(&mut self, token: u32) -> Result<String, Failure> {
        self.tokens.push(token);
        let part = self.rest()?;
        let held = self.tokens.len() - self.shown;
        if (part.is_empty() || part.ends_with(NO_CHARACTER)) && held < MOST_HELD {
            return Ok(String::new());
        }
        self.tokens.drain(..self.shown);
        self.shown = self.tokens.len();
        Ok(part)
    }

    /// The text of the tokens that are not shown, complete or not.
    pub fn rest(&self) -> Result<String, Failure> {
        let (shown, held) = self.tokens.split_at(self.shown);
        let (before, all) = (self.decoded(shown)?, self.decoded(&self.tokens)?);
        match all.strip_prefix(&before) {
            Some(rest) => Ok(rest.to_owned()),
            // An incomplete character makes what was shown of the same run illegible, too.
            None => self.decoded(held),
        }
    }

    fn decoded(&self, tokens: &[u32]) -> Result<String, Failure> {
        guarded(|| self.tokenizer.decode(tokens, true)).map_err(|e| {
            bad(format!("the tokens cannot be made text: {e}"))
                .advise("use the tokenizer that belongs to the model")
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Tokenizer {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/language/tokenizer.json");
        Tokenizer::from_bytes(std::fs::read(path).unwrap()).unwrap()
    }

    /// The parts in which the text of these tokens comes.
    fn parts(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
        let mut text = GrowingText::after(tokenizer, &[]);
        let mut parts: Vec<String> = tokens.iter().map(|t| text.push(*t).unwrap()).collect();
        parts.push(text.rest().unwrap());
        parts
    }

    #[test]
    fn characters_come_whole_and_nothing_is_lost() {
        let t = tokenizer();
        let text =
            "A long text, which is longer than what is decoded again: 5 €, 7 €; ünïcödé 🦀 and on.";
        let tokens = encoded(&t, text).unwrap();
        let came = parts(&t, &tokens);
        assert_eq!(came.concat(), text);
        assert!(
            came.iter().all(|part| !part.contains(NO_CHARACTER)),
            "{came:?}"
        );
    }

    /// A tokenizer that writes characters that it does not know as the tokens of their bytes, as those of Llama 2 and Mistral do.
    /// Token 256 + i is the i-th of `words`.
    fn with_bytes(words: &[&str]) -> Tokenizer {
        let bytes = (0..=255u32).map(|b| (format!("<0x{b:02X}>"), b));
        let words = (256u32..).zip(words).map(|(id, w)| (w.to_string(), id));
        let vocab: std::collections::BTreeMap<String, u32> = bytes.chain(words).collect();
        let json = serde_json::json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
        });
        Tokenizer::from_bytes(serde_json::to_vec(&json).unwrap()).unwrap()
    }

    fn bytes_of(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn runs_of_bytes_stay_legible() {
        let t = with_bytes(&["▁x", "▁y"]);
        for text in ["தமிழ்", "龘龘龘龘龘", "é", "🦀🦀🦀🦀"] {
            let tokens = [&[257][..], &bytes_of(text), &[256]].concat();
            assert_eq!(parts(&t, &tokens).concat(), format!("y{text} x"));
            // A prompt that ends in such a run, also within a word that is longer than what is decoded again.
            let prompt = [&[257][..], &bytes_of(text)].concat();
            let mut after = GrowingText::after(&t, &prompt);
            let next = [bytes_of("龘"), vec![256]].concat();
            let came: String = next.iter().map(|t| after.push(*t).unwrap()).collect();
            assert_eq!(came, "龘 x", "after {text}");
        }
    }

    #[test]
    fn a_run_that_ends_within_a_character_shows_that_alone_as_illegible() {
        let t = with_bytes(&[]);
        let came = parts(&t, &bytes_of("龘龘")[..5]).concat();
        assert_eq!(came, "龘\u{fffd}\u{fffd}");
    }

    #[test]
    fn bytes_that_are_no_character_end_nothing() {
        let t = tokenizer();
        // The first byte of the sign, alone, then as often as is never waited for.
        let first = encoded(&t, "€").unwrap()[0];
        let b = encoded(&t, "b").unwrap();
        let came = parts(&t, &[&[first][..], &b].concat()).concat();
        assert!(
            came.starts_with(NO_CHARACTER) && came.ends_with('b'),
            "{came:?}"
        );
        let many = parts(&t, &[first; 3 * MOST_HELD]).concat();
        assert!(many.chars().count() >= MOST_HELD, "{many:?}");
        assert_eq!(parts(&t, &[first]).last().unwrap(), "\u{fffd}");
    }

    #[test]
    fn a_configuration_names_one_token_or_several_or_none() {
        let of = |json: &str| end_tokens(json.as_bytes(), "/eos_token_id");
        assert_eq!(of(r#"{"eos_token_id": 7}"#), Ok(vec![7]));
        assert_eq!(of(r#"{"eos_token_id": [7, 9]}"#), Ok(vec![7, 9]));
        assert_eq!(of(r#"{"eos_token_id": null}"#), Ok(vec![]));
        assert_eq!(of("{}"), Ok(vec![]));
        for bad in [r#"{"eos_token_id": -1}"#, r#"{"x": Infinity}"#, "["] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tokenizer_that_contradicts_itself_is_an_error() {
        let hostile = br#"{"model": {"type": "BPE", "vocab": {}, "merges": []},
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": "x"}}"#;
        assert!(guarded(|| Tokenizer::from_bytes(hostile)).is_err());
    }
}
