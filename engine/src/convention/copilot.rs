//! GitHub Copilot CLI, with the names of the GenAI conventions.
//!
//! The agent has no name; those that it starts by the tool `task` have. A command's output ends with the number of its shell, which
//! differs each time.

use std::borrow::Cow;

use super::draft::Draft;
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, Trigger, text};

const RESULT: &str = "gen_ai.tool.call.result";

pub(super) const CONVENTION: Convention = Convention {
    name: "copilot",
    title: "GitHub Copilot CLI",
    session: "`gen_ai.conversation.id` is sent by itself; for texts and arguments set `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`",
    agent: "`OTEL_SERVICE_NAME`, else `github-copilot`; sub-agents have names of their own",
    marks: &[Mark::Scope("github.copilot")],
    also: &[
        "A result is compared without the line `<shellId: ...>` at its end. A command that the client says went well did, whatever `process.exit.code`.",
    ],
    looks_for: &[Trigger::Key(RESULT)],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let output = raw.attributes.str(RESULT).and_then(without_shell);
    let result = output.map(|text| RawValue::Str(Cow::from(text)));
    draft.result_hash.offer(9, result.as_ref().and_then(text::result));
}

/// A command's output without the number of its shell; `None` if it has none.
fn without_shell(output: &str) -> Option<String> {
    let (told, line) = output.rsplit_once("<shellId: ")?;
    let rest = line.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    rest.ends_with('>').then(|| format!("{told}{rest}"))
}
