//! What is sent when, and which answers count.

use super::*;
use crate::{
    holder::{Action, Holder, Reply, State},
    lease::{Epoch, Grant, HolderId, Incarnation, InvalidSync, LeaseName, NotLeased, SyncAnswer, SyncAsk, Timing},
};

const EPOCH: Epoch = Epoch { number: 3, id: 7 };

fn holder() -> Holder {
    let id = HolderId::new("web-1").unwrap();
    let own = fallback(LocalOriginals::Rate(5 * TOKEN), false);
    Holder::new(id, Incarnation([1; 16]), 1, Timing::default(), own, 42, T0)
}

fn sent(action: Action) -> (Box<SyncAsk>, u32) {
    match action {
        Action::Send { ask, attempt } => (ask, attempt),
        Action::Wait { until_ns } => panic!("waits until {until_ns}"),
    }
}

fn waits(action: &Action) -> i64 {
    match action {
        Action::Wait { until_ns } => *until_ns,
        Action::Send { .. } => panic!("{action:?}"),
    }
}

fn granted_of(generation: i64, position_ms: i64, value: &Amounts) -> SyncAnswer {
    SyncAnswer::Granted(Grant {
        name: LeaseName { epoch: EPOCH, generation },
        position_ms,
        moved: value.clone(),
        value: value.clone(),
        curve: curve(),
    })
}

fn answer(holder: &mut Holder, now_ns: i64, ask: &SyncAsk, attempt: Option<u32>, answer: &SyncAnswer) {
    let rules = rules();
    let reply = Reply { sequence: ask.sequence, nonce: ask.nonce, attempt, answer, rules: Some(&rules) };
    holder.on_answer(now_ns, &reply);
}

/// A holder with a lease granted at [`T0`].
fn with_lease() -> Holder {
    let mut holder = holder();
    let (ask, _) = sent(holder.poll(T0, 1));
    answer(&mut holder, T0, &ask, Some(0), &granted_of(5, 0, &amounts(10, 10, 3)));
    assert_eq!(holder.state(T0), State::Leased);
    holder
}

/// The next request, at the time it is due.
fn next(holder: &mut Holder, now_ns: i64) -> (Box<SyncAsk>, i64) {
    let due_ns = match holder.poll(now_ns, 2) {
        Action::Send { ask, .. } => return (ask, now_ns),
        Action::Wait { until_ns } => until_ns,
    };
    (sent(holder.poll(due_ns, 2)).0, due_ns)
}

#[test]
fn it_asks_at_once_and_renews_in_time() {
    let mut holder = with_lease();
    assert_eq!(drain(holder.share(), T0, &LocalAsk::ORIGINAL), 10);
    let mut now = T0;
    let mut due = Vec::new();
    for generation in 6..200 {
        let before = now;
        let (ask, at) = next(&mut holder, now);
        assert_eq!(ask.sequence, generation - 4);
        assert_eq!(ask.lease.as_ref().unwrap().name.generation, generation - 1);
        assert_eq!(ask.epoch, EPOCH);
        due.push((at - before) / MS);
        now = at;
        answer(&mut holder, now, &ask, Some(0), &granted_of(generation, 0, &amounts(10, 10, 3)));
    }
    assert!(due.iter().all(|ms| (4_000..=6_000).contains(ms)), "{due:?}");
    assert!(due.iter().min().unwrap() < &4_200 && due.iter().max().unwrap() > &5_800, "spread out");
}

#[test]
fn a_resend_is_identical_and_slows_down() {
    let mut holder = with_lease();
    let (first, mut now) = next(&mut holder, T0);
    let mut gaps = Vec::new();
    for attempt in 1..20 {
        let at = waits(&holder.poll(now, 9));
        holder.on_failure(now, first.sequence, first.nonce);
        assert_eq!(waits(&holder.poll(now, 9)), at, "a quick failure hurries nothing");
        let (again, number) = sent(holder.poll(at, 9));
        assert_eq!((&again, number), (&first, attempt));
        gaps.push((at - now) / MS);
        now = at;
    }
    assert!((700..=1_500).contains(&gaps[0]) && (1_400..=3_000).contains(&gaps[1]), "{gaps:?}");
    assert!(gaps.iter().all(|ms| *ms <= 6_000) && gaps[10] == 6_000, "{gaps:?}");
    assert_eq!(holder.unanswered(), 20);
}

#[test]
fn a_lease_starts_when_its_request_was_sent() {
    for (attempt, start) in [(Some(1), 900), (Some(0), 0), (None, 0), (Some(9), 0)] {
        let mut holder = holder();
        let (ask, _) = sent(holder.poll(T0, 1));
        let resend = waits(&holder.poll(T0, 1));
        let second = resend.max(T0 + 900 * MS);
        let (_, number) = sent(holder.poll(second, 1));
        assert_eq!(number, 1);
        let now = second + 500 * MS;
        answer(&mut holder, now, &ask, attempt, &granted_of(5, 300, &amounts(10, 10, 3)));
        let position = holder.lease(now).unwrap().position_ms;
        let expected = if start == 0 { (now - T0) / MS + 300 } else { (now - second) / MS + 300 };
        assert_eq!(position, expected, "{attempt:?}");
    }
}

#[test]
fn only_the_outstanding_request_can_be_answered() {
    let mut holder = with_lease();
    let (ask, now) = next(&mut holder, T0);
    let old = SyncAsk { sequence: ask.sequence - 1, ..(*ask).clone() };
    let twin = SyncAsk { nonce: ask.nonce ^ 1, ..(*ask).clone() };
    for other in [old, twin] {
        answer(&mut holder, now, &other, Some(0), &granted_of(6, 0, &amounts(1_000, 1_000, 3)));
        assert_eq!(holder.lease(now).unwrap().name.generation, 5);
    }
    answer(&mut holder, now, &ask, Some(0), &granted_of(6, 0, &amounts(10, 10, 3)));
    answer(&mut holder, now, &ask, Some(0), &granted_of(7, 0, &amounts(1_000, 1_000, 3)));
    assert_eq!(holder.lease(now).unwrap().name.generation, 6, "it was answered already");
}

#[test]
fn a_name_that_is_not_higher_is_not_applied() {
    let mut holder = with_lease();
    let (ask, now) = next(&mut holder, T0);
    answer(&mut holder, now, &ask, Some(0), &granted_of(5, 0, &amounts(1_000, 1_000, 3)));
    assert_eq!(holder.lease(now).unwrap().position_ms, (now - T0) / MS);
    let (ask, now) = next(&mut holder, now);
    let old = SyncAnswer::Granted(Grant {
        name: LeaseName { epoch: Epoch { number: 2, id: 9 }, generation: 99 },
        position_ms: 0,
        value: amounts(1_000, 1_000, 3),
        moved: amounts(0, 0, 0),
        curve: curve(),
    });
    answer(&mut holder, now, &ask, Some(0), &old);
    assert_eq!(holder.lease(now).unwrap().name.generation, 5);
    assert!(matches!(holder.poll(now, 1), Action::Wait { .. }), "and the request stays open");
    assert_eq!(holder.epoch(), EPOCH);
}

#[test]
fn another_epoch_is_quoted_with_the_old_lease_as_proof() {
    let mut holder = with_lease();
    let (ask, now) = next(&mut holder, T0);
    answer(&mut holder, now, &ask, Some(0), &SyncAnswer::Epoch(Epoch { number: 2, id: 1 }));
    assert!(matches!(holder.poll(now, 1), Action::Wait { .. }), "a lower one is refused");
    let higher = Epoch { number: 4, id: 1 };
    answer(&mut holder, now, &ask, Some(0), &SyncAnswer::Epoch(higher));
    let (anew, _) = sent(holder.poll(now, 1));
    assert_eq!((anew.epoch, anew.sequence), (higher, ask.sequence + 1));
    assert_eq!(anew.lease.as_ref().unwrap().name.epoch, EPOCH);
    assert_eq!(holder.state(now), State::Leased);
    // An equal number with another id is another life; the second in a row waits.
    let twin = Epoch { number: 4, id: 2 };
    answer(&mut holder, now, &anew, Some(0), &SyncAnswer::Epoch(twin));
    let wait = waits(&holder.poll(now, 1)) - now;
    assert!((700 * MS..=1_500 * MS).contains(&wait));
    assert_eq!(holder.epoch(), twin);
}

#[test]
fn a_shrink_is_acknowledged_at_once() {
    let mut holder = with_lease();
    let (ask, mut now) = next(&mut holder, T0);
    answer(&mut holder, now, &ask, Some(0), &granted_of(6, 0, &amounts(10, 9, 3)));
    let (ask, _) = sent(holder.poll(now, 1));
    assert_eq!(ask.lease.as_ref().unwrap().name.generation, 6);
    answer(&mut holder, now, &ask, Some(0), &granted_of(7, 0, &amounts(10, 9, 3)));
    assert!(waits(&holder.poll(now, 1)) >= now + 4_000 * MS);
    // A zero grant parks, is acknowledged too, and later asks go on.
    let (ask, at) = next(&mut holder, now);
    now = at;
    answer(&mut holder, now, &ask, Some(0), &granted_of(8, 0, &amounts(0, 0, 0)));
    assert_eq!(holder.state(now), State::Parked);
    assert_eq!(holder.share().reserve(now, &LocalAsk::ORIGINAL), Local::Short);
    let (ask, _) = sent(holder.poll(now, 1));
    assert_eq!(ask.lease.as_ref().unwrap().name.generation, 8);
    answer(&mut holder, now, &ask, Some(0), &granted_of(9, 0, &amounts(0, 0, 0)));
    let (ask, now) = next(&mut holder, now);
    answer(&mut holder, now, &ask, Some(0), &granted_of(10, 0, &amounts(10, 9, 3)));
    assert_eq!(holder.state(now), State::Leased);
    assert_eq!(drain(holder.share(), now, &LocalAsk::ORIGINAL), 9);
}

#[test]
fn endless_shrinks_are_not_answered_endlessly_at_once() {
    let mut holder = with_lease();
    let (mut ask, now) = next(&mut holder, T0);
    let mut at_once = 0;
    for burst in (1..10).rev() {
        answer(&mut holder, now, &ask, Some(0), &granted_of(20 - burst, 0, &amounts(10, burst, 3)));
        let Action::Send { ask: again, .. } = holder.poll(now, 1) else { break };
        ask = again;
        at_once += 1;
    }
    assert_eq!(at_once, 2);
}

#[test]
fn dead_asks_anew_and_wait_waits() {
    let mut holder = holder();
    let (ask, _) = sent(holder.poll(T0, 1));
    answer(&mut holder, T0, &ask, Some(0), &SyncAnswer::Dead);
    let (anew, _) = sent(holder.poll(T0, 1));
    assert_eq!(anew.sequence, ask.sequence + 1);
    assert_ne!(anew.nonce, ask.nonce);
    answer(&mut holder, T0, &anew, Some(0), &SyncAnswer::Wait(6_000));
    let at = waits(&holder.poll(T0, 1));
    assert!((T0 + 6_000 * MS..=T0 + 6_700 * MS).contains(&at));
}

#[test]
fn a_twin_is_fenced_and_begins_a_new_life() {
    for refusal in [SyncAnswer::Fenced, SyncAnswer::Invalid(InvalidSync::UsageBackwards)] {
        let mut holder = with_lease();
        assert_eq!(drain(holder.share(), T0, &LocalAsk::ORIGINAL), 10);
        let (ask, now) = next(&mut holder, T0);
        answer(&mut holder, now, &ask, Some(0), &refusal);
        assert_eq!(holder.state(now), State::Fenced);
        assert_eq!(holder.share().reserve(now, &LocalAsk::ORIGINAL), Local::Short);
        assert_eq!(waits(&holder.poll(now, 1)), i64::MAX);
        holder.reincarnate(now, Incarnation([2; 16]));
        let (ask, now) = next(&mut holder, now);
        assert_eq!((ask.incarnation, ask.sequence), (Incarnation([2; 16]), 1));
        assert_eq!((ask.lease.as_ref(), ask.usage.originals_admitted, ask.epoch), (None, 0, EPOCH));
        answer(&mut holder, now, &ask, Some(0), &granted_of(1, 0, &amounts(10, 10, 3)));
        assert_eq!(drain(holder.share(), now, &LocalAsk::ORIGINAL), 10);
        assert_eq!(holder.share().usage().originals_admitted, 10);
    }
}

#[test]
fn leaving_gives_up_at_once_and_says_so() {
    let mut holder = with_lease();
    let (open, now) = next(&mut holder, T0);
    holder.leave(now);
    assert_eq!(holder.share().reserve(now, &LocalAsk::ORIGINAL), Local::Short);
    let (bye, _) = sent(holder.poll(now, 1));
    assert_eq!((bye.leave, bye.sequence), (true, open.sequence + 1));
    assert_eq!(bye.lease.as_ref().unwrap().name.generation, 5);
    answer(&mut holder, now, &open, Some(0), &granted_of(6, 0, &amounts(10, 10, 3)));
    assert_eq!(holder.share().reserve(now, &LocalAsk::ORIGINAL), Local::Short);
    answer(&mut holder, now, &bye, Some(0), &SyncAnswer::Left);
    assert_eq!(holder.state(now), State::Left);
    assert_eq!(waits(&holder.poll(now + 3_600 * SECOND, 1)), i64::MAX);
}

#[test]
fn where_leases_are_not_permitted_it_asks_seldom() {
    let mut holder = with_lease();
    let (ask, now) = next(&mut holder, T0);
    answer(&mut holder, now, &ask, Some(0), &SyncAnswer::NotLeased(NotLeased::NotPermitted));
    assert_eq!(holder.state(now), State::Parked);
    assert_eq!(holder.share().reserve(now, &LocalAsk::ORIGINAL), Local::Short);
    assert!(waits(&holder.poll(now, 1)) >= now + 24 * SECOND);
    let mut holder = with_lease();
    let (ask, now) = next(&mut holder, T0);
    answer(&mut holder, now, &ask, Some(0), &SyncAnswer::NotLeased(NotLeased::TooManyHolders));
    assert_eq!(holder.state(now), State::Leased, "what it has it keeps along the curve");
}

#[test]
fn an_answer_that_took_a_whole_curve_is_no_lease() {
    let mut holder = holder();
    let (ask, _) = sent(holder.poll(T0, 1));
    let now = T0 + 130 * SECOND;
    answer(&mut holder, now, &ask, Some(0), &granted_of(5, 0, &amounts(10, 10, 3)));
    assert_eq!(holder.state(now), State::Unleased);
    assert_eq!(holder.share().reserve(now, &LocalAsk::ORIGINAL), Local::Short);
    let (ask, _) = next(&mut holder, now);
    assert_eq!(ask.lease, None);
}

#[test]
fn rules_hold_from_the_answer_that_tells_them() {
    let mut holder = with_lease();
    let (ask, now) = next(&mut holder, T0);
    let off = Rules { retries_off: true, ..rules() };
    let again = granted_of(5, 0, &amounts(10, 10, 3));
    let reply = Reply { sequence: ask.sequence, nonce: ask.nonce, attempt: None, answer: &again, rules: Some(&off) };
    holder.on_answer(now, &reply);
    assert_eq!(denied(holder.share().reserve(now, &retry())), DenyReason::RetriesOff);
    assert_eq!(drain(holder.share(), now, &LocalAsk::ORIGINAL), 10, "and levels stay");
}

#[test]
fn a_clone_makes_other_nonces() {
    let (mut one, mut twin) = (holder(), holder());
    let (a, _) = sent(one.poll(T0, 1_000_000));
    let (b, _) = sent(twin.poll(T0, 99_000_000_000));
    assert_ne!(a.nonce, b.nonce);
    assert!((0..1 << 52).contains(&a.nonce));
}

#[test]
fn usage_is_counted_from_the_last_answered_request() {
    let mut holder = with_lease();
    assert_eq!(drain(holder.share(), T0, &LocalAsk::ORIGINAL), 10);
    let (ask, now) = next(&mut holder, T0);
    assert_eq!((ask.usage.originals_admitted, ask.usage.asked, ask.counted.asked), (10, 11, 0));
    answer(&mut holder, now, &ask, Some(0), &granted_of(6, 0, &amounts(10, 10, 3)));
    let (ask, _) = next(&mut holder, now);
    assert_eq!(ask.counted.originals_admitted, 10);
}

/// Answers of every kind in any order: no panic, no lease out of nothing, no busy loop.
#[test]
fn forged_answers_change_nothing_that_counts() {
    for seed in 0..300 {
        let mut random = crate::holder::jitter::Jitter::new(seed);
        let mut holder = holder();
        let mut now = T0;
        let mut sends = 0;
        let mut last: Option<Box<SyncAsk>> = None;
        for _ in 0..300 {
            if let Action::Send { ask, .. } = holder.poll(now, now as u64) {
                assert!(last.as_ref().is_none_or(|last| ask.sequence - last.sequence <= 1));
                last = Some(ask);
                sends += 1;
            }
            now += random.between(0, 300 * MS);
            let Some(ask) = last.clone() else { continue };
            let epoch = Epoch { number: random.between(-1, 5), id: random.between(0, 2) };
            let lies = [0, 1, -1, i64::MAX, i64::MIN, TOKEN];
            let mut lie = || lies[random.between(0, 5) as usize];
            let value = Amounts { rate: lie(), burst: lie(), retry_burst: lie(), slots: lie(), units: Box::default() };
            let told = match random.between(0, 9) {
                0 => SyncAnswer::Epoch(epoch),
                1 => SyncAnswer::Dead,
                2 => SyncAnswer::Wait(random.between(-5, 10_000)),
                3 => SyncAnswer::NotLeased(NotLeased::TooManyHolders),
                _ => SyncAnswer::Granted(Grant {
                    name: LeaseName { epoch, generation: random.between(-1, 50) },
                    position_ms: random.between(-1, 130_000),
                    moved: value.clone(),
                    value,
                    curve: curve(),
                }),
            };
            let forged = SyncAsk { sequence: ask.sequence - random.between(0, 1), ..*ask };
            answer(&mut holder, now, &forged, Some(random.between(0, 3) as u32), &told);
            let _ = holder.share().reserve(now, &LocalAsk::ORIGINAL);
            let _ = holder.share().reserve_beyond(now, &retry());
            let _ = holder.share().usage();
        }
        let seconds = (now - T0) / SECOND;
        assert!(sends <= 10 + seconds * 4, "seed {seed}: {sends} in {seconds} s");
    }
}
