//! Names of signals: built-in ones are indices into the list, so that they are compared without their texts.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::{SIGNALS, confidence, loop_detection, outcome, tool_loop};

/// The name of a signal; ordered and serialised as its text.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq)]
#[serde(from = "String")]
pub(crate) enum SignalName {
    /// A built-in signal, by its index in [`SIGNALS`].
    Ours(u8),
    /// Any other signal.
    Other(Arc<str>),
}

/// [`confidence::NAME`].
pub(crate) static CONFIDENCE: SignalName = SignalName::ours(confidence::NAME);

/// [`loop_detection::NAME`].
pub(crate) static LOOP_DETECTION: SignalName = SignalName::ours(loop_detection::NAME);

/// [`outcome::NAME`].
pub(crate) static OUTCOME: SignalName = SignalName::ours(outcome::NAME);

/// [`tool_loop::NAME`].
pub(crate) static TOOL_LOOP: SignalName = SignalName::ours(tool_loop::NAME);

impl SignalName {
    /// The name of a built-in signal; any other name does not compile.
    const fn ours(name: &str) -> Self {
        let mut at = 0;
        while !is_equal(SIGNALS[at as usize].name.as_bytes(), name.as_bytes()) {
            at += 1;
        }
        Self::Ours(at)
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Ours(at) => ours(*at),
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for SignalName {
    fn from(name: &str) -> Self {
        let mut ours = (0..).zip(SIGNALS).filter(|(_, signal)| signal.name == name);
        ours.next().map_or_else(|| Self::Other(name.into()), |(at, _)| Self::Ours(at))
    }
}

impl From<String> for SignalName {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<&SignalName> for Cow<'static, str> {
    fn from(name: &SignalName) -> Self {
        match name {
            SignalName::Ours(at) => ours(*at).into(),
            SignalName::Other(name) => name.to_string().into(),
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

fn ours(at: u8) -> &'static str {
    SIGNALS.get(usize::from(at)).map_or("", |signal| signal.name)
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
            assert_eq!((&name, name.as_str()), (&SignalName::from(one.to_owned()), one));
            for other in texts {
                assert_eq!(name.cmp(&SignalName::from(other)), one.cmp(other));
            }
            let written = rmp_serde::to_vec_named(&name).unwrap();
            assert_eq!(written, rmp_serde::to_vec_named(one).unwrap());
            assert_eq!(rmp_serde::from_slice::<SignalName>(&written).unwrap(), name);
        }
        assert_eq!(CONFIDENCE.as_str(), confidence::NAME);
        assert_eq!(size_of::<SignalName>(), 16);
    }
}
