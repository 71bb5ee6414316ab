//! Other programs that a benchmark may be compared with: running already, on this machine, and speaking Envoy's
//! RateLimitService.

use std::net::SocketAddr;

/// A table has room for so many characters of a name.
const NAME_CHARS_MAX: usize = 20;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
}

/// Reads `NAME=ADDRESS:PORT`.
///
/// # Errors
///
/// Says what is wrong; an address of another machine is, since a benchmark sends as much as it can.
pub(crate) fn parse(text: &str) -> Result<Peer, String> {
    let (name, address) = text.split_once('=').ok_or("must be NAME=ADDRESS:PORT, such as limitador=127.0.0.1:8081")?;
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(letters) {
        return Err(format!("the name must be 1 to {NAME_CHARS_MAX} of a-z, 0-9, _ and -"));
    }
    let address: SocketAddr = address
        .parse()
        .map_err(|_| format!("{address} is not an IP address and a port, such as 127.0.0.1:8081 or [::1]:8081"))?;
    if !address.ip().is_loopback() {
        return Err(format!("{address} is another machine; a benchmark sends all it can, so only to this one"));
    }
    Ok(Peer { name: name.to_owned(), address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_of_this_machine() {
        let peer = parse("limitador=127.0.0.1:8081").expect("valid");
        assert_eq!((peer.name.as_str(), peer.address.port()), ("limitador", 8081));
        assert!(parse("six=[::1]:8081").is_ok());
        for other in ["10.0.0.1:8081", "0.0.0.0:8081", "[2001:db8::1]:1", "[::]:1", "169.254.1.1:1"] {
            let refused = parse(&format!("other={other}")).expect_err("another machine");
            assert!(refused.contains("another machine"), "{other}: {refused}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [
            ("127.0.0.1:8081", "NAME="),
            ("=127.0.0.1:8081", "the name"),
            ("A=127.0.0.1:8081", "the name"),
            ("a\x1b[2J=127.0.0.1:8081", "the name"),
            ("aaaaaaaaaaaaaaaaaaaaa=127.0.0.1:8081", "the name"),
            ("a=localhost:8081", "not an IP address"),
            ("a=127.0.0.1", "not an IP address"),
        ] {
            let refused = parse(text).expect_err("refused");
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
