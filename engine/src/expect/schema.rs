//! JSON schemas for answers: of the draft that `$schema` names, else 2020-12. Nothing is fetched, and `format` is not
//! checked, as in Python's `jsonschema.validate`. A build without the feature `json-schema` takes no schema.

#[cfg(feature = "json-schema")]
use jsonschema::Validator;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A schema that answers can be checked against.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Schema(Validator);

/// The error of something that is not a schema.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoSchema {
    /// It cannot be read as a schema.
    #[error("this is not a JSON schema: {0}")]
    Invalid(String),
    /// Schemas are left out of this build.
    #[error("this build lacks the feature `json-schema` (packages and images have it)")]
    NotBuilt,
}

impl Schema {
    /// Checks a text against the schema; the whole text must be JSON.
    ///
    /// # Errors
    ///
    /// Fails with what is wrong with the text.
    pub fn validate(&self, text: &str) -> Result<(), String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        self.held(&value)
    }

    #[cfg(feature = "json-schema")]
    fn held(&self, value: &Value) -> Result<(), String> {
        self.0.validate(value).map_err(|error| {
            let place = error.instance_path().to_string();
            // Without the answer's own text, which may not be kept.
            let error = error.masked();
            if place.is_empty() { error.to_string() } else { format!("{place}: {error}") }
        })
    }

    #[cfg(not(feature = "json-schema"))]
    fn held(&self, _: &Value) -> Result<(), String> {
        match self.0 {}
    }
}

/// The type in place of the validator in a build without one.
#[cfg(not(feature = "json-schema"))]
#[derive(Clone, Debug)]
enum Validator {}

impl TryFrom<Map<String, Value>> for Schema {
    type Error = NoSchema;

    #[cfg(feature = "json-schema")]
    fn try_from(schema: Map<String, Value>) -> Result<Self, NoSchema> {
        let options = jsonschema::options().should_validate_formats(false);
        let validator = options.build(&Value::Object(schema));
        validator.map(Self).map_err(|error| NoSchema::Invalid(error.to_string()))
    }

    #[cfg(not(feature = "json-schema"))]
    fn try_from(_: Map<String, Value>) -> Result<Self, NoSchema> {
        Err(NoSchema::NotBuilt)
    }
}

#[cfg(test)]
#[cfg(feature = "json-schema")]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(value: &Value) -> Result<Schema, NoSchema> {
        Schema::try_from(value.as_object().unwrap().clone())
    }

    #[test]
    fn the_whole_answer_is_json_of_the_schema() {
        let schema = schema(&json!({
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"type": "integer"}, "when": {"format": "date"}},
        }))
        .unwrap();
        for right in [r#"{"a": 1}"#, " {\"a\": 1.0, \"when\": \"soon\"}\n"] {
            assert_eq!(schema.validate(right), Ok(()), "{right}");
        }
        for wrong in ["", "a=1", "{}", r#"{"a": "1"}"#, "```json\n{\"a\": 1}\n```", r#"{"a": 1} x"#]
        {
            assert!(schema.validate(wrong).is_err(), "{wrong}");
        }
        let why = schema.validate(r#"{"a": "secret"}"#).unwrap_err();
        assert_eq!(why, "/a: value is not of type \"integer\"");
    }

    #[test]
    fn nothing_is_fetched() {
        for there in ["http://127.0.0.1:9/x.json", "file:///etc/hostname"] {
            assert!(schema(&json!({"$ref": there})).is_err(), "{there}");
        }
    }
}
