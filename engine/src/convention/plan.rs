//! Plans: what is done with the attributes of spans that look alike.
//!
//! The spans of one library have the same keys in the same order again and again. After one of them was read the long way, a plan
//! is made from it: for each place what its value is used for, best rank first. A span that has a plan is read from its bytes: its
//! keys are compared, and its values are checked once, where they are used. A plan gives the same as the long way: where the operation
//! or the failure of spans depends on a value, each such value has a plan, and spans on which code finds something have none.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::iter;
use std::str;
use std::sync::Arc;

use simdutf8::basic::from_utf8;

use super::draft::{self, Draft};
use super::index::{Hits, KeyHasher};
use super::lines::{self, Says};
use super::names::Shared;
use super::raw::{Outline, Plain, RawPair, RawSpan, RawValue};
use super::{Conventions, Emitter, Names, Scope};
use crate::saved::Name;
use crate::span::{
    ModelFacts, Operation, SessionName, Span, SpanId, Status, Timestamp, ToolFacts, TraceId,
};

/// Plans by the hash of the keys and of the conventions that their scope tells; when there are too many kinds, all are dropped.
#[derive(Debug, Default)]
pub(super) struct Plans {
    kinds: HashMap<u64, Kind, BuildHasherDefault<KeyHasher>>,
    // Whether no plans are made.
    none: bool,
    planned: u64,
}

/// What is known of spans with the same keys.
#[derive(Debug, Default)]
struct Kind {
    // Empty until the second such span comes.
    keys: Box<[Arc<str>]>,
    recognised: u64,
    plans: Vec<Plan>,
    // Number of attempts to make a plan, failed ones included.
    tried: usize,
}

/// How spans that look alike are read.
#[derive(Debug)]
pub struct Plan {
    /// Places, and the bytes that a span must have there.
    same: Vec<(usize, Box<[u8]>)>,
    operation: Operation,
    convention: Option<Name>,
    failed: bool,
    stopped: bool,
    phantoms: Vec<&'static str>,
    // Invariant: of the places that one field is read from, the best is first.
    fields: Vec<(Field, usize)>,
    /// Steps that are read by way of a draft, which many spans do not need.
    drafted: Vec<Step>,
}

/// The field of a span that a value is read into.
#[derive(Clone, Copy, Debug)]
enum Field {
    Session,
    User,
    AgentName,
    Workflow,
    AgentId,
    AgentVersion,
    Environment,
    Failed(fn(&RawValue<'_>) -> bool),
    Stopped(fn(&RawValue<'_>) -> bool),
    ToolName,
    ToolCallId,
    Model,
    ResponseId,
    InputTokens,
    CachedTokens,
    CacheWrittenTokens,
    OutputTokens,
    FirstChunk,
}

/// What a line reads, and the place of the attribute that it reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) says: Says,
    pub(super) rank: u8,
    pub(super) at: usize,
}

/// Kinds of spans at most, and plans of a kind at most.
const MAX_KINDS: usize = 512;
const MAX_PLANS: usize = 8;

/// Attributes of a span that has a plan at most, bytes of its keys at most, and bytes at most of a value that has to be the same.
const MAX_PLACES: usize = 64;
const MAX_KEY_BYTES: usize = 4_096;
const MAX_SAME_BYTES: usize = 64;

impl Plans {
    /// Makes an empty collection to which no plan is ever added.
    pub(super) fn none() -> Self {
        Self { none: true, ..Self::default() }
    }

    fn find(&self, outline: &Outline<'_>, scope: Scope) -> Option<(&Kind, &Plan)> {
        let kind = self.kinds.get(&hash(outline, scope))?;
        if !kind.is_of(outline, scope) {
            return None;
        }
        let is_same = |(at, sent): &(usize, Box<[u8]>)| {
            outline.pairs.get(*at).is_some_and(|pair| same(pair.sent, sent))
        };
        let plan = kind.plans.iter().find(|plan| plan.same.iter().all(is_same))?;
        Some((kind, plan))
    }

    /// Whether a plan is to be made; never for the first span of a kind.
    fn wants(&mut self, outline: &Outline<'_>, scope: Scope) -> bool {
        let key_bytes: usize = outline.pairs.iter().map(|pair| pair.key.len()).sum();
        if self.none || outline.pairs.len() > MAX_PLACES || key_bytes > MAX_KEY_BYTES {
            return false;
        }
        let hash = hash(outline, scope);
        if let Some(kind) = self.kinds.get(&hash) {
            return kind.tried < MAX_PLANS && (kind.tried == 0 || kind.is_of(outline, scope));
        }
        if self.kinds.len() >= MAX_KINDS {
            self.kinds.clear();
        }
        self.kinds.insert(hash, Kind::default());
        false
    }

    fn learn(&mut self, outline: &Outline<'_>, scope: Scope, plan: Option<Plan>) {
        let Some(kind) = self.kinds.get_mut(&hash(outline, scope)) else { return };
        if kind.tried == 0 {
            let keys = outline.pairs.iter().map(|pair| str::from_utf8(pair.key).map(Arc::from));
            let Ok(keys) = keys.collect() else { return };
            (kind.keys, kind.recognised) = (keys, scope.recognised);
        }
        kind.tried += 1;
        kind.plans.extend(plan);
    }
}

impl Names {
    /// The number of spans that had a plan.
    pub fn planned(&self) -> u64 {
        self.plans.planned
    }

    /// Makes the plan of a span and keeps it for others like it, if one is wanted.
    pub fn learn(
        &mut self,
        outline: &Outline<'_>,
        scope: Scope,
        plan: impl FnOnce() -> Option<Plan>,
    ) {
        if self.plans.wants(outline, scope) {
            self.plans.learn(outline, scope, plan());
        }
    }
}

impl Kind {
    fn is_of(&self, outline: &Outline<'_>, scope: Scope) -> bool {
        // By place, as an iterator over both at once is not sure to be compiled into one loop.
        let is_there = |(at, key): (usize, &Arc<str>)| {
            outline.pairs.get(at).is_some_and(|pair| same(key.as_bytes(), pair.key))
        };
        self.recognised == scope.recognised
            && self.keys.len() == outline.pairs.len()
            && self.keys.iter().enumerate().all(is_there)
    }
}

fn hash(outline: &Outline<'_>, scope: Scope) -> u64 {
    outline.keys ^ scope.recognised
}

/// Whether these are the same bytes, compared by words: keys are too short to be worth a call.
#[inline]
fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let (mut rest, mut other_rest) = (one, other);
    while let (Some((word, after)), Some((other_word, other_after))) =
        (rest.split_first_chunk::<8>(), other_rest.split_first_chunk::<8>())
    {
        if word != other_word {
            return false;
        }
        (rest, other_rest) = (after, other_after);
    }
    // Of long ones the last eight bytes are compared, some of them again.
    match (one.last_chunk::<8>(), other.last_chunk::<8>()) {
        (Some(last), Some(other_last)) => last == other_last,
        _ => rest == other_rest,
    }
}

impl Conventions {
    /// Adds a span that has a plan, without its ids and times, and returns it; `None` if it has no plan or has to be mended.
    pub fn planned<'s>(
        &self,
        outline: &Outline<'_>,
        emitter: Emitter<'_>,
        names: &mut Names,
        spans: &'s mut Vec<Span>,
    ) -> Option<&'s mut Span> {
        let Names { shared, plans, .. } = names;
        let (kind, plan) = plans.find(outline, emitter.scope)?;
        if self.index.looks_for_name(outline.name) {
            return None;
        }
        let max_bytes = self.options.max_name_bytes;
        let same = plan.same.iter().fold(0, |bits, (at, _)| bits | 1 << at);
        let mut reader = Reader { outline, kind, plan, shared, max_bytes, checked: same };
        let name = reader.share(outline.name)?;
        let at = spans.len();
        // Made in place, and not moved.
        spans.extend(iter::once_with(|| plan.span(outline, name, emitter)));
        if self.fill(&mut reader, spans.get_mut(at)?).is_none() {
            spans.truncate(at);
        }
        let span = spans.get_mut(at)?;
        plans.planned += 1;
        Some(span)
    }

    /// Reads a span by its plan; `None` if something has to be mended.
    fn fill(&self, reader: &mut Reader<'_, '_>, span: &mut Span) -> Option<()> {
        let plan = reader.plan;
        for (field, at) in &plan.fields {
            reader.take(*field, *at, span)?;
        }
        if !plan.drafted.is_empty() {
            self.drafted(reader, span)?;
        }
        if let Some(tool) = span.tool.as_mut().filter(|tool| tool.name.is_none()) {
            let name = draft::tool_named(str::from_utf8(reader.outline.name).ok()?);
            tool.phantom = name.is_some_and(|name| plan.is_phantom(name.as_bytes()));
            if let Some(name) = name {
                tool.name = Some(reader.share(name.as_bytes())?);
            }
        }
        // An agent's span has model facts only if it says how many tokens were used.
        let tokens = span.model.as_ref().map(|model| model.tokens).unwrap_or_default();
        if plan.operation == Operation::InvokeAgent
            && tokens.input.is_none()
            && tokens.output.is_none()
        {
            span.model = None;
        }
        reader.check_rest()
    }

    /// Reads what goes by way of a draft; `None` if something has to be mended or cut.
    fn drafted(&self, reader: &mut Reader<'_, '_>, span: &mut Span) -> Option<()> {
        let plan = reader.plan;
        let values = plan.drafted.iter().map(|step| reader.value(step.at));
        let values = values.collect::<Option<Vec<_>>>()?;
        let mut draft = Draft::new(self.options.keep_results);
        draft.operation.offer(0, plan.operation);
        for (step, value) in plan.drafted.iter().zip(&values) {
            // The key matters for sessions alone, which are not read by way of a draft.
            step.says.take(step.rank, "", value, &mut draft);
        }
        let caps = self.caps();
        caps.finish_texts(&mut draft, span);
        caps.cuts().is_empty().then_some(())
    }

    /// The plan of a span that was read the long way, if it has one.
    pub fn plan(
        &self,
        outline: &Outline<'_>,
        raw: &RawSpan<'_>,
        scope: Scope,
        span: &Span,
    ) -> Option<Plan> {
        let hits = Hits::new(&self.index, &raw.attributes, scope.recognised).on(raw);
        plan(&hits, outline, raw, span)
    }
}

impl Field {
    /// The field that a line is read into; `None` if it is read by way of a draft.
    fn of(says: Says) -> Option<Self> {
        match says {
            Says::Session => Some(Self::Session),
            Says::User => Some(Self::User),
            Says::AgentName => Some(Self::AgentName),
            Says::Workflow => Some(Self::Workflow),
            Says::AgentId => Some(Self::AgentId),
            Says::AgentVersion => Some(Self::AgentVersion),
            Says::Environment => Some(Self::Environment),
            Says::Failed(failed) => Some(Self::Failed(failed)),
            Says::Stopped(stopped) => Some(Self::Stopped(stopped)),
            Says::ToolName => Some(Self::ToolName),
            Says::ToolCallId => Some(Self::ToolCallId),
            Says::Model => Some(Self::Model),
            Says::ResponseId => Some(Self::ResponseId),
            Says::InputTokens => Some(Self::InputTokens),
            Says::CachedTokens => Some(Self::CachedTokens),
            Says::CacheWrittenTokens => Some(Self::CacheWrittenTokens),
            Says::OutputTokens => Some(Self::OutputTokens),
            Says::FirstChunk => Some(Self::FirstChunk),
            Says::Operation(_)
            | Says::ToolArguments
            | Says::ToolResult
            | Says::Cost
            | Says::Compacted
            | Says::Input
            | Says::Output
            | Says::Task
            | Says::Run
            | Says::Trial
            | Says::Success(_)
            | Says::Abstained
            | Says::Perturbation
            | Says::PerturbationId
            | Says::Baseline
            | Says::ExpectedOutput
            | Says::ExpectedTools
            | Says::Retrieved
            | Says::Cited
            | Says::PreviousSession
            | Says::Guardrail
            | Says::GuardrailResult => None,
        }
    }
}

impl Plan {
    fn is_phantom(&self, name: &[u8]) -> bool {
        self.phantoms.iter().any(|phantom| phantom.as_bytes() == name)
    }

    /// Makes the span before any attribute is read.
    #[inline]
    fn span(&self, outline: &Outline<'_>, name: Arc<str>, emitter: Emitter<'_>) -> Span {
        let (operation, status) = (self.operation, outline.status);
        Span {
            trace_id: TraceId::default(),
            span_id: SpanId::default(),
            parent: None,
            remote_parent: None,
            start: Timestamp::default(),
            end: Timestamp::default(),
            name,
            operation,
            status,
            failed: self.failed || status == Status::Error,
            stopped: self.stopped,
            convention: self.convention,
            scope: emitter.scope.id,
            resource: Arc::clone(emitter.resource),
            agent_name: None,
            workflow: None,
            agent_id: None,
            agent_version: None,
            environment: None,
            session: None,
            session_in_json: None,
            user: None,
            tool: (operation == Operation::ExecuteTool).then(ToolFacts::default),
            model: matches!(operation, Operation::Chat | Operation::InvokeAgent)
                .then(ModelFacts::default),
            attempt: None,
            remarks: None,
            input: None,
            output: None,
        }
    }
}

/// The plan of a span, if it has one.
fn plan(hits: &Hits<'_>, outline: &Outline<'_>, raw: &RawSpan<'_>, span: &Span) -> Option<Plan> {
    if hits.asks_code() || hits.session_json(&raw.attributes).next().is_some() {
        return None;
    }
    let pairs = || outline.pairs.iter().enumerate();
    let others = pairs().filter(|(_, pair)| pair.value.is_none());
    let mut same: Vec<(usize, &[u8])> = others.map(|(at, pair)| (at, pair.sent)).collect();
    let is_plain = |at: usize| outline.pairs.get(at).is_some_and(|pair| pair.value.is_some());
    let listed = hits.session_places().map(|at| (Field::Session, at));
    let (mut custom, mut fields, mut drafted) =
        (Vec::new(), listed.collect::<Vec<_>>(), Vec::new());
    let (mut failed, mut stopped, mut decided) = (false, false, false);
    for step in hits.steps() {
        let value = &raw.attributes.at(step.at)?.1;
        if let Says::Operation(named) = step.says {
            if !decided {
                same.push((step.at, outline.pairs.get(step.at)?.sent));
                decided = lines::word(value).and_then(|word| named(&word)).is_some();
            }
        } else if !step.says.belongs_on(span.operation) {
            // The concept is not read on spans of this operation.
        } else if is_plain(step.at) {
            match Field::of(step.says) {
                // A key mapped in the configuration goes before the list of session keys.
                Some(field @ Field::Session) if step.rank == 0 => custom.push((field, step.at)),
                Some(field) => fields.push((field, step.at)),
                None => drafted.push(step),
            }
        } else if let Says::Failed(says) = step.says {
            failed |= says(value);
        } else if let Says::Stopped(says) = step.says {
            stopped |= says(value);
        } else {
            return None;
        }
    }
    custom.append(&mut fields);
    let is_short = |(_, sent): &(usize, &[u8])| sent.len() <= MAX_SAME_BYTES;
    let may_be = same.iter().all(is_short) && custom.iter().all(|(_, at)| is_plain(*at));
    may_be.then(|| Plan {
        same: same.into_iter().map(|(at, sent)| (at, Box::from(sent))).collect(),
        operation: span.operation,
        convention: span.convention,
        failed,
        stopped,
        phantoms: hits.phantoms(),
        fields: custom,
        drafted,
    })
}

/// A reader of values by a plan, which checks each once.
struct Reader<'o, 'a> {
    outline: &'o Outline<'a>,
    kind: &'o Kind,
    plan: &'o Plan,
    shared: &'o mut Shared,
    max_bytes: usize,
    // Places that need no further check, as bits.
    checked: u64,
}

impl<'a> Reader<'_, 'a> {
    fn take(&mut self, field: Field, at: usize, span: &mut Span) -> Option<()> {
        match field {
            Field::Session => {
                if span.session.is_none()
                    && let Some(id) = self.name(at)?
                {
                    let (id, attribute) = (self.share(&id)?, Arc::clone(self.kind.keys.get(at)?));
                    span.session = Some(SessionName { attribute, id });
                }
                Some(())
            }
            Field::User => self.named(at, &mut span.user),
            Field::AgentName => self.named(at, &mut span.agent_name),
            Field::Workflow => self.named(at, &mut span.workflow),
            Field::AgentId => self.named(at, &mut span.agent_id),
            Field::AgentVersion => self.named(at, &mut span.agent_version),
            Field::Environment => self.named(at, &mut span.environment),
            Field::Failed(failed) => {
                span.failed |= failed(&self.value(at)?);
                Some(())
            }
            Field::Stopped(stopped) => {
                span.stopped |= stopped(&self.value(at)?);
                Some(())
            }
            Field::ToolName => {
                let tool = span.tool.as_mut()?;
                if tool.name.is_none()
                    && let Some(name) = self.name(at)?
                {
                    tool.phantom = self.plan.is_phantom(&name);
                    tool.name = Some(self.share(&name)?);
                }
                Some(())
            }
            Field::ToolCallId => self.id(at, &mut span.tool.as_mut()?.call_id),
            Field::Model => self.named(at, &mut span.model.as_mut()?.model),
            Field::ResponseId => self.id(at, &mut span.model.as_mut()?.response_id),
            Field::InputTokens => self.count(at, &mut span.model.as_mut()?.tokens.input),
            Field::CachedTokens => self.count(at, &mut span.model.as_mut()?.tokens.cached),
            Field::CacheWrittenTokens => {
                self.count(at, &mut span.model.as_mut()?.tokens.cache_written)
            }
            Field::OutputTokens => self.count(at, &mut span.model.as_mut()?.tokens.output),
            Field::FirstChunk => {
                let nanos = lines::nanos(&self.value(at)?);
                let first = &mut span.model.as_mut()?.first_chunk_nanos;
                *first = first.or(nanos);
                Some(())
            }
        }
    }

    fn pair(&self, at: usize) -> Option<&RawPair<'a>> {
        self.outline.pairs.get(at)
    }

    /// Returns the value at a place; `None` if it is not plain or has to be mended.
    fn value(&mut self, at: usize) -> Option<RawValue<'a>> {
        let value = self.pair(at)?.value?.checked()?;
        self.checked |= 1 << at;
        Some(value)
    }

    /// Returns the name at a place, as [`draft::name`] reads it, if there is one; its bytes are checked when it is shared.
    fn name(&mut self, at: usize) -> Option<Option<Cow<'a, [u8]>>> {
        match self.pair(at)?.value? {
            // It begins and ends with visible characters, is not quoted and is no placeholder.
            Plain::Text(text @ [first @ b'!'..=b'~', .., b'!'..=b'~'])
                if *first != b'"' && !draft::begins_placeholder(*first) =>
            {
                self.checked |= 1 << at;
                Some(Some(text.into()))
            }
            Plain::Text(_) | Plain::Bool(_) | Plain::Int(_) | Plain::Double(_) => {
                let value = self.value(at)?;
                Some(draft::name(&value).map(|name| name.into_owned().into_bytes().into()))
            }
        }
    }

    fn named(&mut self, at: usize, to: &mut Option<Arc<str>>) -> Option<()> {
        if to.is_none()
            && let Some(name) = self.name(at)?
        {
            *to = Some(self.share(&name)?);
        }
        Some(())
    }

    /// Reads an id, which is not shared, as it does not come again.
    fn id(&mut self, at: usize, to: &mut Option<Arc<str>>) -> Option<()> {
        if to.is_none()
            && let Some(name) = self.name(at)?
        {
            let name = str::from_utf8(&name).ok().filter(|name| name.len() <= self.max_bytes)?;
            *to = Some(Arc::from(name));
        }
        Some(())
    }

    fn count(&mut self, at: usize, to: &mut Option<u64>) -> Option<()> {
        if to.is_none() {
            *to = match self.pair(at)?.value? {
                Plain::Int(number) => u64::try_from(number).ok(),
                Plain::Text(_) | Plain::Bool(_) | Plain::Double(_) => {
                    draft::count(&self.value(at)?)
                }
            };
        }
        Some(())
    }

    /// Shares a name; `None` if it has to be mended or cut, which is left to the long way.
    fn share(&mut self, name: &[u8]) -> Option<Arc<str>> {
        (name.len() <= self.max_bytes).then(|| self.shared.share(name)).flatten()
    }

    /// Checks the values that were not read; `None` if one has to be mended.
    fn check_rest(&self) -> Option<()> {
        for (at, pair) in self.outline.pairs.iter().enumerate() {
            if self.checked & 1 << at == 0
                && let Plain::Text(text) = pair.value?
                && !text.is_ascii()
            {
                from_utf8(text).ok()?;
            }
        }
        Some(())
    }
}

impl<'a> Plain<'a> {
    /// The value, if there is nothing to mend.
    fn checked(self) -> Option<RawValue<'a>> {
        Some(match self {
            Self::Text(text) => RawValue::Str(from_utf8(text).ok()?.into()),
            Self::Bool(flag) => RawValue::Bool(flag),
            Self::Int(number) => RawValue::Int(number),
            Self::Double(number) => RawValue::Double(number),
        })
    }
}
