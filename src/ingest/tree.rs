//! JSON as a tree that borrows from its text: an object is a short list, and a string without escapes is not copied.
//!
//! An ordered map costs ten times the content of a small object, and requests are made of small objects.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, SeqDeserializer};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Number};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Box<[Self]>),
    /// Names and values as sent; if a name occurs twice, the last value is read.
    Object(Box<[(Cow<'a, str>, Self)]>),
}

impl<'a> Json<'a> {
    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        if let Self::Number(number) = self { number.as_f64() } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    pub(super) fn as_object(&self) -> Option<&[(Cow<'a, str>, Self)]> {
        if let Self::Object(fields) = self { Some(fields) } else { None }
    }

    /// The field of an object, the last one with this name; null counts as a field.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let mut fields = self.as_object()?.iter().rev();
        fields.find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Json::Text(value.to_owned().into()))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Json::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut object = Vec::new();
        while let Some(name) = fields.next_key()? {
            let Json::Text(name) = name else {
                return Err(de::Error::custom("a name is not a string"));
            };
            object.push((name, fields.next_value()?));
        }
        Ok(Json::Object(object.into()))
    }
}

/// The fields of an object that is being read: an error in a value includes its name.
struct Fields<'de, I> {
    fields: I,
    value: Option<(&'de str, &'de Json<'de>)>,
}

impl<'de, I: Iterator<Item = (&'de str, &'de Json<'de>)>> MapAccess<'de> for Fields<'de, I> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        self.value = self.fields.next();
        let Some((name, _)) = self.value else { return Ok(None) };
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((name, value)) = self.value.take() else {
            return Err(de::Error::custom("a value without a name"));
        };
        seed.deserialize(value).map_err(|error| de::Error::custom(format!("`{name}`: {error}")))
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Json<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for &'de Json<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Null => visitor.visit_unit(),
            Json::Bool(value) => visitor.visit_bool(*value),
            Json::Number(number) => number.deserialize_any(visitor),
            Json::Text(text) => visitor.visit_borrowed_str(text),
            Json::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Json::Object(fields) => {
                // From the back, so that the last of equal names comes first: some readers take all fields of any object.
                let mut met = HashSet::with_capacity(fields.len());
                let mut last: Vec<_> =
                    fields.iter().rev().filter(|(name, _)| met.insert(&**name)).collect();
                last.reverse();
                let fields = last.into_iter().map(|(name, value)| (&**name, value));
                visitor.visit_map(Fields { fields, value: None })
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_read_says_the_same_as_the_text() {
        let text = r#"{"a":[1,-2,2.5,true,null,"x\n",{}],"b":{"c":"d"}}"#;
        let tree: Json<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(Value::deserialize(&tree).unwrap(), text.parse::<Value>().unwrap());
        assert_eq!(tree.get("b").and_then(|b| b.get("c")).and_then(Json::as_str), Some("d"));
        let Some(Json::Text(Cow::Borrowed("d"))) = tree.get("b").and_then(|b| b.get("c")) else {
            panic!("a plain string is copied");
        };
    }

    #[test]
    fn of_equal_names_the_last_holds() {
        let tree: Json<'_> = serde_json::from_str(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(tree.get("a").and_then(Json::as_f64), Some(3.0));
        let read = BTreeMap::<String, u8>::deserialize(&tree).unwrap();
        assert_eq!(read, [("a".to_owned(), 3), ("b".to_owned(), 2)].into());
    }

    #[test]
    fn a_small_object_is_small() {
        assert!(size_of::<Json<'_>>() <= 32, "{}", size_of::<Json<'_>>());
    }
}
