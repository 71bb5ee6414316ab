//! Random values from a seed: `BUDGET_SEED=42` replays one.

use budget::{
    decision::{
        Admitted, Answer, Attempt, Cause, Cost, Denied, DenyReason, Extend, ExtendResult, OperationAsk, OperationState,
        Outcome, Priority, Release, ReleaseResult, Reserve, Sent, Step, TerminalState, Use,
    },
    ids::{DependencyId, Fingerprint, OperationId, ReservationId, UnitId},
    policy::{MAX_WAIT_MS_MAX, PERMIT_TTL_MS_MAX},
    units::{DURATION_MS_MAX, EXACT_MAX},
};
use budget_proto::convert::{ATTEMPT_NUMBER_MAX, Mode, OPERATION_EXPIRES_IN_MS_MAX};

pub(crate) const UNITS: [&str; 4] = ["input_tokens", "usd", "a{b}:c%", "😀"];

/// SplitMix64 (Steele, Lea, Flood).
pub(crate) struct Random(u64);

// === impl Random ===

impl Random {
    pub(crate) fn seeded(default: u64) -> Self {
        let seed = std::env::var("BUDGET_SEED").ok().map_or(default, |seed| seed.parse().unwrap());
        println!("BUDGET_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// Often an end of the range, where mistakes live.
    pub(crate) fn within(&mut self, min: i64, max: i64) -> i64 {
        match self.below(4) {
            0 => min,
            1 => max,
            _ => min + i64::try_from(self.next() % (max - min + 1) as u64).unwrap(),
        }
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    pub(crate) fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.coin().then(|| make(self))
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(crate) fn bytes(&mut self, min: usize, max: usize) -> Vec<u8> {
        let len = min + self.below(max - min + 1);
        (0..len).map(|_| u8::try_from(self.next() >> 56).unwrap()).collect()
    }

    pub(crate) fn name(&mut self, bytes_max: usize) -> String {
        let mut name = String::new();
        while name.is_empty() || self.below(12) > 0 {
            let c = self.one_of(&['a', 'Z', '0', '{', '}', ':', '%', '*', ' ', 'é', '大', '😀', '\u{202e}']);
            if name.len() + c.len_utf8() > bytes_max {
                break;
            }
            name.push(c);
        }
        name
    }

    pub(crate) fn dependency(&mut self) -> DependencyId {
        DependencyId::new(&format!("{}x", self.name(255))).unwrap()
    }

    fn reservation(&mut self) -> ReservationId {
        ReservationId::from_slice(&self.bytes(16, 16)).unwrap()
    }

    fn operation_id(&mut self) -> OperationId {
        OperationId::new(&self.name(128)).unwrap()
    }

    fn costs(&mut self) -> Vec<Cost> {
        let count = self.below(UNITS.len() + 1);
        let cost = |unit: &&str| Cost { unit: UnitId::of(unit).unwrap(), amount_micros: self.within(0, EXACT_MAX) };
        UNITS.iter().take(count).map(cost).collect()
    }

    fn attempt(&mut self) -> Attempt {
        match self.below(3) {
            0 => Attempt::ORIGINAL,
            1 => Attempt::retry(1, Cause::Failover),
            _ => {
                let number = u32::try_from(self.within(2, ATTEMPT_NUMBER_MAX.into())).unwrap();
                Attempt::retry(number, self.one_of(&Cause::ALL))
            }
        }
    }

    fn reserve(&mut self) -> Reserve {
        let operation = self.maybe(|r| OperationAsk {
            id: r.operation_id(),
            fingerprint: Fingerprint::from_slice(&r.bytes(16, 32)).unwrap(),
            expires_in_ms: r.maybe(|r| r.within(1, OPERATION_EXPIRES_IN_MS_MAX)),
        });
        Reserve {
            id: self.reservation(),
            attempt: self.attempt(),
            time_left_ms: self.maybe(|r| r.within(0, DURATION_MS_MAX)),
            max_wait_ms: self.within(0, MAX_WAIT_MS_MAX),
            permit_ttl_ms: self.maybe(|r| r.within(1, PERMIT_TTL_MS_MAX)),
            priority: self.one_of(&Priority::ALL),
            costs: self.costs(),
            no_release: operation.is_none() && self.coin(),
            operation,
        }
    }

    fn release(&mut self) -> Release {
        let operation = self.maybe(Self::operation_id);
        let used = if self.coin() {
            Use::NotSent
        } else {
            let terminal = if operation.is_some() { self.maybe(|r| r.one_of(&TerminalState::ALL)) } else { None };
            let result_ref = if terminal.is_some() { self.maybe(|r| r.bytes(0, 128).into()) } else { None };
            Use::Sent(Sent { outcome: self.one_of(&Outcome::ALL), costs: self.costs(), terminal, result_ref })
        };
        Release { id: self.reservation(), used, operation }
    }

    pub(crate) fn step(&mut self) -> Step {
        match self.below(3) {
            0 => Step::Reserve(self.reserve()),
            1 => Step::Release(self.release()),
            _ => Step::Extend(Extend { id: self.reservation(), permit_ttl_ms: self.within(1, PERMIT_TTL_MS_MAX) }),
        }
    }

    fn denied(&mut self) -> Denied {
        Denied {
            reason: self.one_of(&DenyReason::ALL),
            unit: self.maybe(|r| UnitId::of(r.one_of(&UNITS)).unwrap()),
            retry_after_ms: self.maybe(|r| r.within(1, EXACT_MAX)),
            impossible: self.coin(),
            operation: self.maybe(|r| {
                Box::new(OperationState {
                    attempts_used: r.within(0, 100),
                    last_outcome: r.maybe(|r| r.one_of(&Outcome::ALL)),
                    terminal: r.maybe(|r| r.one_of(&TerminalState::ALL)),
                    result_ref: r.maybe(|r| r.bytes(0, 128).into()),
                })
            }),
        }
    }

    pub(crate) fn answer(&mut self) -> Answer {
        match self.below(4) {
            0 => Answer::Admitted(Admitted {
                start_after_ms: self.within(0, EXACT_MAX),
                permit_ttl_ms: self.within(0, PERMIT_TTL_MS_MAX),
                attempts_left: self.within(0, 100),
                replayed: self.coin(),
                would_be_denied: self.maybe(|r| r.one_of(&DenyReason::ALL)),
            }),
            1 => Answer::Denied(self.denied()),
            2 => Answer::Released(self.one_of(&ReleaseResult::ALL)),
            _ => {
                let extended = ExtendResult::Extended(self.within(0, EXACT_MAX));
                let others = [ExtendResult::AlreadyReleased, ExtendResult::Expired, ExtendResult::Unknown, extended];
                Answer::Extended(self.one_of(&others))
            }
        }
    }

    pub(crate) fn mode(&mut self) -> Mode {
        self.one_of(&Mode::ALL)
    }
}
