//! The names that a verified certificate bears.
//!
//! URI and DNS names of the subject alternative name; the common name only where there are none of these, since who issues
//! certificates by their alternative names need not have looked at it.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// A certificate has at most so many; others are not looked at.
const NAMES_MAX: usize = 64;
/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// UTF8String, PrintableString, TeletexString, IA5String: read as UTF-8, of which all but the third are a part.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// DNS names in lower case. None for what is no certificate.
pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let uris = certificate.valid_uri_names().map(str::to_owned);
    let dns = certificate.valid_dns_names().map(str::to_ascii_lowercase);
    let names: Vec<_> = uris.chain(dns).take(NAMES_MAX).collect();
    if names.is_empty() { common_name(certificate.subject()).into_iter().collect() } else { names }
}

/// The one common name of a subject; none if there are several.
fn common_name(subject: &[u8]) -> Option<String> {
    // The verifier gives the content of the outermost sequence.
    let mut found = None;
    let mut sets = subject;
    while !sets.is_empty() {
        let (mut set, rest) = element(sets, SET)?;
        sets = rest;
        while !set.is_empty() {
            let (pair, rest) = element(set, SEQUENCE)?;
            set = rest;
            let (kind, value) = element(pair, OBJECT_IDENTIFIER)?;
            if kind != COMMON_NAME {
                continue;
            }
            let tag = value.first().copied().filter(|tag| TEXTS.contains(tag))?;
            let text = std::str::from_utf8(element(value, tag)?.0).ok()?;
            if found.replace(text.to_owned()).is_some() {
                return None;
            }
        }
    }
    found.filter(|name| !name.is_empty())
}

/// The content of an element with this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, bytes) = bytes.split_first()?;
    let (&short, bytes) = bytes.split_first()?;
    if first != tag {
        return None;
    }
    let (length, bytes) = match short {
        0..=0x7f => (usize::from(short), bytes),
        0x81 => bytes.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => bytes.split_first_chunk().map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))?,
        _ => return None,
    };
    bytes.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    fn names(common: Option<&str>, alternative: &[&str]) -> Vec<String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "an organization");
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(common.to_owned()));
        }
        params.subject_alt_names = (alternative.iter())
            .map(|name| match name.contains("://") {
                true => SanType::URI((*name).try_into().unwrap()),
                false => SanType::DnsName((*name).try_into().unwrap()),
            })
            .collect();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        of_certificate(certificate.der())
    }

    #[test]
    fn alternative_names_hide_the_common_name() {
        assert_eq!(names(Some("gateway"), &[]), ["gateway"]);
        assert_eq!(names(Some("gäteway \u{0} x"), &[]), ["gäteway \u{0} x"]);
        assert_eq!(names(Some(&"x".repeat(300)), &[]), ["x".repeat(300)]);
        assert_eq!(names(None, &[]), Vec::<String>::new());
        assert_eq!(names(Some(""), &[]), Vec::<String>::new());
        assert_eq!(names(Some("admin"), &["GateWay.example"]), ["gateway.example"]);
        let both = ["spiffe://fleet/ns/a/sa/gateway", "gateway.example"];
        assert_eq!(names(Some("admin"), &both), both);
    }

    #[test]
    fn broken_encodings_have_no_name() {
        let good = [&[SET, 11, SEQUENCE, 9, OBJECT_IDENTIFIER, 3][..], COMMON_NAME, &[0x0c, 2, b'a', b'b']].concat();
        assert_eq!(common_name(&good).as_deref(), Some("ab"));
        assert_eq!(common_name(&[good.clone(), good.clone()].concat()), None, "two");
        for cut in 0..good.len() {
            assert_eq!(common_name(&good[..cut]), None, "{cut}");
        }
        for at in 0..good.len() {
            for value in [0, 0x7f, 0x80, 0x81, 0x82, 0x83, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let _no_panic = common_name(&bytes);
            }
        }
        assert!(of_certificate(&CertificateDer::from(good)).is_empty());
    }
}
