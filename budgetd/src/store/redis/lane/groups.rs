//! What waits in a lane, by dependency.

use std::collections::{HashMap, VecDeque};

use budget::ids::DependencyId;

use crate::store::redis::queue::Waiting;

/// Work by dependency, in order of arrival; dependencies take turns.
#[derive(Default)]
pub(super) struct Groups {
    waiting: HashMap<DependencyId, VecDeque<Waiting>>,
    /// Those with work, the one to be served next in front.
    turns: VecDeque<DependencyId>,
}

// === impl Groups ===

impl Groups {
    /// How many dependencies have work.
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn push(&mut self, dependency: DependencyId, waiting: Waiting) {
        match self.waiting.get_mut(&dependency) {
            Some(group) => group.push_back(waiting),
            None => {
                self.turns.push_back(dependency.clone());
                self.waiting.insert(dependency, VecDeque::from([waiting]));
            }
        }
    }

    /// Serves the dependency whose turn it is: `serve` takes what it can of its work. With work left it has another turn
    /// behind all others. None: there is no work.
    pub(super) fn serve<T>(&mut self, serve: impl FnOnce(&DependencyId, &mut VecDeque<Waiting>) -> T) -> Option<T> {
        let dependency = self.turns.pop_front()?;
        let group = self.waiting.get_mut(&dependency)?;
        let served = serve(&dependency, group);
        if group.is_empty() {
            self.waiting.remove(&dependency);
        } else {
            self.turns.push_back(dependency);
        }
        Some(served)
    }
}
