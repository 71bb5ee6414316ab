//! Whether a request may be answered: whose it is, by token or certificate, and what that may do.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicU64, Ordering},
};

use axum::http::{Extensions, HeaderMap, header::AUTHORIZATION};
use tonic::Status;

use super::{
    Peer,
    roles::{Digest, Grants, Role, Roles},
};

/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 4096;
/// Patterns that stand for all dependencies.
const ALL: &str = "*";

/// What all requests are judged by.
#[derive(Debug)]
pub struct Guard {
    rule: Rule,
    unauthenticated: AtomicU64,
    denied: AtomicU64,
}

#[derive(Debug)]
enum Rule {
    /// Whoever reaches the daemon may do everything.
    Open,
    /// Whoever has a certificate may do everything.
    Certificates,
    /// By the file of roles, and how often that has changed.
    Roles(RwLock<(u64, Arc<Roles>)>),
}

/// What one request, or all of a stream, may do.
#[derive(Clone, Debug, Default)]
pub struct Access(Option<Granted>);

#[derive(Clone, Debug)]
struct Granted {
    guard: Arc<Guard>,
    credential: Credential,
    /// Of the roles that the grants come from.
    generation: u64,
    grants: Arc<Grants>,
}

/// What somebody has shown.
#[derive(Clone, Debug)]
enum Credential {
    Token(Digest),
    Certificate(Arc<[String]>),
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nobody known.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// Known, and not entitled.
    #[error("{0}")]
    Denied(String),
}

// === impl Guard ===

impl Guard {
    /// Lets everybody do everything.
    #[must_use]
    pub const fn open() -> Self {
        Self::of(Rule::Open)
    }

    /// Lets whoever has a certificate do everything. gRPC connections without one end in their handshake.
    #[must_use]
    pub const fn certificates() -> Self {
        Self::of(Rule::Certificates)
    }

    /// Goes by roles.
    #[must_use]
    pub fn roles(roles: Roles) -> Self {
        Self::of(Rule::Roles(RwLock::new((0, Arc::new(roles)))))
    }

    const fn of(rule: Rule) -> Self {
        Self { rule, unauthenticated: AtomicU64::new(0), denied: AtomicU64::new(0) }
    }

    /// Whether everybody may do everything.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.rule, Rule::Open)
    }

    /// Goes by these roles from now on, also in streams that are open.
    pub fn replace(&self, roles: Roles) {
        if let Rule::Roles(current) = &self.rule {
            let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
            *current = (current.0.wrapping_add(1), Arc::new(roles));
        }
    }

    /// Requests by nobody known, and requests refused to those who are.
    #[must_use]
    pub fn refused(&self) -> (u64, u64) {
        (self.unauthenticated.load(Ordering::Relaxed), self.denied.load(Ordering::Relaxed))
    }

    /// What a gRPC request may do.
    ///
    /// # Errors
    /// If it is nobody's.
    pub fn access(self: &Arc<Self>, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Access, Refused> {
        match &self.rule {
            Rule::Open | Rule::Certificates => Ok(Access::default()),
            Rule::Roles(_) => self.granted(headers, peer).map(|granted| Access(Some(granted))),
        }
        .inspect_err(|refused| self.count(refused))
    }

    /// Whether an HTTP request may see the metrics.
    ///
    /// # Errors
    /// If it may not.
    pub fn judge_metrics(self: &Arc<Self>, headers: &HeaderMap, peer: &Peer) -> Result<(), Refused> {
        if peer.is_local() {
            return Ok(());
        }
        match &self.rule {
            Rule::Certificates if peer.names().is_none() => {
                let refused = Refused::Unauthenticated("connect with a client certificate");
                self.count(&refused);
                Err(refused)
            }
            Rule::Open | Rule::Certificates => Ok(()),
            Rule::Roles(_) => self.access(headers, Some(peer))?.permit_all(Role::Read),
        }
    }

    fn granted(self: &Arc<Self>, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Granted, Refused> {
        let credential = match token(headers)? {
            Some(token) => Credential::Token(Digest::of(token)),
            None => match peer.and_then(Peer::names) {
                Some(names) => Credential::Certificate(Arc::clone(names)),
                None => {
                    let why =
                        "no credentials: send `authorization: Bearer TOKEN`, or connect with a client certificate";
                    return Err(Refused::Unauthenticated(why));
                }
            },
        };
        let (generation, roles) = self.current();
        let grants = credential.grants(&roles)?;
        Ok(Granted { guard: Arc::clone(self), credential, generation, grants })
    }

    /// The roles in force, if it goes by roles.
    pub(super) fn snapshot(&self) -> Option<Arc<Roles>> {
        match &self.rule {
            Rule::Roles(_) => Some(self.current().1),
            Rule::Open | Rule::Certificates => None,
        }
    }

    fn current(&self) -> (u64, Arc<Roles>) {
        match &self.rule {
            Rule::Roles(current) => current.read().unwrap_or_else(PoisonError::into_inner).clone(),
            Rule::Open | Rule::Certificates => (0, Arc::default()),
        }
    }

    fn count(&self, refused: &Refused) {
        let counter = match refused {
            Refused::Unauthenticated(_) => &self.unauthenticated,
            Refused::Denied(_) => &self.denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The token of `authorization: Bearer TOKEN`, of any bytes that a header can have.
fn token(headers: &HeaderMap) -> Result<Option<&[u8]>, Refused> {
    const SCHEME: &[u8] = b"bearer ";
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refused::Unauthenticated("there are several authorization headers"));
    }
    let value = value.as_bytes();
    let malformed = Refused::Unauthenticated("the authorization header must look like `Bearer TOKEN`");
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => match token.trim_ascii() {
            [] => Err(malformed),
            token if token.len() > TOKEN_BYTES_MAX => {
                Err(Refused::Unauthenticated("the token is longer than 4096 bytes"))
            }
            token => Ok(Some(token)),
        },
        Some(_) | None => Err(malformed),
    }
}

// === impl Credential ===

impl Credential {
    fn grants(&self, roles: &Roles) -> Result<Arc<Grants>, Refused> {
        match self {
            Self::Token(digest) => {
                let known = roles.of_token(digest).map(Arc::clone);
                known.ok_or(Refused::Unauthenticated("the token is not known here"))
            }
            Self::Certificate(names) => roles.of_names(names).ok_or(Refused::Unauthenticated(
                "no name of the client certificate is known here, and no token was sent",
            )),
        }
    }
}

// === impl Access ===

impl Access {
    /// As the guard has found it. Without a guard everything is permitted.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Who it is, such as `token "gateway"`; none where everybody may do everything.
    #[must_use]
    pub fn who(&self) -> Option<&str> {
        self.0.as_ref().map(|granted| granted.grants.who.as_str())
    }

    /// For a stream: goes by the roles as they are now.
    ///
    /// # Errors
    /// If it is nobody's any more.
    pub fn renew(&mut self) -> Result<(), Refused> {
        let Some(granted) = &mut self.0 else { return Ok(()) };
        let (generation, roles) = granted.guard.current();
        if granted.generation != generation {
            let renewed = granted.credential.grants(&roles).inspect_err(|refused| granted.guard.count(refused));
            (granted.grants, granted.generation) = (renewed?, generation);
        }
        Ok(())
    }

    /// Judges a role on a dependency, or on all of a family written `prefix*`.
    ///
    /// # Errors
    /// If it does not have that.
    pub fn permit(&self, role: Role, name: &str) -> Result<(), Refused> {
        self.judge(|grants| grants.permit(role, name), || format!("may not {} {:?}", role.name(), shown(name)))
    }

    /// Judges a role on all dependencies, those included that nobody has named yet.
    ///
    /// # Errors
    /// If it does not have that.
    pub fn permit_all(&self, role: Role) -> Result<(), Refused> {
        let what = || format!("may not do this, which needs the role {} on \"*\"", role.name());
        self.judge(|grants| grants.permit(role, ALL), what)
    }

    /// Judges a role on any dependency at all.
    ///
    /// # Errors
    /// If it has that on none.
    pub fn permit_some(&self, role: Role) -> Result<(), Refused> {
        let what = || format!("may not do this, which needs the role {}", role.name());
        self.judge(|grants| grants.permit_some(role), what)
    }

    fn judge(&self, may: impl Fn(&Grants) -> bool, what: impl Fn() -> String) -> Result<(), Refused> {
        let Some(granted) = &self.0 else { return Ok(()) };
        if may(&granted.grants) {
            return Ok(());
        }
        let grants = &granted.grants;
        let refused = Refused::Denied(format!("{} {}; it has {}", grants.who, what(), grants.summary()));
        tracing::debug!(who = grants.who, %refused, "not permitted");
        granted.guard.count(&refused);
        Err(refused)
    }
}

/// Names in requests may be of any length.
fn shown(name: &str) -> String {
    const SHOWN_MAX: usize = 64;
    let more = if name.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
    name.chars().take(SHOWN_MAX).collect::<String>() + more
}

// === impl Refused ===

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unauthenticated(why) => Self::unauthenticated(why),
            Refused::Denied(why) => Self::permission_denied(why),
        }
    }
}

#[cfg(test)]
mod tests;
