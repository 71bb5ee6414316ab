//! Who may connect and who may do what: TLS, client certificates, bearer tokens, roles.
//!
//! ```text
//! server/incoming ── handshake ──► tls ── names of the certificate ──► peer
//! server/guarding, http ── request ──► guard ── token or peer ──► access ── role on a dependency? ──► service
//! watch ── content of the files, again and again ──► tls, guard
//! ```
//!
//! Files are read anew while the daemon serves. What is broken never replaces what works, and is told once by the log and
//! as long as it lasts by a metric. No token, digest or key is in any message.

mod access;
mod names;
mod peer;
mod roles;
mod tls;
mod watch;

use std::path::PathBuf;

pub use access::{Access, Guard, Refused};
pub use peer::Peer;
pub use roles::{Role, Roles};
pub use tls::{Port, Tls, certify};
pub use watch::{LOOK_EVERY, Security};

/// The files that say who may do what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityFiles {
    /// Speaks TLS on both ports.
    pub tls: Option<TlsFiles>,
    /// Tokens, certificates and their roles.
    pub auth: Option<PathBuf>,
}

/// PEM files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and a root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates of clients.
    pub client_ca: Option<PathBuf>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {}: {why}", path.display())]
pub struct InvalidFile {
    /// As the flag is called.
    pub what: &'static str,
    /// Which.
    pub path: PathBuf,
    /// Names line and key, where there are such; never a secret.
    pub why: String,
}

// === impl SecurityFiles ===

impl SecurityFiles {
    /// Whether whoever connects must prove who they are, and nobody on the way can read or change what is said.
    #[must_use]
    pub const fn protects(&self) -> bool {
        match &self.tls {
            Some(tls) => self.auth.is_some() || tls.client_ca.is_some(),
            None => false,
        }
    }
}
