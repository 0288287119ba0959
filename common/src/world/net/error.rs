//! Why a socket could not be opened, or a name not be resolved.

use std::io;
use std::net::SocketAddr;

/// Why a socket could not be opened, or a name not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Another process listens at the address.
    #[error(
        "{protocol} port {addr} is taken: stop the process that uses it, or listen on another port"
    )]
    PortTaken {
        /// The address that was asked for.
        addr: SocketAddr,
        /// "UDP" or "TCP".
        protocol: &'static str,
    },
    /// The address cannot be bound on this machine.
    #[error("cannot listen on {protocol} {addr}: is it an address of this machine?")]
    Bind {
        /// The address that was asked for.
        addr: SocketAddr,
        /// "UDP" or "TCP".
        protocol: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The name has no address.
    #[error("cannot find an address for `{name}`: expected HOST:PORT with a host that resolves")]
    Lookup {
        /// The name that was looked up.
        name: String,
        /// Why the lookup failed.
        #[source]
        source: io::Error,
    },
    /// The TCP connection could not be made.
    #[error("cannot connect to TCP {addr}")]
    Connect {
        /// The address that was asked for.
        addr: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// QUIC does not accept a limit or a TLS setting.
    #[error("bad endpoint setting: {what}")]
    Setting {
        /// What is wrong with the setting.
        what: String,
    },
}

impl NetError {
    /// The error of a failed bind; a taken port has its own variant.
    pub fn bind(addr: SocketAddr, protocol: &'static str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::AddrInUse {
            return Self::PortTaken { addr, protocol };
        }
        Self::Bind {
            addr,
            protocol,
            source,
        }
    }
}
