//! Policy files: what is accepted can be shown, and is accepted again as it is stored.

use std::collections::BTreeMap;

use budgetd::policies::{PolicySet, effective_toml};

pub(crate) fn judge(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
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
}
