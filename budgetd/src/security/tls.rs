//! TLS as a server, by rustls: made of three files, replaced as a whole.
//!
//! Sessions are not resumed: a connection lasts long, and whoever comes back shows its certificate again.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};
use tokio::net::TcpStream;
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

use super::{Peer, names};

/// Which port a connection comes in at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// HTTP/2.
    Grpc,
    /// HTTP/1.1. A client certificate may be missing: probes have none.
    Http,
}

/// What handshakes are made with; cheap to clone.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Keys>>);

/// Made of one content of the files.
#[derive(Clone)]
pub(super) struct Keys {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

/// Whether a client needs a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// At the gRPC port it does.
    Required,
    /// A token will do.
    Optional,
}

/// The contents of the files.
#[derive(PartialEq, Eq)]
pub(super) struct Contents<'a> {
    pub(super) cert: &'a [u8],
    pub(super) key: &'a [u8],
    pub(super) client_ca: Option<&'a [u8]>,
}

/// The file that is at fault, as its flag is called, and why.
pub(super) type Fault = (&'static str, String);

// === impl Tls ===

impl Tls {
    pub(super) fn new(keys: Keys) -> Self {
        Self(Arc::new(RwLock::new(keys)))
    }

    /// For all handshakes from now on.
    pub(super) fn replace(&self, keys: Keys) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Begins a handshake, which goes on when it is polled.
    #[must_use]
    pub fn accept(&self, port: Port, stream: TcpStream) -> Accept<TcpStream> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let config = match port {
            Port::Grpc => &keys.grpc,
            Port::Http => &keys.http,
        };
        TlsAcceptor::from(Arc::clone(config)).accept(stream)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Tells a peer's names once its certificate was verified.
pub fn certify(peer: &Peer, stream: &TlsStream<TcpStream>) {
    if let Some([certificate, ..]) = stream.get_ref().1.peer_certificates() {
        peer.is_certified(names::of_certificate(certificate));
    }
}

// === impl Keys ===

impl Keys {
    /// # Errors
    /// If a file is no such file, or the key does not belong to the certificate.
    pub(super) fn read(contents: &Contents<'_>, demand: Demand) -> Result<Self, Fault> {
        let chain = certificates(contents.cert).map_err(|why| ("tls-cert", why))?;
        let key = PrivateKeyDer::from_pem_slice(contents.key)
            .map_err(|_| ("tls-key", "has no private key in PEM (PKCS#8, SEC1 or PKCS#1, not encrypted)".to_owned()))?;
        let roots = contents.client_ca.map(roots).transpose().map_err(|why| ("tls-client-ca", why))?;
        let make = |demand: Demand, protocol: &[u8]| {
            let provider = Arc::new(ring::default_provider());
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
            let builder =
                builder.with_safe_default_protocol_versions().map_err(|error| ("tls-cert", error.to_string()))?;
            let builder = match &roots {
                None => builder.with_no_client_auth(),
                Some(roots) => {
                    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider);
                    let verifier = match demand {
                        Demand::Required => verifier,
                        Demand::Optional => verifier.allow_unauthenticated(),
                    };
                    let verifier = verifier.build().map_err(|error| ("tls-client-ca", error.to_string()))?;
                    builder.with_client_cert_verifier(verifier)
                }
            };
            let mut config = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(|error| {
                if matches!(error, rustls::Error::InconsistentKeys(_)) {
                    ("tls-key", "does not belong to the certificate".to_owned())
                } else {
                    ("tls-cert", error.to_string())
                }
            })?;
            config.alpn_protocols = vec![protocol.to_vec()];
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok(Arc::new(config))
        };
        Ok(Self { grpc: make(demand, b"h2")?, http: make(Demand::Optional, b"http/1.1")? })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err("has no certificate in PEM".to_owned()),
        Err(error) => Err(format!("is not PEM: {error}")),
    }
}

fn roots(pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(store))
}
