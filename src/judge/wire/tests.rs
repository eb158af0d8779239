use super::*;
use crate::judge::prompt::prompt;

fn sent(format: Format, url: &str, dialect: Dialect) -> Request {
    let prompt = prompt(Stage::TaskVerdict, &[("trace", "t")]);
    let call = Call {
        model: "m",
        prompt: &prompt,
        stage: Stage::TaskVerdict,
        temperature: 0.0,
        max_output_tokens: 9,
        dialect,
    };
    format.request(url, Secret::new("the-key").as_ref(), &call).unwrap()
}

#[test]
fn a_call_goes_where_the_format_says() {
    for (format, url, expected) in [
        (Format::Openai, "https://a/v1", "https://a/v1/chat/completions"),
        (Format::Openai, "https://a/v1/", "https://a/v1/chat/completions"),
        (
            Format::Openai,
            "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1",
            "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1",
        ),
        (Format::Anthropic, "https://a/v1", "https://a/v1/messages"),
        (Format::Gemini, "https://a/v1beta", "https://a/v1beta/models/m:generateContent"),
        (
            Format::Gemini,
            "https://a/v1beta/models/x:generateContent?alt=json",
            "https://a/v1beta/models/x:generateContent?alt=json",
        ),
    ] {
        assert_eq!(sent(format, url, Dialect::Full).url, expected);
    }
}

#[test]
fn the_key_goes_in_the_header_that_the_format_has_for_it() {
    for (format, url, header, value) in [
        (Format::Openai, "https://a/v1", "authorization", "Bearer the-key"),
        (Format::Openai, "https://x.openai.azure.com/v1", "api-key", "the-key"),
        (Format::Openai, "https://X.OpenAI.Azure.US:443/v1", "api-key", "the-key"),
        (Format::Openai, "https://a/x.azure.com/v1", "authorization", "Bearer the-key"),
        (Format::Anthropic, "https://a/v1", "x-api-key", "the-key"),
        (Format::Gemini, "https://a/v1", "x-goog-api-key", "the-key"),
    ] {
        let request = sent(format, url, Dialect::Full);
        assert!(request.headers.contains(&(header, value.to_owned())), "{:?}", request.headers);
        assert!(!request.url.contains("the-key") && !request.body.to_string().contains("the-key"));
        let shown = format!("{request:?}");
        assert!(shown.contains(header) && !shown.contains("the-key"), "{shown}");
    }
}

#[test]
fn a_plainer_dialect_leaves_out_what_was_not_understood() {
    for format in [Format::Openai, Format::Anthropic, Format::Gemini] {
        let mut left = Vec::new();
        let mut dialect = Some(Dialect::Full);
        while let Some(spoken) = dialect {
            let body = sent(format, "https://a", spoken).body.to_string();
            left.push(["additionalProperties", "temperature"].map(|part| body.contains(part)));
            dialect = spoken.plainer();
        }
        assert_eq!(left, [[true, true], [true, false], [false, true], [false, false]]);
    }
}

/// Visits every object of a schema.
fn objects(schema: &Value, see: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    let Some(map) = schema.as_object() else { return };
    if map.get("type").is_some_and(|kind| kind == "object") {
        see(map);
    }
    let inner = map.get("properties").and_then(Value::as_object).into_iter();
    inner
        .flat_map(serde_json::Map::values)
        .chain(map.get("items"))
        .for_each(|inner| objects(inner, see));
}

#[test]
fn schemas_are_what_strict_modes_take() {
    for stage in Stage::ALL {
        let schema = stage.sent_schema();
        // Some endpoints do not know ranges and lists of types.
        let text = schema.to_string();
        for word in ["minimum", "maximum", "\"null\"", "$ref", "default"] {
            assert!(!text.contains(word), "{}: {word}", stage.name());
        }
        let mut open = 0;
        objects(&schema, &mut |object| {
            let Some(properties) = object.get("properties").and_then(Value::as_object) else {
                open += 1;
                return;
            };
            assert_eq!(object["additionalProperties"], false, "{}", stage.name());
            let mut required: Vec<&str> =
                object["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            required.sort_unstable();
            let mut keys: Vec<&str> = properties.keys().map(String::as_str).collect();
            keys.sort_unstable();
            assert_eq!(required, keys, "{}", stage.name());
        });
        // An open object is not: then strictness is not requested.
        assert_eq!(open == 0, stage.is_closed(), "{}", stage.name());
        let prompt = prompt(stage, &[]);
        let call = Call {
            model: "m",
            prompt: &prompt,
            stage,
            temperature: 0.0,
            max_output_tokens: 9,
            dialect: Dialect::Full,
        };
        let body = Format::Openai.request("https://a", None, &call).unwrap().body;
        let strict = body.pointer("/response_format/json_schema/strict").unwrap();
        assert_eq!(*strict, stage.is_closed(), "{}", stage.name());
    }
}

/// A reply, its text and tokens, and why there is no answer if there is none.
type Read = (&'static str, (&'static str, Option<u64>, Option<u64>, Option<NoAnswer>));

fn reads(format: Format, replies: &[Read]) {
    for (reply, (text, input_tokens, output_tokens, why)) in replies.iter().copied() {
        let read = format.answer(&serde_json::from_str(reply).unwrap());
        let answer = Answer { text: text.to_owned(), input_tokens, output_tokens };
        assert_eq!(read, (answer, why), "{reply}");
    }
}

#[test]
fn replies_of_chat_completions_are_read_as_they_come() {
    use NoAnswer::{CutOff, NotOfFormat, Refused};
    reads(
        Format::Openai,
        &[
            (
                r#"{"choices":[{"finish_reason":"stop","message":{"content":"a","refusal":null}}],"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":3}}}"#,
                ("a", Some(7), Some(5), None),
            ),
            (
                r#"{"choices":[{"finish_reason":"stop","message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}}]}"#,
                ("ab", None, None, None),
            ),
            (
                r#"{"choices":[{"finish_reason":"stop","message":{"content":null,"refusal":"I cannot"}}],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#,
                ("", Some(7), Some(5), Some(Refused)),
            ),
            (
                r#"{"choices":[{"finish_reason":"stop","message":{"content":"<think>{\"a\":0}?</think>{\"a\":1}"}}]}"#,
                ("{\"a\":1}", None, None, None),
            ),
            (
                r#"{"choices":[{"finish_reason":"stop","message":{"content":"{\"a\":\"</think>\"}"}}]}"#,
                ("{\"a\":\"</think>\"}", None, None, None),
            ),
            (
                r#"{"choices":[{"finish_reason":"content_filter","message":{"content":"half"}}]}"#,
                ("half", None, None, Some(Refused)),
            ),
            (
                r#"{"choices":[{"finish_reason":"length","message":{"content":"{"}}],"usage":{"prompt_tokens":7,"completion_tokens":9}}"#,
                ("{", Some(7), Some(9), Some(CutOff)),
            ),
            (
                r#"{"choices":[{"finish_reason":"stop","message":{"reasoning_content":"hm","content":"a"}}],"usage":null}"#,
                ("a", None, None, None),
            ),
            (
                r#"{"error":{"message":"no provider is there","code":502}}"#,
                ("", None, None, Some(NotOfFormat)),
            ),
        ],
    );
}

#[test]
fn replies_of_messages_are_read_as_they_come() {
    use NoAnswer::{CutOff, NotOfFormat, Refused};
    reads(
        Format::Anthropic,
        &[
            (
                r#"{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"So:"},{"type":"tool_use","id":"1","name":"n","input":{"a":1}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":5,"output_tokens":6}}"#,
                (r#"{"a":1}"#, Some(12), Some(6), None),
            ),
            (
                r#"{"content":[{"type":"text","text":"a"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":6}}"#,
                ("a", Some(3), Some(6), None),
            ),
            (
                r#"{"content":[],"stop_reason":"refusal","usage":{"input_tokens":3,"output_tokens":1}}"#,
                ("", Some(3), Some(1), Some(Refused)),
            ),
            (
                r#"{"content":[{"type":"tool_use","id":"1","name":"n","input":{}}],"stop_reason":"max_tokens","usage":{"input_tokens":3,"output_tokens":9}}"#,
                ("{}", Some(3), Some(9), Some(CutOff)),
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                ("", None, None, Some(NotOfFormat)),
            ),
        ],
    );
}

#[test]
fn replies_of_generate_content_are_read_as_they_come() {
    use NoAnswer::{CutOff, Refused};
    reads(
        Format::Gemini,
        &[
            (
                r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hm","thought":true},{"text":"a"},{"text":"b"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"thoughtsTokenCount":4,"totalTokenCount":9}}"#,
                ("ab", Some(3), Some(6), None),
            ),
            (
                r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":3,"totalTokenCount":3}}"#,
                ("", Some(3), None, Some(Refused)),
            ),
            (
                r#"{"candidates":[{"finishReason":"PROHIBITED_CONTENT"}],"usageMetadata":{"promptTokenCount":3}}"#,
                ("", Some(3), None, Some(Refused)),
            ),
            (
                r#"{"candidates":[{"content":{"role":"model"},"finishReason":"MAX_TOKENS"}],"usageMetadata":{"promptTokenCount":3,"thoughtsTokenCount":9}}"#,
                ("", Some(3), Some(9), Some(CutOff)),
            ),
        ],
    );
}

#[test]
fn a_reply_that_is_something_else_is_no_answer() {
    for format in [Format::Openai, Format::Anthropic, Format::Gemini] {
        for reply in
            ["null", "[]", "{}", r#"{"choices":[]}"#, r#"{"content":1}"#, r#"{"candidates":[{}]}"#]
        {
            let (answer, why) = format.answer(&serde_json::from_str(reply).unwrap());
            assert_eq!((answer, why), (Answer::default(), Some(NoAnswer::NotOfFormat)), "{reply}");
        }
    }
}
