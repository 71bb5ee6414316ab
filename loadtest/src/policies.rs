//! The dependencies of the benchmark and the policies they run under.
//!
//! Admission is limited, so that its bucket works, but far above what one machine asks. The names of all loops are
//! equally long, so that they send messages of one size.

/// One hot dependency, Reserve and Release.
pub(crate) const ONE: &str = "bench/one/";
/// Many, Reserve and Release.
pub(crate) const ALL: &str = "bench/all/";
/// One hot dependency that may be leased, Reserve and Release.
pub(crate) const LEASED: &str = "bench/lea/";
/// Leased to many holders, which renew.
pub(crate) const RENEWED: &str = "bench/ren/";
/// One hot dependency, Reserve alone.
pub(crate) const ONE_RESERVE_ONLY: &str = "bench/onr/";
/// Many, Reserve alone.
pub(crate) const ALL_RESERVE_ONLY: &str = "bench/alr/";
/// Idle, with three cost units.
pub(crate) const IDLE_WITH_UNITS: &str = "bench/idl/";
/// Holds open reservations.
pub(crate) const OPEN: &str = "bench/opn/";
/// Holds open reservations with estimates in three cost units.
pub(crate) const OPEN_WITH_UNITS: &str = "bench/opu/";
/// Holds tracked operations.
pub(crate) const OPERATIONS: &str = "bench/ops/";
/// Named in no policy.
pub(crate) const UNNAMED: &str = "nameless/";

/// The cost units of [`IDLE_WITH_UNITS`] and [`OPEN_WITH_UNITS`].
pub(crate) const UNITS: [&str; 3] = ["input_tokens", "output_tokens", "images"];

/// Far more than is asked for.
const UNIT_RATE: &str = "100M/min";

/// Where reservations only matter while they last, their records go soon.
pub(crate) const SHORT_PERMIT_TTL_MS: u64 = 500;

/// A member of a family.
pub(crate) fn name(family: &str, index: usize) -> String {
    format!("{family}{index:04}")
}

/// The policy file.
pub(crate) fn toml() -> String {
    let limits = r#"rate = "1M/s", burst = 1_000_000"#;
    let short = format!(r#"admission = {{ {limits}, permit_ttl = "{SHORT_PERMIT_TTL_MS}ms" }}"#);
    let mut text = format!(
        r#"[defaults]
{short}

[dependency."bench/*"]
admission = {{ {limits}, permit_ttl = "60s" }}

[dependency."{ONE_RESERVE_ONLY}*"]
admission = {{ {limits}, permit_ttl = "1s" }}

[dependency."{ALL_RESERVE_ONLY}*"]
admission = {{ {limits}, permit_ttl = "1s" }}

[dependency."{LEASED}*"]
admission = {{ {limits}, permit_ttl = "60s" }}
retry = {{ burst = 1000 }}
lease = {{ enabled = true, curve = ["100% 10s"] }}

[dependency."{RENEWED}*"]
admission = {{ {limits}, permit_ttl = "60s" }}
retry = {{ burst = 100_000 }}
lease = {{ enabled = true, curve = ["100% 10s"] }}

[dependency."{OPEN}*"]
admission = {{ {limits}, permit_ttl = "10m" }}

[dependency."{OPEN_WITH_UNITS}*"]
admission = {{ {limits}, permit_ttl = "10m" }}

[dependency."{OPERATIONS}*"]
{short}
operation = {{ max_attempts = 3, retention = "10m" }}

[dependency."{IDLE_WITH_UNITS}*"]
{short}
"#
    );
    for family in [IDLE_WITH_UNITS, OPEN_WITH_UNITS] {
        for unit in UNITS {
            text.push_str(&format!(
                "\n[dependency.\"{family}*\".cost.{unit}]\nrate = \"{UNIT_RATE}\"\nburst = 4_000_000\n"
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use budgetd::policies::PolicySet;

    use super::*;

    #[test]
    fn budgetd_takes_the_policies_and_all_loops_send_names_of_one_length() {
        let set = PolicySet::parse("policies.toml", &toml()).expect("valid");
        let families = [
            ONE,
            ALL,
            LEASED,
            RENEWED,
            ONE_RESERVE_ONLY,
            ALL_RESERVE_ONLY,
            IDLE_WITH_UNITS,
            OPEN,
            OPEN_WITH_UNITS,
            OPERATIONS,
        ];
        for family in families {
            assert_eq!(family.len(), ONE.len());
        }
        for family in &families[2..] {
            assert!(set.rule(&format!("{family}*")).is_some(), "{family}");
        }
    }
}
