//! A QUIC endpoint that dials and listens, over any socket.
//!
//! Invariants:
//! 1. Every random draw of quinn (connection ids, reset and token keys, the seed of its own generator) comes from the
//!    given [`Rng`], and its calendar time from the given [`WallClock`]: production and simulation build endpoints
//!    alike.
//! 2. An endpoint without a server identity refuses every peer that dials it.
//! 3. Handshakes that nobody has accepted yet hold a bounded amount of memory.
//! 4. A dialler that has shown no certificate may have two streams open, and send 64 KiB ahead of their readers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, VarInt};

use super::net::NetError;
use super::transport::{EndpointOptions, HIGHEST_MTU, Side, transport};
use super::{Rng, WallClock, WallTime};
use crate::identity::{AskedNames, TlsConfigs};

/// Connection ids are opaque; eight random bytes do not collide within one endpoint.
const CONNECTION_ID_LENGTH: usize = 8;

/// The id that a dialler invents for the peer is longer, since the first keys derive from it.
const INITIAL_CONNECTION_ID_LENGTH: usize = 20;

/// The most handshakes that may wait to be accepted.
const MAX_PENDING_HANDSHAKES: usize = 512;

/// Bytes buffered for one waiting handshake, and for all of them.
const PENDING_HANDSHAKE_BYTES: u64 = 64 << 10;
const PENDING_HANDSHAKES_BYTES: u64 = 4 << 20;

struct RandomIds(Arc<dyn Rng>);

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.bytes::<CONNECTION_ID_LENGTH>())
    }
    fn cid_len(&self) -> usize {
        CONNECTION_ID_LENGTH
    }
    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A value for peers on this machine, and one for all others.
#[derive(Clone)]
struct ConfigByLocality<T> {
    here: T,
    elsewhere: T,
}

impl<T> ConfigByLocality<T> {
    fn build(mut one: impl FnMut(bool) -> Result<T, NetError>) -> Result<Self, NetError> {
        Ok(Self {
            here: one(true)?,
            elsewhere: one(false)?,
        })
    }

    fn towards(&self, peer: SocketAddr) -> &T {
        // A dual-stack socket sees IPv4 loopback as ::ffff:127.0.0.1.
        if peer.ip().to_canonical().is_loopback() {
            &self.here
        } else {
            &self.elsewhere
        }
    }
}

/// A QUIC endpoint; clones share the socket.
#[derive(Clone)]
pub struct Endpoint {
    quic: quinn::Endpoint,
    local: SocketAddr,
    client: ConfigByLocality<quinn::ClientConfig>,
    window: u32,
    asks_for: AskedNames,
    server: Option<ConfigByLocality<Arc<quinn::ServerConfig>>>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("local", &self.local)
            .field("listens", &self.server.is_some())
            .finish_non_exhaustive()
    }
}

/// Builds an endpoint over a socket; `runtime` provides its timers and tasks.
pub fn build_endpoint(
    socket: Arc<dyn AsyncUdpSocket>,
    runtime: Arc<dyn quinn::Runtime>,
    tls: &TlsConfigs,
    options: &EndpointOptions,
    wall: Arc<dyn WallClock>,
    rng: Arc<dyn Rng>,
) -> Result<Endpoint, NetError> {
    let setting = |what: String| NetError::Setting { what };
    let local = socket
        .local_addr()
        .map_err(|error| setting(format!("the socket has no address: {error}")))?;

    let client = ConfigByLocality::build(|loopback| {
        let crypto = QuicClientConfig::try_from(tls.client.clone())
            .map_err(|error| setting(error.to_string()))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        let ids = rng.clone();
        config
            .transport_config(transport(options, Side::Dials, loopback)?)
            .initial_dst_cid_provider(Arc::new(move || {
                ConnectionId::new(&ids.bytes::<INITIAL_CONNECTION_ID_LENGTH>())
            }));
        Ok(config)
    })?;

    let token_secret: [u8; 32] = rng.bytes();
    let token_key =
        Arc::new(ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &[]).extract(&token_secret));
    let server = tls.server.as_ref().map(|server| {
        ConfigByLocality::build(|loopback| {
            let crypto = QuicServerConfig::try_from(server.clone())
                .map_err(|error| setting(error.to_string()))?;
            let mut config = quinn::ServerConfig::new(Arc::new(crypto), token_key.clone());
            config
                .transport_config(transport(options, Side::Listens, loopback)?)
                .time_source(Arc::new(WallTime(wall.clone())))
                .max_incoming(MAX_PENDING_HANDSHAKES)
                .incoming_buffer_size(PENDING_HANDSHAKE_BYTES)
                .incoming_buffer_size_total(PENDING_HANDSHAKES_BYTES);
            Ok(Arc::new(config))
        })
    });
    let server = server.transpose()?;

    let reset_key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &rng.bytes::<64>());
    let mut config = quinn::EndpointConfig::new(Arc::new(reset_key));
    let ids = rng.clone();
    config
        .rng_seed(Some(rng.bytes()))
        .cid_generator(move || Box::new(RandomIds(ids.clone())));
    // Without this a peer would shrink its packets to what Ethernet carries, on loopback too.
    config
        .max_udp_payload_size(HIGHEST_MTU)
        .map_err(|error| setting(error.to_string()))?;

    let listening = server
        .as_ref()
        .map(|server| server.elsewhere.as_ref().clone());
    let quic = quinn::Endpoint::new_with_abstract_socket(config, listening, socket, runtime)
        .map_err(|error| setting(format!("the socket cannot be used: {error}")))?;
    Ok(Endpoint {
        quic,
        local,
        client,
        window: options.connection_window,
        asks_for: tls.asks_for.clone(),
        server,
    })
}

impl Endpoint {
    /// The bound address; its port is the system's choice if none was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The names by which members of this cluster can be asked for, the likeliest first.
    pub(crate) fn asked_names(&self) -> Vec<Arc<str>> {
        self.asks_for.get()
    }

    /// Starts a connection that asks for the cluster by this name. Use [`crate::identity::dial`] for a checked
    /// connection: it also verifies role and version, and tries the other names.
    pub(crate) fn connect_asking(
        &self,
        peer: SocketAddr,
        name: &str,
    ) -> Result<quinn::Connecting, quinn::ConnectError> {
        let config = self.client.towards(peer).clone();
        self.quic.connect_with(config, peer, name)
    }

    /// Starts a connection that asks for the cluster by the likeliest name.
    pub fn connect(&self, peer: SocketAddr) -> Result<quinn::Connecting, quinn::ConnectError> {
        let names = self.asked_names();
        self.connect_asking(peer, names.first().map_or("", |name| name))
    }

    /// Waits for the next peer that dials; `None` once the endpoint is closed. [`crate::identity::greet`] completes the
    /// connection.
    pub async fn accept(&self) -> Option<Incoming> {
        loop {
            let incoming = self.quic.accept().await?;
            let Some(server) = &self.server else {
                incoming.refuse();
                continue;
            };
            let config = server.towards(incoming.remote_address()).clone();
            let window = self.window;
            return Some(Incoming {
                incoming,
                config,
                window,
            });
        }
    }

    /// Closes every connection and accepts no more. Returns at once; [`Endpoint::wait_idle`] waits until the peers
    /// know.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.quic.close(code, reason);
    }

    /// Returns once every closed connection has told its peer.
    pub async fn wait_idle(&self) {
        self.quic.wait_idle().await;
    }

    /// The QUIC endpoint beneath, for its counters.
    pub fn quic(&self) -> &quinn::Endpoint {
        &self.quic
    }
}

/// A peer that dialled and was not answered yet.
pub struct Incoming {
    incoming: quinn::Incoming,
    config: Arc<quinn::ServerConfig>,
    window: u32,
}

impl Incoming {
    /// The address from which the peer dials.
    pub fn remote_address(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// How many bytes the endpoint lets a member send ahead of its readers; a stranger may send far fewer, see
    /// [`welcome`].
    ///
    /// [`welcome`]: super::welcome
    pub fn member_window(&self) -> u32 {
        self.window
    }

    /// Starts the handshake.
    pub fn accept(self) -> Result<quinn::Connecting, quinn::ConnectionError> {
        self.incoming.accept_with(self.config)
    }

    /// Whether the peer has proved that it receives at its address.
    pub fn is_validated(&self) -> bool {
        self.incoming.remote_address_validated()
    }

    /// Asks the peer to prove that it receives at its address, and keeps no state about the peer meanwhile.
    pub fn retry(self) {
        if let Err(again) = self.incoming.retry() {
            again.into_incoming().refuse();
        }
    }

    /// Refuses the peer's connection.
    pub fn refuse(self) {
        self.incoming.refuse();
    }
}
