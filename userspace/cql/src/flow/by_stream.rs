//! [`ByStream`]: something of each request that waits for its response.

use crate::hash::BuildSpread;
use crate::wire::header::StreamId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A table that once held a burst keeps room for this many requests. The Java driver has at most 1,024 of them on a connection
/// unless told otherwise.
pub(crate) const KEPT_CAPACITY: usize = 2048;

/// A table by stream. The first entry has a place of its own, so that a request that is alone on its connection takes no
/// look into a hash table, as with clients that wait for each answer.
#[derive(Debug)]
pub(crate) struct ByStream<T> {
    first: Option<(StreamId, T)>,
    /// The others.
    further: HashMap<i16, T, BuildSpread>,
}

impl<T> Default for ByStream<T> {
    fn default() -> Self {
        Self {
            first: None,
            further: HashMap::default(),
        }
    }
}

impl<T> ByStream<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.further.len()
    }

    /// Enters something where nothing is. Gives it back where something is.
    #[inline]
    pub(crate) fn insert_new(&mut self, stream: StreamId, entry: T) -> Result<(), T> {
        match &self.first {
            Some((id, _)) if *id == stream => Err(entry),
            None if self.further.is_empty() => {
                self.first = Some((stream, entry));
                Ok(())
            }
            _ => match self.further.entry(stream.0) {
                Entry::Vacant(free) => {
                    free.insert(entry);
                    Ok(())
                }
                Entry::Occupied(_) => Err(entry),
            },
        }
    }

    /// Enters something. Returns what was there before.
    #[inline]
    pub(crate) fn insert(&mut self, stream: StreamId, entry: T) -> Option<T> {
        match &mut self.first {
            Some((id, first)) if *id == stream => Some(std::mem::replace(first, entry)),
            None if self.further.is_empty() => {
                self.first = Some((stream, entry));
                None
            }
            _ => self.further.insert(stream.0, entry),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut T> {
        match &mut self.first {
            Some((id, first)) if *id == stream => Some(first),
            _ if self.further.is_empty() => None,
            _ => self.further.get_mut(&stream.0),
        }
    }

    /// Takes an entry out.
    #[inline]
    pub(crate) fn remove(&mut self, stream: StreamId) -> Option<T> {
        if let Some((_, first)) = self.first.take_if(|(id, _)| *id == stream) {
            return Some(first);
        }
        match self.further.is_empty() {
            true => None,
            false => self.remove_further(stream),
        }
    }

    #[inline]
    fn remove_further(&mut self, stream: StreamId) -> Option<T> {
        let entry = self.further.remove(&stream.0);
        if self.further.is_empty() && self.further.capacity() > 2 * KEPT_CAPACITY {
            self.further.shrink_to(KEPT_CAPACITY);
        }
        entry
    }

    /// Takes all out, and gives their room back. In no order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (StreamId, T)> {
        let further = std::mem::take(&mut self.further).into_iter();
        let further = further.map(|(id, entry)| (StreamId(id), entry));
        self.first.take().into_iter().chain(further)
    }

    /// The number of entries for which there is room.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.further.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(i16),
        InsertNew(i16),
        Remove(i16),
        Change(i16),
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        let stream = -2..3_i16;
        prop_oneof![
            3 => stream.clone().prop_map(Step::Insert),
            3 => stream.clone().prop_map(Step::InsertNew),
            6 => stream.clone().prop_map(Step::Remove),
            2 => stream.prop_map(Step::Change),
            1 => Just(Step::Take),
        ]
    }

    proptest! {
        /// A table by stream does what a hash table does, in whichever place an entry is.
        #[test]
        fn as_a_hash_table(steps in prop::collection::vec(step(), 0..60)) {
            let (mut table, mut model) = (ByStream::default(), HashMap::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(id) => {
                        let before = table.insert(StreamId(id), number);
                        prop_assert_eq!(before, model.insert(id, number));
                    }
                    Step::InsertNew(id) => {
                        let entered = table.insert_new(StreamId(id), number);
                        prop_assert_eq!(entered.is_ok(), !model.contains_key(&id));
                        model.entry(id).or_insert(number);
                    }
                    Step::Remove(id) => {
                        prop_assert_eq!(table.remove(StreamId(id)), model.remove(&id));
                    }
                    Step::Change(id) => {
                        let entry = table.get_mut(StreamId(id));
                        prop_assert_eq!(entry.as_deref(), model.get(&id));
                        if let (Some(entry), Some(modelled)) = (entry, model.get_mut(&id)) {
                            (*entry, *modelled) = (number, number);
                        }
                    }
                    Step::Take => {
                        let all = table.take().map(|(id, entry)| (id.0, entry));
                        prop_assert_eq!(all.collect::<HashMap<_, _>>(), std::mem::take(&mut model));
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
