//! Names that many traces have in common, each kept once in a shard.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::hash::FixedMap;

/// Names that are known; then all are forgotten. Who holds one keeps it.
const MOST: usize = 4_096;

/// The longest of them, in bytes.
const LONGEST: usize = 128;

/// A name, shared by all rows that have it: a single pointer.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Symbol(Arc<Name>);

/// How a name is spelt.
#[derive(Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(transparent)]
struct Name(Box<str>);

/// The names of a shard.
#[derive(Debug, Default)]
pub struct Symbols(FixedMap<Symbol, ()>);

impl Symbols {
    /// The symbol of a name.
    pub(super) fn of(&mut self, name: &str) -> Symbol {
        if let Some((known, ())) = self.0.get_key_value(name) {
            return known.clone();
        }
        let symbol = Symbol(Arc::new(Name(name.into())));
        if name.len() <= LONGEST {
            if self.0.len() >= MOST {
                self.0.clear();
            }
            self.0.insert(symbol.clone(), ());
        }
        symbol
    }
}

impl Deref for Symbol {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.0
    }
}

impl Borrow<str> for Symbol {
    fn borrow(&self) -> &str {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_and_no_more_than_so_many_are_known() {
        let mut symbols = Symbols::default();
        let first = symbols.of("search");
        assert!(Arc::ptr_eq(&first.0, &symbols.of("search").0));
        for number in 0..2 * MOST {
            assert_eq!(&*symbols.of(&number.to_string()), number.to_string());
        }
        symbols.of(&"long".repeat(LONGEST));
        assert!(symbols.0.len() <= MOST);
        assert_eq!(symbols.of("search"), first);
    }
}
