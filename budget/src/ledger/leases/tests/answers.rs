//! What an answer leaves behind, and what operators see of it.

use super::*;
use crate::{lease::HOLDERS_MAX, policy::UnitLimit};

const BEFORE: Epoch = Epoch { number: 1, id: 5 };

/// A holder that lives by a lease of an earlier epoch.
fn with_old_lease(world: &World) -> Caller {
    let mut caller = Caller::new("a", 1, world);
    caller.ask.lease = Some(Presented {
        name: crate::lease::LeaseName { epoch: BEFORE, generation: 4 },
        value: Amounts { rate: 100 * TOKEN, burst: 20 * TOKEN, retry_burst: 10 * TOKEN, ..Amounts::default() },
        curve: world.numbers.lease.as_ref().unwrap().curve.clone(),
        position_ms: 0,
    });
    caller
}

#[track_caller]
fn check_nothing_is_proved(world: &World) {
    let leases = world.ledger.leases.as_ref().unwrap();
    assert!(leases.proofs.is_empty() && leases.proved.is_zero() && leases.table.charged.is_zero());
    assert_eq!(world.ledger.holders(), 0);
}

#[test]
fn nothing_is_proved_while_another_master_may_lend() {
    let mut world = World::new(spec(), Timing { overlap_ms: 6_000, ..Timing::default() }, false);
    let caller = with_old_lease(&world);
    assert_eq!(world.sync(&caller), SyncAnswer::Wait(6_000));
    check_nothing_is_proved(&world);
}

#[test]
fn nothing_is_proved_by_who_does_not_quote_the_epoch() {
    let mut world = World::new(spec(), Timing::default(), false);
    world.at(world.ledger.direct_wait_ms());
    let mut caller = with_old_lease(&world);
    let epoch = std::mem::take(&mut caller.ask.epoch);
    assert_eq!(world.sync(&caller), SyncAnswer::Epoch(epoch));
    check_nothing_is_proved(&world);
    caller.ask.epoch = epoch;
    world.grant(&mut caller);
    assert_eq!((world.ledger.holders(), world.ledger.leases.as_ref().unwrap().proved.rate), (1, 100 * TOKEN));
}

#[test]
fn reports_earn_no_retries() {
    let mut world = World::fresh();
    let mut caller = Caller::new("a", 1, &world);
    world.grant(&mut caller);
    caller.next(500);
    caller.ask.usage.originals_admitted = 500;
    world.grant(&mut caller);
    assert_eq!((world.ledger.counters.originals_admitted, world.ledger.retry.balance_micros), (500, 0));
}

#[test]
fn what_moves_with_a_unit_is_withdrawn_from_that_unit() {
    let unit = |name: &str, rate: &str, burst_tokens| UnitLimit {
        name: name.to_owned(),
        limit: Limit { rate: Rate::parse(rate).unwrap(), burst_tokens },
    };
    let units = vec![unit("rows", "1000/s", 100), unit("bytes", "1000/s", 300), unit("once", "0.01/d", 100)];
    let mut world = World::new(Spec { units, ..spec() }, Timing::default(), true);
    world.at(10_000);
    let levels = |world: &World| world.ledger.units.iter().map(|(_, unit)| unit.balance_micros).collect::<Vec<_>>();
    let before = levels(&world);
    let grant = world.grant(&mut Caller::new("a", 1, &world));
    let moved: Vec<_> = grant.moved.units.iter().map(|unit| unit.burst).collect();
    assert_eq!(moved, [20 * TOKEN, 60 * TOKEN, 0]);
    let left: Vec<_> = before.iter().zip(moved).map(|(before, moved)| before - moved).collect();
    assert_eq!(levels(&world), left);
    // What is charged of them ends with the lease.
    let charged = |world: &World| world.ledger.leases.as_ref().unwrap().table.charged.units.len();
    assert_eq!(charged(&world), 3);
    world.at(133_000);
    assert_eq!(charged(&world), 0);
}

#[test]
fn holders_are_listed_by_name_a_page_at_a_time() {
    let mut world = World::fresh();
    for (name, incarnation) in [("b", 2), ("c", 3), ("a", 1)] {
        let mut caller = Caller::new(name, incarnation, &world);
        world.grant(&mut caller);
    }
    let id = |name: &str| HolderId::new(name).unwrap();
    let names = |after: Option<&str>, limit| {
        let listed = world.ledger.list_holders(after.map(id).as_ref(), limit);
        listed.iter().map(|view| view.holder.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(world.ledger.holders(), 3);
    assert_eq!(names(None, 9), ["a", "b", "c"]);
    assert_eq!(names(None, 2), ["a", "b"]);
    assert_eq!(names(Some("a"), 1), ["b"]);
    assert_eq!(names(Some("b"), 9), ["c"]);
    assert!(names(Some("c"), 9).is_empty());
    let view = &world.ledger.list_holders(Some(&id("a")), 1)[0];
    assert_eq!((view.incarnation, view.generation, view.expires_in_ms), (Incarnation([2; 16]), 1, 120_000));
    assert_eq!((view.value.rate, &view.charged), (200 * TOKEN, &view.value));
}

#[test]
fn a_holder_is_listed_as_revoked_while_it_is() {
    let mut world = World::fresh();
    let mut caller = Caller::new("a", 1, &world);
    world.grant(&mut caller);
    let revoked = |world: &World| world.ledger.list_holders(None, 1)[0].revoked;
    assert!(!revoked(&world));
    assert!(world.ledger.revoke(&caller.ask.holder));
    world.at(119_999);
    assert!(revoked(&world));
    world.at(120_000);
    assert!(!revoked(&world));
}

#[test]
fn of_two_names_that_meet_in_the_table_the_later_is_not_leased() {
    let mut world = World::fresh();
    world.grant(&mut Caller::new("a", 1, &world));
    let later = Caller::new("b", 2, &world);
    world.ledger.leases.as_mut().unwrap().table.collide(&later.ask.holder);
    let before = world.ledger.dump();
    assert_eq!(world.sync(&later), SyncAnswer::NotLeased(NotLeased::TooManyHolders));
    assert!(!world.ledger.revoke(&later.ask.holder));
    assert_eq!(world.ledger.dump(), before);
}

#[test]
fn what_was_quoted_away_is_known_but_not_what_another_was_granted() {
    let mut world = World::fresh();
    let [mut a, mut b] = [Caller::new("a", 1, &world), Caller::new("b", 2, &world)];
    world.grant(&mut a);
    let first = a.ask.lease.clone();
    a.next(0);
    world.grant(&mut a);
    a.next(0);
    world.grant(&mut a);
    world.grant(&mut b);
    // Of this epoch and not above its last, but never given to this one.
    a.next(0);
    let own = std::mem::replace(&mut a.ask.lease, b.ask.lease.clone());
    assert_eq!(world.sync(&a), SyncAnswer::Invalid(InvalidSync::UnknownGeneration));
    a.ask.lease = first;
    world.grant(&mut a);
    a.next(0);
    a.ask.lease = own;
    world.grant(&mut a);
}

#[test]
fn a_replay_ends_with_the_holders_curve_not_with_the_charge() {
    let mut world = World::fresh();
    let caller = Caller::new("a", 1, &world);
    assert!(matches!(world.sync(&caller), SyncAnswer::Granted(_)));
    world.at(119_999);
    assert!(matches!(world.sync(&caller), SyncAnswer::Granted(Grant { position_ms: 119_999, .. })));
    world.at(120_000);
    assert_eq!(world.sync(&caller), SyncAnswer::Dead);
    assert!(!world.ledger.leases.as_ref().unwrap().table.charged.is_zero());
}

#[test]
fn a_lease_of_an_earlier_epoch_counts_once_and_only_in_quarantine() {
    let proved = |world: &World| world.ledger.leases.as_ref().unwrap().proved.rate;
    let grants = |world: &World| world.ledger.dump().iter().filter(|line| line.starts_with("lease grant")).count();
    let mut world = World::new(spec(), Timing::default(), false);
    world.at(world.ledger.direct_wait_ms());
    let mut caller = with_old_lease(&world);
    assert!(matches!(world.sync(&caller), SyncAnswer::Granted(_)));
    assert_eq!((proved(&world), grants(&world)), (100 * TOKEN, 2));
    caller.next(0);
    assert!(matches!(world.sync(&caller), SyncAnswer::Granted(_)));
    assert_eq!((proved(&world), grants(&world)), (100 * TOKEN, 3));

    let mut world = World::new(spec(), Timing::default(), false);
    let end_ms = world.ledger.lending().unwrap().quarantine_left_ms;
    world.at(end_ms);
    let caller = with_old_lease(&world);
    assert!(matches!(world.sync(&caller), SyncAnswer::Granted(_)));
    assert_eq!((proved(&world), grants(&world)), (0, 1));
}

#[test]
fn more_incarnations_than_are_kept_get_no_lease_and_prove_nothing() {
    let mut world = World::new(spec(), Timing::default(), false);
    world.at(world.ledger.direct_wait_ms());
    for incarnation in 1..=5 {
        let mut caller = with_old_lease(&world);
        caller.ask.incarnation = Incarnation([incarnation; 16]);
        let answer = world.sync(&caller);
        let leased = matches!(answer, SyncAnswer::Granted(_));
        assert!(leased || answer == SyncAnswer::NotLeased(NotLeased::TooManyHolders));
        assert_eq!(leased, incarnation < 5);
    }
    let leases = world.ledger.leases.as_ref().unwrap();
    assert_eq!((leases.proofs.len(), leases.proved.rate), (4, 400 * TOKEN));
}

#[test]
fn more_holders_than_are_kept_get_no_lease_but_known_ones_renew() {
    let mut world = World::fresh();
    let mut known = Caller::new("0", 0, &world);
    world.grant(&mut known);
    for n in 1..HOLDERS_MAX {
        let caller = Caller::new(&n.to_string(), 1, &world);
        assert!(matches!(world.sync(&caller), SyncAnswer::Granted(_)), "{n}");
    }
    let late = Caller::new("late", 1, &world);
    assert_eq!(world.sync(&late), SyncAnswer::NotLeased(NotLeased::TooManyHolders));
    known.next(0);
    world.grant(&mut known);
}
