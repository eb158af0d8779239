//! How what a stage holds is written down, and read by the next process.
//!
//! State is written with the names of its fields. A release that adds one reads what an older one wrote if the field has
//! a default; indexes that follow from the rest are not written, and neither are options, which are the reader's own.
//! Names that the code knows (kinds of loops, severities, conventions) are written as text; one that the reader does not
//! know is left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::convention;
use super::drops::STREAMS;
use super::few::Few;
use super::loops::{CRITICAL, WARNING, kinds};
use super::sessions::FAMILIES;

/// A name that the code knows.
pub(super) type Name = &'static str;

/// What a name is read as that the reader does not know, where one has to be there.
const UNKNOWN: Name = "unknown";

/// The name of this text, if the code knows it.
fn known(text: &str) -> Option<Name> {
    let others = [WARNING, CRITICAL, "ok", "error", UNKNOWN];
    let streams = STREAMS.iter().map(|stream| stream.name);
    let families = FAMILIES.iter().copied();
    let names = kinds().into_iter().chain(others).chain(streams).chain(convention::names());
    let mut names = names.chain(families);
    names.find(|name| *name == text)
}

/// Reads a name; unknown is none.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Name>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|text| known(&text)))
}

/// Reads a severity; unknown is a warning.
pub(super) fn severity<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
    Ok(known(&String::deserialize(from)?).unwrap_or(WARNING))
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

/// Likewise, of a few.
pub(super) fn few_by_name<'de, D, V>(from: D) -> Result<Few<Name, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    Ok(by_name(from)?.into_iter().collect())
}

/// Reads a map by two names.
pub(super) fn by_names<'de, D, V>(from: D) -> Result<BTreeMap<(Name, Name), V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    let read = BTreeMap::<(String, String), V>::deserialize(from)?.into_iter();
    Ok(read.filter_map(|((a, b), value)| Some(((known(&a)?, known(&b)?), value))).collect())
}

/// Reads a set of something with two names.
pub(super) fn named<'de, D, T>(
    from: D,
) -> Result<std::collections::BTreeSet<(T, Name, Name)>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Ord,
{
    let read = Vec::<(T, String, String)>::deserialize(from)?.into_iter();
    Ok(read.filter_map(|(of, a, b)| Some((of, known(&a)?, known(&b)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_code_are_known() {
        for name in [
            "exact_repeat",
            "critical",
            "unknown",
            "openinference",
            "tool_failures",
            "sessions_closed",
        ] {
            assert_eq!(known(name), Some(name));
        }
        assert_eq!(known("nonsense"), None);
    }
}
