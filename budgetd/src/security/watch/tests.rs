//! Files that change under the daemon.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::*;

struct Pair {
    cert: String,
    key: String,
}

fn self_signed(name: &str) -> Pair {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    Pair { cert: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

fn authority() -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    drop(Issuer::new(params, key));
    pem
}

fn token(token: &[u8]) -> String {
    let digest: String = Digest::hex(token);
    format!("[[token]]\nname = \"t\"\nsha256 = \"{digest}\"\nroles = [{{ role = \"read\", dependencies = [\"*\"] }}]\n")
}

struct Digest;

impl Digest {
    fn hex(token: &[u8]) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, token);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

struct Files {
    directory: TempDir,
}

// === impl Files ===

impl Files {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn names(&self, client_ca: bool, auth: bool) -> SecurityFiles {
        let tls =
            TlsFiles { cert: self.path("cert"), key: self.path("key"), client_ca: client_ca.then(|| self.path("ca")) };
        SecurityFiles { tls: Some(tls), auth: auth.then(|| self.path("auth")) }
    }
}

#[test]
fn what_is_wrong_at_the_start_is_named() {
    let files = Files::new();
    let (pair, other) = (self_signed("a"), self_signed("b"));
    let load = || Security::load(files.names(true, true)).unwrap_err().to_string();
    assert!(load().starts_with("auth /") && load().contains("No such file"));
    files.write("auth", "x = 1");
    assert!(load().contains("line 1: unknown field `x`"), "{}", load());
    fs::write(files.path("auth"), b"\xff").unwrap();
    assert!(load().contains("is not UTF-8"));
    files.write("auth", &token(b"x"));
    assert!(load().starts_with("tls-cert /"));
    files.write("cert", "");
    files.write("key", "");
    files.write("ca", "");
    assert!(load().contains("cert: has no certificate in PEM"), "{}", load());
    files.write("cert", &pair.cert);
    assert!(load().contains("key: has no private key in PEM"));
    files.write("key", &other.key);
    assert!(load().contains("ca: has no certificate in PEM"), "{}", load());
    files.write("ca", &authority());
    assert!(load().contains("key: does not belong to the certificate"), "{}", load());
    files.write("key", &pair.key.replace("MI", "XX"));
    assert!(!load().contains("XX"), "{}", load());
    files.write("key", &pair.key);
    assert!(Security::load(files.names(true, true)).is_ok());
    fs::write(files.path("ca"), vec![b'x'; usize::try_from(FILE_BYTES_MAX).unwrap() + 1]).unwrap();
    assert!(load().contains("is longer than"));
}

#[test]
fn one_file_may_change_before_the_other() {
    let files = Files::new();
    let (old, new) = (self_signed("a"), self_signed("a"));
    files.write("cert", &old.cert);
    files.write("key", &old.key);
    let security = Security::load(files.names(false, false)).unwrap();
    let look = || {
        security.look();
        (security.failing()[0], security.failures()[0])
    };
    assert_eq!(look(), (0, 0));
    files.write("cert", &new.cert);
    assert_eq!(look(), (0, 0), "perhaps the key follows");
    files.write("key", &new.key);
    assert_eq!(look(), (0, 0));
    files.write("key", &old.key);
    assert_eq!([look(), look(), look()], [(0, 0), (1, 1), (1, 1)], "told once");
    fs::remove_file(files.path("key")).unwrap();
    assert_eq!([look(), look(), look()], [(1, 1), (1, 2), (1, 2)]);
    files.write("key", &new.key);
    assert_eq!([look(), look()], [(0, 2), (0, 2)]);
}

#[test]
fn roles_change_and_what_is_broken_leaves_them() {
    let files = Files::new();
    files.write("auth", &token(b"old"));
    let security = Security::load(SecurityFiles { tls: None, auth: Some(files.path("auth")) }).unwrap();
    let knows = |token: &str| {
        let mut headers = axum::http::HeaderMap::new();
        headers.append("authorization", format!("Bearer {token}").parse().unwrap());
        security.guard().access(&headers, None).is_ok()
    };
    assert!(knows("old") && !knows("new"));
    files.write("auth", "[[token]]");
    for _ in 0..3 {
        security.look();
        assert!(knows("old"));
    }
    assert_eq!((security.failing(), security.failures()), ([0, 1], [0, 1]));
    files.write("auth", &token(b"new"));
    security.look();
    assert!(knows("new") && !knows("old"));
    assert_eq!((security.failing(), security.failures()), ([0, 0], [0, 1]));
    files.write("auth", "");
    security.look();
    assert!(!knows("new"), "an empty file lets nobody in");
}
