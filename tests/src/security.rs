//! Runs of the tests with TLS and roles: `BUDGET_TEST_SECURITY=tls ./tests/run NAME`.
//!
//! Then each daemon of [`Daemon::start`](crate::daemon::Daemon::start) speaks TLS at both ports and knows who calls: operators
//! by a certificate with the roles `reserve` and `operate`, callers and agents by a token with the role `reserve`. Whatever
//! reaches daemons by the functions here shows that, and speaks as before in other runs.

use std::{
    env, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use budget_client::{Client, Credentials, Options};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};

use crate::{
    certificates::{Authority, Valid},
    process::{Process, Stream},
};

/// Names how daemons are secured: `tls`, or not at all if it is absent.
pub const VARIABLE: &str = "BUDGET_TEST_SECURITY";

/// Beside the test executable; made by whoever needs it first.
const DIRECTORY: &str = "test-security";
/// Of callers and agents, and its SHA-256.
const TOKEN: &str = "a token of the tests";
const TOKEN_SHA256: &str = "864c519db7f7a71adf8cd1ad238d9c3fc57e7e1f9fd6463afe1bd39e5617489f";
/// Of operators.
const OPERATOR: &str = "spiffe://tests/operator";

/// Certificates, keys, a token, and the roles of both.
#[derive(Debug)]
pub struct Files(PathBuf);

/// A connection, by TLS or without.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// The files of a run with TLS and roles; none in other runs.
///
/// # Panics
/// If [`VARIABLE`] says something else, or they cannot be made.
pub fn secured() -> Option<&'static Files> {
    static FILES: OnceLock<Option<Files>> = OnceLock::new();
    let wanted = || match env::var(VARIABLE) {
        Err(_) => None,
        Ok(how) if how == "tls" => Some(Files::made()),
        Ok(how) => panic!("{VARIABLE} is {how}: must be tls or absent"),
    };
    FILES.get_or_init(wanted).as_ref()
}

/// `https://…` or `http://…`, as daemons speak in this run.
#[must_use]
pub fn endpoint(address: SocketAddr) -> String {
    let scheme = if secured().is_some() { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Who may do everything.
#[must_use]
pub fn operator() -> Options {
    Options { credentials: secured().map_or_else(Credentials::default, Files::operator), ..Options::default() }
}

/// Who may spend and hold leases, and nothing else.
#[must_use]
pub fn caller() -> Options {
    Options { credentials: secured().map_or_else(Credentials::default, Files::caller), ..Options::default() }
}

/// A client that may do everything.
///
/// # Panics
/// If the endpoint is none.
#[must_use]
pub fn client(endpoint: &str) -> Client {
    Client::with_options(endpoint, &operator()).unwrap_or_else(|error| panic!("{endpoint}: {error}"))
}

/// A connected channel that may do everything, for messages that no client of ours would send.
///
/// # Panics
/// If there is no connection.
pub async fn channel(endpoint: &str) -> Channel {
    let mut way = Endpoint::from_shared(endpoint.to_owned()).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    if let Some(files) = secured() {
        let identity = Identity::from_pem(files.read("operator.crt"), files.read("operator.key"));
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(files.read("ca.crt")));
        way = way.tls_config(config.identity(identity)).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    }
    way.connect().await.unwrap_or_else(|error| panic!("{endpoint}: {error}"))
}

/// A connection to one of a daemon's ports, which nothing was said on yet; `protocol` is what it is for, such as `h2`.
///
/// # Errors
/// If there is none.
///
/// # Panics
/// If our own certificate is none.
pub async fn connect(address: SocketAddr, protocol: &str) -> io::Result<Box<dyn Connection>> {
    let stream = TcpStream::connect(address).await?;
    let Some(files) = secured() else { return Ok(Box::new(stream)) };
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(&files.read("ca.crt")).expect("a certificate");
    roots.add(ca).expect("an authority");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::from(address.ip());
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

/// Arguments of a command for the daemon at this endpoint, which may do everything there.
#[must_use]
pub fn flags(endpoint: &str) -> Vec<String> {
    let files = secured().filter(|_| endpoint.starts_with("https://"));
    let credentials = files.map(Files::command).into_iter().flatten();
    ["--endpoint".to_owned(), endpoint.to_owned()].into_iter().chain(credentials).collect()
}

/// Arguments of an agent for the daemon that it asks.
#[must_use]
pub fn upstream(address: SocketAddr) -> Vec<String> {
    let Some(files) = secured() else { return vec!["--store".to_owned(), format!("grpc://{address}")] };
    let store = format!("grpcs://{address}");
    let flags = ["--store", &store, "--upstream-ca", &files.text("ca.crt")].map(str::to_owned);
    flags.into_iter().chain(["--upstream-token-file".to_owned(), files.text("token")]).collect()
}

/// How a server of a test's own speaks, so that it can take a daemon's place; none: without TLS.
#[must_use]
pub fn server_tls() -> Option<ServerTlsConfig> {
    let identity = |files: &Files| Identity::from_pem(files.read("tls.crt"), files.read("tls.key"));
    secured().map(|files| ServerTlsConfig::new().identity(identity(files)))
}

/// Runs tests of this executable again in a process of its own, with TLS and roles.
///
/// # Panics
/// If one of them fails or there is none of its name, or they take longer than `bound`.
pub fn run_secured(tests: &[&str], bound: Duration) {
    let test = env::current_exe().unwrap_or_else(|error| panic!("this test has no path: {error}"));
    let mut command = Command::new(test);
    command.arg("--exact").args(tests).args(["--test-threads", "2"]).env(VARIABLE, "tls");
    let mut process = Process::spawn("tests with TLS and roles", command);
    let status = process.wait(bound);
    let printed = process.printed(Stream::Out);
    let all = format!("ok. {} passed", tests.len());
    assert!(status.success() && printed.contains(&all), "{status}\n{printed}\n{}", process.printed(Stream::Err));
}

// === impl Files ===

impl Files {
    /// Those there are, or new ones.
    ///
    /// # Panics
    /// If they cannot be made.
    #[must_use]
    pub fn made() -> Self {
        Self::found_or_made().unwrap_or_else(|error| panic!("{DIRECTORY}: {error}"))
    }

    /// Whoever comes first makes them, under another name until they are complete.
    fn found_or_made() -> io::Result<Self> {
        let test = env::current_exe()?;
        let parent = test.parent().unwrap_or(Path::new("."));
        let files = Self(parent.join(DIRECTORY));
        if !files.0.is_dir() {
            let making = tempfile::Builder::new().prefix(DIRECTORY).tempdir_in(parent)?;
            Self::make(making.path())?;
            match fs::rename(making.path(), &files.0) {
                // Another test was faster.
                Err(_) if files.0.is_dir() => {}
                moved => moved?,
            }
        }
        Ok(files)
    }

    fn make(at: &Path) -> io::Result<()> {
        let authority = Authority::new("tests");
        fs::write(at.join("ca.crt"), authority.pem())?;
        for (name, issued) in
            [("tls", authority.server(Valid::Now)), ("operator", authority.client(&[OPERATOR], Valid::Now))]
        {
            fs::write(at.join(format!("{name}.crt")), &issued.cert)?;
            fs::write(at.join(format!("{name}.key")), &issued.key)?;
        }
        fs::write(at.join("token"), TOKEN)?;
        let auth = format!(
            "[[token]]\nname = \"caller\"\nsha256 = \"{TOKEN_SHA256}\"\n\
             roles = [{{ role = \"reserve\", dependencies = [\"*\"] }}]\n\
             [[certificate]]\nname = \"{OPERATOR}\"\n\
             roles = [{{ role = \"reserve\", dependencies = [\"*\"] }}, {{ role = \"operate\", dependencies = [\"*\"] }}]\n"
        );
        fs::write(at.join("auth.toml"), auth)
    }

    /// The path of one of them.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Of who may do everything.
    pub fn operator(&self) -> Credentials {
        let credentials = Credentials::default().ca_file(self.text("ca.crt"));
        credentials.certificate_files(self.text("operator.crt"), self.text("operator.key"))
    }

    /// Of who may spend and hold leases, and nothing else.
    pub fn caller(&self) -> Credentials {
        Credentials::default().ca_file(self.text("ca.crt")).token_file(self.text("token"))
    }

    /// For `budgetd serve`: each flag and its file.
    #[must_use]
    pub fn daemon(&self) -> [String; 8] {
        let [cert, key, ca, auth] = ["tls.crt", "tls.key", "ca.crt", "auth.toml"].map(|name| self.text(name));
        let flags = ["--tls-cert", "--tls-key", "--tls-client-ca", "--auth"].map(str::to_owned);
        let [cert_flag, key_flag, ca_flag, auth_flag] = flags;
        [cert_flag, cert, key_flag, key, ca_flag, ca, auth_flag, auth]
    }

    /// For other commands, of an operator.
    fn command(&self) -> [String; 6] {
        let [ca, cert, key] = ["ca.crt", "operator.crt", "operator.key"].map(|name| self.text(name));
        ["--tls-ca".to_owned(), ca, "--tls-cert".to_owned(), cert, "--tls-key".to_owned(), key]
    }
}
