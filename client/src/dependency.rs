//! The callee a call is about, and the cost units it is spoken of in.

use std::sync::{Arc, LazyLock};

use budget::{decision::Cost, ids::DependencyId};
use budget_proto::{InvalidMessage, UnitNames};

/// Most dependencies have no cost units of their own.
static NO_UNITS: LazyLock<Arc<UnitNames>> = LazyLock::new(Arc::default);

/// A dependency and the names of its cost units; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    id: DependencyId,
    units: Arc<UnitNames>,
}

// === impl Dependency ===

impl Dependency {
    /// A dependency without further cost units.
    ///
    /// # Errors
    /// If the name is empty, longer than 256 bytes, ends in `*` or has a control character.
    pub fn new(name: &str) -> Result<Self, InvalidMessage> {
        budget_proto::convert::dependency("dependency", name).map(Self::from)
    }

    /// The same with the units that [`Self::cost`] and the costs of calls may name.
    ///
    /// # Errors
    /// If a name is empty, longer than 64 bytes or has a control character.
    pub fn with_units<N: Into<Box<str>>>(self, names: impl IntoIterator<Item = N>) -> Result<Self, InvalidMessage> {
        Ok(Self { units: Arc::new(UnitNames::new(names)?), ..self })
    }

    /// An amount of one of its units; none if the name was not given to [`Self::with_units`].
    #[must_use]
    pub fn cost(&self, unit: &str, amount_micros: i64) -> Option<Cost> {
        self.units.cost(unit, amount_micros)
    }

    /// The same with these units instead.
    #[must_use]
    pub(crate) fn knowing(&self, units: Arc<UnitNames>) -> Self {
        Self { id: self.id.clone(), units }
    }

    pub(crate) const fn shared_units(&self) -> &Arc<UnitNames> {
        &self.units
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &DependencyId {
        &self.id
    }

    /// Names of its units.
    #[must_use]
    pub fn units(&self) -> &UnitNames {
        &self.units
    }
}

impl From<DependencyId> for Dependency {
    fn from(id: DependencyId) -> Self {
        Self { id, units: Arc::clone(&NO_UNITS) }
    }
}
