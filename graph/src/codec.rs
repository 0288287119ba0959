//! The codec of control messages, for frames, for stored data and for content hashes.
//!
//! Equal values have equal bytes in every process, because the ids of functions and programs are hashes of them.

use bincode::Options;
use bincode::config::{DefaultOptions, FixintEncoding, WithOtherIntEncoding};
use serde::{Serialize, de::DeserializeOwned};

/// The most bytes of an encoded value, where the caller has no tighter bound. Programs and plans fit; tensors do not
/// travel in control messages.
pub const MAX_MESSAGE: usize = 64 << 20;

/// bincode with fixed-width little-endian integers; bytes after the value are an error.
pub type Bincode = WithOtherIntEncoding<DefaultOptions, FixintEncoding>;

/// Why a value cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value has more bytes than the caller allows; nothing was allocated for them.
    #[error("the message has more than the {limit} bytes allowed")]
    TooLarge {
        /// The caller's bound.
        limit: u64,
    },
    /// The value cannot be encoded.
    #[error("the message cannot be encoded")]
    Encode(#[source] bincode::Error),
    /// The bytes do not hold a value of the type.
    #[error("the message cannot be decoded: both sides must run the same release")]
    Decode(#[source] bincode::Error),
}

/// The settings of the codec.
pub fn bincode() -> Bincode {
    DefaultOptions::new().with_fixint_encoding()
}

/// Encodes a value, in at most [`MAX_MESSAGE`] bytes.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    encode_within(value, MAX_MESSAGE as u64)
}

/// Encodes a value, in at most `limit` bytes.
pub fn encode_within<T: Serialize + ?Sized>(value: &T, limit: u64) -> Result<Vec<u8>, CodecError> {
    // With a limit bincode measures before it writes.
    let result = bincode().with_limit(limit).serialize(value);
    result.map_err(|error| failed(error, limit))
}

fn failed(error: bincode::Error, limit: u64) -> CodecError {
    match *error {
        bincode::ErrorKind::SizeLimit => CodecError::TooLarge { limit },
        _ => CodecError::Encode(error),
    }
}

/// Hashes bytes as they are written, and counts them.
#[derive(Default)]
struct Hashing {
    hasher: blake3::Hasher,
    bytes: u64,
}

impl std::io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The BLAKE3 hash of a value's encoding, and the number of its bytes, at most [`MAX_MESSAGE`]. The encoding itself is
/// not kept.
pub fn hash<T: Serialize + ?Sized>(value: &T) -> Result<([u8; 32], u64), CodecError> {
    let limit = MAX_MESSAGE as u64;
    let mut hashing = Hashing::default();
    let result = bincode()
        .with_limit(limit)
        .serialize_into(&mut hashing, value);
    match result {
        Ok(()) => Ok((*hashing.hasher.finalize().as_bytes(), hashing.bytes)),
        Err(error) => Err(failed(error, limit)),
    }
}

/// The number of bytes that a value takes when encoded; nothing is written.
pub fn size<T: Serialize + ?Sized>(value: &T) -> Result<u64, CodecError> {
    bincode().serialized_size(value).map_err(CodecError::Encode)
}

/// Decodes the value that exactly these bytes hold, at most [`MAX_MESSAGE`] of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    decode_within(bytes, MAX_MESSAGE as u64)
}

/// Decodes the value that exactly these bytes hold, at most `limit` of them.
pub fn decode_within<T: DeserializeOwned>(bytes: &[u8], limit: u64) -> Result<T, CodecError> {
    if bytes.len() as u64 > limit {
        return Err(CodecError::TooLarge { limit });
    }
    bincode()
        .with_limit(limit)
        .deserialize(bytes)
        .map_err(CodecError::Decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codec_is_fixed_width_and_strict() {
        let bytes = encode(&(1u64, 2u16)).expect("fits");
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(decode::<(u64, u16)>(&bytes).expect("whole"), (1, 2));
        assert!(encode_within(&(1u64, 2u16), 10).is_ok());
        let too_large = encode_within(&(1u64, 2u16), 9);
        assert!(matches!(too_large, Err(CodecError::TooLarge { limit: 9 })));
        let too_large = decode_within::<(u64, u16)>(&bytes, 9);
        assert!(matches!(too_large, Err(CodecError::TooLarge { limit: 9 })));
        assert!(matches!(decode::<u64>(&bytes), Err(CodecError::Decode(_))));
        let hashed = hash(&(1u64, 2u16)).expect("fits");
        assert_eq!(hashed, (*blake3::hash(&bytes).as_bytes(), 10));
        // A length that exceeds the remaining bytes allocates nothing.
        let huge = encode(&u64::MAX).expect("fits");
        assert!(matches!(
            decode::<Vec<u64>>(&huge),
            Err(CodecError::Decode(_))
        ));
    }
}
