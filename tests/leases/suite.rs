//! Some of these tests once more, on daemons with TLS and roles: holders and agents by a token that may only spend, operators by
//! a certificate. All of them: `BUDGET_TEST_SECURITY=tls ./tests/run --test leases`.

use std::time::Duration;

use budget_tests::security::run_secured;

/// More than they ever take.
const BOUND: Duration = Duration::from_secs(300);

#[test]
fn leases_hold_with_tls_and_roles() {
    run_secured(
        &[
            "policies::a15_the_kill_switch_reaches_holders_within_a_renewal_on_redis",
            "agents::q13_an_agent_says_that_a_policy_is_only_tried",
            "reach::a_change_reaches_a_thousand_holders_with_their_next_sync",
        ],
        BOUND,
    );
}
