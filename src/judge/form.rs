//! The form of an answer, which is sent to endpoints as a JSON schema, and which answers are checked against.

use serde_json::{Map, Value, json};

use super::reply::ReplyError;

/// The form of an answer, or of a part of one.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// A text.
    Text,
    /// A text, or `null`.
    MaybeText,
    /// A number from 0 to 1.
    Share,
    /// A number without a fraction.
    Whole,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// An object with any keys.
    Open,
    /// A list of any number of items of this form.
    List(Box<Self>),
    /// An object with these keys, and possibly others.
    Object {
        /// Keys that must exist.
        required: Vec<(&'static str, Self)>,
        /// Keys that may exist.
        optional: Vec<(&'static str, Self)>,
    },
}

impl Form {
    /// A list of items of this form.
    pub(super) fn list(item: Self) -> Self {
        Self::List(Box::new(item))
    }

    /// An object with these keys.
    pub(super) fn object(
        required: &[(&'static str, Self)],
        optional: &[(&'static str, Self)],
    ) -> Self {
        Self::Object { required: required.to_vec(), optional: optional.to_vec() }
    }

    /// Checks a value against the form.
    ///
    /// # Errors
    ///
    /// Fails with the first fault, in the order of the form's keys.
    pub(super) fn check(&self, value: &Value) -> Result<(), ReplyError> {
        let of_form = |is: bool| if is { Ok(()) } else { Err(ReplyError::WrongForm) };
        match self {
            Self::Text => of_form(value.is_string()),
            Self::MaybeText => of_form(value.is_string() || value.is_null()),
            Self::Share => {
                let share = value.as_f64().ok_or(ReplyError::WrongForm)?;
                let is_in_range = (0.0..=1.0).contains(&share);
                if is_in_range { Ok(()) } else { Err(ReplyError::OutOfRange) }
            }
            Self::Whole => of_form(value.as_f64().is_some_and(|number| number.fract() == 0.0)),
            Self::OneOf(texts) => of_form(value.as_str().is_some_and(|text| texts.contains(&text))),
            Self::Open => of_form(value.is_object()),
            Self::List(item) => {
                let items = value.as_array().ok_or(ReplyError::WrongForm)?;
                items.iter().try_for_each(|value| item.check(value))
            }
            Self::Object { required, optional } => {
                let keys = value.as_object().ok_or(ReplyError::WrongForm)?;
                for (key, form) in required {
                    form.check(keys.get(*key).ok_or(ReplyError::WrongForm)?)?;
                }
                let mut there =
                    optional.iter().filter_map(|(key, form)| Some((form, keys.get(*key)?)));
                there.try_for_each(|(form, value)| form.check(value))
            }
        }
    }

    /// The form as a JSON schema.
    pub(super) fn schema(&self) -> Value {
        self.written(false)
    }

    /// The schema that is sent to endpoints: all keys required, no others allowed, and no ranges, which not all endpoints know.
    pub(super) fn sent_schema(&self) -> Value {
        self.written(true)
    }

    fn written(&self, sent: bool) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::MaybeText if sent => json!({ "type": "string" }),
            Self::MaybeText => json!({ "type": ["string", "null"] }),
            Self::Share if sent => json!({ "type": "number", "description": "from 0 to 1" }),
            Self::Share => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
            Self::Whole => json!({ "type": "integer" }),
            Self::OneOf(texts) => json!({ "type": "string", "enum": texts }),
            Self::Open => json!({ "type": "object" }),
            Self::List(item) => json!({ "type": "array", "items": item.written(sent) }),
            Self::Object { required, optional } => {
                let all = required.iter().chain(optional);
                let properties: Map<String, Value> = all
                    .clone()
                    .map(|(key, form)| ((*key).to_owned(), form.written(sent)))
                    .collect();
                if sent {
                    let keys: Vec<&str> = all.map(|(key, _)| *key).collect();
                    return json!({
                        "type": "object", "properties": properties, "required": keys, "additionalProperties": false
                    });
                }
                let keys: Vec<&str> = required.iter().map(|(key, _)| *key).collect();
                json!({ "type": "object", "properties": properties, "required": keys })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jsonschema::error::ValidationErrorKind;

    use super::*;
    use crate::judge::Stage;

    /// A value of the form, with all its keys.
    fn good(form: &Form) -> Value {
        match form {
            Form::Text | Form::MaybeText => json!("a"),
            Form::Share => json!(0.5),
            Form::Whole => json!(4),
            Form::OneOf(texts) => json!(texts[0]),
            Form::Open => json!({ "a": 1 }),
            Form::List(item) => json!([good(item), good(item)]),
            Form::Object { required, optional } => {
                let all = required.iter().chain(optional);
                all.map(|(key, form)| ((*key).to_owned(), good(form))).collect::<Map<_, _>>().into()
            }
        }
    }

    /// The value with one part of it, at any depth, left out or replaced by each of some others.
    fn changed(value: &Value) -> Vec<Value> {
        let others = [
            Value::Null,
            json!(true),
            json!(0),
            json!(1.0),
            json!(4.0),
            json!(-0.25),
            json!(75),
            json!("yes"),
            json!("x"),
            json!([]),
            json!([1]),
            json!({}),
        ];
        let mut all = others.to_vec();
        if let Value::Object(keys) = value {
            for (key, part) in keys {
                let mut without = keys.clone();
                without.shift_remove(key);
                all.push(without.into());
                for part in changed(part) {
                    let mut with = keys.clone();
                    with.insert(key.clone(), part);
                    all.push(with.into());
                }
            }
        }
        if let Value::Array(items) = value {
            for part in changed(&items[1]) {
                all.push(json!([items[0], part]));
            }
        }
        all
    }

    #[test]
    fn an_answer_fits_the_form_where_it_fits_its_schema() {
        for stage in Stage::ALL {
            let form = stage.form();
            let validator = jsonschema::validator_for(&form.schema()).unwrap();
            let sent = jsonschema::validator_for(&form.sent_schema()).unwrap();
            let good = good(&form);
            assert!(sent.is_valid(&good), "{good}");
            for value in [vec![good.clone()], changed(&good)].concat() {
                let expected = validator.validate(&value).map_err(|error| {
                    let is_range = matches!(
                        error.kind(),
                        ValidationErrorKind::Minimum { .. } | ValidationErrorKind::Maximum { .. }
                    );
                    if is_range { ReplyError::OutOfRange } else { ReplyError::WrongForm }
                });
                assert_eq!(form.check(&value), expected, "{}: {value}", stage.name());
            }
        }
    }
}
