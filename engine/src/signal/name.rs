//! What a signal is called: ours by their place in the list, so that they are told apart without a look at any text.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::{SIGNALS, confidence, loop_detection, outcome};

/// The name of a signal; in the order of the texts, and written down as one.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq)]
#[serde(from = "String")]
pub(crate) enum SignalName {
    /// The place of one of ours in [`SIGNALS`].
    Ours(usize),
    /// None of these.
    Other(Cow<'static, str>),
}

/// [`confidence::NAME`].
pub(crate) static CONFIDENCE: SignalName = SignalName::known(confidence::NAME);

/// [`loop_detection::NAME`].
pub(crate) static LOOP_DETECTION: SignalName = SignalName::known(loop_detection::NAME);

/// [`outcome::NAME`].
pub(crate) static OUTCOME: SignalName = SignalName::known(outcome::NAME);

impl SignalName {
    /// A name that is known beforehand.
    pub(crate) const fn known(name: &'static str) -> Self {
        let mut at = 0;
        while at < SIGNALS.len() {
            if is_equal(SIGNALS[at].name.as_bytes(), name.as_bytes()) {
                return Self::Ours(at);
            }
            at += 1;
        }
        Self::Other(Cow::Borrowed(name))
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Ours(at) => SIGNALS.get(*at).map_or("", |signal| signal.name),
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for SignalName {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl From<String> for SignalName {
    fn from(name: String) -> Self {
        let ours = SIGNALS.iter().position(|signal| signal.name == name);
        ours.map_or(Self::Other(Cow::Owned(name)), Self::Ours)
    }
}

impl From<&SignalName> for Cow<'static, str> {
    fn from(name: &SignalName) -> Self {
        match name {
            SignalName::Ours(at) => SIGNALS.get(*at).map_or("", |signal| signal.name).into(),
            SignalName::Other(name) => name.clone(),
        }
    }
}

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Ord for SignalName {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Ours(one), Self::Ours(other)) => one.cmp(other),
            (_, _) => self.as_str().cmp(other.as_str()),
        }
    }
}

impl PartialOrd for SignalName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for SignalName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_texts_and_each_is_one() {
        let texts = ["a", "coherence", "confidence", "confidences", "judged", "outcome", "zeal"];
        for one in texts {
            let name = SignalName::from(one);
            assert_eq!((&name, name.as_str()), (&SignalName::known(one), one));
            for other in texts {
                assert_eq!(name.cmp(&SignalName::from(other)), one.cmp(other));
            }
            let written = rmp_serde::to_vec_named(&name).unwrap();
            assert_eq!(written, rmp_serde::to_vec_named(one).unwrap());
            assert_eq!(rmp_serde::from_slice::<SignalName>(&written).unwrap(), name);
        }
        assert_eq!(CONFIDENCE.as_str(), confidence::NAME);
    }
}
