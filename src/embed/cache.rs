//! A cache of the vectors of texts, by the text's hash; over the bound the oldest is dropped.

use std::collections::{HashMap, VecDeque};

use xxhash_rust::xxh3::xxh3_128;

use super::Vector;

/// The cache of vectors.
#[derive(Debug)]
pub(super) struct Cache {
    max: usize,
    vectors: HashMap<u128, Vector>,
    // Invariant: the keys of `vectors`, each once, the oldest first.
    order: VecDeque<u128>,
}

impl Cache {
    pub(super) fn new(max: usize) -> Self {
        Self { max, vectors: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn get(&self, text: &str) -> Option<Vector> {
        self.vectors.get(&xxh3_128(text.as_bytes())).cloned()
    }

    pub(super) fn insert(&mut self, text: &str, vector: Vector) {
        let key = xxh3_128(text.as_bytes());
        if self.max == 0 || self.vectors.insert(key, vector).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.vectors.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes() {
        let mut cache = Cache::new(2);
        for text in ["a", "b", "a", "c"] {
            cache.insert(text, Vector::from([1.0]));
        }
        assert!(cache.get("a").is_none() && cache.get("b").is_some() && cache.get("c").is_some());
        let mut none = Cache::new(0);
        none.insert("a", Vector::from([1.0]));
        assert!(none.get("a").is_none());
    }
}
