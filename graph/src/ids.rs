//! Content hashes, and how every kind of id is written.
//!
//! In JSON, ids are the strings that logs show, since many programs read a JSON number as a float, which holds no more
//! than 53 bits; hashes have all their digits there. On the wire, ids are numbers and bytes.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::printable::Printable;

/// Writes an id as a string in formats that people read, and as the number or bytes that it holds in others.
pub fn write<S: Serializer>(
    to: S,
    id: &impl Display,
    held: &impl Serialize,
) -> Result<S::Ok, S::Error> {
    match to.is_human_readable() {
        true => to.collect_str(id),
        false => held.serialize(to),
    }
}

/// Reads an id that [`write()`] wrote.
pub fn read<'de, D, T, H>(from: D, held: impl FnOnce(H) -> T) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
    H: Deserialize<'de>,
{
    match from.is_human_readable() {
        true => String::deserialize(from)?.parse().map_err(D::Error::custom),
        false => H::deserialize(from).map(held),
    }
}

/// Serialises a field of 64 bits: as hexadecimal digits in JSON, as a number on the wire.
pub mod digits {
    use super::*;

    /// Writes the bits.
    pub fn serialize<S: Serializer>(bits: &u64, to: S) -> Result<S::Ok, S::Error> {
        write(to, &format_args!("{bits:016x}"), bits)
    }

    /// Reads the bits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        read(from, |bits: u64| Bits(bits)).map(|Bits(bits)| bits)
    }

    struct Bits(u64);

    impl FromStr for Bits {
        type Err = String;
        fn from_str(text: &str) -> Result<Bits, String> {
            let bits = u64::from_str_radix(text, 16).map(Bits);
            bits.map_err(|e| format!("'{}': {e}", Printable(text)))
        }
    }
}

/// Displays all digits of a hash, as they are in JSON; logs show the first sixteen.
struct FullHash<'a>(&'a [u8; 32]);

impl Display for FullHash<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Parses all 64 hexadecimal digits of a hash.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 32]);
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                write(to, &FullHash(&self.0), &self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                read(from, $name)
            }
        }
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let bytes = unhex(text).map($name);
                bytes.ok_or_else(|| format!("'{}' is not a hash of 64 hexadecimal digits", Printable(text)))
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0[..8].iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

hash!(
    /// Content hash of a program.
    ProgramId
);
hash!(
    /// Content hash of a function as its caller gave it. It depends neither on the caller nor on the function's name.
    FunctionId
);

/// Index of a participant of a lease; the driver comes after the workers.
pub type ParticipantIx = u16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_all_digits_of_a_hash() {
        let json = format!("\"{}\"", "8".repeat(64));
        let id = FunctionId([0x88; 32]);
        assert_eq!(serde_json::to_string(&id).unwrap(), json);
        assert_eq!(serde_json::from_str::<FunctionId>(&json).unwrap(), id);
        for bad in ["\"88\"".to_owned(), format!("\"{}\"", "é".repeat(32))] {
            assert!(serde_json::from_str::<FunctionId>(&bad).is_err(), "{bad}");
        }
    }
}
