//! Usage objects: the tokens of a model call in JSON, in the shapes that providers and libraries write.
//!
//! Most count cached tokens as a part of the input and have their number in an object of details. Anthropic counts them beside the
//! input; they are added here, as a call's input includes them.

use super::json::Json;
use crate::span::Tokens;

const INPUT: [&str; 4] = ["input_tokens", "prompt_tokens", "inputTokens", "promptTokens"];
const OUTPUT: [&str; 4] =
    ["output_tokens", "completion_tokens", "outputTokens", "completionTokens"];

/// Where details of the input are.
const DETAILS: [&str; 4] =
    ["input_tokens_details", "prompt_tokens_details", "input_token_details", "inputTokenDetails"];

/// Tokens read from a cache: among the details, and as a part of the input without details.
const CACHED_DETAILS: [&str; 3] = ["cached_tokens", "cache_read", "cacheReadTokens"];
const CACHED: [&str; 3] = ["cached_input_tokens", "cachedInputTokens", "cachedContentTokens"];

/// Tokens put into a cache, likewise.
const WRITTEN_DETAILS: [&str; 3] = ["cache_write_tokens", "cache_creation", "cacheWriteTokens"];
const WRITTEN: [&str; 1] = ["cache_write_input_tokens"];

/// Parts of what LangChain's details call `cache_creation`, which is zero beside them.
const EPHEMERAL: [&str; 2] = ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"];

/// Anthropic's tokens beside the input: read from a cache, and put into one.
const BESIDE: [&str; 2] = ["cache_read_input_tokens", "cache_creation_input_tokens"];

/// The tokens in a usage object.
pub(super) fn tokens(usage: &Json<'_>) -> Tokens {
    let first = |from: &Json<'_>, keys: &[&str]| keys.iter().find_map(|key| count(from, key));
    let details = DETAILS.iter().filter_map(|key| usage.get(key));
    let kind = |details: &&Json<'_>| {
        [CACHED_DETAILS, WRITTEN_DETAILS].iter().any(|keys| first(details, keys).is_some())
    };
    let details = details.into_iter().find(kind);
    let input = first(usage, &INPUT);
    let (read, written) = (count(usage, BESIDE[0]), count(usage, BESIDE[1]));
    let (input, cached, cache_written) = match details {
        Some(details) => {
            let parts = EPHEMERAL.iter().filter_map(|key| count(details, key));
            let parts = parts.fold(0, u64::saturating_add);
            let whole = first(details, &WRITTEN_DETAILS).map(|whole| whole.max(parts));
            (input, first(details, &CACHED_DETAILS), whole.or(written))
        }
        None if read.or(written).is_some() => {
            let beside = read.unwrap_or(0).saturating_add(written.unwrap_or(0));
            (input.map(|input| input.saturating_add(beside)), read, written)
        }
        None => (input, first(usage, &CACHED), first(usage, &WRITTEN)),
    };
    Tokens { input, cached, cache_written, output: output(usage, input) }
}

/// The output tokens; thoughts are added if the total shows that they are not included.
fn output(usage: &Json<'_>, input: Option<u64>) -> Option<u64> {
    let output = OUTPUT.iter().find_map(|key| count(usage, key))?;
    let thoughts = count(usage, "thoughtsTokens").unwrap_or(0);
    let sum = input.map(|input| input.saturating_add(output).saturating_add(thoughts));
    let apart = sum.is_some() && count(usage, "totalTokens") == sum;
    Some(if apart { output.saturating_add(thoughts) } else { output })
}

fn count(from: &Json<'_>, key: &str) -> Option<u64> {
    from.get(key)?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convention::json;

    #[test]
    fn a_usage_object_is_read_in_the_shapes_that_there_are() {
        for (usage, [input, cached, written, output]) in [
            (r#"{"prompt_tokens":9,"completion_tokens":2}"#, [Some(9), None, None, Some(2)]),
            (
                r#"{"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":null}}"#,
                [Some(9), Some(4), None, Some(2)],
            ),
            (
                r#"{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":4,"cache_creation_input_tokens":1}"#,
                [Some(14), Some(4), Some(1), Some(2)],
            ),
            // As LiteLLM has it, with both.
            (
                r#"{"prompt_tokens":14,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4},"cache_read_input_tokens":4,"cache_creation_input_tokens":1}"#,
                [Some(14), Some(4), Some(1), Some(2)],
            ),
            (
                r#"{"input_tokens":14,"output_tokens":2,"input_token_details":{"cache_read":4,"cache_creation":0,"ephemeral_5m_input_tokens":1,"ephemeral_1h_input_tokens":2}}"#,
                [Some(14), Some(4), Some(3), Some(2)],
            ),
            (
                r#"{"inputTokens":9,"outputTokens":2,"thoughtsTokens":5,"totalTokens":16,"cachedContentTokens":4}"#,
                [Some(9), Some(4), None, Some(7)],
            ),
            (
                r#"{"inputTokens":9,"outputTokens":7,"thoughtsTokens":5,"totalTokens":16}"#,
                [Some(9), None, None, Some(7)],
            ),
            (r#"{"output_tokens":7}"#, [None, None, None, Some(7)]),
            (r#"{"input_tokens":null,"prompt_tokens_details":null}"#, [None; 4]),
            ("null", [None; 4]),
        ] {
            let read = tokens(&json::parse(usage).unwrap());
            let expected = Tokens { input, cached, cache_written: written, output };
            assert_eq!(read, expected, "{usage}");
        }
    }
}
