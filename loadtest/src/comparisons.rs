//! What is compared with what, and the numbers to reach.

use std::{borrow::Cow, time::Duration};

use serde::Serialize;

use crate::{driver::Shape, policies};

/// Dependencies of the loops that use many.
pub(crate) const MANY: usize = 1000;

/// A server of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Echo,
    Memory,
    Redis,
    /// Redis, with leases that the daemon holds on it.
    Leased,
    /// Memory, with metrics and traces sent to a collector.
    Sending,
    /// The peer with this number on the command line.
    Peer(usize),
}

/// A closed loop against a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) server: Server,
    pub(crate) shape: Shape,
    /// Dependencies are numbered under this prefix.
    pub(crate) family: &'static str,
    pub(crate) dependencies: usize,
}

/// Two loops that alternate, and what their ratio should be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) name: Cow<'static, str>,
    pub(crate) subject: Load,
    pub(crate) baseline: Load,
    pub(crate) goals: Goals,
}

/// Numbers to reach; absent where a number is only reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Goals {
    pub(crate) ratio_min: Option<f64>,
    pub(crate) p99_ratio_max: Option<f64>,
    pub(crate) script_calls_per_1000_max: Option<f64>,
}

const NO_GOALS: Goals = Goals { ratio_min: None, p99_ratio_max: None, script_calls_per_1000_max: None };

/// Everything the benchmark can compare.
pub(crate) static COMPARISONS: [Comparison; 14] = [
    // The echo server with itself: shows how far this machine's noise moves a ratio of 1.
    to_echo("echo", one(Server::Echo), NO_GOALS),
    to_echo("memory_hot", one(Server::Memory), Goals { ratio_min: Some(0.90), p99_ratio_max: Some(2.5), ..NO_GOALS }),
    to_echo("memory_1000", many(Server::Memory), Goals { ratio_min: Some(0.90), ..NO_GOALS }),
    to_echo(
        "redis_hot",
        one(Server::Redis),
        Goals { ratio_min: Some(0.60), p99_ratio_max: Some(2.5), script_calls_per_1000_max: Some(30.0) },
    ),
    to_echo("redis_1000", many(Server::Redis), Goals { ratio_min: Some(0.45), ..NO_GOALS }),
    to_echo(
        "leased_hot",
        Load { family: policies::LEASED, ..one(Server::Leased) },
        Goals { ratio_min: Some(0.90), script_calls_per_1000_max: Some(1.0), ..NO_GOALS },
    ),
    to_echo("memory_hot_reserve_only", reserve_only(one(Server::Memory)), NO_GOALS),
    to_echo("memory_1000_reserve_only", reserve_only(many(Server::Memory)), NO_GOALS),
    to_echo("redis_hot_reserve_only", reserve_only(one(Server::Redis)), NO_GOALS),
    to_echo("redis_1000_reserve_only", reserve_only(many(Server::Redis)), NO_GOALS),
    to_echo("memory_session", session(one(Server::Memory)), NO_GOALS),
    to_echo("redis_session", session(one(Server::Redis)), NO_GOALS),
    Comparison {
        name: Cow::Borrowed("session"),
        subject: session(one(Server::Memory)),
        baseline: one(Server::Memory),
        goals: Goals { ratio_min: Some(3.0), ..NO_GOALS },
    },
    Comparison {
        name: Cow::Borrowed("telemetry"),
        subject: one(Server::Sending),
        baseline: one(Server::Memory),
        goals: Goals { ratio_min: Some(0.93), ..NO_GOALS },
    },
];

const fn one(server: Server) -> Load {
    Load { server, shape: Shape::Pair, family: policies::ONE, dependencies: 1 }
}

const fn many(server: Server) -> Load {
    Load { server, shape: Shape::Pair, family: policies::ALL, dependencies: MANY }
}

const fn session(load: Load) -> Load {
    Load { shape: Shape::Session, ..load }
}

const fn reserve_only(load: Load) -> Load {
    let family = if load.dependencies == 1 { policies::ONE_RESERVE_ONLY } else { policies::ALL_RESERVE_ONLY };
    Load { shape: Shape::ReserveOnly, family, ..load }
}

/// The baseline sends the same calls for the same dependencies.
const fn to_echo(name: &'static str, subject: Load, goals: Goals) -> Comparison {
    Comparison { name: Cow::Borrowed(name), subject, baseline: Load { server: Server::Echo, ..subject }, goals }
}

/// The echo server is asked in the same words.
pub(crate) fn peer(number: usize, name: &str) -> Comparison {
    let subject = Load { server: Server::Peer(number), shape: Shape::RateLimit, ..one(Server::Echo) };
    let baseline = Load { server: Server::Echo, ..subject };
    Comparison { name: Cow::Owned(format!("peer_{name}")), subject, baseline, goals: NO_GOALS }
}

// === impl Load ===

impl Load {
    /// A first start is in quarantine for its curve and a margin, and then it takes some renewals until a share fits.
    pub(crate) const fn warm_up_min(self) -> Duration {
        match self.server {
            Server::Echo | Server::Memory | Server::Redis | Server::Sending | Server::Peer(_) => Duration::ZERO,
            Server::Leased => Duration::from_secs(30),
        }
    }
}

// === impl Comparison ===

impl Comparison {
    /// Whether either side is `server`.
    pub(crate) fn uses(&self, server: Server) -> bool {
        self.subject.server == server || self.baseline.server == server
    }

    /// Whether the ratio is to the echo server.
    pub(crate) fn is_to_echo(&self) -> bool {
        self.baseline.server == Server::Echo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_both_sides_of_a_ratio_send_the_same_calls() {
        for (index, comparison) in COMPARISONS.iter().enumerate() {
            assert!(COMPARISONS[..index].iter().all(|other| other.name != comparison.name), "{}", comparison.name);
            assert!(!comparison.name.starts_with("peer_"), "{} may be a peer's", comparison.name);
            let (subject, baseline) = (comparison.subject, comparison.baseline);
            assert_eq!((subject.family, subject.dependencies), (baseline.family, baseline.dependencies));
            assert_eq!(subject.shape == baseline.shape, comparison.name != "session", "{}", comparison.name);
        }
    }

    #[test]
    fn a_peer_and_the_echo_server_are_asked_the_same() {
        let comparison = peer(3, "limitador");
        assert_eq!(comparison.name, "peer_limitador");
        assert!(comparison.is_to_echo() && comparison.uses(Server::Peer(3)) && !comparison.uses(Server::Peer(2)));
        assert_eq!(comparison.baseline, Load { server: Server::Echo, ..comparison.subject });
    }
}
