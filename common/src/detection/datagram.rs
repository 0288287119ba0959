//! The datagrams that the two ends of a connection send each other, unreliably and unordered:
//!
//! ```text
//! u8 kind (1 heartbeat, 2 probe) | u64 own counter | u64 last counter seen from the peer      little endian
//! ```

use bytes::Bytes;

/// The length of every datagram, in bytes.
pub const LENGTH: usize = 17;

/// The kind of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Says that the sender lives, and which counter it has seen.
    Heartbeat = 1,
    /// Says the same as a heartbeat, and asks for a heartbeat at once.
    Probe = 2,
}

/// A datagram of failure detection, in the layout that the module gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    pub kind: Kind,
    /// The sender's counter, which counts up from 1; 0 before its first.
    pub counter: u64,
    /// The highest counter that the sender has seen from the receiver.
    pub seen: u64,
}

impl Datagram {
    /// Encodes the datagram.
    pub fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(LENGTH);
        out.push(self.kind as u8);
        out.extend(self.counter.to_le_bytes());
        out.extend(self.seen.to_le_bytes());
        out.into()
    }

    /// Decodes a datagram; `None` if the kind is unknown or the length is wrong.
    pub fn decode(bytes: &[u8]) -> Option<Datagram> {
        let (&kind, rest) = bytes.split_first()?;
        let kind = [Kind::Heartbeat, Kind::Probe]
            .into_iter()
            .find(|k| *k as u8 == kind)?;
        let (counter, seen) = rest.split_first_chunk::<8>()?;
        Some(Datagram {
            kind,
            counter: u64::from_le_bytes(*counter),
            seen: u64::from_le_bytes(seen.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for kind in [Kind::Heartbeat, Kind::Probe] {
            let datagram = Datagram {
                kind,
                counter: u64::MAX,
                seen: 0x0102_0304_0506_0708,
            };
            let bytes = datagram.encode();
            assert_eq!(bytes.len(), LENGTH);
            assert_eq!(Datagram::decode(&bytes), Some(datagram));
        }
    }

    #[test]
    fn another_kind_or_length_is_none() {
        let good = Datagram {
            kind: Kind::Probe,
            counter: 1,
            seen: 2,
        }
        .encode();
        for len in 0..LENGTH {
            assert_eq!(Datagram::decode(&good[..len]), None, "{len} bytes");
        }
        assert_eq!(Datagram::decode(&[&good[..], &[0]].concat()), None);
        for kind in [0, 3, 255] {
            let mut other = good.to_vec();
            other[0] = kind;
            assert_eq!(Datagram::decode(&other), None, "kind {kind}");
        }
    }
}
