//! The first 8 bytes of every connection. They never change, so that peers of any two versions can tell each other
//! their versions:
//!
//! ```text
//! offset 0..4  "CNVK"
//!        4..6  protocol version, little endian
//!        6..8  zero
//! ```
//!
//! The dialler opens the connection's first bidirectional stream and sends these bytes; the listener answers with its
//! own on the same stream, even if it then refuses the dialler, so that both ends can report both versions. Then the
//! stream ends.

use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use tokio::time::{Instant, timeout_at};

/// The protocol version of this build. It changes with anything that is sent after the greeting.
pub const PROTOCOL_VERSION: u16 = 2;

/// The close code of a connection whose peers speak different versions.
pub const CLOSE_VERSION: VarInt = VarInt::from_u32(0x10);

const MAGIC: [u8; 4] = *b"CNVK";
const LENGTH: usize = 8;

/// Why a greeting failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The peer speaks another protocol version.
    #[error(
        "the peer speaks protocol version {theirs}, this program {ours}: run the same release on both"
    )]
    VersionMismatch {
        /// The protocol version of this process.
        ours: u16,
        /// The protocol version of the peer.
        theirs: u16,
    },
    /// The peer's first bytes are not a greeting.
    #[error("the peer does not speak this protocol: its first bytes are {got:02x?}")]
    NotConvoke {
        /// The bytes that came instead.
        got: [u8; LENGTH],
    },
    /// The greeting did not arrive in time.
    #[error("the peer connected and then did not greet in time")]
    Timeout,
    /// The connection ended before the greeting.
    #[error("the connection ended before the greeting")]
    Lost(#[source] ConnectionError),
    /// The stream ended within the greeting.
    #[error("the greeting was cut short: {reason}")]
    Cut {
        /// How the stream ended.
        reason: String,
    },
}

/// The greeting of this protocol version.
pub fn encode(version: u16) -> [u8; LENGTH] {
    let [low, high] = version.to_le_bytes();
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, low, high, 0, 0]
}

/// Checks a peer's greeting against this process's protocol version.
pub fn check(got: [u8; LENGTH], ours: u16) -> Result<(), HelloError> {
    let [a, b, c, d, low, high, rest @ ..] = got;
    if [a, b, c, d] != MAGIC {
        return Err(HelloError::NotConvoke { got });
    }
    let theirs = u16::from_le_bytes([low, high]);
    if theirs != ours {
        return Err(HelloError::VersionMismatch { ours, theirs });
    }
    // Only a peer of another version may give the last two bytes a meaning.
    if rest != [0, 0] {
        return Err(HelloError::NotConvoke { got });
    }
    Ok(())
}

async fn write(send: &mut SendStream, version: u16) -> Result<(), HelloError> {
    let cut = |error: quinn::WriteError| match error {
        quinn::WriteError::ConnectionLost(error) => HelloError::Lost(error),
        error => HelloError::Cut {
            reason: error.to_string(),
        },
    };
    send.write_all(&encode(version)).await.map_err(cut)?;
    // This fails only on a stream that was finished or that the peer reset; the read that follows reports it.
    let _ = send.finish();
    Ok(())
}

async fn read(recv: &mut RecvStream) -> Result<[u8; LENGTH], HelloError> {
    let mut got = [0; LENGTH];
    match recv.read_exact(&mut got).await {
        Ok(()) => Ok(got),
        Err(quinn::ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error))) => {
            Err(HelloError::Lost(error))
        }
        Err(error) => Err(HelloError::Cut {
            reason: error.to_string(),
        }),
    }
}

/// The dialler's side: opens the first stream, sends the greeting, and checks the answer.
pub async fn open(
    connection: &Connection,
    version: u16,
    deadline: Instant,
) -> Result<(), HelloError> {
    let exchange = async {
        let (mut send, mut recv) = connection.open_bi().await.map_err(HelloError::Lost)?;
        write(&mut send, version).await?;
        let got = read(&mut recv).await?;
        check(got, version)
    };
    timeout_at(deadline, exchange)
        .await
        .unwrap_or(Err(HelloError::Timeout))
}

/// The listener's side: awaits the first stream, answers the greeting, and checks it.
pub async fn answer(
    connection: &Connection,
    version: u16,
    deadline: Instant,
) -> Result<(), HelloError> {
    let exchange = async {
        let (mut send, mut recv) = connection.accept_bi().await.map_err(HelloError::Lost)?;
        let got = read(&mut recv).await?;
        write(&mut send, version).await?;
        let verdict = check(got, version);
        if verdict.is_err() {
            // The caller closes the connection next: first the dialler must have the version that it will report.
            let _ = send.stopped().await;
        }
        verdict
    };
    timeout_at(deadline, exchange)
        .await
        .unwrap_or(Err(HelloError::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eight_bytes_are_fixed() {
        assert_eq!(&encode(0x0201), b"CNVK\x01\x02\x00\x00");
        assert_eq!(check(encode(7), 7), Ok(()));
    }

    #[test]
    fn mismatches_are_told_apart() {
        let mismatch = HelloError::VersionMismatch { ours: 1, theirs: 2 };
        assert_eq!(check(encode(2), 1), Err(mismatch.clone()));
        // A later version may use the last two bytes; it is still reported by its version.
        assert_eq!(check(*b"CNVK\x02\0\x09\x09", 1), Err(mismatch));
        for got in [*b"GET / HT", *b"CNVK\x01\0\0\x01"] {
            assert_eq!(check(got, 1), Err(HelloError::NotConvoke { got }));
        }
    }
}
