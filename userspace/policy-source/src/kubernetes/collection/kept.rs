//! [`Kept`]: what is kept of the objects of a kind, as far as there is room for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Bytes that an object counts as, at least, where bytes of all of them are bounded.
pub(super) const LEAST_BYTES: usize = 8 << 10;

/// The place of an object: namespace and name.
type Name = (String, String);

/// Objects: what is kept of objects. Of more than there is room for, the last names of the namespace that takes the most are left out.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    objects: BTreeMap<Arc<Name>, (usize, Arc<T>)>,
    bytes: usize,
    /// Namespaces with objects that are not kept. The empty one: nobody knows of which namespace they are, or there are too many.
    pub(crate) cut: BTreeSet<String>,
    /// Bytes of the smallest object for which there was no room.
    lacking: Option<usize>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            bytes: 0,
            cut: BTreeSet::new(),
            lacking: None,
        }
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            bytes: self.bytes,
            cut: self.cut.clone(),
            lacking: self.lacking,
        }
    }
}

impl<T> Kept<T> {
    /// Returns namespaces, names and what is kept, in this order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &T)> {
        let objects = self.objects.iter();
        objects.map(|(name, (_, object))| (name.0.as_str(), name.1.as_str(), object.as_ref()))
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// The bytes that an object counts as. None: it is not kept.
    pub(super) fn bytes_of(&self, name: &Name) -> Option<usize> {
        self.objects.get(name).map(|(bytes, _)| *bytes)
    }

    /// Whether objects that are not kept may have room, or be there no more, where one of this namespace has gone or become smaller.
    pub(super) fn may_have_room(&self, namespace: &str, most: usize) -> bool {
        let has_room = |lacking: usize| self.bytes + lacking <= most * LEAST_BYTES;
        ["", namespace].iter().any(|one| self.cut.contains(*one))
            || self.lacking.is_some_and(has_room)
    }

    /// Puts an object in the place of the one by its name. False: it is the same, as far as it is kept.
    pub(crate) fn put(&mut self, name: Name, (object, bytes): (T, usize), most: usize) -> bool
    where
        T: PartialEq,
    {
        let bytes = bytes.max(LEAST_BYTES);
        let known = self.objects.get(&name);
        if known.is_some_and(|(size, known)| *size == bytes && **known == object) {
            return false;
        }
        self.remove(&name);
        self.bytes += bytes;
        self.objects
            .insert(Arc::new(name), (bytes, Arc::new(object)));
        while self.bytes > most * LEAST_BYTES {
            let Some(last) = self.last_of_largest() else {
                break;
            };
            let lacking = self.remove(&last);
            self.lacking = self.lacking.into_iter().chain(lacking).min();
            self.cut.insert(last.0);
            if self.cut.len() > most {
                self.cut = BTreeSet::from([String::new()]);
            }
        }
        true
    }

    /// Takes an object out, and returns the bytes that it counted as. None: it was not kept.
    pub(super) fn remove(&mut self, name: &Name) -> Option<usize> {
        let (bytes, _) = self.objects.remove(name)?;
        self.bytes -= bytes;
        Some(bytes)
    }

    fn last_of_largest(&self) -> Option<Name> {
        let mut namespaces: BTreeMap<&str, (usize, &Name)> = BTreeMap::new();
        for (name, (bytes, _)) in &self.objects {
            let name: &Name = name;
            let (sum, last) = namespaces.entry(&name.0).or_insert((0, name));
            *sum += bytes;
            *last = name;
        }
        let largest = namespaces.into_values().max_by_key(|(sum, _)| *sum);
        largest.map(|(_, last)| last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_room_the_namespace_that_takes_the_most_gives_way() {
        let mut kept = Kept::default();
        let mut put = |at: &str, bytes| {
            let (namespace, name) = at.split_once('/').unwrap();
            kept.put((namespace.to_owned(), name.to_owned()), ((), bytes), 4);
            let names = kept.iter();
            let names = names.map(|(namespace, name, ())| format!("{namespace}/{name}"));
            (
                names.collect::<Vec<_>>().join(" "),
                kept.cut.contains("aaa"),
            )
        };
        for at in ["aaa/1", "aaa/2", "aaa/3"] {
            assert!(!put(at, 1).1);
        }
        assert_eq!(put("zzz/1", 1), ("aaa/1 aaa/2 aaa/3 zzz/1".into(), false));
        assert_eq!(put("aaa/4", 1), ("aaa/1 aaa/2 aaa/3 zzz/1".into(), true));
        assert_eq!(put("zzz/2", 1).0, "aaa/1 aaa/2 zzz/1 zzz/2");
        // By bytes, too, and what takes all of it is not kept itself.
        assert_eq!(put("aaa/1", 2 * LEAST_BYTES).0, "aaa/1 zzz/1 zzz/2");
        assert_eq!(put("bbb/1", 9 * LEAST_BYTES).0, "aaa/1 zzz/1 zzz/2");
    }
}
