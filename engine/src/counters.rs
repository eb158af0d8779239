//! Counters by family and label values, in one form from where they are raised to where they are exported.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Label values, in the order of the family's labels. Whoever is told of a counter shares them.
pub type Labels = Arc<[String]>;

/// What was counted; a family is there from its first counter on.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Counters(
    // Invariant: the counters of each family are in the order of their labels, each once.
    BTreeMap<Cow<'static, str>, Vec<(Labels, u64)>>,
);

impl Counters {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counters of a family, in the order of their labels.
    pub fn family(&self, family: &str) -> &[(Labels, u64)] {
        self.0.get(family).map_or(&[], Vec::as_slice)
    }

    /// One counter, if anything was counted under these labels.
    pub fn get<L: AsRef<str>>(&self, family: &str, labels: &[L]) -> Option<u64> {
        let found = self.family(family).iter().find(|(held, _)| is(held, labels));
        found.map(|(_, value)| *value)
    }

    /// All families, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[(Labels, u64)])> {
        self.0.iter().map(|(family, counters)| (family.as_ref(), counters.as_slice()))
    }

    /// Leaves only these families.
    pub fn retain(&mut self, mut keeps: impl FnMut(&str) -> bool) {
        self.0.retain(|family, _| keeps(family));
    }

    /// Raises one counter.
    pub fn raise(&mut self, family: &'static str, labels: &[&str], more: u64) {
        let counters = self.0.entry(Cow::Borrowed(family)).or_default();
        // They are few, and whether two are equal is told by their lengths.
        if let Some((_, value)) = counters.iter_mut().find(|(held, _)| is(held, labels)) {
            *value = value.saturating_add(more);
            return;
        }
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        add(counters, &labels, more);
    }

    /// Begins a family, whose counters come in the order of their labels.
    pub(super) fn insert(&mut self, family: &'static str, counters: Vec<(Labels, u64)>) {
        debug_assert!(counters.is_sorted_by(|(one, _), (two, _)| one < two), "{counters:?}");
        if !counters.is_empty() {
            self.0.insert(Cow::Borrowed(family), counters);
        }
    }

    /// Adds those of some families of others.
    pub(super) fn add(&mut self, others: &Self, adds: impl Fn(&str) -> bool) {
        for (family, more) in others.0.iter().filter(|(family, _)| adds(family)) {
            let Some(counters) = self.0.get_mut(family) else {
                self.0.insert(family.clone(), more.clone());
                continue;
            };
            more.iter().for_each(|(labels, value)| add(counters, labels, *value));
        }
    }
}

/// Whether these are the labels.
fn is<L: AsRef<str>>(held: &[String], labels: &[L]) -> bool {
    held.len() == labels.len()
        && labels.iter().zip(held).all(|(label, held)| label.as_ref() == held)
}

fn add(counters: &mut Vec<(Labels, u64)>, labels: &Labels, more: u64) {
    match counters.binary_search_by(|(held, _)| held.cmp(labels)) {
        Ok(at) => counters[at].1 = counters[at].1.saturating_add(more),
        Err(at) => counters.insert(at, (Arc::clone(labels), more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_stay_in_order() {
        let (mut one, mut two) = (Counters::default(), Counters::default());
        for (label, more) in [("b", 1), ("a", 2), ("b", 4)] {
            one.raise("loops", &[label], more);
        }
        one.raise("traces", &[], 1);
        for (family, label, more) in [("loops", "c", 1), ("loops", "b", 1), ("tokens", "input", 7)]
        {
            two.raise(family, &[label], more);
        }
        one.add(&two, |family| family != "tokens");
        let values: Vec<u64> = one.family("loops").iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [2, 6, 1]);
        assert_eq!((one.get("loops", &["b"]), one.get::<&str>("traces", &[])), (Some(6), Some(1)));
        assert_eq!((one.get("tokens", &["input"]), one.get("loops", &["b", "a"])), (None, None));
    }
}
