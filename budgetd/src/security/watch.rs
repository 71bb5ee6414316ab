//! Reads the files, again and again, and puts what is good in force.
//!
//! Files are told apart by their content, not by time or size, so any way of replacing them is noticed. Certificate and key
//! change one after the other: a pair that does not match is looked at once more before it counts as wrong.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    Guard, InvalidFile, Roles, SecurityFiles, Tls, TlsFiles,
    tls::{Contents, Demand, Fault, Keys},
};

/// How often the files are looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// TLS and roles of a daemon, and the files they come from.
#[derive(Debug)]
pub struct Security {
    files: SecurityFiles,
    tls: Option<Tls>,
    guard: Arc<Guard>,
    tls_source: Source,
    auth_source: Source,
}

/// One set of files that are only good together.
#[derive(Debug, Default)]
struct Source {
    seen: Mutex<Seen>,
    failures: AtomicU64,
    /// 1 while the files are not what is in force.
    failing: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    /// A digest of the content that was looked at last.
    content: Option<[u8; 32]>,
    /// It was refused, and told.
    refused: Refusal,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Refusal {
    #[default]
    None,
    /// Perhaps it is only half written.
    Once,
    Told,
}

/// What came of looking.
enum Looked {
    Same,
    Changed,
    Refused(InvalidFile),
}

// === impl Security ===

impl Security {
    /// Reads all files for the first time.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn load(files: SecurityFiles) -> Result<Self, InvalidFile> {
        let (tls_source, auth_source) = (Source::default(), Source::default());
        let (guard, demand) = match &files.auth {
            Some(path) => {
                let content = read("auth", path)?;
                auth_source.begin(&[&content]);
                let roles = parse_roles(path, &content)?;
                let demand = demand(&roles);
                (Guard::roles(roles), demand)
            }
            None if files.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()) => {
                (Guard::certificates(), Demand::Required)
            }
            None => (Guard::open(), Demand::Optional),
        };
        let tls = match &files.tls {
            Some(tls) => {
                let content = TlsContent::read(tls)?;
                tls_source.begin(&content.parts(demand));
                Some(Tls::new(content.keys(tls, demand)?))
            }
            None => None,
        };
        Ok(Self { files, tls, guard: Arc::new(guard), tls_source, auth_source })
    }

    /// What handshakes are made with.
    #[must_use]
    pub const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// What requests are judged by.
    #[must_use]
    pub const fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// Whether there is anything to look at.
    #[must_use]
    pub const fn has_files(&self) -> bool {
        self.files.tls.is_some() || self.files.auth.is_some()
    }

    /// Sets of files that are not in force as they are: TLS, roles.
    #[must_use]
    pub fn failing(&self) -> [u64; 2] {
        [&self.tls_source, &self.auth_source].map(|source| source.failing.load(Ordering::Relaxed))
    }

    /// How often new content was refused, likewise.
    #[must_use]
    pub fn failures(&self) -> [u64; 2] {
        [&self.tls_source, &self.auth_source].map(|source| source.failures.load(Ordering::Relaxed))
    }

    /// Looks at all files once; blocks for as long as reading takes.
    pub fn look(&self) {
        let mut demanded = match &self.files.tls {
            Some(TlsFiles { client_ca: Some(_), .. }) => Demand::Required,
            Some(_) | None => Demand::Optional,
        };
        if let Some(path) = &self.files.auth {
            let content = read("auth", path);
            let parts = content.as_ref().map(|content| vec![content.as_slice()]).map_err(Clone::clone);
            let looked = self.auth_source.look(parts, || {
                let roles = parse_roles(path, content.as_deref().unwrap_or_default())?;
                let (tokens, certificates) = roles.counts();
                tracing::info!(tokens, certificates, "roles read anew");
                self.guard.replace(roles);
                Ok(())
            });
            tell(looked, "auth");
            demanded = self.guard.demand();
        }
        if let (Some(files), Some(tls)) = (&self.files.tls, &self.tls) {
            let content = TlsContent::read(files);
            let parts = content.as_ref().map(|content| content.parts(demanded)).map_err(Clone::clone);
            let looked = self.tls_source.look(parts, || {
                let Ok(content) = &content else { return Ok(()) };
                tls.replace(content.keys(files, demanded)?);
                tracing::info!("certificates read anew");
                Ok(())
            });
            tell(looked, "tls");
        }
    }
}

fn tell(looked: Looked, what: &str) {
    match looked {
        Looked::Same | Looked::Changed => {}
        Looked::Refused(error) => tracing::error!(%error, what, "changed files are refused; the former stay in force"),
    }
}

fn demand(roles: &Roles) -> Demand {
    if roles.have_tokens() { Demand::Optional } else { Demand::Required }
}

fn parse_roles(path: &Path, content: &[u8]) -> Result<Roles, InvalidFile> {
    let refused = |why: String| InvalidFile { what: "auth", path: path.to_owned(), why };
    let text = std::str::from_utf8(content).map_err(|error| refused(format!("is not UTF-8: {error}")))?;
    Roles::parse(text).map_err(refused)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, InvalidFile> {
    let refused = |why: String| InvalidFile { what, path: path.to_owned(), why };
    let read = || -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
        Ok(content)
    };
    let content = read().map_err(|error| refused(error.to_string()))?;
    if u64::try_from(content.len()).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
        return Err(refused(format!("is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}

// === impl Guard ===

impl Guard {
    /// Whether clients need a certificate.
    fn demand(&self) -> Demand {
        self.snapshot().map_or(Demand::Required, |roles| demand(&roles))
    }
}

/// What the files of TLS hold.
struct TlsContent {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

// === impl TlsContent ===

impl TlsContent {
    fn read(files: &TlsFiles) -> Result<Self, InvalidFile> {
        Ok(Self {
            cert: read("tls-cert", &files.cert)?,
            key: read("tls-key", &files.key)?,
            client_ca: files.client_ca.as_deref().map(|path| read("tls-client-ca", path)).transpose()?,
        })
    }

    fn parts(&self, demand: Demand) -> Vec<&[u8]> {
        let demand: &[u8] = match demand {
            Demand::Required => b"required",
            Demand::Optional => b"optional",
        };
        [&self.cert, &self.key, self.client_ca.as_deref().unwrap_or_default(), demand].to_vec()
    }

    fn keys(&self, files: &TlsFiles, demand: Demand) -> Result<Keys, InvalidFile> {
        let contents = Contents { cert: &self.cert, key: &self.key, client_ca: self.client_ca.as_deref() };
        Keys::read(&contents, demand).map_err(|(what, why): Fault| {
            let path = match (what, &files.client_ca) {
                ("tls-key", _) => &files.key,
                ("tls-client-ca", Some(path)) => path,
                _ => &files.cert,
            };
            InvalidFile { what, path: PathBuf::from(path), why }
        })
    }
}

// === impl Source ===

impl Source {
    fn begin(&self, parts: &[&[u8]]) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).content = Some(digest(parts));
    }

    /// Puts the content in force if it is new. What is refused is told when it is found a second time.
    fn look(
        &self,
        parts: Result<Vec<&[u8]>, InvalidFile>,
        put_in_force: impl FnOnce() -> Result<(), InvalidFile>,
    ) -> Looked {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (content, unreadable) = match parts {
            Ok(parts) => (digest(&parts), None),
            Err(error) => (digest(&[error.to_string().as_bytes()]), Some(error)),
        };
        let is_new = seen.content != Some(content);
        if !is_new && seen.refused != Refusal::Once {
            return Looked::Same;
        }
        seen.content = Some(content);
        match unreadable.map_or_else(put_in_force, Err) {
            Ok(()) => {
                seen.refused = Refusal::None;
                self.failing.store(0, Ordering::Relaxed);
                Looked::Changed
            }
            Err(_) if is_new => {
                seen.refused = Refusal::Once;
                Looked::Same
            }
            Err(error) => {
                seen.refused = Refusal::Told;
                self.failures.fetch_add(1, Ordering::Relaxed);
                self.failing.store(1, Ordering::Relaxed);
                Looked::Refused(error)
            }
        }
    }
}

/// Of all parts and where each ends. Unlike the content, it may be kept.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        context.update(part);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests;
