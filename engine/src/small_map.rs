//! A map of a few entries, sorted by key: it takes no more memory than its entries, where a node of a tree has room for eleven.
//!
//! Adding an entry moves all entries after it, so use it for maps that stay small.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;
use std::ops::Index;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// Up to this number of entries, a key is searched linearly.
const COMPARED: usize = 12;

/// A small map; it is serialised as a map.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SmallMap<K, V>(
    // Invariant: in the order of the keys, each once.
    Vec<(K, V)>,
);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K, V> SmallMap<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// An empty map with room for `capacity` entries.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Removes all entries, and keeps their room.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Makes room for `all` entries in total.
    pub fn reserve(&mut self, all: usize) {
        self.0.reserve_exact(all.saturating_sub(self.0.len()));
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// All entries, in the order of their keys, with mutable values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(self.find(key)?).map(|(_, value)| value)
    }

    /// The value of a key, mutable.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key)?;
        Some(&mut self.0[at].1)
    }

    /// Whether the key has a value.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_some()
    }

    /// Adds a value, or replaces the value of the same key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.place(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.add(at, (key, value)),
        }
    }

    /// Removes the value of a key, and returns it.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key)?;
        Some(self.0.remove(at).1)
    }

    /// Leaves only the entries for which `keeps` holds.
    pub fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        self.0.retain(|(key, value)| keeps(key, value));
    }

    /// The value of a key; adds the default if there is none.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = match self.place(&key) {
            Ok(at) => at,
            Err(at) => {
                self.add(at, (key, V::default()));
                at
            }
        };
        &mut self.0[at].1
    }

    /// The value of a key, for keys that mostly arrive in order; adds the default if there is none. Searches from index `next`
    /// first, and sets it to the index after the key.
    pub fn or_default_next(&mut self, next: &mut usize, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        let is_next = self.0.get(*next).is_some_and(|(held, _)| held == key);
        let at = if is_next { *next } else { self.place_from(*next, key) };
        *next = at + 1;
        &mut self.0[at].1
    }

    /// The index of a key, searched from index `next` first; adds the default if there is none.
    #[inline(never)] // It is seldom needed, and long.
    fn place_from(&mut self, next: usize, key: &K) -> usize
    where
        K: Clone,
        V: Default,
    {
        let mut ahead = self.0.get(next..).unwrap_or_default().iter();
        let skipped = ahead.position(|(held, _)| held == key);
        let known = skipped.map(|skipped| next + skipped).or_else(|| self.find(key));
        known.unwrap_or_else(|| {
            let (Ok(at) | Err(at)) = self.place(key);
            self.add(at, (key.clone(), V::default()));
            at
        })
    }

    fn add(&mut self, at: usize, entry: (K, V)) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(1 + self.0.len() / 2);
        }
        self.0.insert(at, entry);
    }

    /// The index of a key. With few entries, a linear search is faster than a binary one.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        if self.0.len() > COMPARED {
            return self.place(key).ok();
        }
        self.0.iter().position(|(held, _)| held.borrow() == key)
    }

    /// The index of a key, or the index where it belongs; quick if it belongs at the end, as keys mostly arrive in order.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        if self.0.last().is_some_and(|(last, _)| last.borrow() < key) {
            return Err(self.0.len());
        }
        self.0.binary_search_by(|(held, _)| held.borrow().cmp(key))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SmallMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SmallMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        items.into_iter().for_each(|(key, value)| self.insert(key, value));
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
        let items = items.into_iter();
        let mut few = Self::with_capacity(items.size_hint().0);
        few.extend(items);
        few
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a SmallMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&(K, V)) -> (&K, &V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

/// The schema of a map.
impl<K: JsonSchema, V: JsonSchema> JsonSchema for SmallMap<K, V> {
    fn inline_schema() -> bool {
        BTreeMap::<K, V>::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<K, V>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<K, V>::json_schema(generator)
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for SmallMap<K, V> {
    type Output = V;

    #[expect(clippy::expect_used, reason = "as in every map: what is not there cannot be shown")]
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("there is one of this key")
    }
}

impl<K: Serialize, V: Serialize> Serialize for SmallMap<K, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SmallMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(std::marker::PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = SmallMap<K, V>;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SmallMap<K, V>, A::Error> {
                let mut few = SmallMap::default();
                while let Some((key, value)) = map.next_entry()? {
                    few.insert(key, value);
                }
                Ok(few)
            }
        }

        from.deserialize_map(Entries(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_and_written_as_one(
            steps in prop::collection::vec((0_u8..5, 0_u8..40, any::<u32>()), 0..90),
        ) {
            let (mut few, mut map): (SmallMap<String, u32>, BTreeMap<String, u32>) = Default::default();
            let mut next = 0;
            for (step, key, value) in steps {
                let key = format!("key {key}");
                match step {
                    0 => prop_assert_eq!(few.remove(key.as_str()), map.remove(&key)),
                    1 => *few.or_default(key.clone()) ^= value,
                    2 => *few.or_default_next(&mut next, &key) ^= value,
                    _ => few.insert(key.clone(), value),
                }
                match step {
                    0 => {}
                    1 | 2 => *map.entry(key.clone()).or_default() ^= value,
                    _ => drop(map.insert(key.clone(), value)),
                }
                prop_assert_eq!(few.get(key.as_str()), map.get(&key));
                prop_assert_eq!(few.contains_key(key.as_str()), map.contains_key(&key));
            }
            prop_assert!(few.iter().eq(map.iter()));
            prop_assert_eq!(few.len(), map.len());
            let written = rmp_serde::to_vec_named(&few).unwrap();
            prop_assert_eq!(&written, &rmp_serde::to_vec_named(&map).unwrap());
            let read: SmallMap<String, u32> = rmp_serde::from_slice(&written).unwrap();
            prop_assert_eq!(read, few);
        }
    }
}
