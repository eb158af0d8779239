//! How what a stage holds is written down, and read by the next process.
//!
//! State is written with the names of its fields. A release that adds one reads what an older one wrote if the field has
//! a default; indexes that follow from the rest are not written, and neither are options, which are the reader's own.
//! Names that the code knows (families, streams, conventions) are written as text; one that the reader does not know is
//! left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::convention;
use super::drops::STREAMS;
use super::sessions::FAMILIES;

/// A name that the code knows.
pub(super) type Name = &'static str;

/// The name of this text, if the code knows it.
fn known(text: &str) -> Option<Name> {
    let streams = STREAMS.iter().map(|stream| stream.name);
    let mut names = streams.chain(convention::names()).chain(FAMILIES.iter().copied());
    names.find(|name| *name == text)
}

/// Reads a name; unknown is none.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Name>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|text| known(&text)))
}

/// Reads a map by names.
pub(super) fn by_name<'de, D, V>(from: D) -> Result<BTreeMap<Name, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    let read = BTreeMap::<String, V>::deserialize(from)?.into_iter();
    Ok(read.filter_map(|(text, value)| Some((known(&text)?, value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_code_are_known() {
        for name in ["openinference", "tool_failures", "sessions_closed"] {
            assert_eq!(known(name), Some(name));
        }
        assert_eq!(known("nonsense"), None);
    }
}
