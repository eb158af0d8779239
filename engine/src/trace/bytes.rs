//! How much memory a trace takes, estimated from its contents: rather too high, as names and resources that many traces share count
//! for each.

use std::ops::AddAssign;
use std::sync::Arc;

use crate::span::{Attempt, Guardrail, Log, Remarks, Resource, SessionName};

/// Bytes of memory that the parts of a trace take; capped at four gigabytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bytes {
    /// All of them.
    pub all: u32,
    /// Of these, the bytes of long texts that only people and models read.
    pub extra: u32,
}

/// Length in bytes from which on a text is long.
const LONG_BYTES: usize = 256;

/// Bytes that an item of a list takes beside its text.
const ITEM_BYTES: usize = 32;

impl Bytes {
    /// The sum of `facts` bytes and of texts, each with whether only people and models read it.
    pub(super) fn of<'t>(facts: usize, texts: impl Iterator<Item = (&'t Arc<str>, bool)>) -> Self {
        let (mut all, mut extra) = (facts, 0);
        for (text, is_extra) in texts {
            all += text.len();
            extra += if is_extra && text.len() >= LONG_BYTES { text.len() } else { 0 };
        }
        let [all, extra] = [all, extra].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        Self { all, extra }
    }

    /// Adds bytes that are not of texts.
    #[must_use]
    pub fn and(self, facts: usize) -> Self {
        let all = self.all.saturating_add(u32::try_from(facts).unwrap_or(u32::MAX));
        Self { all, ..self }
    }

    /// Subtracts these.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        let (all, extra) =
            (self.all.saturating_sub(other.all), self.extra.saturating_sub(other.extra));
        Self { all, extra }
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.all = self.all.saturating_add(other.all);
        self.extra = self.extra.saturating_add(other.extra);
    }
}

/// The bytes of a log record.
pub(super) fn of_log(log: &Log) -> Bytes {
    let mut facts = size_of::<Log>() + name(&log.error_type);
    for tool in &log.tool_calls {
        facts += size_of_val(tool) + name(&tool.name);
        if let Some(arguments) = &tool.arguments {
            facts += size_of_val(&**arguments.values());
            facts += arguments.text().map_or(0, |text| text.len());
        }
    }
    facts += size_of_val(&*log.tool_results);
    let broken = log.violations.iter();
    facts +=
        broken.map(|one| ITEM_BYTES + one.constraint.len() + name(&one.severity)).sum::<usize>();
    Bytes::of(facts, texts_of_log(log).map(|text| (text, false)))
}

/// The texts of a log record, except the arguments of calls, which count as facts: they are not dropped.
pub(super) fn texts_of_log(log: &Log) -> impl Iterator<Item = &Arc<str>> {
    [&log.input, &log.output].into_iter().flatten().map(|said| &said.text)
}

/// The bytes of a resource.
pub(super) fn of_resource(resource: &Resource) -> usize {
    let Resource { service_name, service_namespace, service_version, .. } = resource;
    let Resource { instance_id, environment, agent_name, session, attempt, .. } = resource;
    let names =
        [service_name, service_namespace, service_version, instance_id, environment, agent_name];
    size_of::<Resource>()
        + names.into_iter().map(name).sum::<usize>()
        + session.as_ref().map_or(0, of_session)
        + attempt.as_deref().map_or(0, of_attempt)
}

/// The bytes of the texts of a session's name.
pub(super) fn of_session(session: &SessionName) -> usize {
    session.attribute.len() + session.id.len()
}

/// The bytes of an attempt at a task.
pub(crate) fn of_attempt(attempt: &Attempt) -> usize {
    let Attempt { task, run, trial, perturbation, perturbation_id, expected_output, .. } = attempt;
    let names = [task, run, trial, perturbation, perturbation_id, expected_output];
    let Attempt { expected_tools, retrieved, cited, violations, .. } = attempt;
    let items = [expected_tools, retrieved, cited].into_iter().flatten().map(|item| item.len());
    let broken = violations.iter().map(|one| one.constraint.len() + name(&one.severity));
    size_of::<Attempt>()
        + names.into_iter().map(name).sum::<usize>()
        + items.chain(broken).map(|bytes| ITEM_BYTES + bytes).sum::<usize>()
}

/// The bytes of remarks.
pub(super) fn of_remarks(remarks: &Remarks) -> usize {
    let Remarks { previous_session, guardrail, error_type, begins, .. } = remarks;
    let guardrail = guardrail.as_ref();
    let guardrail = guardrail.map(|Guardrail { name: own, result }| name(own) + name(result));
    let names = name(previous_session) + name(error_type) + name(begins);
    size_of::<Remarks>() + names + guardrail.unwrap_or(0)
}

fn name(name: &Option<Arc<str>>) -> usize {
    name.as_ref().map_or(0, |name| name.len())
}
