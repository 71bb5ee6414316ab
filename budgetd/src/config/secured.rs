//! Settings of TLS and roles, and what they have to be where others can connect.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use budget_client::Credentials;

use super::{InvalidConfig, Settings, StoreChoice, invalid};
use crate::security::{SecurityFiles, TlsFiles};

/// Certificate and key go together, and a CA of clients goes with them.
pub(super) fn judge_files(settings: &Settings) -> Result<SecurityFiles, InvalidConfig> {
    let Settings { tls_cert, tls_key, tls_client_ca, auth, .. } = settings;
    let tls = pair(("tls-cert", tls_cert.as_deref()), ("tls-key", tls_key.as_deref()))?;
    if let (None, Some(client_ca)) = (&tls, tls_client_ca) {
        return Err(invalid("tls-client-ca", client_ca.display(), "needs --tls-cert and --tls-key as well"));
    }
    let tls = tls.map(|(cert, key)| TlsFiles { cert, key, client_ca: tls_client_ca.clone() });
    Ok(SecurityFiles { tls, auth: auth.clone() })
}

/// Whoever reaches the daemon may spend every budget, so it listens on loopback unless told otherwise.
pub(super) fn judge_exposure(
    name: &'static str,
    address: Option<SocketAddr>,
    security: &SecurityFiles,
    insecure: bool,
) -> Result<(), InvalidConfig> {
    match address {
        Some(address) if !address.ip().to_canonical().is_loopback() && !insecure && !security.protects() => {
            let rule = "must be a loopback address (127.0.0.1, [::1]) or a unix socket without TLS (--tls-cert, --tls-key) \
                        and authentication (--tls-client-ca, --auth); --insecure accepts the risk";
            Err(invalid(name, address, rule))
        }
        Some(_) | None => Ok(()),
    }
}

/// What an agent shows those it asks.
pub(super) fn judge_upstream(settings: &Settings, store: &StoreChoice) -> Result<Credentials, InvalidConfig> {
    let Settings { upstream_ca, upstream_cert, upstream_key, upstream_token_file, .. } = settings;
    let all = [
        ("upstream-ca", upstream_ca),
        ("upstream-cert", upstream_cert),
        ("upstream-key", upstream_key),
        ("upstream-token-file", upstream_token_file),
    ];
    let given = |(name, path): &(&'static str, &Option<PathBuf>)| path.as_deref().map(|path| (*name, path.to_owned()));
    let secure = match store {
        StoreChoice::Upstream(endpoints) => endpoints.iter().any(|endpoint| endpoint.starts_with("https://")),
        StoreChoice::Memory | StoreChoice::Redis(_) => {
            return match all.iter().find_map(given) {
                Some((name, path)) => {
                    Err(invalid(name, path.display(), "is for an agent: a store like grpcs://host:port"))
                }
                None => Ok(Credentials::default()),
            };
        }
    };
    match all[..3].iter().find_map(given) {
        Some((name, path)) if !secure => {
            return Err(invalid(name, path.display(), "needs a store with TLS, like grpcs://host:port"));
        }
        Some(_) | None => {}
    }
    let mut credentials = Credentials::default();
    match upstream_ca {
        Some(ca) => credentials = credentials.ca_file(ca),
        None if secure => {
            return Err(invalid("upstream-ca", "absent", "must name who signs the certificates of a grpcs:// store"));
        }
        None => {}
    }
    let certificate = pair(("upstream-cert", upstream_cert.as_deref()), ("upstream-key", upstream_key.as_deref()))?;
    if let Some((cert, key)) = certificate {
        credentials = credentials.certificate_files(cert, key);
    }
    Ok(match upstream_token_file {
        Some(path) => credentials.token_file(path),
        None => credentials,
    })
}

type Given<'a> = (&'static str, Option<&'a Path>);

fn pair(cert: Given<'_>, key: Given<'_>) -> Result<Option<(PathBuf, PathBuf)>, InvalidConfig> {
    match (cert, key) {
        ((_, Some(cert)), (_, Some(key))) => Ok(Some((cert.to_owned(), key.to_owned()))),
        ((_, None), (_, None)) => Ok(None),
        ((name, Some(path)), (other, None)) | ((other, None), (name, Some(path))) => {
            Err(invalid(name, path.display(), format!("needs --{other} as well")))
        }
    }
}
