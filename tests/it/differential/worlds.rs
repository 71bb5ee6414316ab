//! Random worlds: policies from ordinary to extreme, clocks that jump, asks that repeat, collide and contradict.

use budget::{
    decision::{
        Attempt, Cause, Cost, Extend, OperationAsk, Outcome, Priority, Release, Reserve, Sent, Step, TerminalState, Use,
    },
    ids::{Fingerprint, OperationId, ReservationId, UnitId},
    lease::Timing,
    policy::{CurveStep, EarnOn, Lease, Limit, Mode, Numbers, Policy, Spec, UnitLimit},
    units::{PPM, Rate},
};
use budget_tests::rng::Rng;
use budgetd::store::redis::{
    codec::Way,
    layout::{FORMAT_NEWEST, FORMAT_OLDEST},
};

/// Operation ids a world draws from: few, so that they meet.
pub(super) const OPERATIONS: [&str; 6] = ["o1", "o2", "o3", "o4", "ord:é 5", "o{6}%"];
const UNITS: [&str; 4] = ["in", "out", "usd", "gone"];

/// Draws policies, times and steps.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) rng: Rng,
    /// Ids in use, with the operation each was reserved for.
    seen: Vec<(ReservationId, Option<usize>)>,
    next_id: u64,
}

impl Source {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, seen: Vec::new(), next_id: 0 }
    }

    /// How scripts are to do what they do, at one of a world's calls: the older format in the first third, either in the second,
    /// as while replicas learn of the newer one at different times, and the newer one from then on.
    pub(super) fn way(&mut self, call: usize, calls: usize) -> Way {
        let newer = call * 3 > calls * 2 || (call * 3 > calls && self.chance(50));
        Way { format: if newer { FORMAT_NEWEST } else { FORMAT_OLDEST }, short: self.chance(50) }
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        let at = usize::try_from(self.rng.below(of.len() as u64)).expect("an index");
        of[at].clone()
    }

    pub(super) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.rng.below(u64::try_from(high - low + 1).expect("a range"))).expect("a number")
    }

    /// A valid policy; about one in eight is extreme.
    pub(super) fn numbers(&mut self) -> Numbers {
        loop {
            let spec = if self.chance(12) { self.extreme_spec() } else { self.ordinary_spec() };
            let (retries_off, named) = (self.chance(7), self.chance(50));
            if let Ok(policy) = Policy::new(spec) {
                return policy.numbers(retries_off, named);
            }
        }
    }

    /// A valid policy with or without leases, its quotas mostly large enough to be shared, and time limits of all kinds.
    pub(super) fn leased_numbers(&mut self) -> Numbers {
        loop {
            let mut spec = if self.chance(8) { self.extreme_spec() } else { self.ordinary_spec() };
            if self.chance(85) {
                let more = self.pick(&[1, 5, 20, 100]);
                if let Some(limit) = &mut spec.admission {
                    limit.burst_tokens *= more;
                }
                for unit in &mut spec.units {
                    unit.limit.burst_tokens *= more;
                }
                spec.retry_burst_tokens *= more;
                spec.max_in_flight = spec.max_in_flight.map(|most| most * u32::try_from(more).expect("small"));
            }
            let step = |part_ppm, duration_ms| CurveStep { part_ppm, duration_ms };
            let curves = [
                vec![step(PPM, 20_000), step(PPM / 2, 100_000)],
                vec![step(PPM, 2_000), step(600_000, 3_000), step(1, 1_000)],
                vec![step(PPM, 6_000)],
                vec![step(333_333, 1), step(333_333, 1_500)],
                (1..=8).map(|i| step(900_000 - i * 100_001, i * 100)).collect(),
            ];
            spec.lease = Lease {
                enabled: self.chance(85),
                part_ppm: self.pick(&[1, 100_000, 800_000, 800_000, 800_000, PPM]),
                curve: self.pick(&curves),
            };
            let timing = Timing {
                margin_ms: self.pick(&[1, 300, 3_000]),
                overlap_ms: self.pick(&[0, 0, 0, 500, 4_000]),
                step_max_ms: self.pick(&[1, 200, 2_000, 2_000, 60_000]),
                ..Timing::default()
            };
            let (retries_off, named, longer) = (self.chance(5), self.chance(50), self.chance(10));
            let (ended, wider) = (self.chance(6), self.chance(10));
            if let Ok(policy) = Policy::new(spec) {
                let mut numbers = policy.numbers_timed(retries_off, named, &timing);
                if let Some(terms) = &mut numbers.lease {
                    if longer {
                        terms.longest_curve_ms *= 2;
                    }
                    if wider {
                        terms.widest_part_ppm = PPM;
                    }
                    if ended {
                        terms.part_ppm = 0;
                    }
                }
                return numbers;
            }
        }
    }

    fn rate(&mut self, of: &[&str]) -> Rate {
        Rate::parse(self.pick(of)).expect("a rate")
    }

    fn ordinary_spec(&mut self) -> Spec {
        let rates = ["1/s", "10/s", "270/min", "100/h", "7/min", "0.5/s", "100/s"];
        let shares = [[PPM; 3], [500_000, 900_000, PPM], [0, 500_000, 800_000]];
        let ttl = self.pick(&[50, 300, 1_000, 5_000]);
        let mut units = Vec::new();
        for name in UNITS.iter().take(3) {
            if self.chance(45) {
                let limit = Limit { rate: self.rate(&rates), burst_tokens: self.between(1, 30) };
                units.push(UnitLimit { name: (*name).to_owned(), limit });
            }
        }
        if self.chance(30) {
            units.reverse();
        }
        Spec {
            mode: if self.chance(12) { Mode::Shadow } else { Mode::Enforce },
            admission: self.chance(65).then(|| Limit { rate: self.rate(&rates), burst_tokens: self.between(1, 12) }),
            max_in_flight: self.chance(60).then(|| u32::try_from(self.between(1, 8)).expect("small")),
            permit_ttl_ms: ttl,
            max_wait_ms: if self.chance(40) { self.between(0, 3_000) } else { 0 },
            ratio_ppm: self.pick(&[0, 1, 33_300, 100_000, 700_000, 1_500_000]),
            floor: self.rate(&["0/s", "0/s", "1/s", "100/h", "3/s"]),
            retry_burst_tokens: self.between(0, 8),
            earn_on: if self.chance(30) { EarnOn::Success } else { EarnOn::Admitted },
            retry_cost_micros: std::array::from_fn(|_| self.pick(&[PPM, PPM, 1_500_000, 2 * PPM])),
            max_attempts: u32::try_from(self.between(1, 4)).expect("small"),
            retention_ms: ttl.max(1_000) * self.between(1, 5),
            priority_ppm: self.pick(&shares),
            units,
            ..Spec::default()
        }
    }

    fn extreme_spec(&mut self) -> Spec {
        let rates = ["1/d", "1G/s", "1000000/s", "1/h", "0.000001/s", "1G/d", "3/min"];
        let bursts = [1, 2, 1_000, 1_000_000, 1_000_000_000];
        let units = ["in", "usd"].map(|name| UnitLimit {
            name: name.to_owned(),
            limit: Limit { rate: self.rate(&rates), burst_tokens: self.pick(&bursts) },
        });
        Spec {
            admission: Some(Limit { rate: self.rate(&rates), burst_tokens: self.pick(&bursts) }),
            max_in_flight: self.chance(50).then_some(1_000_000),
            permit_ttl_ms: self.pick(&[1, 1_000, 3_600_000]),
            max_wait_ms: self.pick(&[0, 1, 3_600_000]),
            ratio_ppm: self.pick(&[0, 1, 100 * PPM]),
            floor: self.rate(&rates),
            retry_burst_tokens: self.pick(&[0, 1, 1_000_000_000]),
            retry_cost_micros: std::array::from_fn(|_| self.pick(&[PPM, 1_000 * PPM])),
            max_attempts: self.pick(&[1, 100]),
            retention_ms: self.pick(&[3_600_000, 30 * 86_400_000]),
            units: units.to_vec(),
            ..Spec::default()
        }
    }

    /// How far the clock moves: mostly not or a little, sometimes far, sometimes back.
    pub(super) fn elapsed_ms(&mut self) -> i64 {
        match self.rng.below(100) {
            0..40 => 0,
            40..75 => self.between(1, 40),
            75..92 => self.between(41, 1_000),
            92..97 => self.between(1_001, 20_000),
            97 => self.between(20_001, 7_200_000),
            98 => self.between(7_200_001, 40_000_000_000),
            _ => -self.between(1, 100_000),
        }
    }

    /// A step; `used` tells the attempts the model counts for an operation.
    pub(super) fn step(&mut self, numbers: &Numbers, used: impl Fn(usize) -> i64) -> Step {
        match self.rng.below(100) {
            0..55 => Step::Reserve(self.reserve(numbers, used)),
            55..90 => Step::Release(self.release()),
            _ => {
                let id = self.known_id().0;
                let permit_ttl_ms = self.pick(&[1, 40, 400, 1_000, 3_000, 20_000, 3_600_000]);
                Step::Extend(Extend { id, permit_ttl_ms })
            }
        }
    }

    fn fresh_id(&mut self, operation: Option<usize>) -> ReservationId {
        self.next_id += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next_id.to_be_bytes());
        bytes[8..].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        let id = ReservationId(bytes);
        if self.seen.len() >= 24 {
            let at = usize::try_from(self.rng.below(24)).expect("an index");
            self.seen.swap_remove(at);
        }
        self.seen.push((id, operation));
        id
    }

    /// The ledger has nothing under this id: later steps are to be mostly about ids of which it has.
    pub(super) fn nothing_under(&mut self, id: ReservationId) {
        if !self.chance(10) {
            self.seen.retain(|(seen, _)| *seen != id);
        }
    }

    fn known_id(&mut self) -> (ReservationId, Option<usize>) {
        if self.seen.is_empty() || self.chance(4) {
            return (ReservationId(self.rng.next_u64().to_be_bytes().repeat(2).try_into().expect("16 bytes")), None);
        }
        // Mostly a recent one, which is more likely to be open.
        let len = self.seen.len() as u64;
        let back = self.rng.below(len).min(self.rng.below(len));
        self.seen[usize::try_from(len - 1 - back).expect("an index")]
    }

    fn costs(&mut self) -> Vec<Cost> {
        let mut costs = Vec::new();
        for (index, name) in UNITS.iter().enumerate() {
            let percent = if index == 3 { 2 } else { 15 };
            if self.chance(percent) {
                let amount_micros = match self.rng.below(20) {
                    0 => 0,
                    1 => self.pick(&[1, (1 << 53) - 1, 1 << 31, 1_000_000_000_000_000]),
                    _ => self.between(1, 8_000_000),
                };
                costs.push(Cost { unit: UnitId::of(name).expect("a unit"), amount_micros });
            }
        }
        costs
    }

    fn reserve(&mut self, numbers: &Numbers, used: impl Fn(usize) -> i64) -> Reserve {
        let operation =
            self.chance(45).then(|| self.between(0, 5)).map(|index| usize::try_from(index).expect("an index"));
        let number = match operation {
            Some(index) if self.chance(70) => used(index) + 1,
            _ => self.pick(&[1, 1, 1, 1, 2, 2, 3, 4]),
        };
        let cause = if number > 1 { Some(self.pick(&Cause::ALL)) } else { self.chance(5).then_some(Cause::Failover) };
        let again = self.chance(12);
        let (id, operation) = if again { self.known_id() } else { (self.fresh_id(operation), operation) };
        // Few, so that asks without a unit of the policy stay rare.
        let costs = if self.chance(40) {
            let mut costs = self.costs();
            if !self.chance(10) {
                costs.retain(|cost| numbers.unit(cost.unit).is_some());
            }
            costs
        } else {
            Vec::new()
        };
        Reserve {
            attempt: Attempt { number: u32::try_from(number).expect("small"), cause },
            time_left_ms: self.chance(25).then(|| self.pick(&[0, 1, 30, 500, 31_536_000_000])),
            max_wait_ms: if self.chance(40) { self.between(0, 4_000) } else { 0 },
            permit_ttl_ms: self.chance(20).then(|| self.pick(&[1, 20, 700, 2_500, 15_000, 3_600_000])),
            priority: self.pick(&Priority::ALL),
            costs,
            operation: operation.map(|index| OperationAsk {
                id: OperationId::new(OPERATIONS[index]).expect("an id"),
                fingerprint: Fingerprint::from_slice(if self.chance(6) { &[2; 32] } else { &[1; 16] }).expect("bytes"),
                expires_in_ms: self.chance(40).then(|| self.pick(&[1, 500, 1_000, 100_000, 2_592_000_000])),
            }),
            no_release: operation.is_none() && self.chance(8),
            ..Reserve::new(id, Attempt::ORIGINAL)
        }
    }

    fn release(&mut self) -> Release {
        let (id, operation) = self.known_id();
        let named = if self.chance(4) { Some(0) } else { operation };
        let used = if self.chance(25) {
            Use::NotSent
        } else {
            let outcome = if self.chance(50) { Outcome::Success } else { self.pick(&Outcome::ALL) };
            let terminal = (named.is_some() && self.chance(50)).then(|| self.pick(&TerminalState::ALL));
            let result_ref: Option<Box<[u8]>> = if terminal.is_some() && self.chance(60) {
                Some(self.pick(&[vec![], vec![0, 255, 7], vec![b'r'; 128]]).into())
            } else {
                None
            };
            let costs = if self.chance(40) { self.costs() } else { Vec::new() };
            Use::Sent(Sent { outcome, costs, terminal, result_ref })
        };
        Release { id, used, operation: named.map(|index| OperationId::new(OPERATIONS[index]).expect("an id")) }
    }
}
