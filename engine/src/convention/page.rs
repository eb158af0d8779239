//! The documentation page of the attributes that are read, written from the conventions themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::lines::Concept;
use super::{CONVENTIONS, Mark, SESSION_JSON_KEYS, SESSION_KEYS};

const HEAD: &str = "\
# What is read

Written by `agentgauge conventions` from the source; a test fails when it is stale.

Every convention is asked about every span, whatever its schema URL says: they are recognised by attributes and scopes. Where
several say something of one concept, the lowest rank holds; the order in which spans, attributes or requests arrive
changes nothing. Placeholders (`<not specified>`, `<REDACTED>`, `[REDACTED]`, `<elided>`, `N/A`, and Koog's `HIDDEN:non-empty`) count as absent. So do
arguments with a value that was masked or cut off, and results that were masked.
";

const SESSIONS: &str = "
## Session

The outermost span of a trace that has any of these keys names the session, by the first of them; then the resource,
by the same keys; then JSON values. The list is `convention.session_keys` in the configuration. The id of a response of
OpenAI's API (`resp_` and hex digits) names none. Without any of them a trace is its own session, or, with
`assemble.session_fallback = \"instance\"`, all of one `service.instance.id` are one.

";

const AGENT: &str = "
## Agent

A trace's agent has the name of its outermost agent span that has one of its own, else that of the outermost other span that names an
agent; then `gen_ai.main_agent.name` of the resource, the outermost `workflow`, the outermost `agent_id` if it is no random one, and in
the end the service's name. Names that libraries give by themselves are none, in any case, and the name of a model is none:

";

const LIBRARIES: &str = "
## Libraries

What to set to get a session id and a name, and what identifies the library where its keys alone do not.

| Library | In counts | Told by | To get a session id | The agent's name |
|---|---|---|---|---|
";

const CONCEPTS: &str = "
## Concepts

Attributes by concept, best first. The names of the concepts are those of `[convention.attributes]`, where attributes of
your own go before all of these. Tool concepts are read on tool spans alone, model concepts on model spans alone:
a tool's name on a model span is a request, tokens on an agent's span are a sum.

Where no attribute says so, the span's name does: of an agent, and, without `execute_tool ` and `.tool`, of a tool. A span
failed if its status is ERROR or any attribute under `failed` says so; an `exception` event counts where the status is
unset. A tool failed, too, if its result says so in the words of LangChain (`status` of a message of a tool), of MCP (`isError`)
or of a model's API (`is_error`); what a tool answers in words of its own is not looked at. The kind of error is that of an attribute under `error_type`, else the type of the last exception.

A run failed if its root did. That a root is OK says that the run recovered from what failed below, if the root is an agent's span; of
a step, or of `create_agent`, it says nothing of the agents below: the run failed if the last of the outermost ones did. Below a root that is no
agent's, an agent may work at several conversations or runs of tasks, as at the items of a batch: then the run failed if the agent failed at one of
them and did not succeed at it later.

";

const BEYOND: &str = "
## Beyond single attributes

";

/// The page, as Markdown.
pub fn page() -> String {
    let mut page = String::from(HEAD);
    page.push_str(SESSIONS);
    for key in SESSION_KEYS {
        line(&mut page, format_args!("1. `{key}`"));
    }
    for key in SESSION_JSON_KEYS {
        line(&mut page, format_args!("1. `{key}`: a key inside the JSON of the attribute"));
    }
    page.push_str(AGENT);
    let generic = CONVENTIONS.iter().flat_map(|convention| convention.generic_names);
    let generic: BTreeSet<String> = generic.map(|name| format!("`{name}`")).collect();
    line(&mut page, format_args!("{}.", generic.into_iter().collect::<Vec<_>>().join(", ")));
    page.push_str(LIBRARIES);
    for convention in CONVENTIONS {
        let described: Vec<String> = convention.marks.iter().map(described).collect();
        line(
            &mut page,
            format_args!(
                "| {} | `{}` | {} | {} | {} |",
                convention.title,
                convention.name,
                described.join(", "),
                convention.session,
                convention.agent
            ),
        );
    }
    page.push_str(CONCEPTS);
    page.push_str("| Concept | Attributes |\n|---|---|\n");
    for concept in Concept::ALL {
        let mut keys: BTreeMap<u8, Vec<String>> = BTreeMap::new();
        for convention in CONVENTIONS {
            let lines = convention.lines.iter();
            for line in lines.filter(|line| line.concept.name() == concept.name()) {
                // A key of a convention with marks is read only from that library.
                let key = if convention.marks.is_empty() {
                    format!("`{}`", line.key)
                } else {
                    format!("`{}` ({})", line.key, convention.name)
                };
                keys.entry(line.rank).or_default().push(key);
            }
        }
        let mut keys: Vec<String> = keys.into_values().flatten().collect();
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert(key.clone()));
        line(&mut page, format_args!("| {} | {} |", concept.name(), keys.join(", ")));
    }
    page.push_str(BEYOND);
    for convention in CONVENTIONS.iter().filter(|convention| !convention.also.is_empty()) {
        line(&mut page, format_args!("{}:\n", convention.title));
        for also in convention.also {
            line(&mut page, format_args!("- {also}"));
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn described(mark: &Mark) -> String {
    match mark {
        Mark::Key(key) => format!("`{key}`"),
        Mark::Scope(start) => format!("scope `{start}`"),
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(page, "{text}");
}
