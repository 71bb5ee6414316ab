//! All rules of a namespace, each valid together with what it inherits.

use std::{collections::BTreeMap, sync::Arc};

use budget::{
    ids::{DependencyId, InvalidId},
    policy::Policy,
};
use toml::de::DeTable;

use super::{
    RULES_MAX, TEXT_BYTES_MAX,
    fields::{Fields, UnknownDependencies},
    sources::{Sources, flat},
    text::{Field, InvalidText, Key, Quoted, Reading},
};
use crate::config::LeaseTiming;

/// The name under which `[defaults]` is stored, changed and shown.
pub const DEFAULTS: &str = "defaults";

/// All rules, validated.
#[derive(Clone, Debug)]
pub struct PolicySet {
    rules: BTreeMap<Arc<str>, Rule>,
    default_fields: Fields,
    defaults: Arc<Policy>,
    timing: LeaseTiming,
}

/// One rule: [`DEFAULTS`], a dependency, or a family ending in `*`.
#[derive(Clone, Debug)]
pub struct Rule {
    /// As it was written, without its heading.
    pub source: Arc<str>,
    /// With everything it inherits.
    pub policy: Arc<Policy>,
}

// === impl PolicySet ===

impl Default for PolicySet {
    fn default() -> Self {
        Self::timed(LeaseTiming::default())
    }
}

impl PolicySet {
    /// No rules, to be judged with these time limits of leases.
    #[must_use]
    pub fn timed(timing: LeaseTiming) -> Self {
        let fields = Fields::default();
        let policy = fields.policy(&fields).expect("built-in defaults are valid");
        Self { rules: BTreeMap::new(), default_fields: fields, defaults: Arc::new(policy), timing }
    }

    /// Reads a policy file's text; `origin` is its name in errors.
    ///
    /// # Errors
    /// The first thing in the text that breaks a rule.
    pub fn parse(origin: &str, text: &str) -> Result<Self, InvalidText> {
        Self::parse_timed(origin, text, LeaseTiming::default())
    }

    /// As [`Self::parse`], with other time limits of leases.
    ///
    /// # Errors
    /// The first thing in the text that breaks a rule.
    pub fn parse_timed(origin: &str, text: &str, timing: LeaseTiming) -> Result<Self, InvalidText> {
        Self::parse_files(&[(origin, text)], timing).map(|(set, _)| set)
    }

    /// Reads the texts of several files as if they were one; each comes with its name. Returns also the position of the
    /// text in which each rule stands.
    ///
    /// # Errors
    /// The first thing in the texts that breaks a rule. A rule written in two of them names both.
    pub(super) fn parse_files(texts: &[(&str, &str)], timing: LeaseTiming) -> Result<(Self, Origins), InvalidText> {
        let readings = texts.iter().map(|(origin, text)| Reading { origin, text });
        let documents: Vec<_> =
            readings.map(|reading| reading.parse().map(|document| (reading, document))).collect::<Result<_, _>>()?;
        let documents: Vec<_> = documents.iter().map(|(reading, document)| (*reading, document.get_ref())).collect();
        let fields: Vec<_> = documents.iter().map(|(reading, root)| reading.fields(root)).collect();
        let mut set = Self::timed(timing);
        let mut origins = Origins::new();
        // The defaults first, wherever they stand: everything else inherits them.
        for (at, ((reading, root), fields)) in documents.iter().zip(&fields).enumerate() {
            for field in fields {
                match field.key {
                    DEFAULTS => {
                        enter(&mut origins, texts, field, at)?;
                        set.parse_defaults(*reading, root, field)?;
                    }
                    "dependency" => {}
                    _ => return Err(field.unknown(&["[defaults]", "[dependency.\"name\"]"])),
                }
            }
        }
        for (at, ((reading, root), fields)) in documents.iter().zip(&fields).enumerate() {
            let sources = Sources::new(*reading, root);
            for table in fields.iter().filter(|field| field.key == "dependency") {
                for field in &table.fields()? {
                    judge_rule_name(field.key).map_err(|rule| field.refuse(rule))?;
                    enter(&mut origins, texts, field, at)?;
                    set.parse_rule(*reading, &sources, field)?;
                }
            }
        }
        Ok((set, origins))
    }

    fn parse_defaults(
        &mut self,
        reading: Reading<'_>,
        root: &DeTable<'_>,
        field: &Field<'_>,
    ) -> Result<(), InvalidText> {
        let heading = (reading, field.table()?, field.offset(), DEFAULTS);
        self.take_defaults(Fields::read(field.fields()?, true)?, heading)?;
        let sources = Sources::new(reading, root);
        let source = source(reading, &sources, DEFAULTS, &self.default_fields, field.table()?, true);
        self.rules.insert(DEFAULTS.into(), Rule { source: source.into(), policy: Arc::clone(&self.defaults) });
        Ok(())
    }

    fn parse_rule(
        &mut self,
        reading: Reading<'_>,
        sources: &Sources<'_>,
        field: &Field<'_>,
    ) -> Result<(), InvalidText> {
        self.judge_room(field)?;
        let fields = Fields::read(field.fields()?, false)?;
        let path = format!("dependency.{}", Key(field.key));
        let policy = self.policy(&fields, (reading, field.table()?, field.offset(), &path))?;
        let source = source(reading, sources, field.key, &fields, field.table()?, false);
        self.rules.insert(field.key.into(), Rule { source: source.into(), policy });
        Ok(())
    }

    /// Reads rules that are kept one by one. Those of `previous` whose text and defaults are the same are taken over, and
    /// so are its time limits.
    ///
    /// # Errors
    /// The first thing in a rule's text that breaks a rule.
    pub fn of_rules(rules: &BTreeMap<String, String>, previous: Option<&Self>) -> Result<Self, InvalidText> {
        let mut set = Self::timed(previous.map(|previous| previous.timing).unwrap_or_default());
        if let Some(text) = rules.get(DEFAULTS) {
            set.read_defaults(text)?;
        }
        let previous = previous.filter(|previous| previous.default_fields == set.default_fields);
        for (name, text) in rules.iter().filter(|(name, _)| *name != DEFAULTS) {
            match previous.and_then(|previous| previous.rules.get_key_value(name.as_str())) {
                Some((name, rule)) if *rule.source == **text => {
                    set.rules.insert(Arc::clone(name), rule.clone());
                }
                Some(_) | None => set.read_rule(name, text)?,
            }
        }
        set.judge_size()?;
        Ok(set)
    }

    /// This set with one rule's text replaced, or the rule removed.
    ///
    /// # Errors
    /// If the new text breaks a rule, or other rules do so under new defaults.
    pub fn with(&self, name: &str, text: Option<&str>) -> Result<Self, InvalidText> {
        if name == DEFAULTS {
            let mut rules = self.sources();
            match text {
                Some(text) => drop(rules.insert(name.to_owned(), text.to_owned())),
                None => drop(rules.remove(name)),
            }
            return Self::of_rules(&rules, Some(self));
        }
        let mut set = self.clone();
        match text {
            Some(text) => set.read_rule(name, text)?,
            None => drop(set.rules.remove(name)),
        }
        set.judge_size()?;
        Ok(set)
    }

    /// All rules in the order of their names, [`DEFAULTS`] among them if they were written.
    pub fn rules(&self) -> impl Iterator<Item = (&Arc<str>, &Rule)> {
        self.rules.iter()
    }

    /// The rule of exactly this name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.get(name)
    }

    /// The policy of dependencies that no rule names.
    #[must_use]
    pub const fn defaults(&self) -> &Arc<Policy> {
        &self.defaults
    }

    /// The time limits of leases that all were judged with.
    #[must_use]
    pub const fn timing(&self) -> &LeaseTiming {
        &self.timing
    }

    /// What becomes of dependencies that no rule names.
    #[must_use]
    pub fn unknown_dependencies(&self) -> UnknownDependencies {
        self.default_fields.unknown_dependencies()
    }

    /// Nothing was written, not even an empty `[defaults]`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Name and text of every rule.
    #[must_use]
    pub fn sources(&self) -> BTreeMap<String, String> {
        self.rules.iter().map(|(name, rule)| (name.to_string(), rule.source.to_string())).collect()
    }

    fn read_defaults(&mut self, text: &str) -> Result<(), InvalidText> {
        let reading = Reading { origin: DEFAULTS, text };
        let document = reading.parse()?;
        let table = document.get_ref();
        let fields = Fields::read(reading.fields(table), true)?;
        self.take_defaults(fields, (reading, table, 0, ""))?;
        let policy = Arc::clone(&self.defaults);
        self.rules.insert(DEFAULTS.into(), Rule { source: text.into(), policy });
        Ok(())
    }

    fn read_rule(&mut self, name: &str, text: &str) -> Result<(), InvalidText> {
        let origin = format!("rule {}", Quoted(name));
        judge_rule_name(name).map_err(|rule| whole_text(&origin, "name", name, rule))?;
        let reading = Reading { origin: &origin, text };
        let document = reading.parse()?;
        let fields = Fields::read(reading.fields(document.get_ref()), false)?;
        let policy = self.policy(&fields, (reading, document.get_ref(), 0, ""))?;
        self.rules.insert(name.into(), Rule { source: text.into(), policy });
        Ok(())
    }

    fn take_defaults(&mut self, fields: Fields, place: Place<'_>) -> Result<(), InvalidText> {
        self.default_fields = fields;
        // As it applies to a rule that sets nothing itself.
        self.defaults = self.policy(&Fields::default(), place)?;
        Ok(())
    }

    fn policy(&self, fields: &Fields, place: Place<'_>) -> Result<Arc<Policy>, InvalidText> {
        let (reading, table, heading, prefix) = place;
        let judged = fields.policy(&self.default_fields).and_then(|policy| {
            self.timing.judge_policy(&policy)?;
            Ok(Arc::new(policy))
        });
        judged.map_err(|error| reading.locate(table, heading, prefix, error))
    }

    /// Rules but the defaults.
    fn named(&self) -> usize {
        self.rules.len() - usize::from(self.rules.contains_key(DEFAULTS))
    }

    fn judge_room(&self, field: &Field<'_>) -> Result<(), InvalidText> {
        if self.named() < RULES_MAX {
            return Ok(());
        }
        Err(field.refuse(format!("one rule too many, there must be at most {RULES_MAX}")))
    }

    fn judge_size(&self) -> Result<(), InvalidText> {
        if self.named() > RULES_MAX {
            let rule = format!("must be at most {RULES_MAX}");
            return Err(whole_text("policies", "number of rules", &self.named().to_string(), rule));
        }
        let bytes: usize = self.rules.iter().map(|(name, rule)| name.len() + rule.source.len()).sum();
        if bytes > TEXT_BYTES_MAX {
            let rule = format!("must be at most {TEXT_BYTES_MAX}");
            return Err(whole_text("policies", "number of bytes", &bytes.to_string(), rule));
        }
        Ok(())
    }
}

/// By rule: the position of the text it stands in.
pub(super) type Origins = BTreeMap<Arc<str>, usize>;

/// Remembers where a rule stands, unless it stands in another file as well.
fn enter(origins: &mut Origins, texts: &[(&str, &str)], field: &Field<'_>, at: usize) -> Result<(), InvalidText> {
    match origins.insert(field.key.into(), at) {
        None => Ok(()),
        Some(first) => {
            let (file, _) = texts[first];
            Err(field.refuse(format!("must be written once, and is written in {file} as well")))
        }
    }
}

/// Where a rule stands: the text, its table, where its heading begins, and the key above its fields.
type Place<'a> = (Reading<'a>, &'a DeTable<'a>, usize, &'a str);

/// The rule's own text; if it does not read back as the same rule (it was written without a heading, or in a shape that
/// the split does not know), its fields line by line.
fn source(
    reading: Reading<'_>,
    sources: &Sources<'_>,
    name: &str,
    fields: &Fields,
    table: &DeTable<'_>,
    defaults: bool,
) -> String {
    let text = sources.of(name);
    let split = Reading { origin: reading.origin, text: &text };
    let same = split.parse().is_ok_and(|document| {
        Fields::read(split.fields(document.get_ref()), defaults).is_ok_and(|read| read == *fields)
    });
    if same { text } else { flat(reading, table, "") }
}

fn whole_text(origin: &str, key: &str, value: &str, rule: impl Into<String>) -> InvalidText {
    InvalidText { origin: origin.into(), line: 1, key: key.into(), value: value.into(), rule: rule.into() }
}

/// Judges the name of a rule: a dependency, or a family ending in `*`. The family `*` is everything.
pub(super) fn judge_rule_name(name: &str) -> Result<(), String> {
    if name == DEFAULTS {
        return Err(format!("the name {DEFAULTS} is reserved for [{DEFAULTS}]"));
    }
    judge_pattern(name).map_err(|error| format!("the name {error}"))
}

/// Judges a dependency's name or a family's pattern.
pub(super) fn judge_pattern(pattern: &str) -> Result<(), InvalidId> {
    match pattern.strip_suffix('*') {
        Some("") => Ok(()),
        Some(prefix) => DependencyId::new(prefix).map(drop),
        None => DependencyId::new(pattern).map(drop),
    }
}
