//! What these tests share: files of an authority, a daemon that uses them, and clients.

use std::{fs, path::PathBuf, time::Duration};

use budget::decision::{Attempt, Reserve};
use budget_client::{Client, Credentials, Dependency, Error, Mode, Options, reservation_id};
use budget_tests::{
    certificates::{Authority, Issued, Valid},
    daemon::Daemon,
};
use tempfile::TempDir;

/// Longest wait for anything.
pub(super) const BOUND: Duration = Duration::from_secs(30);
/// Tokens and their SHA-256, made with sha256sum.
pub(super) const TOKEN: &str = "correct horse battery staple";
const TOKEN_SHA256: &str = "c4bbcb1fbec99d65bf59d85c8cb62ee2db963f0fe106f483d9afa73bd4e39a8a";

/// A directory with all the files that a daemon and its clients may need.
pub(super) struct Files {
    pub(super) authority: Authority,
    directory: TempDir,
}

// === impl Files ===

impl Files {
    /// `ca`, `cert`, `key` for the daemon; `stranger` is another authority's certificate.
    pub(super) fn new() -> Self {
        let files = Self { authority: Authority::new("test"), directory: tempfile::tempdir().unwrap() };
        files.write("ca", files.authority.pem());
        files.write_pair("", &files.authority.server(Valid::Now));
        files
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// `{name}cert` and `{name}key`.
    pub(super) fn write_pair(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}cert"), &issued.cert);
        self.write(&format!("{name}key"), &issued.key);
    }

    /// Roles of the token, and of certificates.
    pub(super) fn write_auth(&self, token: bool) {
        let mut text = "[[certificate]]\nname = \"spiffe://fleet/gateway\"\nroles = [{ role = \"reserve\", dependencies = [\"pay*\"] }]\n\
                        [[certificate]]\nname = \"gateway.example\"\nroles = [{ role = \"reserve\", dependencies = [\"pay*\"] }]\n\
                        [[certificate]]\nname = \"old gateway\"\nroles = [{ role = \"reserve\", dependencies = [\"pay*\"] }]\n"
            .to_owned();
        if token {
            text += &format!(
                "[[token]]\nname = \"caller\"\nsha256 = \"{TOKEN_SHA256}\"\nroles = [{{ role = \"reserve\", dependencies = [\"pay*\"] }}]\n"
            );
        }
        self.write("auth", &text);
    }

    /// Flags of a daemon with TLS and more of these files.
    pub(super) fn flags(&self, more: &[&str]) -> Vec<String> {
        let mut flags = Vec::new();
        for (flag, name) in [("--tls-cert", "cert"), ("--tls-key", "key")] {
            flags.extend([flag.to_owned(), self.text(name)]);
        }
        for name in more {
            let flag = if *name == "ca" { "--tls-client-ca" } else { "--auth" };
            flags.extend([flag.to_owned(), self.text(name)]);
        }
        flags
    }

    pub(super) fn daemon(&self, more: &[&str]) -> Daemon {
        let flags = self.flags(more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--no-leases-out"]).collect();
        Daemon::start_with(&flags, &[])
    }

    pub(super) fn credentials(&self) -> Credentials {
        Credentials::default().ca_file(self.path("ca"))
    }

    /// Credentials with the pair of this name.
    pub(super) fn certified(&self, name: &str) -> Credentials {
        self.credentials().certificate_files(self.path(&format!("{name}cert")), self.path(&format!("{name}key")))
    }
}

/// `https://…` of a daemon.
pub(super) fn endpoint(daemon: &Daemon) -> String {
    format!("https://{}", daemon.grpc())
}

/// Asks once on a new connection.
pub(super) async fn ask(daemon: &Daemon, credentials: &Credentials, dependency: &str) -> Result<(), Error> {
    ask_at(&endpoint(daemon), credentials, dependency).await
}

pub(super) async fn ask_at(endpoint: &str, credentials: &Credentials, dependency: &str) -> Result<(), Error> {
    mode_at(endpoint, credentials, dependency).await.map(drop)
}

/// How the answer was come by.
pub(super) async fn mode_at(endpoint: &str, credentials: &Credentials, dependency: &str) -> Result<Mode, Error> {
    let options = Options { credentials: credentials.clone(), connect_timeout: BOUND, ..Options::default() };
    let client = Client::with_options(endpoint, &options)?;
    let ask = Reserve::new(reservation_id()?, Attempt::ORIGINAL);
    client.reserve(&Dependency::new(dependency)?, &ask, BOUND).await.map(|reserved| reserved.mode)
}
