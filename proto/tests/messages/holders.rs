//! What operators see of leases, sent and received.

use budget::{
    ids::UnitId,
    lease::{Amounts, Epoch, HolderId, Incarnation, SHARE_ONE, UnitAmounts, Usage},
    ledger::{HolderView, Lending},
};
use budget_proto::{
    InvalidMessage, UnitNames,
    convert::{holder, holder_id, holder_message, lending, lending_message},
    pb,
};

const EXACT: u64 = (1 << 53) - 1;

fn amounts(rate: i64) -> Amounts {
    let unit = UnitAmounts { unit: UnitId::of("usd").unwrap(), rate: 1, burst: 2 };
    Amounts { rate, burst: 3, retry_burst: 4, slots: 5, units: [unit].into() }
}

fn view() -> HolderView {
    HolderView {
        holder: HolderId::new("pod-1").unwrap(),
        incarnation: Incarnation([7; 16]),
        weight: 1_000,
        demand: SHARE_ONE,
        value: amounts(10),
        charged: amounts(20),
        generation: 9,
        expires_in_ms: 115_000,
        usage: Usage { asked: 6, units_asked: [(UnitId::of("usd").unwrap(), 7)].into(), ..Usage::default() },
        revoked: true,
    }
}

fn how_it_stands() -> Lending {
    Lending {
        epoch: Epoch { number: 2, id: 3 },
        holders: 4,
        charged: amounts(5),
        unknown: Amounts::default(),
        quarantine_left_ms: 6,
        wait_left_ms: 7,
        clock_debt_ms: 8,
    }
}

#[test]
fn holders_and_lending_survive_the_wire() {
    let names = UnitNames::new(["usd"]).unwrap();
    let received = holder(holder_message(&view(), &names)).unwrap();
    assert_eq!((received.value, received.units), (view(), names.clone()));
    let received = lending(lending_message(&how_it_stands(), &names)).unwrap();
    assert_eq!((received.value, received.units), (how_it_stands(), names));
    // Without names the units are left out.
    let received = holder(holder_message(&view(), &UnitNames::default())).unwrap().value;
    assert!(received.value.units.is_empty() && received.usage.units_asked.is_empty());
}

#[test]
fn what_an_operator_receives_is_judged() {
    let names = UnitNames::default();
    let of_holder = |change: fn(&mut pb::Holder)| {
        let mut message = holder_message(&view(), &names);
        change(&mut message);
        holder(message).map(drop)
    };
    let of_lending = |change: fn(&mut pb::Lending)| {
        let mut message = lending_message(&how_it_stands(), &names);
        change(&mut message);
        lending(message).map(drop)
    };
    let table: [(Result<(), InvalidMessage>, &str); 16] = [
        (of_holder(|h| h.holder_id.clear()), "holders.holder_id is \"\": is empty"),
        (of_holder(|h| h.incarnation.clear()), "holders.incarnation is empty: has 0 bytes, must have 16"),
        (of_holder(|h| h.weight = 0), "holders.weight is 0: must be between 1 and 1000"),
        (of_holder(|h| h.demand_ppm = 1_000_001), "holders.demand_ppm is 1000001: must be between 0 and 1000000"),
        (of_holder(|h| h.value = None), "holders.value is absent: is required"),
        (of_holder(|h| h.charged = None), "holders.charged is absent: is required"),
        (of_holder(|h| h.generation = EXACT + 1), "holders.generation is 9007199254740992: must be"),
        (of_holder(|h| h.expires_in_ms = u64::MAX), "holders.expires_in_ms is 18446744073709551615: must be"),
        (of_holder(|h| h.usage.as_mut().unwrap().asked = u64::MAX), "holders.usage.asked is 1844"),
        (of_lending(|l| l.epoch = None), "lending.epoch is absent: is required"),
        (of_lending(|l| l.holders = u64::MAX), "lending.holders is 1844"),
        (of_lending(|l| l.charged = None), "lending.charged is absent"),
        (of_lending(|l| l.unknown = None), "lending.unknown is absent"),
        (of_lending(|l| l.quarantine_left_ms = u64::MAX), "lending.quarantine_left_ms is"),
        (of_lending(|l| l.wait_left_ms = u64::MAX), "lending.wait_left_ms is"),
        (of_lending(|l| l.clock_debt_ms = u64::MAX), "lending.clock_debt_ms is"),
    ];
    for (judged, expected) in table {
        let text = judged.unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}, not {expected}");
    }
    assert_eq!(holder_id("page_token", "a\nb").unwrap_err().field(), "page_token");
}
