//! Arguments of tools: their normal form, and the values in them. In normal form keys are sorted, and there is no white space.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::engine::span;

/// Arguments for comparing calls.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    /// The text as it was decoded.
    pub(super) decoded: String,
    /// The normal form, as JSON.
    pub(super) text: String,
    /// The scalars at any depth, each with its path, as they are written.
    pub(super) values: BTreeSet<(String, String)>,
}

impl Arguments {
    /// The arguments in a text; a text that is not JSON counts as a JSON string.
    fn of(decoded: &str) -> Self {
        let value =
            serde_json::from_str(decoded).unwrap_or_else(|_| Value::String(decoded.to_owned()));
        let mut values = BTreeSet::new();
        match &value {
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(at, item)| add(item, &[numbered(at)], &mut values));
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Object(_) => add(&value, &[], &mut values),
        }
        Self { decoded: decoded.to_owned(), text: normal(&value), values }
    }

    /// Whether they are a single value.
    pub(super) fn is_bare(&self) -> bool {
        self.values.contains(&(String::new(), self.text.clone()))
    }

    /// The scalars, wherever they are.
    pub(super) fn scalars(&self) -> BTreeSet<&str> {
        self.values.iter().map(|(_, scalar)| scalar.as_str()).collect()
    }
}

impl From<&span::Arguments> for Arguments {
    /// The arguments of a span that was decoded with its texts, as all verified spans are.
    fn from(decoded: &span::Arguments) -> Self {
        Self::of(decoded.text().map_or("", |text| text))
    }
}

impl PartialEq for Arguments {
    /// Whether the normal forms are equal.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

fn normal(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(normal).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(entries) => {
            let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> = entries
                .into_iter()
                .map(|(key, value)| format!("{}:{}", Value::String(key.clone()), normal(value)))
                .collect();
            format!("{{{}}}", entries.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Adds the scalars of a value at a path, which is the keys that lead to it, and the indices of the lists and objects in lists. The
/// scalars of an inner list have one path.
fn add(value: &Value, place: &[String], scalars: &mut BTreeSet<(String, String)>) {
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let step = (item.is_array() || item.is_object()).then(|| numbered(at));
                add(item, &place.iter().cloned().chain(step).collect::<Vec<_>>(), scalars);
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                let key = Value::String(key.clone()).to_string();
                add(value, &[place, &[key]].concat(), scalars);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            scalars.insert((place.join("/"), value.to_string()));
        }
    }
}

fn numbered(at: usize) -> String {
    format!("#{at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let one = Arguments::of(r#"{"b": [1, "x"], "a": {"d": null, "c": 1}}"#);
        assert_eq!(one, Arguments::of(r#"{"a":{"c":1,"d":null},"b":[1,"x"]}"#));
        assert_eq!(one.text, r#"{"a":{"c":1,"d":null},"b":[1,"x"]}"#);
        assert_eq!(one.scalars(), ["1", "\"x\"", "null"].into());
        let places: Vec<&str> = one.values.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, ["\"a\"/\"c\"", "\"a\"/\"d\"", "\"b\"", "\"b\""]);
        assert_ne!(one, Arguments::of(r#"{"a":{"c":1,"d":null},"b":["x",1]}"#));
    }
}
