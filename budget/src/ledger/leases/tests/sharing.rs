//! Who gets a share where there is little, and what becomes of permits.

use super::*;

fn with_slots(max_in_flight: u32) -> Spec {
    Spec { max_in_flight: Some(max_in_flight), permit_ttl_ms: 10_000, ..spec() }
}

fn callers(count: u8, world: &World) -> Vec<Caller> {
    (1..=count).map(|i| Caller::new(&format!("h{i:02}"), i, world)).collect()
}

/// Each asks for so many between its renewals, which are 5 s apart, for a minute; a smaller grant is acknowledged at once.
fn settle(world: &mut World, callers: &mut [Caller], asks: &[i64]) -> Vec<Amounts> {
    let mut values = vec![Amounts::default(); callers.len()];
    for _ in 0..12 {
        let at_ms = world.clock_ms + 5_000;
        world.at(at_ms);
        for ((caller, asked), value) in callers.iter_mut().zip(asks).zip(&mut values) {
            caller.next(*asked);
            let given = world.grant(caller).value;
            if given.burst < value.burst {
                caller.next(0);
                world.grant(caller);
            }
            *value = given;
        }
    }
    values
}

/// The admission burst decides: 8 of 10 tokens can be leased.
fn small(curve: &[(i64, i64)]) -> Spec {
    let steps =
        curve.iter().map(|(part_ppm, duration_ms)| CurveStep { part_ppm: *part_ppm, duration_ms: *duration_ms });
    Spec {
        admission: Some(Limit { rate: Rate::parse("10/s").unwrap(), burst_tokens: 10 }),
        lease: Lease { enabled: true, curve: steps.collect(), ..Lease::default() },
        ..spec()
    }
}

const HALF: [(i64, i64); 2] = [(1_000_000, 20_000), (500_000, 100_000)];

#[test]
fn a_small_share_has_a_token_at_the_last_step_that_its_part_suffices_for() {
    for (curve, holders, tokens) in [
        // A half of two tokens is one; a quarter of four.
        (HALF.as_slice(), 1, 2),
        (&[(1_000_000, 20_000), (250_000, 10_000)], 1, 1),
        // The last step would need four tokens, which are more than half of all; the one before it two.
        (&[(1_000_000, 20_000), (500_000, 10_000), (250_000, 10_000)], 1, 2),
        (&HALF, 3, 1),
        // Of each of seven only the first.
        (&HALF, 7, 1),
        // A step below a hundredth counts as one: it would need a hundred tokens.
        (&[(1_000_000, 20_000), (1, 10_000)], 1, 1),
    ] {
        let mut world = World::new(small(curve), Timing::default(), true);
        let mut callers = callers(holders, &world);
        // Next to nothing of ten per second.
        let values = settle(&mut world, &mut callers, &vec![1; usize::from(holders)]);
        let given: Vec<_> = values.iter().map(|value| value.burst).collect();
        assert!(given.iter().all(|burst| *burst >= tokens * TOKEN), "{curve:?} {holders}: {given:?}");
        let last = curve.iter().rev().find(|(part_ppm, _)| tokens * part_ppm >= 1_000_000).unwrap();
        let step = CurveStep { part_ppm: last.0, duration_ms: last.1 };
        let at_step = Amounts { burst: given[0], ..Amounts::default() }.step(&step);
        assert!(at_step.burst >= TOKEN, "{curve:?} {holders}: {given:?}");
    }
}

#[test]
fn just_above_capacity_as_many_are_served_as_fit_but_one_place_stays_free() {
    for (holders, served) in [(7, 7), (8, 7), (9, 7), (12, 7), (15, 7), (16, 0), (50, 0)] {
        let mut world = World::new(small(&HALF), Timing::default(), true);
        let mut callers = callers(holders, &world);
        let values = settle(&mut world, &mut callers, &vec![50; usize::from(holders)]);
        let leased = values.iter().filter(|value| !value.is_zero()).count();
        assert_eq!(leased, served, "{holders} holders");
        assert!(values.iter().all(|value| value.is_zero() || value.burst >= TOKEN));
        // Others ask the coordinator, and get what those leave.
        let left = 10 * TOKEN - values.iter().map(|value| value.rate).sum::<i64>();
        assert!((world.direct_rate() - left).abs() < 10, "{}", world.direct_rate());
    }
}

#[test]
fn who_asks_for_less_than_the_smallest_share_does_not_take_it_from_others() {
    let mut world = World::new(small(&HALF), Timing::default(), true);
    let mut callers = callers(12, &world);
    let mut asks = vec![5; 12];
    asks[11] = 50;
    let values = settle(&mut world, &mut callers, &asks);
    let leased: Vec<_> = values.iter().map(|value| !value.is_zero()).collect();
    assert!(leased[11] && leased[..11].iter().all(|leased| !leased), "{leased:?}");
}

#[test]
fn who_is_due_a_share_gets_it_from_those_who_are_served_as_they_fit() {
    let mut world = World::new(small(&HALF), Timing::default(), true);
    let mut callers = callers(10, &world);
    callers[9].ask.weight = 3;
    let mut served = settle(&mut world, &mut callers[..9], &[50; 9]);
    assert_eq!(served.iter().filter(|value| !value.is_zero()).count(), 7);
    served = settle(&mut world, &mut callers, &[50; 10]);
    assert!(!served[9].is_zero() && served.iter().filter(|value| !value.is_zero()).count() >= 5, "{served:?}");
}

#[test]
fn a_crash_loop_is_not_given_twice_what_it_asks_for() {
    let mut world = World::fresh();
    let mut caller = Caller::new("a", 1, &world);
    // 100 per second, and a quarter more, doubled: nobody else asks.
    let doubled = settle(&mut world, std::slice::from_mut(&mut caller), &[500]);
    assert!(doubled[0].rate >= 200 * TOKEN, "{}", doubled[0].rate);
    world.at(61_000);
    let mut next = Caller::new("a", 2, &world);
    world.grant(&mut next);
    for round in 1..=23 {
        world.at(61_000 + round * 5_000);
        next.next(500);
        let rate = world.grant(&mut next).value.rate;
        assert!(rate <= 112 * TOKEN, "{rate}");
    }
    // As long as an earlier life may be charged; then it is as before.
    world.at(61_000 + 123_000);
    let doubled = settle(&mut world, std::slice::from_mut(&mut next), &[500]);
    assert!(doubled[0].rate >= 200 * TOKEN, "{}", doubled[0].rate);
}

/// A fall keeps what it gave up charged for the life of its permits, and no earlier fall for longer.
#[test]
fn each_fall_of_slots_lingers_for_itself() {
    let mut world = World::new(with_slots(100), Timing::default(), true);
    let mut caller = Caller::new("a", 1, &world);
    world.at(1_000);
    assert_eq!(world.grant(&mut caller).value.slots, 20);
    // What it had from when to when, at most.
    let mut had = vec![(1_000, i64::MAX, 20)];
    for round in 1..=14 {
        let at_ms = 1_000 + round * 4_900;
        world.at(at_ms);
        caller.next(1);
        let slots = world.grant(&mut caller).value.slots;
        caller.next(0);
        world.grant(&mut caller);
        had.last_mut().unwrap().1 = at_ms;
        had.push((at_ms, i64::MAX, slots));
        for at_ms in [at_ms, at_ms + 200, at_ms + 201, at_ms + 3_000] {
            world.at(at_ms);
            let within = had.iter().filter(|(from_ms, to_ms, _)| *to_ms > at_ms - 10_000 && *from_ms <= at_ms);
            let most = within.map(|(_, _, slots)| *slots).max();
            assert_eq!(Some(world.ledger.lending().unwrap().charged.slots), most, "at {at_ms} of {had:?}");
        }
    }
    assert!(had.windows(2).filter(|pair| pair[0].2 > pair[1].2).count() > 3, "{had:?}");
}

/// Direct callers that have more in flight than is left for them take no slot away from a holder that has it.
#[test]
fn a_holder_keeps_its_slots_while_another_waits_for_its_own() {
    let mut world = World::new(with_slots(10), Timing::default(), true);
    let mut first = Caller::new("a", 1, &world);
    world.at(5_000);
    assert_eq!(world.grant(&mut first).value.slots, 2);
    for id in 0..8 {
        let ask = Reserve::new(ReservationId([id; 16]), Attempt::ORIGINAL);
        assert!(matches!(world.ledger.step(&Step::Reserve(ask)), Answer::Admitted(_)), "{id}");
    }
    // Its slots are charged, but direct callers have them all.
    let mut second = Caller::new("b", 2, &world);
    assert!(world.grant(&mut second).value.is_zero());
    assert_eq!(world.ledger.lending().unwrap().charged.slots, 4);
    world.at(10_000);
    first.next(1_000);
    assert_eq!(world.grant(&mut first).value.slots, 2);
}

/// Permits that were taken at the very end of an unknown lease are in flight for their life.
#[test]
fn unknown_slots_stay_charged_for_the_life_of_a_permit() {
    let mut world = World::new(with_slots(100), Timing::default(), false);
    for (at_ms, slots, rate) in [(122_999, 80, 800), (123_000, 80, 0), (132_999, 80, 0), (133_000, 0, 0)] {
        world.at(at_ms);
        let unknown = world.ledger.lending().unwrap().unknown;
        assert_eq!((unknown.slots, unknown.rate), (slots, rate * TOKEN), "{at_ms}");
    }
    // What was proved is known.
    let mut world = World::new(with_slots(100), Timing::default(), false);
    world.at(1_000);
    let mut caller = Caller::new("a", 1, &world);
    let value =
        Amounts { rate: 100 * TOKEN, burst: 20 * TOKEN, retry_burst: 10 * TOKEN, slots: 30, units: Box::default() };
    let curve = world.numbers.lease.as_ref().unwrap().curve.clone();
    let name = crate::lease::LeaseName { epoch: Epoch { number: 1, id: 5 }, generation: 9 };
    caller.ask.lease = Some(Presented { name, value, curve, position_ms: 5_000 });
    world.grant(&mut caller);
    for at_ms in [2_000, 123_000, 132_999] {
        world.at(at_ms);
        assert_eq!(world.ledger.lending().unwrap().unknown.slots, 50, "{at_ms}");
    }
    // Nothing is out on an operator's word.
    let mut world = World::new(with_slots(100), Timing::default(), true);
    world.at(1_000);
    assert_eq!(world.ledger.lending().unwrap().unknown.slots, 0);
}

/// No call advances time by more than a step, so heartbeats go on until nothing can change.
#[test]
fn heartbeats_are_needed_while_something_comes_back() {
    let mut world = World::new(with_slots(100), Timing::default(), true);
    assert!(world.ledger.needs_beats());
    // The floor fills the retry bucket in 100 s.
    for (at_ms, needs) in [(99_000, true), (100_000, false)] {
        world.at(at_ms);
        assert_eq!(world.ledger.needs_beats(), needs, "{at_ms}");
    }
    assert_eq!(world.admitted_of(1), 1);
    assert!(world.ledger.needs_beats());
    world.at(101_000);
    assert!(!world.ledger.needs_beats());
    let ask = Reserve::new(ReservationId([2; 16]), Attempt::ORIGINAL);
    world.ledger.step(&Step::Reserve(ask));
    for (at_ms, needs) in [(110_999, true), (122_000, false)] {
        world.at(at_ms);
        assert_eq!(world.ledger.needs_beats(), needs, "{at_ms}");
    }
    // What no time fills needs none, nor does a policy that permits no leases.
    let nothing = Spec { floor: Rate::parse("0/s").unwrap(), ..spec() };
    let mut world = World::new(nothing, Timing::default(), true);
    world.at(1_000);
    assert!(!world.ledger.needs_beats());
    world.admitted_of(1);
    world.policy(Spec { lease: Lease::default(), ..spec() });
    assert!(!world.ledger.needs_beats());
}
