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
    ] {
        assert_eq!(sent(format, url, Dialect::Full).url, expected);
    }
}

#[test]
fn the_key_goes_in_the_header_that_the_format_has_for_it() {
    for (format, url, header, value) in [
        (Format::Openai, "https://a/v1", "authorization", "Bearer the-key"),
        (Format::Openai, "https://x.openai.azure.com/v1", "api-key", "the-key"),
        (Format::Openai, "https://a/x.azure.com/v1", "authorization", "Bearer the-key"),
        (Format::Anthropic, "https://a/v1", "x-api-key", "the-key"),
        (Format::Gemini, "https://a/v1", "x-goog-api-key", "the-key"),
    ] {
        let request = sent(format, url, Dialect::Full);
        assert!(request.headers.contains(&(header, value.to_owned())), "{:?}", request.headers);
        assert!(!request.url.contains("the-key") && !request.body.to_string().contains("the-key"));
    }
}

#[test]
fn a_plainer_dialect_leaves_out_what_was_not_understood() {
    for format in [Format::Openai, Format::Anthropic, Format::Gemini] {
        let body = |dialect| sent(format, "https://a", dialect).body.to_string();
        let (full, without, bare) =
            (body(Dialect::Full), body(Dialect::WithoutSchema), body(Dialect::Bare));
        assert!(full.contains("additionalProperties") && full.contains("temperature"));
        assert!(!without.contains("additionalProperties") && without.contains("temperature"));
        assert!(!bare.contains("additionalProperties") && !bare.contains("temperature"));
    }
    assert_eq!(Dialect::Bare.plainer(), None);
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
