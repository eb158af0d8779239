//! Arguments of tools: their normal form, and the values in them. In normal form keys are sorted, and there is no white space.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::engine::span;

/// Arguments by which calls are compared.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    /// The text as it was decoded.
    pub(super) decoded: String,
    /// The normal form, as JSON.
    pub(super) text: String,
    /// The scalars at any depth, as they are written.
    pub(super) values: BTreeSet<String>,
}

impl Arguments {
    /// The arguments in a text; a text that is not JSON counts as a JSON string.
    fn of(decoded: &str) -> Self {
        let value =
            serde_json::from_str(decoded).unwrap_or_else(|_| Value::String(decoded.to_owned()));
        let mut values = BTreeSet::new();
        let text = normal(&value, &mut values);
        Self { decoded: decoded.to_owned(), text, values }
    }
}

impl From<&span::Arguments> for Arguments {
    /// The arguments of a span that was decoded with its texts, as all are that are verified.
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

fn normal(value: &Value, scalars: &mut BTreeSet<String>) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| normal(item, scalars)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(entries) => {
            let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> = entries
                .into_iter()
                .map(|(key, value)| {
                    format!("{}:{}", Value::String(key.clone()), normal(value, scalars))
                })
                .collect();
            format!("{{{}}}", entries.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let text = value.to_string();
            scalars.insert(text.clone());
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let one = Arguments::of(r#"{"b": [1, "x"], "a": {"d": null, "c": 1}}"#);
        assert_eq!(one, Arguments::of(r#"{"a":{"c":1,"d":null},"b":[1,"x"]}"#));
        assert_eq!(one.text, r#"{"a":{"c":1,"d":null},"b":[1,"x"]}"#);
        assert_eq!(one.values, ["1", "\"x\"", "null"].map(str::to_owned).into());
        assert_ne!(one, Arguments::of(r#"{"a":{"c":1,"d":null},"b":["x",1]}"#));
    }
}
