//! Leases under faults in virtual time, with the real ledger and the real holder.
#![allow(clippy::unwrap_used, reason = "tests")]

// Modules here read as any user of the crate would write them.
extern crate budget_guarded as budget;

use budget::guard::{self, Guard};

#[test]
fn guards_are_switched_one_at_a_time() {
    assert!(Guard::ALL.into_iter().all(guard::on));
    for off in Guard::ALL {
        guard::switch_off(Some(off));
        assert!(Guard::ALL.into_iter().all(|guard| guard::on(guard) == (guard != off)));
    }
    guard::switch_off(None);
    assert!(Guard::ALL.into_iter().all(guard::on));
}
