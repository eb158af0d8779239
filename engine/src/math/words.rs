//! Sets of words. Shared words are stored once, as sessions hold many answers in one language.

use std::cmp;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashTable;
use serde::{Deserialize, Serialize, Serializer};

/// Capacity of a list, in words.
const ROOM: usize = 1 << 14;

/// Most lists of a vocabulary at a time.
const MOST: usize = 64;

/// A set of more words is assumed to be unique to a single text, and not listed.
const LARGEST: usize = 1_024;

/// The hashes of distinct words, in order; serialised as such.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Vec<u64>")]
pub struct Words(Form);

#[derive(Clone, Debug)]
enum Form {
    /// The hashes.
    Own(Box<[u64]>),
    /// Their indices in a list, in the order of the hashes.
    Listed(Arc<List>, Box<[u16]>),
}

/// Hashes of words in the order of arrival: none is ever changed or removed.
#[derive(Debug)]
struct List(Box<[AtomicU64]>);

/// The words that sets share. A set can be read without it, and a list lives as long as a set refers to it.
#[derive(Debug, Default)]
pub struct Vocabulary {
    // The list to which words are added, and its index.
    list: Option<Arc<List>>,
    places: HashTable<u16>,
    // Lists that are full.
    full: Vec<Weak<List>>,
}

impl Words {
    /// The number of words.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Own(hashes) => hashes.len(),
            Form::Listed(_, places) => places.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their hashes, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        (0..self.len()).map(|at| self.get(at).unwrap_or_default())
    }

    fn get(&self, at: usize) -> Option<u64> {
        match &self.0 {
            Form::Own(hashes) => hashes.get(at).copied(),
            Form::Listed(list, places) => word(&list.0, *places.get(at)?),
        }
    }

    /// Jaccard similarity to another set, in `[0,1]`; 0 for two empty ones.
    pub fn jaccard(&self, other: &Self) -> f64 {
        let common = match (&self.0, &other.0) {
            (Form::Listed(list, a), Form::Listed(of, b)) if Arc::ptr_eq(list, of) => {
                common_places(a, b)
            }
            _ => common(|at| self.get(at), |at| other.get(at)),
        };
        let union = self.len() + other.len() - common;
        if union == 0 { 0.0 } else { common as f64 / union as f64 }
    }
}

/// The number of indices that two sets in one list share.
fn common_places(a: &[u16], b: &[u16]) -> usize {
    const WORDS: usize = ROOM / 64;
    let at = |place: &u16| usize::from(*place) / 64 % WORDS;
    let mut held = [0_u64; WORDS];
    for place in a {
        held[at(place)] |= 1 << (place % 64);
    }
    b.iter().filter(|place| held[at(place)] >> (*place % 64) & 1 == 1).count()
}

/// The number of values that two sorted sequences share.
fn common(a: impl Fn(usize) -> Option<u64>, b: impl Fn(usize) -> Option<u64>) -> usize {
    // A step skips the lesser of two values, or both if they are equal.
    let (mut at_a, mut at_b, mut steps) = (0, 0, 0_usize);
    while let (Some(x), Some(y)) = (a(at_a), b(at_b)) {
        at_a += usize::from(x <= y);
        at_b += usize::from(y <= x);
        steps += 1;
    }
    at_a + at_b - steps
}

/// The hash at an index of a list.
fn word(list: &[AtomicU64], place: u16) -> Option<u64> {
    Some(list.get(usize::from(place))?.load(Ordering::Relaxed))
}

impl Vocabulary {
    /// Stores a set as indices into a list, if there is room.
    pub fn list(&mut self, words: &mut Words) {
        let Form::Own(hashes) = &words.0 else { return };
        if hashes.is_empty() || hashes.len() > LARGEST || !self.make_room(hashes.len()) {
            return;
        }
        let Some(list) = self.list.clone() else { return };
        let mut places = Vec::with_capacity(hashes.len());
        for hash in hashes {
            places.extend(self.place(*hash, &list.0));
        }
        words.0 = Form::Listed(list, places.into());
    }

    /// Whether the current list, which may be a new one, has room for this many words.
    fn make_room(&mut self, words: usize) -> bool {
        if self.list.is_some() && self.places.len() + words <= ROOM {
            return true;
        }
        self.full.retain(|list| list.strong_count() > 0);
        if self.full.len() + 1 >= MOST {
            return false;
        }
        self.full.extend(self.list.as_ref().map(Arc::downgrade));
        self.list = Some(Arc::new(List((0..ROOM).map(|_| AtomicU64::default()).collect())));
        self.places.clear();
        true
    }

    /// The index of a word in the list; the word is added if it is not there.
    #[inline]
    fn place(&mut self, hash: u64, list: &[AtomicU64]) -> Option<u16> {
        let hash_at = |place: &u16| word(list, *place).unwrap_or_default();
        if let Some(place) = self.places.find(hash, |place| hash_at(place) == hash) {
            return Some(*place);
        }
        let place = u16::try_from(self.places.len()).ok()?;
        list.get(usize::from(place))?.store(hash, Ordering::Relaxed);
        self.places.insert_unique(hash, place, hash_at);
        Some(place)
    }
}

/// Without lists: only the original may add to its lists.
impl Clone for Vocabulary {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Default for Words {
    fn default() -> Self {
        Self(Form::Own(Box::default()))
    }
}

impl From<Vec<u64>> for Words {
    fn from(hashes: Vec<u64>) -> Self {
        Self(Form::Own(hashes.into_boxed_slice()))
    }
}

impl FromIterator<u64> for Words {
    fn from_iter<T: IntoIterator<Item = u64>>(hashes: T) -> Self {
        Self(Form::Own(hashes.into_iter().collect()))
    }
}

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Words {}

impl PartialOrd for Words {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Words {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.iter().cmp(other.iter())
    }
}

impl Hash for Words {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().for_each(|hash| hash.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_listed(words: &Words) -> bool {
        matches!(words.0, Form::Listed(..))
    }

    proptest! {
        #[test]
        fn a_set_is_the_same_however_it_is_kept(
            sets in prop::collection::vec((prop::collection::btree_set(0_u64..40, 0..30), 0_usize..3), 0..9),
        ) {
            let mut vocabularies = [Vocabulary::default(), Vocabulary::default()];
            let kept = sets.iter().map(|(set, by)| {
                let mut words: Words = set.iter().copied().collect();
                if let Some(vocabulary) = vocabularies.get_mut(*by) {
                    vocabulary.list(&mut words);
                }
                assert_eq!(is_listed(&words), *by < 2 && !set.is_empty());
                words
            });
            let kept: Vec<Words> = kept.collect();
            for (words, (set, _)) in kept.iter().zip(&sets) {
                prop_assert!(words.iter().eq(set.iter().copied()));
                prop_assert_eq!(words, &set.iter().copied().collect::<Words>());
                let written = rmp_serde::to_vec_named(words).unwrap();
                prop_assert_eq!(&written, &rmp_serde::to_vec_named(set).unwrap());
                prop_assert_eq!(&rmp_serde::from_slice::<Words>(&written).unwrap(), words);
                for (other, (of, _)) in kept.iter().zip(&sets) {
                    let (common, all) = (set.intersection(of).count(), set.union(of).count());
                    let expected = common as f64 / all.max(1) as f64;
                    prop_assert_eq!(words.jaccard(other).to_bits(), expected.to_bits());
                    prop_assert_eq!(words.cmp(other), set.iter().cmp(of.iter()));
                }
            }
        }
    }

    #[test]
    fn there_are_so_many_lists_and_one_goes_with_the_last_set_in_it() {
        let mut vocabulary = Vocabulary::default();
        let texts = (MOST * ROOM / LARGEST) as u64;
        // Spread as hashes are; their order does not matter here.
        let word = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = |text: u64| (0..LARGEST as u64).map(move |at| word(text * LARGEST as u64 + at));
        let mut kept = |texts: std::ops::Range<u64>| -> Vec<Words> {
            let of = |text| {
                let mut kept: Words = words(text).collect();
                vocabulary.list(&mut kept);
                assert!(kept.iter().eq(words(text)));
                kept
            };
            texts.map(of).collect()
        };
        let mut all = kept(0..texts + 3);
        let listed = all.iter().filter(|words| is_listed(words)).count() as u64;
        assert_eq!(listed, texts);
        all.drain(..ROOM / LARGEST);
        assert!(kept(texts..texts + 3).iter().all(is_listed));
    }
}
