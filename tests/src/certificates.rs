//! Certificates made on the spot: an authority of its own for each test.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// Signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub cert: String,
    /// The private key.
    pub key: String,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// Now.
    Now,
    /// It was once.
    Before,
    /// It will be.
    Later,
}

// === impl Authority ===

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// If keys cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = common_name(name);
        let key = key();
        let pem = params.self_signed(&key).unwrap_or_else(|error| panic!("no authority: {error}")).pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its own certificate.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// For a server on 127.0.0.1, also called localhost.
    ///
    /// # Panics
    /// If keys cannot be made.
    #[must_use]
    pub fn server(&self, valid: Valid) -> Issued {
        self.issue(&["127.0.0.1", "localhost"], None, ExtendedKeyUsagePurpose::ServerAuth, valid)
    }

    /// For a client with these alternative names; those with `://` are URIs.
    ///
    /// # Panics
    /// If a name is none, or keys cannot be made.
    #[must_use]
    pub fn client(&self, names: &[&str], valid: Valid) -> Issued {
        self.issue(names, None, ExtendedKeyUsagePurpose::ClientAuth, valid)
    }

    /// For a client with a common name only.
    ///
    /// # Panics
    /// If keys cannot be made.
    #[must_use]
    pub fn client_called(&self, common: &str) -> Issued {
        self.issue(&[], Some(common), ExtendedKeyUsagePurpose::ClientAuth, Valid::Now)
    }

    fn issue(&self, names: &[&str], common: Option<&str>, usage: ExtendedKeyUsagePurpose, valid: Valid) -> Issued {
        let (uris, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains("://"));
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(others).unwrap_or_else(|error| panic!("{names:?}: {error}"));
        params.subject_alt_names.extend(uris.into_iter().map(|name| match name.try_into() {
            Ok(uri) => SanType::URI(uri),
            Err(error) => panic!("{name}: {error}"),
        }));
        params.distinguished_name = common.map(common_name).unwrap_or_default();
        params.extended_key_usages = vec![usage];
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1)),
            Valid::Before => (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1)),
            Valid::Later => (date_time_ymd(2099, 1, 1), date_time_ymd(2100, 1, 1)),
        };
        let key = key();
        let cert = params.signed_by(&key, &self.issuer).unwrap_or_else(|error| panic!("{names:?}: {error}"));
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn key() -> KeyPair {
    KeyPair::generate().unwrap_or_else(|error| panic!("no key: {error}"))
}
