//! Who is at the other end of a connection.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

/// Known when the connection is accepted; its names once the handshake is done.
#[derive(Clone, Debug, Default)]
pub struct Peer(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    address: Option<SocketAddr>,
    names: OnceLock<Arc<[String]>>,
}

// === impl Peer ===

impl Peer {
    /// Somebody at an address; none: behind a unix socket.
    #[must_use]
    pub fn at(address: Option<SocketAddr>) -> Self {
        Self(Arc::new(Known { address, names: OnceLock::new() }))
    }

    /// Its certificate was verified and bears these names.
    pub fn is_certified(&self, names: Vec<String>) {
        // A connection has one handshake.
        let _first = self.0.names.set(names.into());
    }

    /// Of its verified certificate; none without one.
    #[must_use]
    pub fn names(&self) -> Option<&Arc<[String]>> {
        self.0.names.get()
    }

    /// Whether it is on this machine, in the same network namespace.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.0.address.is_none_or(|address| address.ip().to_canonical().is_loopback())
    }
}
