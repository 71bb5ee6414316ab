//! A list that is nearly always short: its first items are in place, so that whoever reads their owner has read them too.

/// Up to `IN_PLACE` items without an allocation of their own, further ones behind one.
#[derive(Clone, Debug)]
pub(crate) struct Few<T, const IN_PLACE: usize> {
    /// Filled from the front.
    first: [Option<T>; IN_PLACE],
    /// Empty unless `first` is full.
    more: Box<[T]>,
}

impl<T, const IN_PLACE: usize> Default for Few<T, IN_PLACE> {
    fn default() -> Self {
        Self { first: [const { None }; IN_PLACE], more: Box::default() }
    }
}

// === impl Few ===

impl<T, const IN_PLACE: usize> Few<T, IN_PLACE> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().flatten().chain(&self.more)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().flatten().chain(&mut self.more)
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.iter().last()
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        self.iter_mut().last()
    }

    pub(crate) fn push(&mut self, item: T) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(item),
            None => self.more = std::mem::take(&mut self.more).into_iter().chain([item]).collect(),
        }
    }

    pub(crate) fn push_front(&mut self, item: T) {
        let mut rest = std::mem::take(self);
        self.push(item);
        rest.drain().for_each(|item| self.push(item));
    }

    /// Keeps those that `keep` says.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        if !self.iter().all(&keep) {
            let mut all = std::mem::take(self);
            all.drain().filter(|item| keep(item)).for_each(|item| self.push(item));
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn drain(&mut self) -> impl Iterator<Item = T> {
        self.first.iter_mut().filter_map(Option::take).chain(std::mem::take(&mut self.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(items: impl IntoIterator<Item = u8>) -> Few<u8, 2> {
        let mut few = Few::default();
        items.into_iter().for_each(|item| few.push(item));
        few
    }

    #[track_caller]
    fn check(few: &Few<u8, 2>, items: &[u8]) {
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), items);
        assert_eq!((few.len(), few.is_empty(), few.last()), (items.len(), items.is_empty(), items.last()));
        assert_eq!(few.more.len(), items.len().saturating_sub(2), "in place what fits there");
    }

    #[test]
    fn items_keep_their_order_however_many_there_are() {
        for count in 0..6 {
            let items: Vec<u8> = (1..=count).collect();
            check(&of(items.clone()), &items);
            let mut few = of(items.clone());
            few.push_front(0);
            check(&few, &(0..=count).collect::<Vec<_>>());
            few.iter_mut().for_each(|item| *item += 1);
            check(&few, &(1..=count + 1).collect::<Vec<_>>());
            few.clear();
            check(&few, &[]);
        }
    }

    #[test]
    fn what_is_not_kept_leaves_no_gap() {
        for kept in 0_u8..32 {
            let keep = |item: &u8| kept >> item & 1 == 1;
            let mut few = of(0..5);
            few.retain(keep);
            check(&few, &(0..5).filter(keep).collect::<Vec<_>>());
        }
    }
}
