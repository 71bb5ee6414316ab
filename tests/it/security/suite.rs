//! Some of the other tests once more, on daemons with TLS and roles. All of them: `BUDGET_TEST_SECURITY=tls ./tests/run`.

use std::time::Duration;

use budget_tests::security::run_secured;

/// More than they ever take.
const BOUND: Duration = Duration::from_secs(300);

#[test]
fn the_suite_holds_with_tls_and_roles() {
    run_secured(
        &[
            "replicas::q1_a_killed_replica_and_flushed_scripts_lose_no_token",
            "operations::a15_the_kill_switch_works_with_redis_away_and_converges_when_it_is_back",
            "python::the_python_example_reserves_and_releases",
            "faults::numbers::a05_refusal_charges_nothing::on_redis_7",
            "faults::ending::a26_sigterm_under_load_ends_in_time_and_loses_no_answer::on_memory",
            "faults::start::a14_without_a_policy_it_says_so_and_answers_operators",
        ],
        BOUND,
    );
}
