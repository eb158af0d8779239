//! How the state of the stages is written, and read by the next process.
//!
//! State is written with field names, as fields with the default value are left out. The caller stores a version beside it and
//! reads no other version. Indexes that follow from the rest are not written, and neither are options, which the reader brings
//! itself. Names that the code knows (streams, conventions) are written as text; a name that the reader does not know is left out.

use std::collections::BTreeMap;
use std::io::Read;

pub use rmp_serde::decode::Error as ReadError;
use rmp_serde::decode::ReadReader;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::convention;
use super::drops::STREAMS;

/// The source from which state is read: one type for all readers, as every type that is read is compiled once for each of them.
pub type Source<'s> = rmp_serde::Deserializer<ReadReader<&'s mut dyn Read>>;

/// Writes a value as `MessagePack` with the names of its fields, so that some can be left out.
///
/// # Errors
///
/// Fails if the value cannot be written.
pub fn write<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec_named(value)
}

/// Reads a value that [`write()`] wrote.
///
/// # Errors
///
/// Fails if the bytes are not such a value of this type.
pub fn read<T: DeserializeOwned>(mut from: impl Read) -> Result<T, ReadError> {
    read_with(&mut from, |source| T::deserialize(source))
}

/// Reads a value that [`write()`] wrote by `take`, which may process it piece by piece.
///
/// # Errors
///
/// As [`read`], and whatever `take` returns.
pub fn read_with<T>(
    from: &mut dyn Read,
    take: impl FnOnce(&mut Source<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    take(&mut rmp_serde::Deserializer::new(from))
}

/// A name that the code knows.
pub(super) type Name = &'static str;

/// The name of this text, if the code knows it.
fn known(text: &str) -> Option<Name> {
    let streams = STREAMS.iter().map(|stream| stream.name);
    streams.chain(convention::names()).find(|name| *name == text)
}

/// Reads a name; `None` if the code does not know it.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Name>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|text| known(&text)))
}

/// Reads a map by names; leaves out those that the code does not know.
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
        for name in ["openinference", "tool_failures"] {
            assert_eq!(known(name), Some(name));
        }
        assert_eq!(known("nonsense"), None);
    }
}
