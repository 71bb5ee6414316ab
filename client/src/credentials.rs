//! Whom a client trusts and who it is: certificates and a token, from files that are read anew.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use budget_proto::InvalidMessage;
use tokio::time::Instant;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::{Endpoint, Uri},
};

/// A token's file is looked at this often while calls are made.
const TOKEN_EVERY: Duration = Duration::from_secs(5);
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

#[cfg(feature = "tls")]
const BEGIN_CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// What a client shows budgetd, and by what it knows budgetd. `https://` needs the feature `tls` of this crate, and a CA:
/// none is built in.
///
/// Certificates are read when a connection is prepared: by a [`crate::LeasedClient`] also after each failure, so that
/// renewed ones are found. A token's file is read again every few seconds, and the last good token kept.
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Credentials {
    ca: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
    token: Option<Token>,
}

#[derive(Clone, PartialEq, Eq)]
enum Token {
    Text(String),
    File(PathBuf),
}

/// Adds the token to each call; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bearer(Option<Arc<Source>>);

struct Source {
    /// None: the token never changes.
    file: Option<PathBuf>,
    current: Mutex<Current>,
}

struct Current {
    header: MetadataValue<Ascii>,
    /// When the file is read again.
    due: Instant,
}

// === impl Credentials ===

impl Credentials {
    /// Trusts certificates that one of these signed; a file in PEM.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Shows a certificate; files in PEM, the second with its private key.
    pub fn certificate_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Expects budgetd's certificate to bear this name instead of the endpoint's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Sends a bearer token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token::Text(token.into()));
        self
    }

    /// Sends the bearer token that stands in a file, without the blanks around it.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(Token::File(path.into()));
        self
    }

    /// Prepares TLS, if the endpoint asks for it; `address` is how it was written.
    pub(crate) fn secure(&self, address: &str, endpoint: Endpoint) -> Result<Endpoint, InvalidMessage> {
        if endpoint.uri().scheme_str() != Some("https") {
            if self.token.is_some() && !address.starts_with("unix:") && !is_local(endpoint.uri()) {
                let rule = "is sent in the clear to an endpoint elsewhere: use https://";
                return Err(InvalidMessage::number("token", "(hidden)", rule));
            }
            return Ok(endpoint);
        }
        self.with_tls(endpoint)
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, endpoint: Endpoint) -> Result<Endpoint, InvalidMessage> {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        let ca =
            self.ca.as_deref().ok_or_else(|| InvalidMessage::absent("ca", "is needed for an https:// endpoint"))?;
        let pem = read("ca", ca)?;
        if !pem.windows(BEGIN_CERTIFICATE.len()).any(|bytes| bytes == BEGIN_CERTIFICATE) {
            // Nobody would be trusted, and no connection would say why.
            return Err(InvalidMessage::text("ca", &ca.to_string_lossy(), "has no certificate in PEM"));
        }
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
        if let Some((certificate, key)) = &self.certificate {
            config = config.identity(Identity::from_pem(read("certificate", certificate)?, read("key", key)?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        endpoint.tls_config(config).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            InvalidMessage::number("credentials", "unusable", format!("{error}{cause}"))
        })
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, _endpoint: Endpoint) -> Result<Endpoint, InvalidMessage> {
        let Self { ca: _, certificate: _, server_name: _, token: _ } = self;
        Err(InvalidMessage::text("endpoint", "https", "needs the feature tls of budget-client"))
    }

    pub(crate) fn bearer(&self) -> Result<Bearer, InvalidMessage> {
        let (token, file) = match &self.token {
            None => return Ok(Bearer(None)),
            Some(Token::Text(token)) => (token.clone().into_bytes(), None),
            Some(Token::File(path)) => (read("token", path)?, Some(path.clone())),
        };
        let header = header(&token).map_err(|rule| InvalidMessage::number("token", "(hidden)", rule))?;
        let current = Mutex::new(Current { header, due: Instant::now() + TOKEN_EVERY });
        Ok(Bearer(Some(Arc::new(Source { file, current }))))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = match &self.token {
            None => None,
            Some(Token::Text(_)) => Some("(hidden)".to_owned()),
            Some(Token::File(path)) => Some(path.display().to_string()),
        };
        f.debug_struct("Credentials")
            .field("ca", &self.ca)
            .field("certificate", &self.certificate)
            .field("server_name", &self.server_name)
            .field("token", &token)
            .finish()
    }
}

/// Whether a host is this machine.
fn is_local(uri: &Uri) -> bool {
    let Some(host) = uri.host() else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.to_canonical().is_loopback())
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>, InvalidMessage> {
    fs::read(path).map_err(|error| InvalidMessage::text(field, &path.to_string_lossy(), error.to_string()))
}

fn header(token: &[u8]) -> Result<MetadataValue<Ascii>, &'static str> {
    let token = token.trim_ascii();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err("must have 1 to 4096 bytes");
    }
    let mut header: MetadataValue<Ascii> = std::str::from_utf8(token)
        .ok()
        .and_then(|token| format!("Bearer {token}").parse().ok())
        .ok_or("must be UTF-8 without control characters")?;
    header.set_sensitive(true);
    Ok(header)
}

// === impl Source ===

impl Source {
    fn header(&self) -> MetadataValue<Ascii> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.file {
            let now = Instant::now();
            if now >= current.due {
                current.due = now + TOKEN_EVERY;
                match fs::read(path).and_then(|token| header(&token).map_err(io::Error::other)) {
                    Ok(header) => current.header = header,
                    Err(error) => tracing::warn!(path = %path.display(), %error, "token not read: the former is sent"),
                }
            }
        }
        current.header.clone()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(source) = &self.0 {
            request.metadata_mut().insert("authorization", source.header());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;

    fn endpoint(uri: &str) -> Endpoint {
        Endpoint::from_shared(uri.to_owned()).unwrap()
    }

    #[test]
    fn a_token_does_not_leave_the_machine_in_the_clear() {
        let credentials = Credentials::default().token("s3cret");
        for here in
            ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "http://127.9.9.9:1", "unix:/run/b.sock"]
        {
            assert!(credentials.secure(here, endpoint(here)).is_ok(), "{here}");
        }
        for there in ["http://192.0.2.1:1", "http://[2001:db8::1]:1", "http://localhost.example:1", "http://budgetd:1"]
        {
            let error = credentials.secure(there, endpoint(there)).unwrap_err().to_string();
            assert!(error.contains("use https://") && !error.contains("s3cret"), "{there}: {error}");
            assert!(Credentials::default().secure(there, endpoint(there)).is_ok());
        }
        assert!(!format!("{credentials:?} {:?}", credentials.bearer().unwrap()).contains("s3cret"));
    }

    #[test]
    fn tokens_that_cannot_be_sent_are_refused_unseen() {
        for bad in ["", " \n", "a\u{0}b", "a\nb", &"x".repeat(TOKEN_BYTES_MAX + 1)] {
            let error = Credentials::default().token(bad).bearer().unwrap_err().to_string();
            assert!(error.starts_with("token is (hidden): must"), "{error}");
        }
        let error = Credentials::default().token_file("/nowhere/token").bearer().unwrap_err().to_string();
        assert!(error.contains("/nowhere/token") && error.contains("No such file"), "{error}");
        assert_eq!(header(b" a b\r\n").unwrap(), "Bearer a b");
    }
}
