//! A text that is shown only to the endpoint that it is for.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A key, a token or a password. It has no `Display`; `Debug` and `Serialize` say only that there is one.
#[derive(Clone, Default, Deserialize, Eq, PartialEq)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A key, as from [`Self::trimmed`]; `None` if nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        Some(Self::trimmed(text)).filter(|secret| !secret.0.is_empty())
    }

    /// A text without white space around it, such as the line break that files end with.
    pub fn trimmed(text: &str) -> Self {
        text.trim().into()
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn shown(&self) -> &'static str {
        if self.0.is_empty() { "" } else { "***" }
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shown())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown() {
        let key = Secret::new(" sk-very-secret\n").unwrap();
        assert_eq!(format!("{key:?} {:?}", Some(&key)), "*** Some(***)");
        assert_eq!(key.reveal(), "sk-very-secret");
        assert_eq!(Secret::new(" \n"), None);
    }
}
