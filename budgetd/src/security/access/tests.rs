//! Credentials as they come in, and what they are worth.

use axum::http::HeaderValue;

use super::*;

fn guard(token: &[u8]) -> Arc<Guard> {
    Arc::new(Guard::roles(roles(token)))
}

fn roles(token: &[u8]) -> Roles {
    let digest: String =
        ring::digest::digest(&ring::digest::SHA256, token).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    let text = format!(
        "[[token]]\nname = \"t\"\nsha256 = \"{digest}\"\nroles = [{{ role = \"read\", dependencies = [\"a\"] }}]\n\
         [[certificate]]\nname = \"c.example\"\nroles = [{{ role = \"read\", dependencies = [\"*\"] }}]\n"
    );
    Roles::parse(&text).unwrap()
}

fn headers(values: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
    }
    headers
}

fn certified(name: &str) -> Peer {
    let peer = Peer::at(Some("192.0.2.1:1".parse().unwrap()));
    peer.is_certified(vec![name.to_owned()]);
    peer
}

#[test]
fn tokens_of_odd_bytes() {
    let long = "x".repeat(TOKEN_BYTES_MAX);
    for token in [&b"s3cret"[..], b"\xff\xfe \x80", b"a  b", b"=", "p\u{e4}ss".as_bytes(), long.as_bytes()] {
        let guard = guard(token);
        for scheme in [&b"Bearer "[..], b"bearer ", b"BEARER   "] {
            let access = guard.access(&headers(&[&[scheme, token].concat()]), None).unwrap();
            assert_eq!(access.who(), Some("token \"t\""));
            assert!(access.permit(Role::Read, "a").is_ok() && access.permit(Role::Read, "b").is_err());
        }
        for wrong in [&token[1..], &[token, b"x"].concat(), &[b"x", token].concat()] {
            if !wrong.is_empty() {
                let refused = guard.access(&headers(&[&[b"Bearer ", wrong].concat()]), None).unwrap_err();
                assert!(matches!(refused, Refused::Unauthenticated(_)), "{wrong:?}");
            }
        }
    }
}

#[test]
fn what_is_no_credential_is_named() {
    let guard = guard(b"s3cret");
    let refused = |values: &[&[u8]], peer: Option<&Peer>| guard.access(&headers(values), peer).unwrap_err().to_string();
    let stranger = certified("stranger");
    for (values, peer, expected) in [
        (&[][..], None, "no credentials"),
        (&[], Some(&Peer::default()), "no credentials"),
        (&[], Some(&stranger), "no name of the client certificate is known"),
        (&[&b"Bearer s3cret"[..], b"Bearer s3cret"], None, "several authorization headers"),
        (&[b"s3cret"], None, "must look like"),
        (&[b"Basic czNjcmV0"], None, "must look like"),
        (&[b""], None, "must look like"),
        (&[b"Bearer"], None, "must look like"),
        (&[b"Bearer  "], None, "must look like"),
        (&[b"Bearers3cret"], None, "must look like"),
        (&[b"Bearer S3cret"], None, "not known here"),
    ] {
        let refused = refused(values, peer);
        assert!(refused.contains(expected) && !refused.to_lowercase().contains("s3cret"), "{refused}");
    }
    let long = [b"Bearer ", "x".repeat(TOKEN_BYTES_MAX + 1).as_bytes()].concat();
    assert!(refused(&[&long], None).contains("longer than"));
    assert_eq!(guard.refused(), (12, 0));
    // A wrong token is not made good by a certificate.
    assert!(refused(&[b"Bearer S3cret"], Some(&certified("c.example"))).contains("not known here"));
    assert_eq!(
        guard.access(&headers(&[]), Some(&certified("c.example"))).unwrap().who(),
        Some("certificate \"c.example\"")
    );
}

#[test]
fn a_stream_goes_by_the_roles_of_the_moment() {
    let guard = guard(b"old");
    let mut access = guard.access(&headers(&[b"Bearer old"]), None).unwrap();
    assert!(access.renew().is_ok());
    guard.replace(roles(b"new"));
    assert!(access.permit(Role::Read, "a").is_ok(), "until it looks");
    assert_eq!(access.renew(), Err(Refused::Unauthenticated("the token is not known here")));
    guard.replace(roles(b"old"));
    assert!(access.renew().is_ok());
    assert_eq!(guard.refused(), (1, 0));
}

#[test]
fn metrics_are_for_this_machine_and_for_readers_of_all() {
    let (here, there) =
        (Peer::at(Some("127.0.0.1:1".parse().unwrap())), Peer::at(Some("192.0.2.1:1".parse().unwrap())));
    let none = headers(&[]);
    for guard in [Guard::open(), Guard::certificates(), Guard::roles(roles(b"x"))].map(Arc::new) {
        assert!(guard.judge_metrics(&none, &here).is_ok());
        let is_open = matches!(guard.rule, Rule::Open);
        assert_eq!(guard.judge_metrics(&none, &there).is_ok(), is_open);
        assert!(guard.judge_metrics(&none, &certified("c.example")).is_ok());
    }
    let guard = guard(b"x");
    let refused = guard.judge_metrics(&headers(&[b"Bearer x"]), &there).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "token \"t\" may not do this, which needs the role read on \"*\"; it has read on a"
    );
    assert_eq!(guard.refused(), (0, 1));
}
