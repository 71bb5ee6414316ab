//! Ledgers that lend: holders in every state, and an epoch that has just begun.

use budget::lease::SyncAsk;

use super::{
    acts::ask_text,
    freeze::{Freezer, Life},
};

const LEASED: &str = "policy rate=100/s burst=400 max_in_flight=100 ttl=60000 ratio=0.1 retry_burst=50 floor=1/s lease=0.8 curve=1x20000,0.5x100000 unit.in=1000/s,5000";

/// Holders of leases: with several lives, weights, units, slots that linger; one revoked, one that has left; direct callers
/// beside them.
pub(super) fn lending(f: &mut Freezer) {
    f.acts("store identity=5 fresh");
    f.act(LEASED);
    f.act("-100000 reserve seed norelease");
    f.pass(-100_000, 0);
    f.acts("0 reserve direct1 in:5\n0 reserve direct0 in:10 ttl=110000");
    let (mut a, mut b, mut c) = (Life::of("a", 1, 1), Life::of("b", 2, 3), Life::of("gone", 3, 1));
    f.lease(10, &mut a);
    a.work(40, 3);
    f.lease(20, &mut b);
    f.lease(30, &mut c);
    f.act("40 beat host=12 up=9090000");
    for at_ms in [2_000, 4_000, 6_000] {
        a.work(60, 5);
        b.work(200, 0);
        f.sync(at_ms, &mut a);
        f.sync(at_ms + 5, &mut b);
    }
    c.usage.originals_admitted += 1;
    let leave = SyncAsk { leave: true, ..c.ask(6_100) };
    f.act(&ask_text(6_100, &leave));
    f.pass(6_100, 40_000);
    a.work(60, 0);
    f.sync(40_000, &mut a);
    // Restarted twice: three lives are charged.
    let (mut first, mut second, mut third) =
        (Life::of("holder-é", 4, 1), Life::of("holder-é", 5, 1), Life::of("holder-é", 6, 2));
    for (life, at_ms) in [(&mut first, 41_000), (&mut second, 43_000), (&mut third, 45_000)] {
        f.lease(at_ms, life);
        life.work(10, 1);
        f.sync(at_ms + 900, life);
    }
    let mut taken = Life::of("revoked", 7, 1);
    f.lease(46_000, &mut taken);
    a.work(60, 0);
    b.work(1, 0);
    f.sync(46_500, &mut a);
    f.sync(46_600, &mut b);
    f.acts(
        "47100 revoke revoked
        47100 revoke nobody
        47200 reserve direct2 ttl=600000 in:10
        47200 reserve direct3 op=A
        47200 reserve direct4 n=2 cause=transient
        47300 release direct3 success op=A terminal=completed ref=x
        47300 release direct1 abandoned in:6
        47400 beat host=13 up=77
        47400 view",
    );
    f.freeze(47_400);
    lending_then(f, [a, b, second, third, taken]);
}

fn lending_then(f: &mut Freezer, lives: [Life; 5]) {
    let [mut a, mut b, mut second, mut third, mut taken] = lives;
    f.acts(
        "47400 view
        47400 reserve direct2 ttl=600000 in:10
        47400 release direct1 success in:7
        47400 release direct0 success in:7
        47400 reserve x op=A
        47500 release direct4 not_sent",
    );
    b.work(10, 0);
    let sent = b.ask(47_600);
    // Sent again, word by word.
    for _ in 0..2 {
        f.act(&ask_text(47_600, &sent));
    }
    b.lease = None;
    a.work(60, 0);
    f.sync(47_600, &mut a);
    f.sync(47_700, &mut taken);
    third.work(5, 5);
    f.sync(47_800, &mut third);
    // An older life still speaks, and says goodbye.
    second.work(1, 0);
    f.sync(47_850, &mut second);
    let leave = SyncAsk { leave: true, ..second.ask(47_900) };
    f.act(&ask_text(47_900, &leave));
    let mut new = Life::of("newcomer", 8, 1);
    f.lease(48_000, &mut new);
    f.acts("48000 view\n48000 reserve direct5\n48000 reserve direct6 n=2 cause=hedge");
    // Steps of curves end, and what nobody renewed.
    f.pass(48_000, 70_000);
    f.acts("70000 view\n70000 reserve direct7 in:1000");
    a.work(30, 2);
    f.sync(71_000, &mut a);
    f.sync(71_500, &mut new);
    let leave = SyncAsk { leave: true, ..a.ask(73_000) };
    f.act(&ask_text(73_000, &leave));
    f.act("73000 view");
    // Other numbers.
    f.act(&LEASED.replace("rate=100/s", "rate=60/s").replace("lease=0.8", "lease=0.5"));
    f.sync(74_000, &mut b);
    f.act("74000 view");
    f.pass(74_000, 130_000);
    f.act("130000 view");
    f.sync(130_500, &mut new);
    f.pass(131_000, 200_000);
    f.act("200000 view");
    f.sync(201_000, &mut b);
    f.sync(201_000, &mut b);
    f.acts("201000 view\n201000 reserve direct8\n201000 release direct2 success");
}

/// An epoch that has just begun: what was lent before it is unknown, but for what is proved.
pub(super) fn quarantine(f: &mut Freezer) {
    f.acts("store identity=5 fresh");
    f.act(LEASED);
    f.act("-100000 reserve seed norelease");
    f.pass(-100_000, 0);
    let (mut a, mut b, mut c) = (Life::of("a", 1, 1), Life::of("b", 2, 1), Life::of("c", 3, 1));
    for life in [&mut a, &mut b, &mut c] {
        f.lease(10, life);
        life.work(20, 1);
    }
    // Another server answers.
    f.act("store identity=6");
    f.pass(10, 3_000);
    a.work(5, 0);
    f.sync(3_100, &mut a);
    f.sync(3_200, &mut a);
    f.sync(3_300, &mut b);
    f.acts("3400 reserve direct1\n3400 reserve direct2 in:20\n3400 view");
    f.freeze(3_400);
    f.acts("3400 view\n3400 reserve direct3\n3400 release direct1 not_sent");
    f.sync(3_500, &mut b);
    b.work(3, 0);
    f.sync(3_600, &mut b);
    // One that proves late, one that comes new, one that is granted anew.
    f.sync(3_700, &mut c);
    f.sync(3_800, &mut c);
    let mut new = Life::of("new", 4, 1);
    f.sync(3_900, &mut new);
    f.sync(4_000, &mut new);
    f.sync(5_000, &mut a);
    f.act("5000 view");
    f.pass(5_000, 30_000);
    f.sync(30_100, &mut new);
    f.pass(30_100, 140_000);
    f.act("140000 view");
    f.sync(140_100, &mut a);
    f.sync(141_000, &mut new);
    f.pass(141_000, 200_000);
    f.sync(200_100, &mut new);
    f.acts("200200 view\n200200 release direct2 success in:1\n200200 reserve direct4");
}
