//! Memory that holders of one process have in common.

use std::sync::Arc;

use super::Holder;
use crate::lease::{Curve, Rules};

/// Kinds of rules, and of curves, that are kept once. Of more, the others are kept by each dependency.
const KINDS_MAX: usize = 64;

/// Rules and curves of holders in one process: those that are equal are kept once. Dependencies mostly have the policy of
/// a family.
#[derive(Debug, Default)]
pub struct Alike {
    rules: Vec<Arc<Rules>>,
    curves: Vec<Curve>,
}

// === impl Alike ===

impl Alike {
    fn rules(&mut self, own: &mut Arc<Rules>) {
        match self.rules.iter().find(|kept| Arc::ptr_eq(kept, own) || *kept == own) {
            Some(kept) => *own = Arc::clone(kept),
            None => keep(&mut self.rules, own, Arc::strong_count),
        }
    }

    fn curve(&mut self, own: &mut Curve) {
        match self.curves.iter().find(|kept| Arc::ptr_eq(&kept.0, &own.0) || *kept == own) {
            Some(kept) => *own = kept.clone(),
            None => keep(&mut self.curves, own, |curve| Arc::strong_count(&curve.0)),
        }
    }
}

/// Keeps a kind, if need be in place of one that no dependency has any more.
fn keep<T: Clone>(kinds: &mut Vec<T>, own: &T, count: impl Fn(&T) -> usize) {
    if kinds.len() >= KINDS_MAX {
        kinds.retain(|kept| count(kept) > 1);
    }
    if kinds.len() < KINDS_MAX {
        kinds.push(own.clone());
    }
}

// === impl Holder ===

impl Holder {
    /// Keeps the rules and the curve of its lease in common with other holders that have equal ones. Nothing else changes.
    pub fn keep_once(&mut self, alike: &mut Alike) {
        let mut control = self.share.lock();
        alike.rules(&mut control.rules);
        if let Some(lease) = &mut control.lease {
            alike.curve(&mut lease.curve);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::CurveStep;

    fn curve(duration_ms: i64) -> Curve {
        Curve([CurveStep { part_ppm: 1, duration_ms }].into())
    }

    #[test]
    fn equal_curves_are_kept_once_and_old_ones_make_room() {
        let mut alike = Alike::default();
        let (mut first, mut second, mut other) = (curve(1), curve(1), curve(2));
        for own in [&mut first, &mut second, &mut other] {
            alike.curve(own);
        }
        assert!(Arc::ptr_eq(&first.0, &second.0) && !Arc::ptr_eq(&first.0, &other.0));
        assert_eq!((&second, &other), (&curve(1), &curve(2)));
        let most = i64::try_from(KINDS_MAX).unwrap();
        let mut held: Vec<Curve> = (10..10 + most).map(curve).collect();
        drop(other);
        for own in &mut held {
            alike.curve(own);
        }
        assert_eq!(alike.curves.len(), KINDS_MAX, "the one that nobody has any more made room, the rest found none");
        assert!(alike.curves.contains(&curve(1)) && !alike.curves.contains(&curve(2)));
        drop(held);
        let mut late = curve(99);
        alike.curve(&mut late);
        assert_eq!(alike.curves, [curve(1), curve(99)]);
    }
}
