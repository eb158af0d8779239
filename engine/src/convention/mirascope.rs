//! Mirascope 2 (`mirascope.ops`): spans of traced functions around GenAI spans of model calls.

use super::draft::Draft;
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "mirascope",
    title: "Mirascope 2 (`mirascope.ops`)",
    session: "`with ops.session(id=\"...\"):`",
    agent: "the name of the root function, or `gen_ai.agent.name` on a span around the run",
    marks: &[Mark::Key("mirascope.type")],
    lines: &[
        line(Concept::Input, 88, "mirascope.trace.arg_values"),
        line(Concept::Output, 88, "mirascope.trace.output"),
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.offer_root(raw);
}
