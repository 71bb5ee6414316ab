//! The policies in force, compiled once per change: from a dependency's name to its numbers in a few look-ups.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use budget::{
    ids::{DependencyId, PolicyVersion},
    policy::{Numbers, Policy},
};

use super::{
    By, Managed,
    fields::UnknownDependencies,
    former::Former,
    set::{DEFAULTS, PolicySet},
    text::Quoted,
};

/// Metric label of all dependencies that no rule names.
const OTHER: &str = "other";

/// What one dependency runs under.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Of all policies.
    pub version: PolicyVersion,
    /// The policy compiled.
    pub numbers: Arc<Numbers>,
    /// The policy.
    pub policy: Arc<Policy>,
    /// The rule it comes from: a name, a pattern ending in `*`, or `defaults`.
    pub rule: Arc<str>,
    /// A rule has exactly this name, so the ledger's state never expires.
    pub named: bool,
    /// An operator has switched retries off.
    pub retries_off: bool,
    /// The metric label: the rule, or `other`.
    pub label: Arc<str>,
    /// Position of the label in [`Snapshot::labels`]; 0 is `other`.
    pub label_index: usize,
}

/// Where retries are switched off: names, patterns ending in `*`, and `*` for everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches(BTreeMap<Arc<str>, Switch>);

/// One kill switch that is thrown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// Since when, by the store's clock.
    pub at_ms: i64,
    /// Until when; none: until somebody switches retries on.
    pub until_ms: Option<i64>,
    /// By whom, and their reason.
    pub by: By,
}

/// All rules and switches of one version. Never changes.
#[derive(Debug)]
pub struct Snapshot {
    version: PolicyVersion,
    set: Arc<PolicySet>,
    switches: Switches,
    exact: HashMap<Arc<str>, Arc<Resolved>>,
    families: Prefixes<Pair>,
    defaults: Pair,
    off_families: Prefixes<Arc<str>>,
    labels: Vec<Arc<str>>,
    managed: Arc<Managed>,
    refusal: Option<String>,
    former: Former,
}

/// With retries on, and with retries off.
#[derive(Clone, Debug)]
struct Pair {
    on: Arc<Resolved>,
    off: Arc<Resolved>,
}

/// Patterns by the part before their `*`.
#[derive(Debug)]
struct Prefixes<T> {
    by_prefix: HashMap<Box<str>, T>,
    /// Distinct lengths of the prefixes, longest first: at most one look-up each.
    lengths: Vec<usize>,
}

// === impl Switches ===

impl Switches {
    /// Switches retries on for a target, or off by this switch. False: it was so already, but for the time it was done.
    pub fn set(&mut self, target: &str, switch: Option<Switch>) -> bool {
        let Some(switch) = switch else { return self.0.remove(target).is_some() };
        let same = |old: &Switch| (old.until_ms, &old.by) == (switch.until_ms, &switch.by);
        if self.0.get(target).is_some_and(same) {
            return false;
        }
        self.0.insert(target.into(), switch);
        true
    }

    /// The switch of exactly this target.
    #[must_use]
    pub fn get(&self, target: &str) -> Option<&Switch> {
        self.0.get(target)
    }

    /// All targets in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Switch)> {
        self.0.iter().map(|(target, switch)| (&**target, switch))
    }

    /// Those whose time is over at `now_ms`.
    #[must_use]
    pub fn ended(&self, now_ms: i64) -> Vec<String> {
        let ended = self.iter().filter(|(_, switch)| switch.until_ms.is_some_and(|until_ms| until_ms <= now_ms));
        ended.map(|(target, _)| target.to_owned()).collect()
    }

    /// The number of targets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Retries are on everywhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The widest other target by which retries stay off for everything that `target` means.
    #[must_use]
    pub fn wider(&self, target: &str) -> Option<&str> {
        let covers = |pattern: &str| pattern.strip_suffix('*').is_some_and(|prefix| target.starts_with(prefix));
        let others = self.0.keys().map(|pattern| &**pattern).filter(|pattern| *pattern != target);
        others.filter(|pattern| covers(pattern)).min_by_key(|pattern| pattern.len())
    }
}

impl<S: Into<Arc<str>>> FromIterator<(S, Switch)> for Switches {
    fn from_iter<I: IntoIterator<Item = (S, Switch)>>(switches: I) -> Self {
        Self(switches.into_iter().map(|(target, switch)| (target.into(), switch)).collect())
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Compiles all rules.
    #[must_use]
    pub fn new(version: PolicyVersion, set: Arc<PolicySet>, switches: Switches) -> Self {
        Self::remembering(version, set, switches, Former::default())
    }

    /// Compiles the rules that take the place of these: what leases of these may still be out is not forgotten.
    #[must_use]
    pub fn succeeded(&self, version: PolicyVersion, set: Arc<PolicySet>, switches: Switches, now_ms: i64) -> Self {
        // Before the first version nothing was in force.
        let none = self.version == PolicyVersion::default() || self.is_refusing();
        let former = if none { Former::default() } else { self.former.succeeded(&self.set, &set, now_ms) };
        Self::remembering(version, set, switches, former)
    }

    fn remembering(version: PolicyVersion, set: Arc<PolicySet>, switches: Switches, former: Former) -> Self {
        let families = switches.0.keys().filter_map(|target| Some((target.strip_suffix('*')?, Arc::clone(target))));
        let off_families = Prefixes::new(families);
        let timing = &set.timing().limits;
        let off = |name: &str| switches.get(name).is_some() || off_families.longest(name).is_some();

        let mut labels: Vec<Arc<str>> = vec![OTHER.into()];
        let mut exact = HashMap::new();
        let mut families = Vec::new();
        for (name, rule) in set.rules().filter(|(name, _)| ***name != *DEFAULTS) {
            // A dependency that is itself called "other" shares the label, as it would share the metric.
            let label_index = if **name == *OTHER { 0 } else { labels.len() };
            if label_index > 0 {
                labels.push(Arc::clone(name));
            }
            let resolved = |retries_off: bool, named: bool| {
                let numbers = rule.policy.numbers_timed(retries_off, named, timing);
                Arc::new(Resolved {
                    version,
                    numbers: Arc::new(former.remember(name, &rule.policy, timing, numbers)),
                    policy: Arc::clone(&rule.policy),
                    rule: Arc::clone(name),
                    named,
                    retries_off,
                    label: Arc::clone(name),
                    label_index,
                })
            };
            match name.strip_suffix('*') {
                Some(prefix) => {
                    families.push((prefix, Pair { on: resolved(false, false), off: resolved(true, false) }))
                }
                None => drop(exact.insert(Arc::clone(name), resolved(off(name), true))),
            }
        }
        let families = Prefixes::new(families.into_iter());
        let resolved = |retries_off: bool| {
            let numbers = set.defaults().numbers_timed(retries_off, false, timing);
            Arc::new(Resolved {
                version,
                numbers: Arc::new(former.remember(DEFAULTS, set.defaults(), timing, numbers)),
                policy: Arc::clone(set.defaults()),
                rule: DEFAULTS.into(),
                named: false,
                retries_off,
                label: OTHER.into(),
                label_index: 0,
            })
        };
        let defaults = Pair { on: resolved(false), off: resolved(true) };
        Self {
            version,
            set,
            switches,
            exact,
            families,
            defaults,
            off_families,
            labels,
            managed: Arc::default(),
            refusal: None,
            former,
        }
    }

    /// With what is known of rules beside their texts.
    #[must_use]
    pub fn with_managed(self, managed: Arc<Managed>) -> Self {
        Self { managed, ..self }
    }

    /// Which rules come from files, and which are overridden.
    #[must_use]
    pub const fn managed(&self) -> &Arc<Managed> {
        &self.managed
    }

    /// No policy is known to be in force, so every dependency is refused.
    pub(super) fn refusing(why: &str) -> Self {
        let none = Self::new(PolicyVersion::default(), Arc::default(), Switches::default());
        Self { refusal: Some(why.to_owned()), ..none }
    }

    pub(super) const fn is_refusing(&self) -> bool {
        self.refusal.is_some()
    }

    /// Of all policies.
    #[must_use]
    pub const fn version(&self) -> PolicyVersion {
        self.version
    }

    /// What a dependency runs under: the rule of its name, else of the longest prefix, else the defaults.
    ///
    /// # Errors
    /// If no rule names it and the defaults refuse such dependencies; the text names that rule.
    pub fn resolve(&self, dependency: &DependencyId) -> Result<Arc<Resolved>, String> {
        if let Some(why) = &self.refusal {
            return Err(why.clone());
        }
        let name = dependency.as_str();
        if let Some(resolved) = self.exact.get(name) {
            return Ok(Arc::clone(resolved));
        }
        let pair = match (self.families.longest(name), self.set.unknown_dependencies()) {
            (Some(family), _) => family,
            (None, UnknownDependencies::Defaults) => &self.defaults,
            (None, UnknownDependencies::Refuse) => {
                let name = Quoted(name);
                return Err(format!("no rule names dependency {name} and defaults.unknown_dependencies is \"refuse\""));
            }
        };
        Ok(Arc::clone(if self.retries_off(name) { &pair.off } else { &pair.on }))
    }

    fn retries_off(&self, name: &str) -> bool {
        self.switches.get(name).is_some() || self.off_families.longest(name).is_some()
    }

    /// The kill switch by which a dependency's retries are off, and its target; of several, the narrowest.
    #[must_use]
    pub fn switch_of(&self, dependency: &DependencyId) -> Option<(&str, &Switch)> {
        let (target, switch) = match self.switches.0.get_key_value(dependency.as_str()) {
            Some(own) => own,
            None => self.switches.0.get_key_value(self.off_families.longest(dependency.as_str())?)?,
        };
        Some((target, switch))
    }

    /// All rules, validated.
    #[must_use]
    pub const fn set(&self) -> &Arc<PolicySet> {
        &self.set
    }

    /// Where retries are switched off.
    #[must_use]
    pub const fn switches(&self) -> &Switches {
        &self.switches
    }

    /// The text of a rule as it was written; none if there is no rule of exactly this name.
    #[must_use]
    pub fn source(&self, rule: &str) -> Option<&Arc<str>> {
        self.set.rule(rule).map(|rule| &rule.source)
    }

    /// All metric labels by their index.
    #[must_use]
    pub fn labels(&self) -> &[Arc<str>] {
        &self.labels
    }
}

// === impl Prefixes ===

impl<T> Prefixes<T> {
    fn new<'a>(entries: impl Iterator<Item = (&'a str, T)>) -> Self {
        let by_prefix: HashMap<Box<str>, T> = entries.map(|(prefix, value)| (prefix.into(), value)).collect();
        let lengths: BTreeSet<usize> = by_prefix.keys().map(|prefix| prefix.len()).collect();
        Self { by_prefix, lengths: lengths.into_iter().rev().collect() }
    }

    /// The entry of the longest prefix of a name.
    fn longest(&self, name: &str) -> Option<&T> {
        let prefixes = self.lengths.iter().filter_map(|length| name.get(..*length));
        prefixes.filter_map(|prefix| self.by_prefix.get(prefix)).next()
    }
}
