//! What an agent lends, to whom and until when.

use super::*;
use crate::{
    holder::{Action, Holder, Reply, State, lender::SUBLESSEES_MAX},
    lease::{Epoch, Grant, HolderId, Incarnation, LeaseName, NotLeased, Presented, SyncAnswer, SyncAsk, Timing, Usage},
};

const EPOCH: Epoch = Epoch { number: 3, id: 7 };
/// Of agents of incarnation 1.
const OURS: Epoch = Epoch { number: 0, id: 0x0101_0101_0101 };

fn agent() -> Holder {
    let id = HolderId::new("host-1").unwrap();
    let own = fallback(LocalOriginals::Rate(5 * TOKEN), false);
    Holder::new(id, Incarnation([1; 16]), 1, Timing::default(), own, 42, T0).lending()
}

/// The next request of the agent.
fn request(agent: &mut Holder, now_ns: i64) -> SyncAsk {
    let mut at_ns = now_ns;
    loop {
        match agent.poll(at_ns, 1) {
            Action::Send { ask, .. } => return *ask,
            Action::Wait { until_ns } => at_ns = until_ns,
        }
    }
}

/// The coordinator grants it a lease, full.
fn granted(agent: &mut Holder, now_ns: i64, generation: i64, value: &Amounts, rules: &Rules) -> SyncAsk {
    let ask = request(agent, now_ns);
    let answer = SyncAnswer::Granted(Grant {
        name: LeaseName { epoch: EPOCH, generation },
        position_ms: 0,
        moved: Amounts { rate: 0, ..value.clone() },
        value: value.clone(),
        curve: curve(),
    });
    let reply = Reply { sequence: ask.sequence, nonce: ask.nonce, attempt: None, answer: &answer, rules: Some(rules) };
    agent.on_answer(now_ns, &reply);
    ask
}

fn with_lease(value: &Amounts) -> Holder {
    let mut agent = agent();
    granted(&mut agent, T0, 1, value, &rules());
    agent
}

fn ask(number: u8, sequence: i64, lease: Option<&Grant>) -> SyncAsk {
    let present = |grant: &Grant| Presented {
        name: grant.name,
        value: grant.value.clone(),
        curve: grant.curve.clone(),
        position_ms: grant.position_ms,
    };
    SyncAsk {
        holder: HolderId::new(&format!("client-{number}")).unwrap(),
        incarnation: Incarnation([number; 16]),
        sequence,
        nonce: 77,
        epoch: OURS,
        lease: lease.map(present),
        usage: Usage::default(),
        counted: Usage::default(),
        in_flight: 0,
        weight: 1,
        leave: false,
    }
}

fn answer(agent: &mut Holder, now_ns: i64, ask: &SyncAsk) -> SyncAnswer {
    agent.lend(now_ns, ask).unwrap().0
}

fn lent(agent: &mut Holder, now_ns: i64, ask: &SyncAsk) -> Grant {
    let answer = answer(agent, now_ns, ask);
    let SyncAnswer::Granted(grant) = answer else { panic!("{answer:?}") };
    grant
}

/// What the agent has left for itself.
fn part_of(agent: &Holder, now_ns: i64) -> Amounts {
    agent.share().lock().part_at(now_ns).unwrap().0
}

#[test]
fn a_sub_lease_is_a_part_at_the_position_of_its_parent() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let now = T0 + 3 * SECOND + 1;
    let first = lent(&mut agent, now, &ask(1, 1, None));
    assert_eq!((first.name, first.curve.clone()), (LeaseName { epoch: OURS, generation: 1 }, curve()));
    // Rounded up: never later than the parent.
    assert_eq!(first.position_ms, 3_001);
    // A newcomer's: a quarter.
    assert_eq!(first.value, amounts(25, 10, 5));
    assert_eq!(part_of(&agent, now), amounts(75, 30, 15));
    // Half of the level at most, or what would not fit any more; moved, not made.
    assert_eq!(first.moved, Amounts { rate: 0, ..amounts(0, 10, 5) });
    assert_eq!(drain(agent.share(), now, &LocalAsk::ORIGINAL), 30);
    // The same request gets the same, later on the curve, and moves nothing again.
    let again = lent(&mut agent, now + 2 * SECOND, &ask(1, 1, None));
    assert_eq!(again, Grant { position_ms: 5_001, ..first });
    let end = T0 + 120 * SECOND;
    assert_eq!(answer(&mut agent, end, &ask(1, 1, None)), SyncAnswer::Dead);
    assert!(matches!(answer(&mut agent, end, &ask(1, 2, None)), SyncAnswer::Wait(_)));
}

#[test]
fn who_is_not_known_or_of_the_past_gets_no_lease() {
    let mut agent = agent();
    assert_eq!(agent.lend(T0, &ask(1, 1, None)), None, "never told the rules");
    granted(&mut agent, T0, 1, &amounts(100, 40, 20), &rules());
    let unseen = SyncAsk { epoch: Epoch::default(), ..ask(1, 1, None) };
    assert_eq!(answer(&mut agent, T0, &unseen), SyncAnswer::Epoch(OURS));
    let of_a_ledger = SyncAsk { epoch: EPOCH, ..ask(1, 1, None) };
    assert_eq!(answer(&mut agent, T0, &of_a_ledger), SyncAnswer::NotLeased(NotLeased::TooManyHolders));
    let grant = lent(&mut agent, T0, &ask(1, 4, None));
    assert_eq!(answer(&mut agent, T0, &ask(1, 3, None)), SyncAnswer::Fenced);
    assert_eq!(answer(&mut agent, T0, &SyncAsk { nonce: 78, ..ask(1, 4, None) }), SyncAnswer::Fenced);
    let never = Grant { name: LeaseName { generation: 2, ..grant.name }, ..grant };
    assert!(matches!(answer(&mut agent, T0, &ask(1, 5, Some(&never))), SyncAnswer::Invalid(_)));
}

/// A smaller lease is not acknowledged before what is lent of the larger one fits into it.
#[test]
fn an_older_lease_is_presented_until_all_fits_into_the_newer() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let first = lent(&mut agent, T0, &ask(1, 1, None));
    let second = lent(&mut agent, T0, &ask(2, 1, None));
    let now = T0 + 5 * SECOND;
    let quoted = |agent: &mut Holder, now_ns| request(agent, now_ns).lease.unwrap().name.generation;
    assert_eq!(granted(&mut agent, now, 2, &amounts(40, 16, 8), &rules()).lease.unwrap().name.generation, 1);
    assert_eq!(part_of(&agent, now), amounts(0, 0, 0), "all of it is lent");
    // One of two has heard of it, and then quotes it.
    let smaller = lent(&mut agent, now, &ask(1, 2, Some(&first)));
    assert!(smaller.value.rate <= amounts(15, 0, 0).rate, "{smaller:?}");
    assert_eq!(quoted(&mut agent, now), 1);
    lent(&mut agent, now, &ask(1, 3, Some(&smaller)));
    let due = agent.due_ns();
    // The other leaves.
    assert_eq!(answer(&mut agent, now, &SyncAsk { leave: true, ..ask(2, 2, Some(&second)) }), SyncAnswer::Left);
    assert!(due > now, "there was a request on its way");
    granted(&mut agent, now + SECOND, 3, &amounts(40, 16, 8), &rules());
    assert_eq!(quoted(&mut agent, now + SECOND), 3);
}

#[test]
fn what_has_ended_is_lent_again_a_margin_later() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    lent(&mut agent, T0, &ask(1, 1, None));
    let mut now = T0;
    let mut generation = 1;
    while now < T0 + 115 * SECOND {
        now += 5 * SECOND;
        generation += 1;
        granted(&mut agent, now, generation, &amounts(100, 40, 20), &rules());
    }
    let end = T0 + 120 * SECOND + 3 * SECOND;
    assert!(agent.has_lent());
    let all = |agent: &mut Holder, now_ns| {
        agent.tidy(now_ns);
        part_of(agent, now_ns).rate
    };
    assert_eq!(all(&mut agent, end - SECOND), 75 * TOKEN);
    assert_eq!(all(&mut agent, end), 100 * TOKEN);
    assert!(!agent.has_lent());
}

#[test]
fn what_is_too_small_is_not_lent() {
    let mut agent = with_lease(&amounts(10, 3, 2));
    for number in [1, 2] {
        assert!(lent(&mut agent, T0, &ask(number, 1, None)).value.retry_burst >= TOKEN);
    }
    assert!(lent(&mut agent, T0, &ask(3, 1, None)).value.is_zero(), "less than a token of retries is left");
}

/// As [`ask`], of one that asked so often until now.
fn busy(number: u8, sequence: i64, asked: i64, lease: &Grant) -> SyncAsk {
    SyncAsk { usage: Usage { asked, ..Usage::default() }, ..ask(number, sequence, Some(lease)) }
}

/// What nobody else asks for goes to who asks, twice as much as that; but not to who restarts, which would leave it to its
/// dead lives. Seen to fail without the rule.
#[test]
fn who_restarts_is_lent_no_more_than_it_asks_for() {
    for restarts in [false, true] {
        let mut agent = with_lease(&amounts(100, 40, 40));
        lent(&mut agent, T0, &ask(1, 1, None));
        let now = T0 + 5 * SECOND;
        let incarnation = Incarnation([if restarts { 9 } else { 1 }; 16]);
        if restarts {
            lent(&mut agent, now, &SyncAsk { incarnation, ..ask(1, 1, None) });
        }
        // 32 per second, and a quarter more.
        let later = now + 5 * SECOND;
        let asked = if restarts { 160 } else { 320 };
        let usage = Usage { asked, ..Usage::default() };
        let grant = lent(&mut agent, later, &SyncAsk { incarnation, usage, ..ask(1, 2, None) });
        // Its dead life still has what it was lent as a newcomer: the two share one part.
        assert_eq!(grant.value.rate, if restarts { 15 } else { 80 } * TOKEN);
        let charged = agent.list_lessees(later, None, 1)[0].charged.rate;
        assert_eq!(charged, if restarts { 40 } else { 80 } * TOKEN);
    }
}

/// Ten tokens of retry burst for twelve that all ask for more than their part: as many as fit are lent a whole one. Seen to
/// fail without the rule: then nobody is.
#[test]
fn where_there_is_less_than_a_token_for_each_some_are_served() {
    let mut agent = with_lease(&amounts(120, 40, 10));
    let mut grants: Vec<_> = (1..=12).map(|number| lent(&mut agent, T0, &ask(number, 1, None))).collect();
    for round in 1..=6 {
        let now = T0 + round * 5 * SECOND;
        for number in 1..=12 {
            let held = &mut grants[usize::from(number) - 1];
            *held = lent(&mut agent, now, &busy(number, round + 1, round * 150, held));
        }
    }
    let served = grants.iter().filter(|grant| grant.value.retry_burst >= TOKEN).count();
    assert!((6..=10).contains(&served), "{served}");
}

#[test]
fn a_sub_lessee_of_an_earlier_life_keeps_what_it_has() {
    let mut agent = with_lease(&amounts(10, 1, 1));
    let earlier = Epoch { number: 0, id: 9 };
    let grant = Grant {
        name: LeaseName { epoch: earlier, generation: 8 },
        position_ms: 1_000,
        value: amounts(5, 5, 5),
        moved: amounts(0, 0, 0),
        curve: curve(),
    };
    lent(&mut agent, T0, &ask(2, 1, None));
    assert!(matches!(answer(&mut agent, T0, &ask(1, 5, Some(&grant))), SyncAnswer::Wait(_)));
    // It is nothing of this agent's, and was not remembered.
    assert!(lent(&mut agent, T0, &ask(1, 5, None)).value.is_zero());
}

#[test]
fn sub_lessees_have_a_limit() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    for number in 0..=SUBLESSEES_MAX {
        let holder = HolderId::new(&format!("client-{number:04}")).unwrap();
        let answer = answer(&mut agent, T0, &SyncAsk { holder, ..ask(1, 1, None) });
        let refused = answer == SyncAnswer::NotLeased(NotLeased::TooManyHolders);
        assert_eq!(refused, number == SUBLESSEES_MAX, "{answer:?}");
    }
    let listed = agent.list_lessees(T0, Some(&HolderId::new("client-0007").unwrap()), 2);
    assert_eq!(listed.iter().map(|view| view.holder.as_str()).collect::<Vec<_>>(), ["client-0008", "client-0009"]);
    assert_eq!((listed[0].expires_in_ms, listed[0].revoked), (120_000, false));
}

#[test]
fn who_is_revoked_gets_nothing_for_one_curve() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let name = |number: u8| HolderId::new(&format!("client-{number}")).unwrap();
    assert!(!agent.revoke_lessee(T0, &name(1)), "nothing was lent to it");
    let first = lent(&mut agent, T0, &ask(1, 1, None));
    let other = lent(&mut agent, T0, &ask(2, 1, None));
    assert!(agent.revoke_lessee(T0 + SECOND, &name(1)));
    let revoked = |agent: &Holder, at| agent.list_lessees(at, None, 10).iter().map(|it| it.revoked).collect::<Vec<_>>();
    assert_eq!(revoked(&agent, T0 + SECOND), [true, false]);
    // What it has not heard of yet it may use.
    let replayed = Grant { position_ms: 1_000, ..first.clone() };
    assert_eq!(answer(&mut agent, T0 + SECOND, &ask(1, 1, None)), SyncAnswer::Granted(replayed));
    let nothing = lent(&mut agent, T0 + 2 * SECOND, &busy(1, 2, 100, &first));
    assert!(nothing.value.is_zero());
    assert!(!lent(&mut agent, T0 + 2 * SECOND, &busy(2, 2, 100, &other)).value.is_zero());
    // Under another incarnation too.
    let restarted = SyncAsk { incarnation: Incarnation([9; 16]), ..ask(1, 1, None) };
    assert!(lent(&mut agent, T0 + 3 * SECOND, &restarted).value.is_zero());
    granted(&mut agent, T0 + 110 * SECOND, 2, &amounts(100, 40, 20), &rules());
    let nothing = lent(&mut agent, T0 + 120 * SECOND, &busy(1, 3, 10_000, &nothing));
    assert!(nothing.value.is_zero());
    let later = T0 + 121 * SECOND;
    assert!(!revoked(&agent, later)[0]);
    assert!(!lent(&mut agent, later, &busy(1, 4, 10_100, &nothing)).value.is_zero());
}

#[test]
fn what_a_fenced_life_lent_ends_with_the_next_request() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let first = lent(&mut agent, T0, &ask(1, 1, None));
    let fenced = request(&mut agent, T0 + SECOND);
    let reply = |answer| Reply { sequence: fenced.sequence, nonce: fenced.nonce, attempt: None, answer, rules: None };
    agent.on_answer(T0 + SECOND, &reply(&SyncAnswer::Fenced));
    assert_eq!(agent.state(T0 + SECOND), State::Fenced);
    agent.reincarnate(T0 + SECOND, Incarnation([2; 16]));
    let epoch = Epoch { number: 0, id: 0x0202_0202_0202 };
    let anew = SyncAsk { epoch, ..ask(1, 2, Some(&first)) };
    // Before the agent has a lease, too.
    assert_eq!(answer(&mut agent, T0 + SECOND, &anew), SyncAnswer::NotLeased(NotLeased::NotPermitted));
    assert!(matches!(answer(&mut agent, T0 + SECOND, &SyncAsk { epoch, ..ask(3, 1, None) }), SyncAnswer::Wait(_)));
    granted(&mut agent, T0 + SECOND, 2, &amounts(0, 0, 0), &rules());
    // A life that was not fenced may have lent more: that one ends by itself.
    let mut of_another = first.clone();
    of_another.name.epoch.id = 5;
    let other = SyncAsk { epoch, ..ask(2, 1, Some(&of_another)) };
    assert!(matches!(answer(&mut agent, T0 + SECOND, &other), SyncAnswer::Wait(_)));
    let grant = lent(&mut agent, T0 + SECOND, &anew);
    assert!(grant.value.is_zero());
    assert_eq!(lent(&mut agent, T0 + SECOND, &anew), grant);
}

#[test]
fn reports_add_up_and_what_was_short_counts_where_it_is_asked_for() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let counted = Usage { asked: 1_000, originals_admitted: 900, ..Usage::default() };
    let usage = Usage { asked: 1_100, originals_admitted: 950, retries_denied: 7, ..counted.clone() };
    assert!(matches!(agent.share().reserve(T0, &LocalAsk::ORIGINAL), Local::Admitted(_)));
    let grant = lent(&mut agent, T0, &SyncAsk { counted, usage: usage.clone(), ..ask(1, 1, None) });
    let told = request(&mut agent, T0 + SECOND).usage;
    assert_eq!((told.asked, told.originals_admitted, told.retries_denied), (51, 51, 7));
    let less = Usage { asked: 5, ..Usage::default() };
    let backwards = SyncAsk { usage: less, ..ask(1, 2, Some(&grant)) };
    assert!(matches!(answer(&mut agent, T0, &backwards), SyncAnswer::Invalid(_)));
}

#[test]
fn the_fallback_is_divided_among_all_who_live_by_the_lease() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let told = |agent: &mut Holder, number| agent.lend(T0, &ask(number, 1, None)).unwrap().1.fallback.originals;
    assert_eq!(told(&mut agent, 1), LocalOriginals::Rate(5 * TOKEN / 2));
    assert_eq!(told(&mut agent, 2), LocalOriginals::Rate(5 * TOKEN / 3));
    granted(&mut agent, T0 + SECOND, 2, &amounts(100, 40, 20), &rules());
    assert_eq!(agent.share().lock().rules.fallback.originals, LocalOriginals::Rate(5 * TOKEN / 3));
}

#[test]
fn it_says_no_farewell_while_something_is_lent() {
    let mut agent = with_lease(&amounts(100, 40, 20));
    let grant = lent(&mut agent, T0, &ask(1, 1, None));
    agent.leave(T0);
    assert_eq!(agent.state(T0), State::Left);
    assert!(matches!(agent.poll(T0, 1), Action::Wait { until_ns: i64::MAX }));
    assert!(matches!(answer(&mut agent, T0, &ask(1, 2, Some(&grant))), SyncAnswer::NotLeased(_)));

    let mut agent = with_lease(&amounts(100, 40, 20));
    let grant = lent(&mut agent, T0, &ask(1, 1, None));
    answer(&mut agent, T0, &SyncAsk { leave: true, ..ask(1, 2, Some(&grant)) });
    agent.leave(T0);
    assert!(request(&mut agent, T0).leave);
}

/// Slots that the agent's own callers have in flight are not lent; those that are waited for come free one by one.
#[test]
fn slots_in_flight_are_not_lent() {
    let with_slots = Amounts { slots: 8, ..amounts(100, 40, 20) };
    let mut agent = agent();
    granted(&mut agent, T0, 1, &with_slots, &Rules { slots_limited: true, ..rules() });
    let held: Vec<_> = (0..7).map(|_| admitted(agent.share().reserve(T0, &LocalAsk::ORIGINAL))).collect();
    let first = lent(&mut agent, T0, &ask(1, 1, None));
    assert_eq!(first.value.slots, 1);
    assert_eq!(agent.share().reserve(T0, &LocalAsk::ORIGINAL), Local::Short);
    for spent in held.into_iter().skip(1) {
        agent.share().hand_back(spent, T0);
    }
    // The second is charged already.
    assert_eq!(drain(agent.share(), T0, &LocalAsk::ORIGINAL), 5);
    assert_eq!(lent(&mut agent, T0, &ask(1, 2, Some(&first))).value.slots, 2);
}

#[test]
fn a_sub_lease_proves_nothing_to_a_ledger() {
    let id = HolderId::new("client").unwrap();
    let own = fallback(LocalOriginals::Deny, false);
    let mut holder = Holder::new(id, Incarnation([2; 16]), 1, Timing::default(), own, 1, T0);
    let rules = rules();
    let hears = |holder: &mut Holder, answer: &SyncAnswer| {
        let ask = request(holder, T0);
        let reply = Reply { sequence: ask.sequence, nonce: ask.nonce, attempt: None, answer, rules: Some(&rules) };
        holder.on_answer(T0, &reply);
        ask
    };
    hears(&mut holder, &SyncAnswer::Epoch(OURS));
    let mut agent = with_lease(&amounts(100, 40, 20));
    let grant = lent(&mut agent, T0, &ask(1, 1, None));
    hears(&mut holder, &SyncAnswer::Granted(grant.clone()));
    assert_eq!(holder.state(T0), State::Leased);
    // It turns to a ledger, which tells it its epoch.
    assert_eq!(hears(&mut holder, &SyncAnswer::Epoch(EPOCH)).lease.unwrap().name, grant.name);
    assert_eq!(request(&mut holder, T0).lease, None);
    assert_eq!(holder.state(T0), State::Leased, "it goes on by it all the same");
}
