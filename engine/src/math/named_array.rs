//! A value for each of a few fixed names, as an array: reading and writing need neither an allocation nor a search.

use std::fmt;
use std::marker::PhantomData;

/// A fixed set of names.
pub trait Named: Copy + 'static {
    /// All of them, in the order of their names.
    const KEYS: &'static [Self];

    /// The name.
    fn text(self) -> &'static str;

    /// The index in [`Named::KEYS`].
    fn place(self) -> usize;
}

/// The values of those names that have one, in the order of names. `N` is the number of names.
#[derive(Clone, Copy, PartialEq)]
pub struct NamedArray<K, T, const N: usize> {
    values: [Option<T>; N],
    names: PhantomData<K>,
}

impl<K: Named, T: Copy, const N: usize> NamedArray<K, T, N> {
    /// Sets the value of a name; `None`: it has none.
    pub fn set(&mut self, name: K, value: Option<T>) {
        if let Some(held) = self.values.get_mut(name.place()) {
            *held = value;
        }
    }

    /// The value of a name.
    pub fn get(&self, name: K) -> Option<T> {
        self.values.get(name.place()).copied().flatten()
    }

    /// The value of the name with this text.
    pub fn named(&self, name: &str) -> Option<T> {
        self.iter().find_map(|(held, value)| (held == name).then_some(value))
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, T)> {
        K::KEYS.iter().zip(self.values).filter_map(|(name, value)| Some((name.text(), value?)))
    }

    /// The sheet with each value changed.
    #[must_use]
    pub fn map(self, change: impl Fn(T) -> T) -> Self {
        Self { values: self.values.map(|value| value.map(&change)), ..self }
    }

    /// Values, in the order of names.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.values.iter().copied().flatten()
    }

    /// Names that have a value.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.iter().map(|(name, _)| name)
    }

    /// Whether no name has a value.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

impl<K: Named, T, const N: usize> Default for NamedArray<K, T, N> {
    fn default() -> Self {
        const { assert!(K::KEYS.len() == N, "one place for each name") }
        Self { values: [const { None }; N], names: PhantomData }
    }
}

impl<K: Named, T: Copy + fmt::Debug, const N: usize> fmt::Debug for NamedArray<K, T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
