//! Labels come from the policies, so no caller can make series.

use std::collections::BTreeSet;

use budget_tests::{
    collector::Collector,
    eventually::{eventually, eventually_some},
};

use super::{BOUND, ask_all, channel, sending};
use crate::faults::ground::{Footprint, Metrics};

const NAMES: usize = 200_000;
const POLICY: &str = "
[dependency.payments]
[dependency.\"tenant-*\"]
";
/// Kinds of name below.
const KINDS: usize = 5;
/// All series of a daemon with two rules that was asked for nothing but originals.
const SERIES_MAX: usize = 300;
/// Bytes of `/metrics`.
const TEXT_MAX: usize = 64 * 1024;
/// What the names may cost in memory, with 10,000 of them in the store.
const GROWTH_KIB: u64 = 96 * 1024;

/// Different ones that try to break out of a label, that no rule names, and that a family takes in.
fn hostile(from: usize, to: usize) -> impl Iterator<Item = String> + Send + 'static {
    (from..to).map(|number| match number % KINDS {
        0 => format!("tenant-{number}"),
        1 => format!("{number}\",evil=\"1\"}} 1 # {{"),
        2 => format!("\\{number}\\n\\\"😀\u{202e}"),
        3 => format!("{number}{}", "x".repeat(240)),
        _ => format!("{number}/payments"),
    })
}

/// Values of a label over all series.
fn values<'a>(text: &'a str, label: &str) -> BTreeSet<&'a str> {
    let start = format!("{label}=\"");
    text.lines().filter_map(|line| line.split_once(start.as_str())?.1.split('"').next()).collect()
}

/// Through a real daemon and the largest names there may be; nothing is lost in `other`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_two_hundred_thousand_hostile_names_make_no_series() {
    let collector = Collector::start().await;
    // One in a hundred is traced, as by default: names stand there, and nowhere else.
    let ground = sending(POLICY, &collector.endpoint(), "0.01");
    // As many as the store keeps are there before memory is compared.
    let warm = NAMES / 10;
    ask_all(channel(ground.daemon()).await, hostile(0, warm)).await;
    let before = Footprint::of(ground.daemon());
    let decided = ask_all(channel(ground.daemon()).await, hostile(warm, NAMES)).await;
    let grown = Footprint::of(ground.daemon()).resident_kib.saturating_sub(before.resident_kib);
    assert!(grown < GROWTH_KIB, "{grown} KiB more");

    let text = Metrics::of(ground.daemon()).await.0;
    let dependencies = values(&text, "dependency");
    assert_eq!(dependencies, BTreeSet::from(["other", "payments", "tenant-*"]), "of {decided} decided");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < SERIES_MAX, "{series} series");
    assert!(text.len() < TEXT_MAX, "{} bytes", text.len());
    assert!(!text.contains("evil"), "{text}");
    let metrics = Metrics(text);
    let counted = metrics.sum("budgetd_decisions_total", &[]) + metrics.sum("budgetd_failures_total", &[]);
    assert_eq!(counted, NAMES as f64, "none is lost");

    let all = [("dependency", "other")];
    let other = metrics.sum("budgetd_decisions_total", &["dependency=\"other\""]);
    eventually(BOUND, "counts", async || collector.metrics().sum("budgetd_decisions", &all) == other).await;
    let pushed = collector.metrics().series();
    assert!(pushed < SERIES_MAX, "{pushed} series");
    let spans = eventually_some(BOUND, "spans", async || Some(collector.spans()).filter(|all| all.len() > 1_000)).await;
    // Of 200,000, one in a hundred: 2,000 within ten standard deviations.
    assert!(spans.len() < 2_450, "{} spans", spans.len());
}
