//! Policy files: what is accepted can be shown, and is accepted again as it is stored.
#![no_main]

use std::collections::BTreeMap;

use budgetd::policies::{PolicySet, effective_toml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(set) = PolicySet::parse("fuzz.toml", text) {
        let mut rules = BTreeMap::new();
        for (name, rule) in set.rules() {
            drop(effective_toml(&rule.policy));
            rules.insert(name.to_string(), rule.source.to_string());
        }
        let again = PolicySet::of_rules(&rules, None).expect("stored rules are read again");
        for ((name, rule), (name_again, rule_again)) in set.rules().zip(again.rules()) {
            assert_eq!((name, &rule.policy), (name_again, &rule_again.policy));
        }
    }
});
