//! What a file of roles says, and each way in which it may be wrong.

use super::*;

const TOKEN: &str = "3f9a";

fn hex(token: &[u8]) -> String {
    Digest::of(token).0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file(roles: &str) -> String {
    format!("[[token]]\nname = \"gateway\"\nsha256 = \"{}\"\nroles = {roles}\n", hex(TOKEN.as_bytes()))
}

fn grants(roles: &str) -> Arc<Grants> {
    let roles = Roles::parse(&file(roles)).unwrap();
    Arc::clone(roles.of_token(&Digest::of(TOKEN.as_bytes())).unwrap())
}

#[test]
fn a_digest_is_sha_256() {
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hex(b"abc"), abc);
    assert_eq!(Digest::parse(&abc.to_uppercase()), Some(Digest::of(b"abc")));
    for bad in ["", "ba78", &abc[1..], &format!("{abc}0"), &format!("+{}", &abc[1..]), &format!("é{}", &abc[2..])] {
        assert!(Digest::parse(bad).is_none(), "{bad}");
    }
}

#[test]
fn patterns_bound_each_role() {
    let grants = grants(
        "[{ role = \"reserve\", dependencies = [\"payments\", \"openai/*\"] }, \
                         { role = \"operate\", dependencies = [\"openai/gpt*\"] }, \
                         { role = \"read\", dependencies = [\"*\"] }]",
    );
    for (role, yes, no) in [
        (
            Role::Reserve,
            &["payments", "openai/x", "openai/", "openai/*", "openai/a*"][..],
            &["payments2", "p*", "open", "*"][..],
        ),
        (Role::Operate, &["openai/gpt", "openai/gpt-5", "openai/gpt*"], &["payments", "openai/*", "openai/g", "*"]),
        (Role::Read, &["payments", "x", "*", "defaults"], &[]),
    ] {
        assert!(grants.permit_some(role));
        for name in yes {
            assert!(grants.permit(role, name), "{role:?} {name}");
        }
        for name in no {
            assert!(!grants.permit(role, name), "{role:?} {name}");
        }
    }
    assert_eq!(grants.summary(), "reserve on payments, openai/*; operate on openai/gpt*; read on *");
}

#[test]
fn to_operate_is_to_read_and_nothing_else_includes_another() {
    for (had, includes) in
        [("reserve", [true, false, false]), ("operate", [false, true, true]), ("read", [false, false, true])]
    {
        let grants = grants(&format!("[{{ role = \"{had}\", dependencies = [\"a\"] }}]"));
        for (role, expected) in [Role::Reserve, Role::Operate, Role::Read].into_iter().zip(includes) {
            assert_eq!((grants.permit(role, "a"), grants.permit_some(role)), (expected, expected), "{had} {role:?}");
            assert!(!grants.permit(role, "b"));
        }
    }
}

#[test]
fn whichever_token_is_meant_is_found() {
    let entry = |n: usize| {
        let digest = hex(format!("token {n}").as_bytes());
        let roles = "[{ role = \"read\", dependencies = [\"*\"] }]";
        format!("[[token]]\nname = \"{n}\"\nsha256 = \"{digest}\"\nroles = {roles}\n")
    };
    let roles = Roles::parse(&(0..100).map(entry).collect::<String>()).unwrap();
    for n in 0..100 {
        let found = roles.of_token(&Digest::of(format!("token {n}").as_bytes()));
        assert_eq!(found.unwrap().who, format!("token \"{n}\""));
    }
    for other in ["token 100", "token 0 ", "", "Token 0"] {
        assert!(roles.of_token(&Digest::of(other.as_bytes())).is_none(), "{other}");
    }
    assert!(roles.have_tokens() && !Roles::default().have_tokens());
    assert!(Roles::default().of_token(&Digest::of(b"x")).is_none());
}

#[test]
fn all_names_of_a_certificate_count() {
    let text = "[[certificate]]\nname = \"Gateway.Example\"\nroles = [{ role = \"reserve\", dependencies = [\"a\"] }]\n\
                [[certificate]]\nname = \"spiffe://Fleet/x\"\nroles = [{ role = \"read\", dependencies = [\"b\"] }]\n";
    let roles = Roles::parse(text).unwrap();
    let of = |names: &[&str]| roles.of_names(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    assert!(of(&["gateway.example"]).unwrap().permit(Role::Reserve, "a"));
    let both = of(&["other", "spiffe://Fleet/x", "gateway.example"]).unwrap();
    assert!(both.permit(Role::Reserve, "a") && both.permit(Role::Read, "b") && !both.permit(Role::Read, "a"));
    assert!(of(&["spiffe://fleet/x"]).is_none() && of(&[]).is_none() && of(&["example"]).is_none());
}

#[test]
fn every_mistake_is_named_and_nothing_secret_shown() {
    let good = "[{ role = \"read\", dependencies = [\"*\"] }]";
    let secret = hex(TOKEN.as_bytes());
    let two = file(good) + &file(good);
    let twin = file(good) + &file(good).replace("gateway", "other");
    for (text, expected) in [
        (file("[]"), "token \"gateway\": must have 1 to 1000 roles"),
        (file("[{ role = \"read\", dependencies = [] }]"), "role read: must name 1 to 1000 dependencies"),
        (file("[{ role = \"admin\", dependencies = [\"*\"] }]"), "line 4: unknown variant `admin`"),
        (file("[{ role = \"read\" }]"), "line 4: missing field `dependencies`"),
        (file("[{ role = \"read\", dependencies = [\"\"] }]"), "role read: dependencies: \"\""),
        (file("[{ role = \"read\", dependencies = [\"a**\"] }]"), "dependencies: \"a**\""),
        (file("[{ role = \"read\", dependencies = [\"a\"], x = 1 }]"), "unknown field `x`"),
        (file(good).replace("sha256", "sha1"), "line 3: unknown field `sha1`"),
        (file(good).replace(&secret, "abc"), "sha256 must be the 64 hexadecimal digits"),
        (file(good).replace(&secret, &hex(b"")), "sha256 is that of an empty text"),
        (file(good).replace(&secret, &hex(b"\n")), "sha256 is that of an empty text"),
        (file(good).replace("gateway", ""), "token: name must have 1 to 512 bytes"),
        (file(good).replace("gateway", "a\\nb"), "without control characters"),
        (file(good).replace("token", "tokens"), "line 1: unknown field `tokens`"),
        (file(good).replace(&format!("\"{secret}\""), &format!("\"{secret}")), "line 3"),
        (two, "there are two of that name"),
        (twin, "token \"other\": another one has the same sha256"),
        ("[[certificate]]\nname = \"a\"\nroles = 5".to_owned(), "line 3"),
    ] {
        let error = Roles::parse(&text).unwrap_err();
        assert!(error.contains(expected), "{error}, not {expected}");
        assert!(!error.contains(&secret[..16]), "{error}");
    }
    assert_eq!(Roles::parse("").unwrap().counts(), (0, 0));
    assert!(!format!("{:?} {:?}", Roles::parse(&file(good)).unwrap(), Digest::of(b"x")).contains(&secret[..8]));
}

#[test]
fn the_documented_file_is_valid() {
    let page = include_str!("../../../../SECURITY.md");
    let (_, block) = page.split_once("```toml\n").unwrap();
    let roles = Roles::parse(block.split_once("```").unwrap().0).unwrap();
    assert!(roles.of_token(&Digest::of(b"example")).unwrap().permit(Role::Reserve, "openai/gpt"));
    assert!(roles.of_names(&["spiffe://fleet/ns/ops/sa/console".to_owned()]).unwrap().permit(Role::Read, "x"));
}
