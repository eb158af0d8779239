//! Names that many traces share, each stored once in a shard.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize, Serializer};

use crate::hash::FixedMap;
use crate::price::{Rate, shipped};

/// Number of known names at which all are forgotten. Symbols in use stay valid.
const MOST: usize = 4_096;

/// Longest known name, in bytes.
const LONGEST: usize = 128;

/// Slots for recent names, as a power of two.
const RECENT_BITS: u32 = 8;

/// A name, shared by all its rows: a single pointer.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Symbol(Arc<Name>);

/// The text of a name, and associated facts.
#[derive(Debug, Deserialize)]
#[serde(from = "(Arc<str>, Option<Symbol>)")]
struct Name {
    text: Arc<str>,
    // For a responding model without a shipped price: the requested model, if its name differs.
    requested: Option<Symbol>,
    // The shipped price for a model of this name, once it was looked up.
    price: OnceLock<Option<&'static Rate>>,
}

/// The names of a shard.
#[derive(Debug)]
pub struct Symbols {
    // Found by their texts. Invariant: none is associated with a requested model.
    known: FixedMap<Symbol, ()>,
    // Symbols of responding models that are associated with the requested one, by both names.
    models: FixedMap<[Symbol; 2], Symbol>,
    // Recent names, each in the slot of its address: decoders share names, so most have a known address.
    recent: Box<[Option<Met>]>,
}

/// A name as received, and its symbol.
type Met = (Arc<str>, Symbol);

impl Symbols {
    /// The symbol of a name.
    pub fn of(&mut self, name: &Arc<str>) -> Symbol {
        let slot = slot(name);
        match &self.recent[slot] {
            Some((known, symbol)) if Arc::ptr_eq(known, name) => symbol.clone(),
            _ => {
                let symbol = self.known(name);
                if name.len() <= LONGEST {
                    self.recent[slot] = Some((Arc::clone(name), symbol.clone()));
                }
                symbol
            }
        }
    }

    /// The symbol of the responding model, which is associated with the requested one if the former has no shipped price.
    pub(super) fn of_model(&mut self, name: &Arc<str>, requested: Option<&Arc<str>>) -> Symbol {
        let symbol = self.of(name);
        let Some(requested) = requested.filter(|_| symbol.price().is_none()) else { return symbol };
        let names = [symbol, self.of(requested)];
        if let Some(known) = self.models.get(&names) {
            return known.clone();
        }
        let [text, requested] = &names;
        let symbol = Symbol::from((Arc::clone(text.text()), Some(requested.clone())));
        if names.iter().all(|name| name.len() <= LONGEST) {
            if self.models.len() >= MOST {
                self.models.clear();
            }
            self.models.insert(names, symbol.clone());
        }
        symbol
    }

    fn known(&mut self, name: &Arc<str>) -> Symbol {
        if let Some((known, ())) = self.known.get_key_value(&**name) {
            return known.clone();
        }
        let symbol = Symbol::from((Arc::clone(name), None));
        if name.len() <= LONGEST {
            if self.known.len() >= MOST {
                self.known.clear();
                self.recent.fill(None);
            }
            self.known.insert(symbol.clone(), ());
        }
        symbol
    }
}

impl Default for Symbols {
    fn default() -> Self {
        let recent = vec![None; 1 << RECENT_BITS].into_boxed_slice();
        Self { known: FixedMap::default(), models: FixedMap::default(), recent }
    }
}

/// The slot of a name's address.
fn slot(name: &Arc<str>) -> usize {
    let address = Arc::as_ptr(name).cast::<u8>().addr() as u64;
    // The golden ratio in 64 bits spreads addresses, which are multiples of their sizes, over the high bits.
    usize::try_from(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - RECENT_BITS))
        .unwrap_or(0)
}

impl Symbol {
    /// The name.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.0.text
    }

    /// The requested model, if its name differs and the responding one has no shipped price.
    pub(super) fn requested(&self) -> Option<&Self> {
        self.0.requested.as_ref()
    }

    /// The shipped price for a model of this name.
    pub(super) fn price(&self) -> Option<&'static Rate> {
        *self.0.price.get_or_init(|| shipped(self))
    }
}

impl From<(Arc<str>, Option<Symbol>)> for Name {
    fn from((text, requested): (Arc<str>, Option<Symbol>)) -> Self {
        Self { text, requested, price: OnceLock::new() }
    }
}

impl From<(Arc<str>, Option<Self>)> for Symbol {
    fn from(parts: (Arc<str>, Option<Self>)) -> Self {
        Self(Arc::new(Name::from(parts)))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.text, &self.requested).serialize(serializer)
    }
}

impl PartialEq for Name {
    /// Ignores the price, as it follows from the text.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.requested == other.requested
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Deref for Symbol {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.text
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
        let (shared, copy) = (Arc::from("search"), Arc::from("search"));
        let first = symbols.of(&shared);
        for name in [&shared, &copy, &shared] {
            assert!(Arc::ptr_eq(&first.0, &symbols.of(name).0));
        }
        for number in 0..2 * MOST {
            assert_eq!(&*symbols.of(&number.to_string().into()), number.to_string());
        }
        symbols.of(&"long".repeat(LONGEST).into());
        assert!(symbols.known.len() <= MOST);
        assert_eq!(symbols.of(&shared), first);
    }

    #[test]
    fn a_model_without_a_price_goes_with_the_one_that_was_asked() {
        let mut symbols = Symbols::default();
        let (priced, other) = (Arc::from("gpt-4o-mini"), Arc::from("gpt-4o-mini-of-tomorrow"));
        assert!(symbols.of_model(&priced, Some(&other)).requested().is_none());
        assert!(symbols.of_model(&other, None).requested().is_none());
        let answered = symbols.of_model(&other, Some(&priced));
        assert_eq!((&*answered, &**answered.requested().unwrap()), (&*other, &*priced));
        assert!(Arc::ptr_eq(&answered.0, &symbols.of_model(&other, Some(&priced)).0));
        let restored: Symbol =
            rmp_serde::from_slice(&rmp_serde::to_vec_named(&answered).unwrap()).unwrap();
        assert_eq!(restored, answered);
        for number in 0..2 * MOST {
            symbols.of_model(&other, Some(&number.to_string().into()));
            symbols.of_model(&other, Some(&"long".repeat(LONGEST).into()));
        }
        assert!(symbols.models.len() <= MOST);
    }
}
