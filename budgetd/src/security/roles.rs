//! The file of roles: which token and which certificate may do what.
//!
//! ```toml
//! [[token]]
//! name = "gateway"
//! sha256 = "…"                     # of the token: printf %s "$TOKEN" | sha256sum
//! roles = [{ role = "reserve", dependencies = ["payments", "openai/*"] }]
//!
//! [[certificate]]
//! name = "spiffe://fleet/ns/ops/sa/console"
//! roles = [{ role = "operate", dependencies = ["*"] }]
//! ```

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use budget::ids::DependencyId;
use ring::digest;
use serde::Deserialize;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Tokens of one file.
const TOKENS_MAX: usize = 1_000;
/// Certificates of one file.
const CERTIFICATES_MAX: usize = 10_000;
/// Roles of one entry, and patterns of one role.
const ROLES_MAX: usize = 1_000;
/// Of one entry, in bytes.
const NAME_BYTES_MAX: usize = 512;
const DIGEST_BYTES: usize = 32;

/// What somebody may do with a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Spend its budget: Reserve, Release, Extend, Session, Sync.
    Reserve,
    /// Change its policy, switch its retries, take its leases away; and see all that [`Role::Read`] sees.
    Operate,
    /// See its policy, status and holders.
    Read,
}

/// The SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; DIGEST_BYTES]);

/// A file of roles, judged.
#[derive(Clone, Default)]
pub struct Roles {
    tokens: Vec<(Digest, Arc<Grants>)>,
    certificates: HashMap<String, Arc<Grants>>,
}

/// What one entry may do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grants {
    /// `token "gateway"`.
    pub(super) who: String,
    grants: Vec<(Role, Vec<Pattern>)>,
}

/// Which dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    One(DependencyId),
    /// All whose names begin so.
    Family(String),
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Document {
    token: Vec<TokenEntry>,
    certificate: Vec<CertificateEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    sha256: String,
    roles: Vec<RoleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateEntry {
    name: String,
    roles: Vec<RoleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleEntry {
    role: Role,
    dependencies: Vec<String>,
}

// === impl Role ===

impl Role {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Operate => "operate",
            Self::Read => "read",
        }
    }

    /// Whether who has this role has the other as well.
    fn includes(self, other: Self) -> bool {
        self == other || (self == Self::Operate && other == Self::Read)
    }
}

// === impl Digest ===

impl Digest {
    pub(super) fn of(token: &[u8]) -> Self {
        let mut bytes = [0; DIGEST_BYTES];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, token).as_ref());
        Self(bytes)
    }

    fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; DIGEST_BYTES];
        if hex.len() != 2 * DIGEST_BYTES || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

// === impl Pattern ===

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let judged = match text.strip_suffix('*') {
            Some("") => Ok(Self::Family(String::new())),
            Some(prefix) => DependencyId::new(prefix).map(|_| Self::Family(prefix.to_owned())),
            None => DependencyId::new(text).map(Self::One),
        };
        judged.map_err(|rule| format!("dependencies: {text:?} {rule}"))
    }

    /// Whether a dependency, or all of a family that is written `prefix*`, is among these.
    fn covers(&self, name: &str) -> bool {
        match self {
            Self::One(one) => one.as_str() == name,
            Self::Family(prefix) => name.starts_with(prefix.as_str()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(name) => write!(f, "{name}"),
            Self::Family(prefix) => write!(f, "{prefix}*"),
        }
    }
}

// === impl Grants ===

impl Grants {
    fn judge(who: String, entries: Vec<RoleEntry>) -> Result<Self, String> {
        if entries.is_empty() || entries.len() > ROLES_MAX {
            return Err(format!("{who}: must have 1 to {ROLES_MAX} roles"));
        }
        let mut grants = Vec::with_capacity(entries.len());
        for RoleEntry { role, dependencies } in entries {
            if dependencies.is_empty() || dependencies.len() > ROLES_MAX {
                return Err(format!("{who}: role {}: must name 1 to {ROLES_MAX} dependencies", role.name()));
            }
            let patterns = dependencies.iter().map(|text| Pattern::parse(text)).collect::<Result<_, _>>();
            grants.push((role, patterns.map_err(|rule| format!("{who}: role {}: {rule}", role.name()))?));
        }
        Ok(Self { who, grants })
    }

    /// Whether a dependency, or a whole family written `prefix*`, is among those of this role.
    pub(super) fn permit(&self, role: Role, name: &str) -> bool {
        self.of_role(role).any(|pattern| pattern.covers(name))
    }

    /// Whether any dependency is.
    pub(super) fn permit_some(&self, role: Role) -> bool {
        self.of_role(role).next().is_some()
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = &Pattern> {
        self.grants.iter().filter(move |(had, _)| had.includes(role)).flat_map(|(_, patterns)| patterns)
    }

    /// `reserve on payments, openai/*`.
    pub(super) fn summary(&self) -> String {
        const SHOWN_MAX: usize = 4;
        let list = |patterns: &[Pattern]| {
            let shown: Vec<_> = patterns.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
            let more = if patterns.len() > SHOWN_MAX { ", ..." } else { "" };
            shown.join(", ") + more
        };
        let roles = self.grants.iter().take(SHOWN_MAX);
        roles.map(|(role, patterns)| format!("{} on {}", role.name(), list(patterns))).collect::<Vec<_>>().join("; ")
    }

    fn joined(several: &[&Arc<Self>]) -> Option<Arc<Self>> {
        match several {
            [] => None,
            [one] => Some(Arc::clone(one)),
            [first, ..] => {
                let grants = several.iter().flat_map(|grants| grants.grants.iter().cloned()).collect();
                Some(Arc::new(Self { who: first.who.clone(), grants }))
            }
        }
    }
}

// === impl Roles ===

impl Roles {
    /// Reads a file of roles.
    ///
    /// # Errors
    /// The first thing that breaks a rule. The text itself is not shown.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: Document = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            format!("line {line}: {}", error.message())
        })?;
        if document.token.len() > TOKENS_MAX || document.certificate.len() > CERTIFICATES_MAX {
            return Err(format!("must have at most {TOKENS_MAX} tokens and {CERTIFICATES_MAX} certificates"));
        }
        let mut roles = Self::default();
        let (mut names, mut digests) = (HashSet::new(), HashSet::new());
        for TokenEntry { name, sha256, roles: granted } in document.token {
            let who = who("token", &name)?;
            let digest = Digest::parse(&sha256)
                .ok_or_else(|| format!("{who}: sha256 must be the 64 hexadecimal digits of the token's SHA-256"))?;
            if digest == Digest::of(b"") || digest == Digest::of(b"\n") {
                return Err(format!("{who}: sha256 is that of an empty text"));
            }
            if !names.insert(name) {
                return Err(format!("{who}: there are two of that name"));
            }
            if !digests.insert(digest) {
                return Err(format!("{who}: another one has the same sha256"));
            }
            roles.tokens.push((digest, Arc::new(Grants::judge(who, granted)?)));
        }
        for CertificateEntry { name, roles: granted } in document.certificate {
            let who = who("certificate", &name)?;
            // DNS names mean the same in any case; in URIs case matters.
            let name = if name.contains(':') { name } else { lower_if_dns(name) };
            let grants = Arc::new(Grants::judge(who.clone(), granted)?);
            if roles.certificates.insert(name, grants).is_some() {
                return Err(format!("{who}: there are two of that name"));
            }
        }
        Ok(roles)
    }

    /// Whether any client can do without a certificate.
    #[must_use]
    pub const fn have_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// How many tokens and certificates there are.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.tokens.len(), self.certificates.len())
    }

    /// The entry of a token. Takes the same time whichever it is, and whether there is one.
    pub(super) fn of_token(&self, digest: &Digest) -> Option<&Arc<Grants>> {
        let mut found = u32::MAX;
        for (at, (known, _)) in (0_u32..).zip(&self.tokens) {
            let same: Choice = known.0.ct_eq(&digest.0);
            found.conditional_assign(&at, same);
        }
        self.tokens.get(usize::try_from(found).unwrap_or(usize::MAX)).map(|(_, grants)| grants)
    }

    /// What the names of a certificate may do together.
    pub(super) fn of_names(&self, names: &[String]) -> Option<Arc<Grants>> {
        let found: Vec<_> = names.iter().filter_map(|name| self.certificates.get(name)).collect();
        Grants::joined(&found)
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tokens, certificates) = self.counts();
        f.debug_struct("Roles").field("tokens", &tokens).field("certificates", &certificates).finish()
    }
}

fn who(kind: &str, name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("{kind}: name must have 1 to {NAME_BYTES_MAX} bytes without control characters"));
    }
    Ok(format!("{kind} {name:?}"))
}

/// Names with a dot are taken for DNS names; common names keep their case.
fn lower_if_dns(name: String) -> String {
    let dns = name.contains('.') && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_*".contains(&b));
    if dns { name.to_ascii_lowercase() } else { name }
}

#[cfg(test)]
mod tests;
