//! Ledgers that do not lend, in every state.

use budget::decision::Answer;
use budget_tests::vectors::Seen;

use super::{
    acts::Told,
    freeze::{FILL, Freezer},
};

/// Reservations in both generations and in the queue, closed, abandoned, booked ahead; operations in each state.
pub(super) fn plain(f: &mut Freezer) {
    f.act("policy rate=10/s burst=90 max_in_flight=150 ttl=60000 max_wait=2000 ratio=0.5 floor=1/s retry_burst=40 retention=600000 attempts=3 sheddable=0.5 default=1 cost.timeout=2");
    f.act(FILL);
    // More than the compact encoding of a hash holds.
    for at in 0..50 {
        f.act(&format!("0 reserve g{at} ttl=110000"));
    }
    f.acts(
        "0 reserve r1 n=2 cause=transient ttl=110000
        0 reserve r2 n=2 cause=timeout ttl=30000
        0 reserve low prio=sheddable
        0 reserve rate norelease
        0 reserve long1 ttl=600000
        0 reserve long2 ttl=300000
        0 reserve opA op=A ttl=110000
        0 reserve opB op=B
        0 release opB transient op=B
        0 reserve opB2 op=B n=2 cause=transient ttl=100000
        0 reserve opC op=C expires=100000
        0 release opC success op=C terminal=completed ref=order-17
        0 reserve opD op=D
        0 release opD permanent op=D terminal=failed
        0 reserve opE op=E
        0 release opE unknown op=E terminal=outcome_unknown
        0 reserve opF op=F ttl=110000
        0 reserve opF2 op=F n=2 cause=hedge ttl=110000
        0 reserve opG op=G expires=40 ttl=1000
        0 reserve opH op=H
        0 release opH not_sent op=H",
    );
    for at in 0.. {
        let Some(Told::Seen(Seen::Answer(Answer::Admitted(_)))) = f.act(&format!("0 reserve filler{at} norelease"))
        else {
            break;
        };
    }
    f.acts(
        "0 reserve wait1 wait=2000 ttl=100000
        0 reserve wait2 wait=2000 ttl=100000
        0 reserve wait3 wait=1
        10 release g1 success
        10 release g2 abandoned
        10 release g3 not_sent
        10 release g4 account
        10 release long2 abandoned
        10 release opA transient
        5000 reserve opA2 op=A n=2 cause=failover
        31000 release g5 throttled
        31000 extend g6 115000
        61000 reserve late1
        61000 reserve late2 ttl=50000
        61000 extend late1 400000
        61000 reserve late3
        61000 reserve late4
        61000 reserve late5 ttl=119000
        61000 release late4 success
        61000 release late3 abandoned
        61000 reserve opI op=I ttl=120000
        62000 reserve all1 prio=critical
        62000 view",
    );
    f.freeze(62_000);
    plain_then(f);
}

fn plain_then(f: &mut Freezer) {
    f.acts(
        "62000 view
        62000 reserve g7 ttl=110000
        62000 reserve g1
        62000 reserve long1 ttl=600000
        62000 reserve opB2 op=B n=2 cause=transient ttl=100000
        62000 release g1 success
        62000 release g2 success
        62000 release g3 success
        62000 release g8 not_sent
        62000 release g9 success
        62000 release r1 transient
        62000 release r2 success
        62000 release wait2 not_sent
        62000 release wait1 success
        62000 release nobody success
        62000 release late4 success
        62000 release late2 not_sent
        62000 extend g10 120000
        62000 extend g1 1000
        62000 extend late3 1000
        62000 extend late5 300000
        62000 extend nobody 1000
        62000 reserve x op=A n=3 cause=transient
        62000 release opA success op=A
        62000 reserve x op=B n=3 cause=transient
        62000 release opB2 success op=B terminal=completed ref=late
        62000 reserve x op=B n=3 cause=transient
        62000 reserve y op=C
        62000 reserve y op=C fp=z
        62000 reserve y op=D n=2 cause=transient
        62000 reserve y op=E n=2 cause=timeout
        62000 release opF transient op=F
        62000 reserve y op=F
        62000 release opF2 success op=F terminal=completed ref=second
        62000 reserve y op=F n=3 cause=hedge
        62000 reserve y op=G
        62000 release opG success op=G
        62000 reserve opH2 op=H
        62000 release opI success op=A
        62000 release opI success op=I terminal=completed
        62000 reserve mine prio=sheddable
        62000 reserve x2 n=2 cause=timeout
        62000 view
        109999 reserve edge
        110000 release g11 success
        110000 view
        125000 reserve after
        125000 release g6 success
        125000 release g12 success
        125000 release late3 success
        125000 view
        policy rate=5/s burst=20 max_in_flight=10 ttl=10000 ratio=0.1 floor=0/s retry_burst=5 retention=600000
        125000 reserve new1
        125000 release long1 success
        125000 release late1 not_sent
        125000 view
        310000 release long2 success
        310000 reserve opJ op=J
        310000 reserve y op=E n=2 cause=timeout
        310000 view
        700000 reserve y op=C
        700000 release opJ success op=J
        700000 view",
    );
}

/// Further units of cost: charged, settled, in debt, overused; one that a later policy does not have.
pub(super) fn units(f: &mut Freezer) {
    f.act("policy rate=100/s burst=100 ttl=60000 ratio=1 retry_burst=10 unit.in=1000/s,4000 unit.out=100/min,500 unit.usd=1/s,10");
    f.act(FILL);
    f.acts(
        "0 reserve a in:100 out:10
        0 reserve b in:200.5 usd:1.25
        0 reserve c in:5000
        0 reserve d in:1000 out:100 usd:3 ttl=600000
        0 reserve e in:300 op=A
        0 reserve f usd:2
        0 reserve g out:50
        0 reserve h usd:2 n=2 cause=throttled
        5 release a success in:150 out:5
        5 release f success usd:25
        5 release g not_sent
        5 reserve gone nothing:1
        5 view",
    );
    f.freeze(5);
    f.acts(
        "5 view
        5 reserve b in:200.5 usd:1.25
        5 release b transient in:10
        5 release b transient in:10
        5 release c success
        5 release e success in:301 op=A
        5 release h not_sent
        5 reserve i usd:1
        5 reserve j in:1 out:1
        5 view
        2000 reserve k in:4000
        2000 reserve l in:2600
        2000 release d success in:1000 out:100 usd:4
        2000 view
        policy rate=100/s burst=100 ttl=60000 ratio=1 retry_burst=10 unit.out=200/min,50 unit.in=1000/s,100
        2000 reserve m in:10 out:1
        2000 reserve n usd:1
        2000 release l success in:1
        2000 release j success out:2
        2000 view
        90000 release m success
        90000 view",
    );
}

/// A policy that only watches.
pub(super) fn shadow(f: &mut Freezer) {
    f.act("policy mode=shadow rate=1/s burst=2 max_in_flight=2 ttl=60000 ratio=0.1 retry_burst=1 unit.in=1/s,5");
    f.act(FILL);
    f.acts(
        "0 reserve a in:1
        0 reserve b
        0 reserve c
        0 reserve d n=2 cause=transient
        0 reserve e in:50
        0 reserve f op=A
        0 reserve g op=A n=2 cause=hedge
        10 release a success in:3
        10 release c success
        10 view",
    );
    f.freeze(10);
    f.acts(
        "10 view
        10 reserve b
        10 release d success
        10 release e not_sent
        10 release g success op=A terminal=completed
        10 reserve f2 op=A n=3 cause=hedge
        1500 reserve h
        1500 reserve i n=3 cause=timeout
        1500 view
        policy mode=enforce rate=1/s burst=2 max_in_flight=2 ttl=60000 ratio=0.1 retry_burst=1 unit.in=1/s,5
        1500 reserve j
        1500 release h success
        1500 release i success
        1500 release b success
        4000 reserve k in:1
        4000 view",
    );
}
