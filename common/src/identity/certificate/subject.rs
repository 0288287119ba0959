//! The parts of what a certificate says: role, name, token id and serial number of its holder, and the hash by which
//! its authority is known.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

/// The DNS name in every server certificate. Certificates hold no addresses: members are known by role and key.
pub const SERVER_NAME: &str = "convoke";

/// What a peer may do. Each service decides which of its calls a role may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The process that owns membership, placement and tokens.
    Coordinator,
    /// A process that owns a device.
    Worker,
    /// A process that runs programs on workers.
    Client,
}

impl Role {
    /// The role as it is written in certificates and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = BadSubject;
    fn from_str(text: &str) -> Result<Self, BadSubject> {
        match text {
            "coordinator" => Ok(Self::Coordinator),
            "worker" => Ok(Self::Worker),
            "client" => Ok(Self::Client),
            _ => Err(BadSubject::Role),
        }
    }
}

/// The part of a certificate's subject, or of the text of one, that is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSubject {
    /// The text is not a role.
    #[error("expected the role coordinator, worker or client")]
    Role,
    /// The text is not a name.
    #[error("a name is 1 to 64 of the characters A-Z a-z 0-9 . _ -")]
    Name,
    /// The text is not a token id.
    #[error("a token id is 1 to 32 of the characters a-z 0-9")]
    TokenId,
    /// The text is not a serial number.
    #[error("a serial number is 32 hexadecimal digits")]
    Serial,
    /// The text is not a budget.
    #[error("a budget is a letter and a number for each of its limits")]
    Budget,
    /// The certificate has no URI, more than one, or one of another form.
    #[error("the certificate does not name exactly one convoke:/role/name/token/serial[/budget]")]
    Form,
    /// The bytes are not a certificate.
    #[error("not an X.509 certificate")]
    Certificate,
}

fn check_text(text: &str, longest: usize, allowed: fn(u8) -> bool) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(allowed)
}

macro_rules! text_newtype {
    ($name:ident, $error:expr, $longest:expr, $allowed:expr, $doc:expr) => {
        #[doc = $doc]
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The value as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl TryFrom<String> for $name {
            type Error = BadSubject;
            fn try_from(text: String) -> Result<Self, BadSubject> {
                if check_text(&text, $longest, $allowed) {
                    Ok(Self(text))
                } else {
                    Err($error)
                }
            }
        }
        impl FromStr for $name {
            type Err = BadSubject;
            fn from_str(text: &str) -> Result<Self, BadSubject> {
                text.to_owned().try_into()
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_newtype!(
    PeerName,
    BadSubject::Name,
    64,
    |b| b.is_ascii_alphanumeric() || b"._-".contains(&b),
    "The name that a peer chose for itself; not unique."
);
text_newtype!(
    TokenId,
    BadSubject::TokenId,
    32,
    |b| b.is_ascii_lowercase() || b.is_ascii_digit(),
    "The public half of a join token; revoking it revokes the certificates that it brought."
);

impl TokenId {
    /// The id in certificates for which no token was needed: the coordinator's own, and those of an embedded cluster.
    /// It never equals a token's id, which has eight characters.
    pub fn direct() -> Self {
        Self("direct".to_owned())
    }
}

/// A certificate's serial number: 127 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Serial(u128);

impl Serial {
    /// Makes a serial number of random bytes. X.509 demands a positive number, so the top bit is dropped and zero
    /// becomes one.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self((u128::from_be_bytes(bytes) >> 1).max(1))
    }

    /// The serial number as big-endian bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serial({self})")
    }
}

impl FromStr for Serial {
    type Err = BadSubject;
    fn from_str(text: &str) -> Result<Self, BadSubject> {
        let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(hexadecimal) {
            return Err(BadSubject::Serial);
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| BadSubject::Serial)
    }
}

/// The BLAKE3 hash of a CA certificate's DER, by which a token names its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CaHash([u8; 32]);

impl CaHash {
    /// The hash of this certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(*blake3::hash(certificate).as_bytes())
    }

    /// Makes a hash of its raw bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaHash({})", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_read_back() {
        for role in [Role::Coordinator, Role::Worker, Role::Client] {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        for bad in ["", "Worker", "admin", "worker "] {
            assert_eq!(bad.parse::<Role>(), Err(BadSubject::Role));
        }
    }

    #[test]
    fn names_and_ids_cannot_carry_a_separator() {
        assert!("worker-1.rack_B".parse::<PeerName>().is_ok());
        for bad in ["", "a/b", "a b", "é", &"x".repeat(65)] {
            assert_eq!(bad.parse::<PeerName>(), Err(BadSubject::Name));
        }
        for bad in ["", "A", "a-b", &"x".repeat(33)] {
            assert_eq!(bad.parse::<TokenId>(), Err(BadSubject::TokenId));
        }
    }

    #[test]
    fn serials_are_positive_and_read_back() {
        let serial = Serial::from_random([0xff; 16]);
        assert_eq!(serial.to_bytes()[0], 0x7f);
        assert_eq!(serial.to_string().parse(), Ok(serial));
        assert_ne!(Serial::from_random([0; 16]).to_bytes(), [0; 16]);
        for bad in ["", "0", &"g".repeat(32), &"+".repeat(32), &"A".repeat(32)] {
            assert_eq!(bad.parse::<Serial>(), Err(BadSubject::Serial));
        }
    }
}
