//! Join tokens: `convoke1-<role letter>-<id>-<secret>-<ca hash>`, one printable line.
//!
//! Id, secret and hash are base32 without padding, in lower case; reading takes either case.

pub(in crate::identity) mod budget;
pub(in crate::identity) mod store;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD_NOCASE;

use crate::identity::certificate::subject::{CaHash, Role, TokenId};
use crate::world::{Store, StoreError};

const PREFIX: &str = "convoke1";

/// The bytes of a secret: 160 random bits cannot be guessed, and keep the line short.
pub(in crate::identity) const SECRET_LENGTH: usize = 20;

/// The bytes of an id, which are eight characters of base32.
pub(in crate::identity) const ID_LENGTH: usize = 5;

/// A bound for token files: a token has about 110 characters.
const LARGEST_FILE: u64 = 4096;

pub(in crate::identity) fn base32(bytes: &[u8]) -> String {
    BASE32_NOPAD_NOCASE.encode(bytes).to_ascii_lowercase()
}

fn unbase32<const N: usize>(text: &str) -> Option<[u8; N]> {
    // The length is checked first, so that nothing is decoded or allocated for a line of another size.
    if text.len() != BASE32_NOPAD_NOCASE.encode_len(N) {
        return None;
    }
    BASE32_NOPAD_NOCASE
        .decode(text.as_bytes())
        .ok()?
        .try_into()
        .ok()
}

/// The secret half of a token.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TokenSecret(pub(in crate::identity) [u8; SECRET_LENGTH]);

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(hidden)")
    }
}

/// A join token, with which a newcomer joins a cluster. `Display` writes the secret, `Debug` does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The role that the token grants.
    pub role: Role,
    /// The token's public half.
    pub id: TokenId,
    /// The token's secret half.
    pub secret: TokenSecret,
    /// The hash of the CA of the token's cluster.
    pub ca: CaHash,
}

/// Why a token cannot be read. The error never shows the text, which may be most of a secret.
#[derive(Debug, thiserror::Error)]
pub enum BadToken {
    /// The text does not have the form of a token; `part` is the first part that is wrong.
    #[error(
        "not a join token (its {part} is wrong): a token is the whole line that `convoke token create` prints"
    )]
    Form {
        /// The name of the wrong part.
        part: &'static str,
    },
    /// The token's file cannot be read.
    #[error("cannot read the join token")]
    File(#[source] StoreError),
}

impl JoinToken {
    /// Reads a token from a file that holds nothing else. Logs a warning if others can read or change the file.
    pub fn from_file(store: &dyn Store, path: &Path) -> Result<Self, BadToken> {
        let bytes = store.read(path, LARGEST_FILE).map_err(BadToken::File)?;
        if let Err(e @ StoreError::Unsafe { .. }) = store.check_private(path) {
            tracing::warn!("whoever reads a join token can join with it: {e}");
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| BadToken::Form { part: "encoding" })?;
        text.parse()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.role {
            Role::Coordinator => 'k',
            Role::Worker => 'w',
            Role::Client => 'c',
        };
        let secret = base32(&self.secret.0);
        let ca = base32(self.ca.as_bytes());
        write!(f, "{PREFIX}-{letter}-{}-{secret}-{ca}", self.id)
    }
}

impl FromStr for JoinToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let bad = |part| BadToken::Form { part };
        let mut parts = text.trim().split('-');
        let mut next = |part| parts.next().ok_or(bad(part));
        if next("prefix")? != PREFIX {
            return Err(bad("prefix"));
        }
        // No token grants the role of a coordinator.
        let role = match next("role letter")? {
            "w" => Role::Worker,
            "c" => Role::Client,
            _ => return Err(bad("role letter")),
        };
        let id: [u8; ID_LENGTH] = unbase32(next("id")?).ok_or(bad("id"))?;
        let secret = unbase32(next("secret")?).ok_or(bad("secret"))?;
        let ca = unbase32(next("CA hash")?).ok_or(bad("CA hash"))?;
        if parts.next().is_some() {
            return Err(bad("end"));
        }
        Ok(Self {
            role,
            id: base32(&id).parse().map_err(|_| bad("id"))?,
            secret: TokenSecret(secret),
            ca: CaHash::from_bytes(ca),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            role: Role::Worker,
            id: base32(&[1, 2, 3, 4, 5]).parse().expect("id"),
            secret: TokenSecret([7; SECRET_LENGTH]),
            ca: CaHash::from_bytes([9; 32]),
        }
    }

    #[test]
    fn one_line_that_reads_back() {
        let text = token().to_string();
        assert!(text.starts_with("convoke1-w-aebagbaf-"));
        assert!(text.bytes().all(|b| b.is_ascii_graphic()));
        assert_eq!(text.parse::<JoinToken>().expect("valid"), token());
        let pasted = format!("  {}\r\n", text.replace("aebagbaf", "AEBAGBAF"));
        assert_eq!(pasted.parse::<JoinToken>().expect("valid"), token());
    }

    #[test]
    fn wrong_parts_are_named_and_not_shown() {
        let text = token().to_string();
        let check = |text: String, expected: &str| match text.parse::<JoinToken>() {
            Err(BadToken::Form { part }) => assert_eq!(part, expected, "{text}"),
            other => panic!("{text}: {other:?}"),
        };
        check(String::new(), "prefix");
        check(text.replacen("convoke1", "convoke2", 1), "prefix");
        check(text.replacen("-w-", "-k-", 1), "role letter");
        check(text.replacen("aebagbaf", "aebagb", 1), "id");
        check(text.replacen("aebagbaf", "aebagba1", 1), "id");
        check("convoke1-w-aebagbaf-short-x".to_owned(), "secret");
        check(text[..text.len() - 1].to_owned(), "CA hash");
        check(format!("{text}-more"), "end");
        check("convoke1-w".to_owned(), "id");
        let debug = format!("{:?}", token());
        assert!(debug.contains("hidden") && !debug.contains("7, 7"));
    }
}
