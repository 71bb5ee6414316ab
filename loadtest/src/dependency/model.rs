//! The capacity of the fake dependency: workers, a queue before them, and a script. Pure: time is an argument, so its
//! capacity is exact however late the process is woken.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use crate::{random::Random, scenario::DependencySpec};

const NANOS_PER_MS: i64 = 1_000_000;

/// Workers, and requests that wait for one. `J` is whatever is told of a finished one.
#[derive(Debug)]
pub(super) struct Model<J> {
    spec: DependencySpec,
    random: Random,
    /// The script's zero; before it no step is in force.
    start_ns: Option<i64>,
    waiting: VecDeque<(i64, J)>,
    working: BinaryHeap<Reverse<Work>>,
    jobs: Vec<Option<J>>,
    free: Vec<usize>,
    /// Up to when all has happened.
    now_ns: i64,
    started: u64,
    /// Longest wait of those that began to be worked on since it was last asked for.
    waited_ns: i64,
}

/// A request that is worked on: its end, its number for a stable order, and where the job is.
type Work = (i64, u64, usize);

/// A request that does not fit in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

// === impl Model ===

impl<J> Model<J> {
    pub(super) fn new(spec: DependencySpec, seed: u64) -> Self {
        Self {
            spec,
            random: Random::new(seed),
            start_ns: None,
            waiting: VecDeque::new(),
            working: BinaryHeap::new(),
            jobs: Vec::new(),
            free: Vec::new(),
            now_ns: i64::MIN,
            started: 0,
            waited_ns: 0,
        }
    }

    /// The script begins at this time.
    pub(super) const fn start(&mut self, at_ns: i64) {
        self.start_ns = Some(at_ns);
    }

    pub(super) const fn spec(&self) -> &DependencySpec {
        &self.spec
    }

    /// Milliseconds into the script.
    pub(super) fn script_ms(&self, at_ns: i64) -> Option<u64> {
        let since_ns = at_ns.checked_sub(self.start_ns?)?;
        u64::try_from(since_ns.div_euclid(NANOS_PER_MS)).ok()
    }

    /// A request arrives. Call [`Self::advance`] up to then before.
    pub(super) fn arrive(&mut self, at_ns: i64, job: J) -> Result<(), Full> {
        if self.working.len() >= self.allowed(at_ns) && self.waiting.len() >= self.spec.queue {
            return Err(Full);
        }
        self.waiting.push_back((at_ns, job));
        self.employ(at_ns);
        Ok(())
    }

    /// Lets time pass: what has ended by then, in order, each with its own time.
    pub(super) fn advance(&mut self, until_ns: i64) -> Vec<(i64, J)> {
        let mut ended = Vec::new();
        while let Some(next_ns) = self.next_ns().filter(|next_ns| *next_ns <= until_ns) {
            while let Some(Reverse((end_ns, _, slot))) = self.working.peek().copied().filter(|work| work.0.0 <= next_ns)
            {
                self.working.pop();
                self.free.push(slot);
                ended.extend(self.jobs[slot].take().map(|job| (end_ns, job)));
            }
            self.employ(next_ns);
            self.now_ns = next_ns;
        }
        self.now_ns = self.now_ns.max(until_ns);
        ended
    }

    /// When something happens next by itself.
    pub(super) fn next_ns(&self) -> Option<i64> {
        let end = self.working.peek().map(|Reverse((end_ns, ..))| *end_ns);
        // More workers may be there after a step of the script.
        let change = if self.waiting.is_empty() { None } else { self.change_after(self.now_ns) };
        end.into_iter().chain(change).min()
    }

    /// Requests inside.
    pub(super) fn in_flight(&self) -> usize {
        self.working.len() + self.waiting.len()
    }

    pub(super) fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Longest wait since this was last asked, of those that began to be worked on and of the one that waits longest.
    pub(super) fn take_queue_age_ns(&mut self, at_ns: i64) -> i64 {
        let waits = self.waiting.front().map_or(0, |(since_ns, _)| at_ns.saturating_sub(*since_ns));
        std::mem::take(&mut self.waited_ns).max(waits)
    }

    fn change_after(&self, at_ns: i64) -> Option<i64> {
        let start_ns = self.start_ns?;
        let at = |ms: u64| i64::try_from(ms).ok()?.checked_mul(NANOS_PER_MS)?.checked_add(start_ns);
        let changes = self.spec.script.iter().flat_map(|step| [Some(step.at_ms()), step.until_ms()]);
        changes.flatten().filter_map(at).filter(|change_ns| *change_ns > at_ns).min()
    }

    /// Workers at a time.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    fn allowed(&self, at_ns: i64) -> usize {
        let part = self.script_ms(at_ns).map_or(1.0, |ms| self.spec.steps_at(ms).map(|step| step.capacity).product());
        (f64::from(self.spec.workers) * part).round() as usize
    }

    /// Gives work to those that are free.
    fn employ(&mut self, at_ns: i64) {
        let allowed = self.allowed(at_ns);
        while self.working.len() < allowed
            && let Some((since_ns, job)) = self.waiting.pop_front()
        {
            self.waited_ns = self.waited_ns.max(at_ns.saturating_sub(since_ns));
            let end_ns = at_ns.saturating_add(self.service_ns(at_ns));
            let slot = self.free.pop().unwrap_or_else(|| {
                self.jobs.push(None);
                self.jobs.len() - 1
            });
            self.jobs[slot] = Some(job);
            self.started += 1;
            self.working.push(Reverse((end_ns, self.started, slot)));
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "times are small, counts too")]
    fn service_ns(&mut self, at_ns: i64) -> i64 {
        let mean = self.spec.service().as_secs_f64();
        let drawn = match self.spec.spread {
            Some(spread) => mean * (1.0 + spread * (2.0 * self.random.share() - 1.0)),
            None => self.random.exponential(mean),
        };
        let slow: f64 = self.script_ms(at_ns).map_or(1.0, |ms| self.spec.steps_at(ms).map(|step| step.slow).product());
        let filled = self.waiting.len() as f64 / self.spec.queue.max(1) as f64;
        (drawn * slow * (1.0 + self.spec.slowdown * filled) * 1e9) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn model(more: &str) -> Model<u32> {
        let text = format!("workers = 2\nservice = \"10ms\"\nspread = 0.0\nqueue = 3\n{more}");
        Model::new(toml::from_str(&text).expect("valid"), 1)
    }

    fn ends(model: &mut Model<u32>, until_ms: i64) -> Vec<(i64, u32)> {
        model.advance(until_ms * MS).into_iter().map(|(at_ns, job)| (at_ns / MS, job)).collect()
    }

    #[test]
    fn two_at_a_time_three_wait_and_the_sixth_does_not_fit() {
        let mut model = model("");
        for job in 0..5 {
            assert_eq!(model.arrive(0, job), Ok(()));
        }
        assert_eq!(model.arrive(0, 5), Err(Full));
        assert_eq!((model.in_flight(), model.queued()), (5, 3));
        assert_eq!(ends(&mut model, 9), []);
        assert_eq!(ends(&mut model, 10), [(10, 0), (10, 1)]);
        assert_eq!(ends(&mut model, 100), [(20, 2), (20, 3), (30, 4)]);
        assert_eq!(model.take_queue_age_ns(100 * MS), 20 * MS);
        assert_eq!(model.next_ns(), None);
    }

    /// However late it is looked at, the capacity is the same.
    #[test]
    fn being_woken_late_costs_no_capacity() {
        let (mut early, mut late) = (model("slowdown = 1.0"), model("slowdown = 1.0"));
        let mut seen = Vec::new();
        for job in 0..5 {
            early.arrive(0, job).expect("fits");
            late.arrive(0, job).expect("fits");
        }
        for ms in 1..200 {
            seen.extend(early.advance(ms * MS));
        }
        assert_eq!(late.advance(200 * MS), seen);
    }

    #[test]
    fn the_script_takes_workers_away_and_gives_them_back() {
        let step = "[[script]]\nat = \"100ms\"\nuntil = \"200ms\"\nlabel = \"cut\"\ncapacity = 0.0\n";
        let mut model = model(step);
        model.start(0);
        model.advance(150 * MS);
        for job in 0..2 {
            model.arrive(150 * MS, job).expect("fits");
        }
        assert_eq!(ends(&mut model, 199), []);
        assert_eq!(ends(&mut model, 210), [(210, 0), (210, 1)]);
    }

    #[test]
    fn the_script_slows_down_what_begins_under_it() {
        let mut model = model("[[script]]\nat = \"5ms\"\nlabel = \"slow\"\nslow = 3.0\n");
        model.start(0);
        model.arrive(0, 0).expect("fits");
        model.advance(5 * MS);
        model.arrive(5 * MS, 1).expect("fits");
        assert_eq!(ends(&mut model, 100), [(10, 0), (35, 1)]);
    }
}
