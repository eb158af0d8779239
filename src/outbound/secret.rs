//! A key that is shown only to the endpoint that it is for.

use std::fmt;

/// A key. It has no `Display` and no `Serialize`, and `Debug` says only that there is one.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// A key, without white space around it, such as the line break that files end with; `None` if nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        Some(text.trim()).filter(|text| !text.is_empty()).map(|text| Self(text.to_owned()))
    }

    /// The key itself, for a header.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown() {
        let key = Secret::new(" sk-very-secret\n").unwrap();
        assert_eq!(format!("{key:?} {:?}", Some(&key)), "Secret(..) Some(Secret(..))");
        assert_eq!(key.reveal(), "sk-very-secret");
        assert_eq!(Secret::new(" \n"), None);
    }
}
