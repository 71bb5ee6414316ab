//! Where to listen: an address and port, or a unix socket.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// Written `127.0.0.1:7411`, `[::1]:7411` or `unix:/run/budgetd.sock`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// Port 0 lets the system choose.
    Tcp(SocketAddr),
    /// The path of the socket.
    Unix(PathBuf),
}

// === impl Listen ===

impl Listen {
    /// The address, if it is one.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self::Tcp(SocketAddr::from(([127, 0, 0, 1], 7411)))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| "must look like 127.0.0.1:7411, [::1]:7411 or unix:PATH".to_owned())
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
