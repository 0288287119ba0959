//! Targets for the inputs of newcomers and handshakes: join tokens, names, signing requests and certificates; also
//! identity files.

use super::target::{MemoryBound, Target, choose};
use crate::identity::fuzzing::{authority, certificate, own_file, signing_request, stranger};
use crate::identity::{JoinToken, PeerName, Role, Serial, TokenId};

pub(super) const TARGET: Target = Target {
    name: "identity",
    budget: MemoryBound {
        fixed: 256 << 10,
        factor: 64,
    },
    entry: |input| {
        // The authority is made once, and counts towards the memory bound of the first input only.
        authority();
        choose(DECODERS, input)
    },
};

const DECODERS: &[fn(&[u8]) -> bool] = &[text, certificate, stranger, signing_request, own_file];

/// Parses a line that a user pasted as each kind of text in turn.
fn text(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let token = match text.parse::<JoinToken>() {
        Ok(token) => token.to_string().parse::<JoinToken>().is_ok(),
        Err(error) => error.to_string().is_empty(),
    };
    let name = text.parse::<PeerName>().is_ok();
    let id = text.parse::<TokenId>().is_ok();
    let serial = text.parse::<Serial>().is_ok();
    token | name | id | serial | text.parse::<Role>().is_ok()
}
