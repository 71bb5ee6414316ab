//! TEMPORARY stand-in.
use crate::rng::Rng;
use crate::time::{MS, S};
use budget::{decision::*, lease::*};
use std::cell::RefCell;

pub(crate) enum Action {
    Send(SyncAsk),
    Wait { until_ns: i64 },
}
#[derive(Clone, Debug)]
pub(crate) struct Spent {
    until: i64,
    beyond: bool,
}
pub(crate) enum Local {
    Admitted(Spent),
    Denied,
    Short,
}
pub(crate) struct LocalAsk<'a> {
    pub attempt: Attempt,
    pub priority: Priority,
    pub costs: &'a [Cost],
}
#[derive(Clone, Debug)]
struct Lease {
    name: LeaseName,
    value: Amounts,
    curve: Curve,
    start: i64,
}
#[derive(Clone)]
struct Hot {
    lease: Option<Lease>,
    at: i64,
    adm: i64,
    retry: i64,
    usage: Usage,
    ratio: i64,
}
#[derive(Clone)]
pub(crate) struct Share {
    hot: RefCell<Hot>,
}
#[derive(Clone)]
pub(crate) struct Holder {
    id: HolderId,
    inc: Incarnation,
    weight: i64,
    rng: Rng,
    epoch: Epoch,
    seq: i64,
    out: Option<(SyncAsk, i64)>,
    next: i64,
    share: Share,
    counted: Usage,
    fenced: bool,
    leave: bool,
}

impl Hot {
    fn turn(&mut self, now: i64) {
        loop {
            let Some(lease) = &self.lease else {
                self.at = now;
                return;
            };
            let pos = (self.at - lease.start).div_euclid(MS);
            let Some((step, end)) = lease.curve.at(pos) else {
                self.lease = None;
                self.adm = 0;
                self.retry = 0;
                continue;
            };
            let end = lease.start + end * MS;
            let part = lease.value.step(step);
            let to = now.min(end);
            self.adm =
                (self.adm + (i128::from(part.rate) * i128::from(to - self.at) / i128::from(S)) as i64).min(part.burst);
            self.retry = self.retry.min(part.retry_burst);
            self.at = to;
            if let Some((next, _)) = lease.curve.at((end - lease.start) / MS) {
                if to == end {
                    let part = lease.value.step(next);
                    self.adm = self.adm.min(part.burst);
                    self.retry = self.retry.min(part.retry_burst);
                }
            }
            if to == now && now < end {
                return;
            }
        }
    }
    fn end(&self) -> (i64, Amounts) {
        let lease = self.lease.as_ref().unwrap();
        let (step, end) = lease.curve.at((self.at - lease.start).div_euclid(MS)).unwrap();
        (lease.start + end * MS, lease.value.step(step))
    }
}
impl Share {
    pub(crate) fn reserve(&self, now: i64, ask: &LocalAsk<'_>) -> Local {
        let mut hot = self.hot.borrow_mut();
        if now - hot.at > 50_000 || hot.lease.is_none() {
            hot.turn(now);
        }
        hot.usage.asked += 1;
        if hot.lease.is_none() {
            return Local::Short;
        }
        let (until, part) = hot.end();
        let retry = ask.attempt.is_retry();
        if hot.adm < 1_000_000 || (retry && hot.retry < 1_000_000) {
            return Local::Short;
        }
        hot.adm -= 1_000_000;
        if retry {
            hot.retry -= 1_000_000;
            hot.usage.retries_admitted += 1
        } else {
            hot.usage.originals_admitted += 1;
            hot.retry = (hot.retry + hot.ratio).min(part.retry_burst)
        }
        Local::Admitted(Spent { until, beyond: false })
    }
    pub(crate) fn reserve_beyond(&self, _: i64, _: &LocalAsk<'_>) -> Local {
        Local::Denied
    }
    pub(crate) fn check(&self, spent: &Spent, now: i64) -> bool {
        now < spent.until
    }
    pub(crate) fn hand_back(&self, _: Spent, _: i64) {}
    pub(crate) fn settle(&self, _: Spent, _: i64, _: Outcome, _: &[Cost]) {}
}
impl Spent {
    pub fn is_beyond(&self) -> bool {
        self.beyond
    }
}
impl Holder {
    pub(crate) fn new(id: HolderId, inc: Incarnation, weight: i64, _t: Timing, seed: u64) -> Self {
        let hot = Hot { lease: None, at: 0, adm: 0, retry: 0, usage: Usage::default(), ratio: 0 };
        Self {
            id,
            inc,
            weight,
            rng: Rng::new(seed),
            epoch: Epoch::default(),
            seq: 0,
            out: None,
            next: 0,
            share: Share { hot: RefCell::new(hot) },
            counted: Usage::default(),
            fenced: false,
            leave: false,
        }
    }
    pub(crate) fn share(&self) -> &Share {
        &self.share
    }
    pub(crate) fn poll(&mut self, now: i64) -> Action {
        if now < self.next {
            return Action::Wait { until_ns: self.next };
        }
        self.share.hot.borrow_mut().turn(now);
        if let Some((ask, _)) = &self.out {
            self.next = now + self.rng.between(700, 1500) * MS;
            return Action::Send(ask.clone());
        }
        self.seq += 1;
        let hot = self.share.hot.borrow();
        let lease = hot.lease.as_ref().map(|l| Presented {
            name: l.name,
            value: l.value.clone(),
            curve: l.curve.clone(),
            position_ms: (now - l.start) / MS,
        });
        let ask = SyncAsk {
            holder: self.id.clone(),
            incarnation: self.inc,
            sequence: self.seq,
            nonce: self.rng.between(1, 1 << 50),
            epoch: self.epoch,
            lease,
            usage: hot.usage.clone(),
            counted: self.counted.clone(),
            in_flight: 0,
            weight: self.weight,
            leave: self.leave,
        };
        self.next = now + self.rng.between(700, 1500) * MS;
        self.out = Some((ask.clone(), now));
        Action::Send(ask)
    }
    pub(crate) fn on_answer(&mut self, now: i64, seq: i64, nonce: i64, answer: &SyncAnswer, rules: Option<&Rules>) {
        let Some((ask, sent)) = &self.out else { return };
        if ask.sequence != seq || ask.nonce != nonce {
            return;
        }
        let sent = *sent;
        if let Some(r) = rules {
            self.share.hot.borrow_mut().ratio = r.deposit_micros;
        }
        let counted = ask.usage.clone();
        self.share.hot.borrow_mut().turn(now);
        match answer {
            SyncAnswer::Granted(g) => {
                let mut hot = self.share.hot.borrow_mut();
                let higher =
                    hot.lease.as_ref().is_none_or(|l| g.name.epoch.supersedes(l.name.epoch) || g.name > l.name);
                if higher && !self.epoch.supersedes(g.name.epoch) {
                    let start = sent - g.position_ms * MS;
                    hot.lease = Some(Lease { name: g.name, value: g.value.clone(), curve: g.curve.clone(), start });
                    hot.at = hot.at.max(start);
                    hot.turn(now);
                    if hot.lease.is_some() {
                        let (_, part) = hot.end();
                        hot.adm = (hot.adm.min(part.burst) + g.moved.burst).min(part.burst);
                        hot.retry = (hot.retry.min(part.retry_burst) + g.moved.retry_burst).min(part.retry_burst);
                    }
                }
                self.next = now + self.rng.between(4000, 6000) * MS;
            }
            SyncAnswer::Epoch(e) => {
                if e.supersedes(self.epoch) && e.number >= self.epoch.number {
                    self.epoch = *e
                }
                self.next = now + self.rng.between(1, 100) * MS
            }
            SyncAnswer::Wait(ms) => self.next = now + ms * MS,
            SyncAnswer::Dead => self.next = now + self.rng.between(1, 1000) * MS,
            SyncAnswer::Fenced => {
                self.fenced = true;
            }
            _ => self.next = now + 4000 * MS,
        }
        self.out = None;
        self.counted = counted;
    }
    pub(crate) fn fenced(&self) -> bool {
        self.fenced
    }
    pub(crate) fn reincarnate(&mut self, inc: Incarnation) {
        self.inc = inc;
        self.seq = 0;
        self.fenced = false;
        self.next = 0;
        self.share.hot.borrow_mut().lease = None;
        self.share.hot.borrow_mut().usage = Usage::default();
        self.counted = Usage::default();
    }
    pub(crate) fn leave(&mut self) {
        self.leave = true;
        self.next = 0;
    }
    pub(crate) fn state(&self) -> String {
        String::new()
    }
    pub(crate) fn held(&self) -> Option<(LeaseName, Amounts, Curve, i64)> {
        self.share.hot.borrow().lease.as_ref().map(|l| (l.name, l.value.clone(), l.curve.clone(), l.start))
    }
}
