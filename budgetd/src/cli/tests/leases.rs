//! Holders and lending as they are shown.

use budget::{
    ids::UnitId,
    lease::{Amounts, Epoch, HolderId, Incarnation, SHARE_ONE, UnitAmounts, Usage},
    ledger::{HolderView, Lending},
};
use budget_client::{Holder, UnitNames};

use super::{super::holders, *};

fn amounts(rate: i64, units: Vec<UnitAmounts>) -> Amounts {
    Amounts { rate, burst: 7_500_000, retry_burst: 2_000_000, slots: 3, units: units.into() }
}

fn holder(name: &str, revoked: bool) -> Holder {
    let unit = UnitAmounts { unit: UnitId::of("usd").unwrap(), rate: 250_000, burst: 1_000_000 };
    let view = HolderView {
        holder: HolderId::new(name).unwrap(),
        incarnation: Incarnation([0xab; 16]),
        weight: 2,
        demand: SHARE_ONE / 8,
        value: amounts(38_000_000, vec![unit]),
        charged: amounts(40_000_000, vec![]),
        generation: 9,
        expires_in_ms: 115_500,
        usage: Usage { asked: 5, ..Usage::default() },
        revoked,
    };
    Holder { value: view, units: UnitNames::new(["usd"]).unwrap() }
}

#[test]
fn holders_are_shown() {
    let payments = Dependency::new("payments").unwrap();
    let version = Some(PolicyVersion { number: 12, id: 1 });
    let show = |json, all: &[Holder]| {
        let mut text = Vec::new();
        let all: Vec<_> = all.iter().map(|holder| (holder.clone(), version)).collect();
        holders::show(&payments, &all, json, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let expected = "\
HOLDER  WEIGHT  DEMAND  RATE    BURST  RETRY BURST  SLOTS  ENDS IN   POLICY  NOTES
pod-1   2       12.5%   38/s    7.5    2            3      115500ms  12
  usd                   0.25/s  1
pod-2   2       12.5%   38/s    7.5    2            3      115500ms  12      REVOKED
  usd                   0.25/s  1
";
    assert_eq!(show(false, &[holder("pod-1", false), holder("pod-2", true)]), expected);
    assert_eq!(show(false, &[]), "payments has no holders\n");
    let json: serde_json::Value = serde_json::from_str(&show(true, &[holder("pod-1", true)])).unwrap();
    let pod = &json["holders"][0];
    assert_eq!(
        (&json["dependency"], &pod["holder"], &pod["revoked"]),
        (&"payments".into(), &"pod-1".into(), &true.into())
    );
    assert_eq!(pod["incarnation"], "ab".repeat(16));
    assert_eq!((&pod["demand_ppm"], &pod["lease"]["rate_micros_per_second"]), (&125_000.into(), &38_000_000.into()));
    assert_eq!((&pod["lease"]["units"][0]["unit"], &pod["usage"]["asked"]), (&"usd".into(), &5.into()));
}

#[test]
fn status_tells_how_leases_stand() {
    let lending = Lending {
        epoch: Epoch { number: 4, id: 9 },
        holders: 2,
        charged: amounts(76_000_000, vec![]),
        unknown: Amounts::default(),
        quarantine_left_ms: 41_000,
        wait_left_ms: 0,
        clock_debt_ms: 3,
    };
    let show = |lending: Lending, json| {
        let dependency = DependencyStatus { lending: Some(lending), ..payments(Counters::default()) };
        let page = StatusPage {
            version: PolicyVersion { number: 3, id: 99 },
            store: "memory".to_owned(),
            store_up: true,
            dependencies: vec![dependency],
            next: None,
            about: budget_client::About::default(),
        };
        let mut text = Vec::new();
        status::show(&page, json, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let text = show(lending.clone(), false);
    let note = "RETRIES OFF, 2 holders (epoch 4) with 76/s, burst 7.5, retries 2, slots 3, QUARANTINE 41s\n";
    assert!(text.contains(note), "{text}");
    let waiting = Lending { holders: 0, wait_left_ms: 6_000, ..lending.clone() };
    let text = show(waiting, false);
    assert!(text.contains("no holders (epoch 4), WAITS 6s, QUARANTINE 41s\n"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&show(lending, true)).unwrap();
    let lending = &json["dependencies"][0]["lending"];
    assert_eq!((&lending["holders"], &lending["epoch"]["number"]), (&2.into(), &4.into()));
    assert_eq!((&lending["charged"]["slots"], &lending["quarantine_left_ms"]), (&3.into(), &41_000.into()));
}
