//! Names of cost units. A [`UnitId`] is a hash of its name, so whoever writes a message needs the names beside it.

use budget::{decision::Cost, ids::UnitId};

use crate::InvalidMessage;

/// The names behind some [`UnitId`]s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitNames(Vec<(UnitId, Box<str>)>);

// === impl UnitNames ===

impl UnitNames {
    /// Judges and keeps names. A name given twice is kept once.
    ///
    /// # Errors
    /// If a name is empty, longer than 64 bytes or has a control character.
    pub fn new<N: Into<Box<str>>>(names: impl IntoIterator<Item = N>) -> Result<Self, InvalidMessage> {
        let mut kept = Self::default();
        for name in names {
            let name = name.into();
            let id = UnitId::of(&name).map_err(|rule| InvalidMessage::text("unit", &name, rule.to_string()))?;
            kept.insert(id, name);
        }
        Ok(kept)
    }

    pub(crate) fn insert(&mut self, id: UnitId, name: impl Into<Box<str>>) {
        if self.name(id).is_none() {
            self.0.push((id, name.into()));
        }
    }

    /// Whether all of `others` are among these.
    #[must_use]
    pub fn has(&self, others: &Self) -> bool {
        others.0.iter().all(|(id, _)| self.name(*id).is_some())
    }

    /// These and `others`.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        let mut all = self.clone();
        for (id, name) in &others.0 {
            all.insert(*id, name.clone());
        }
        all
    }

    /// The name of a unit, if it is among these.
    #[must_use]
    pub fn name(&self, id: UnitId) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == id).map(|(_, name)| &**name)
    }

    /// An amount of a unit that is among these.
    #[must_use]
    pub fn cost(&self, name: &str, amount_micros: i64) -> Option<Cost> {
        let (unit, _) = self.0.iter().find(|(_, known)| **known == *name)?;
        Some(Cost { unit: *unit, amount_micros })
    }
}
