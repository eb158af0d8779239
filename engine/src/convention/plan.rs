//! Plans: how the attributes of spans of the same kind are read.
//!
//! The spans of one library repeat the same keys in the same order. After one of them was read in full, a plan is made from it: for
//! each position what its value is used for, best rank first. A span with a plan is read from its bytes: its keys are compared, and
//! its values are checked once, where they are used. A plan gives the same result as reading in full: if the operation or the
//! failure of spans depends on a value, each such value has a plan, and spans on which code finds something have none.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::iter;
use std::str;
use std::sync::Arc;

use simdutf8::basic::from_utf8;

use super::draft::{self, Draft};
use super::index::{Hits, KeyHasher};
use super::lines::{self, Concept};
use super::names::Shared;
use super::raw::{Outline, Plain, RawSpan, RawValue};
use super::{Conventions, Emitter, Names, Scope, arguments, messages, text};
use crate::options::ConventionOptions;
use crate::price;
use crate::saved::Name;
use crate::span::{
    IdHash, ModelFacts, Operation, SessionName, Span, SpanId, Status, Text, Timestamp, ToolFacts,
    TraceId,
};

/// Plans in a tree: the attributes of a span, in their order, lead from its root to the kinds of spans that have these attributes.
/// When there are too many kinds, all are dropped.
#[derive(Debug, Default)]
pub(super) struct Plans {
    // Invariant: the first is the root; empty until a kind occurs for the second time.
    nodes: Vec<Node>,
    // Hashes of all kinds, including those that occurred once.
    kinds: BTreeSet<u64>,
    // Whether no plans are made.
    none: bool,
    planned: u64,
}

/// Where the first attributes of spans lead.
#[derive(Debug, Default)]
pub(super) struct Node {
    // By the head of the next attribute, the node to which it leads.
    branches: Vec<(Box<[u8]>, usize)>,
    kinds: Vec<Kind>,
}

/// What is known about spans with the same attributes that are read by the same conventions.
#[derive(Debug)]
struct Kind {
    recognised: u64,
    plans: Vec<Plan>,
    // Number of attempts to make a plan, failed ones included.
    tried: usize,
}

/// How spans of the same kind are read.
#[derive(Debug)]
pub struct Plan {
    /// Places, and the bytes that a span must have there.
    same: Vec<(usize, Box<[u8]>)>,
    operation: Operation,
    convention: Option<Name>,
    failed: bool,
    stopped: bool,
    phantoms: Vec<&'static str>,
    // Invariant: among the positions from which one field is read, the best is first.
    fields: Vec<(Field, usize)>,
    /// Steps that are read through a draft, which many spans do not need.
    drafted: Vec<PlanStep>,
    /// Places whose values are only checked.
    unread: Box<[usize]>,
}

/// The field of a span that a value is read into.
#[derive(Debug)]
enum Field {
    /// The session, by this attribute.
    Session(Arc<str>),
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
    RequestedModel,
    Provider,
    ResponseId,
    InputTokens,
    CachedTokens,
    CacheWrittenTokens,
    TotalTokens,
    OutputTokens,
    FirstChunk,
    ToolArguments,
    // Texts have the ranks of their lines.
    ToolResult(u8),
    Input(u8),
    Output(u8),
}

/// A line and the position of the attribute that it reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanStep {
    pub(super) concept: Concept,
    pub(super) rank: u8,
    pub(super) at: usize,
}

/// Most kinds of spans, and most plans of a kind.
const MAX_KINDS: usize = 512;
const MAX_PLANS: usize = 8;

/// Most attributes of a span with a plan, most bytes of their heads, and most bytes of a value that must be equal.
const MAX_PLACES: usize = 64;
const MAX_HEAD_BYTES: usize = 4_096;
const MAX_SAME_BYTES: usize = 64;

impl Plans {
    /// Makes an empty collection to which no plan is ever added.
    pub(super) fn none() -> Self {
        Self { none: true, ..Self::default() }
    }

    fn find(&self, outline: &Outline<'_>, scope: Scope) -> Option<&Plan> {
        let is_same = |(at, sent): &(usize, Box<[u8]>)| {
            outline.pairs.get(*at).is_some_and(|pair| same(pair.sent, sent))
        };
        let plans = &self.kind(outline, scope)?.plans;
        plans.iter().find(|plan| plan.same.iter().all(is_same))
    }

    fn kind(&self, outline: &Outline<'_>, scope: Scope) -> Option<&Kind> {
        let kinds = &self.nodes.get(outline.node?)?.kinds;
        kinds.iter().find(|kind| kind.recognised == scope.recognised)
    }

    /// Whether a plan is to be made; never for the first span of a kind.
    fn wants(&mut self, outline: &Outline<'_>, scope: Scope) -> bool {
        let head_bytes: usize = outline.pairs.iter().map(|pair| pair.head.len()).sum();
        if self.none || outline.pairs.len() > MAX_PLACES || head_bytes > MAX_HEAD_BYTES {
            return false;
        }
        if let Some(kind) = self.kind(outline, scope) {
            return kind.tried < MAX_PLANS;
        }
        let heads = outline.pairs.iter().map(|pair| pair.head);
        let hash = heads.fold(scope.recognised, KeyHasher::next);
        if self.kinds.contains(&hash) {
            return true;
        }
        if self.kinds.len() >= MAX_KINDS {
            self.nodes.clear();
            self.kinds.clear();
        }
        self.kinds.insert(hash);
        false
    }

    fn learn(&mut self, outline: &Outline<'_>, scope: Scope, plan: Option<Plan>) {
        let root = self.nodes.is_empty().then(Node::default);
        self.nodes.extend(root);
        let end = outline.pairs.iter().try_fold(0, |at, pair| self.branch(at, pair.head));
        let Some(node) = end.and_then(|end| self.nodes.get_mut(end)) else { return };
        let known = node.kinds.iter().position(|kind| kind.recognised == scope.recognised);
        let at = known.unwrap_or_else(|| {
            let recognised = scope.recognised;
            node.kinds.push(Kind { recognised, plans: Vec::new(), tried: 0 });
            node.kinds.len() - 1
        });
        let Some(kind) = node.kinds.get_mut(at) else { return };
        kind.tried += 1;
        kind.plans.extend(plan);
    }

    /// The node to which a head leads from a node, created if there is none.
    fn branch(&mut self, from: usize, head: &[u8]) -> Option<usize> {
        let new = self.nodes.len();
        let branches = &mut self.nodes.get_mut(from)?.branches;
        if let Some((_, to)) = branches.iter().find(|(known, _)| **known == *head) {
            return Some(*to);
        }
        branches.push((Box::from(head), new));
        self.nodes.push(Node::default());
        Some(new)
    }
}

/// The path of a span's attributes through the tree of plans.
#[derive(Debug)]
pub struct Path<'n> {
    nodes: &'n [Node],
    // The node that is reached, and its place; `None`: no known span has these attributes.
    reached: Option<(&'n Node, usize)>,
}

impl Path<'_> {
    /// Splits the next attribute into its head and the rest, if the head is known at this place.
    #[inline]
    pub fn head<'a>(&mut self, sent: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        for (head, to) in &self.reached?.0.branches {
            if let Some((start, rest)) = sent.split_at_checked(head.len())
                && same(start, head)
            {
                self.reached = self.nodes.get(*to).map(|node| (node, *to));
                return Some((start, rest));
            }
        }
        self.reached = None;
        None
    }
}

impl<'a> Outline<'a> {
    /// Empties it for the next span, whose path through the tree of plans begins at the root.
    pub fn begin<'n>(&mut self, names: &'n Names) -> Path<'n> {
        self.pairs.clear();
        (self.name, self.status, self.node) = (&[], Status::Unset, None);
        let nodes = &*names.plans.nodes;
        Path { nodes, reached: nodes.first().map(|root| (root, 0)) }
    }

    /// Notes where its attributes led.
    pub fn end(&mut self, path: &Path<'_>) {
        self.node = path.reached.map(|(_, at)| at);
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

/// Whether these are the same bytes, compared by words: heads are too short to be worth a call.
#[inline]
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    // Most heads: some bytes in the middle are compared twice.
    if (16..=32).contains(&one.len()) {
        return one.first_chunk::<16>() == other.first_chunk()
            && one.last_chunk::<16>() == other.last_chunk();
    }
    let (mut rest, mut other_rest) = (one, other);
    while let (Some((words, after)), Some((other_words, other_after))) =
        (rest.split_first_chunk::<16>(), other_rest.split_first_chunk::<16>())
    {
        if words != other_words {
            return false;
        }
        (rest, other_rest) = (after, other_after);
    }
    // Of long ones the last bytes are compared, some of them again.
    if one.len() >= 16 {
        return one.last_chunk::<16>() == other.last_chunk();
    }
    ends::<8>(one, other).or_else(|| ends::<4>(one, other)).unwrap_or_else(|| one == other)
}

/// Whether bytes begin and end with the same words; `None` if they are shorter than a word.
#[inline]
fn ends<const WORD: usize>(one: &[u8], other: &[u8]) -> Option<bool> {
    let first = one.first_chunk::<WORD>()? == other.first_chunk()?;
    Some(first && one.last_chunk::<WORD>()? == other.last_chunk()?)
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
        // Whether an error is a failure depends on values that plans leave out.
        if outline.status == Status::Error {
            return None;
        }
        let Names { shared, plans, .. } = names;
        let plan = plans.find(outline, emitter.scope)?;
        if self.index.looks_for_name(outline.name) {
            return None;
        }
        let options = &self.options;
        let mut reader =
            Reader { outline, plan, shared, options, total_tokens: None, longest: None };
        let name = reader.share(outline.name)?;
        let at = spans.len();
        // Made in place, not moved.
        spans.extend(iter::once_with(|| plan.span(outline, name, emitter)));
        let span = spans.get_mut(at)?;
        if self.fill(&mut reader, span).is_none() || span.failed {
            spans.truncate(at);
        }
        let span = spans.get_mut(at)?;
        plans.planned += 1;
        Some(span)
    }

    /// Reads a span by its plan; `None` if something has to be mended.
    fn fill(&self, reader: &mut Reader<'_, '_>, span: &mut Span) -> Option<()> {
        let plan = reader.plan;
        if !plan.drafted.is_empty() {
            self.drafted(reader, span)?;
        }
        for (field, at) in &plan.fields {
            reader.take(field, *at, span)?;
        }
        if let Some(tool) = span.tool.as_mut().filter(|tool| tool.name.is_none()) {
            let name = draft::tool_named(str::from_utf8(reader.outline.name).ok()?);
            tool.phantom = name.is_some_and(|name| plan.is_phantom(name.as_bytes()));
            if let Some(name) = name {
                tool.name = Some(reader.share(name.as_bytes())?);
            }
        }
        if let Some(model) = &mut span.model {
            model.tokens = model.tokens.normalised(reader.total_tokens);
            if model.requested == model.model {
                model.requested = None;
            }
        }
        // An agent's span has model facts only if it reports token usage.
        let tokens = span.model.as_ref().map(|model| model.tokens).unwrap_or_default();
        if plan.operation == Operation::InvokeAgent
            && tokens.input.is_none()
            && tokens.output.is_none()
        {
            span.model = None;
        }
        plan.unread.iter().try_for_each(|at| reader.check(*at))
    }

    /// Reads the values that go through a draft, which has no texts; `None` if something has to be mended or cut.
    fn drafted(&self, reader: &Reader<'_, '_>, span: &mut Span) -> Option<()> {
        let plan = reader.plan;
        let values = plan.drafted.iter().map(|step| reader.value(step.at));
        let values = values.collect::<Option<Vec<_>>>()?;
        let mut draft = Draft::default();
        for (step, value) in plan.drafted.iter().zip(&values) {
            // The key matters only for sessions, which are not read through a draft.
            step.concept.take(step.rank, "", value, &mut draft);
        }
        let caps = self.caps();
        caps.finish_texts(&mut draft, span);
        caps.cuts().is_empty().then_some(())
    }

    /// The plan of a span that was read in full, if it has one.
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
    /// The field into which a step reads an attribute of this key; `None` if it is read through a draft.
    fn of(step: &PlanStep, key: &str) -> Option<Self> {
        match step.concept {
            Concept::Session => Some(Self::Session(Arc::from(key))),
            Concept::User => Some(Self::User),
            Concept::AgentName => Some(Self::AgentName),
            Concept::Workflow => Some(Self::Workflow),
            Concept::AgentId => Some(Self::AgentId),
            Concept::AgentVersion => Some(Self::AgentVersion),
            Concept::Environment => Some(Self::Environment),
            Concept::Failed(failed) => Some(Self::Failed(failed)),
            Concept::Stopped(stopped) => Some(Self::Stopped(stopped)),
            Concept::ToolName => Some(Self::ToolName),
            Concept::ToolCallId => Some(Self::ToolCallId),
            Concept::Model => Some(Self::Model),
            Concept::Provider => Some(Self::Provider),
            Concept::RequestedModel => Some(Self::RequestedModel),
            Concept::ResponseId => Some(Self::ResponseId),
            Concept::InputTokens => Some(Self::InputTokens),
            Concept::CachedTokens => Some(Self::CachedTokens),
            Concept::CacheWrittenTokens => Some(Self::CacheWrittenTokens),
            Concept::OutputTokens => Some(Self::OutputTokens),
            Concept::TotalTokens => Some(Self::TotalTokens),
            Concept::FirstChunk => Some(Self::FirstChunk),
            Concept::ToolArguments => Some(Self::ToolArguments),
            Concept::ToolResult => Some(Self::ToolResult(step.rank)),
            Concept::Input => Some(Self::Input(step.rank)),
            Concept::Output => Some(Self::Output(step.rank)),
            Concept::Operation(_)
            | Concept::ErrorType
            | Concept::Cost
            | Concept::Currency
            | Concept::Compacted
            | Concept::Task
            | Concept::Run
            | Concept::Trial
            | Concept::Success(_)
            | Concept::Abstained
            | Concept::Perturbation
            | Concept::PerturbationId
            | Concept::Baseline
            | Concept::ExpectedOutput
            | Concept::ExpectedTools
            | Concept::Retrieved
            | Concept::Cited
            | Concept::PreviousSession
            | Concept::Guardrail
            | Concept::GuardrailResult => None,
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
            failed: self.failed,
            stopped: self.stopped,
            streamed: false,
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
            input_hash: None,
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
    let listed = hits.session_places().filter_map(|at| {
        let (key, _) = raw.attributes.at(at)?;
        Some((Field::Session(Arc::from(&**key)), at))
    });
    let (mut custom, mut fields, mut drafted) =
        (Vec::new(), listed.collect::<Vec<_>>(), Vec::new());
    let (mut failed, mut stopped, mut decided) = (false, false, false);
    for step in hits.steps() {
        let (key, value) = raw.attributes.at(step.at)?;
        if let Concept::Operation(named) = step.concept {
            if !decided {
                same.push((step.at, outline.pairs.get(step.at)?.sent));
                decided = lines::word(value).and_then(|word| named(&word)).is_some();
            }
        } else if !step.concept.belongs_on(span.operation) {
            // The concept is not read on spans of this operation.
        } else if is_plain(step.at) {
            match Field::of(&step, key) {
                // A key mapped in the configuration precedes the list of session keys.
                Some(field @ Field::Session(_)) if step.rank == 0 => custom.push((field, step.at)),
                Some(field) => fields.push((field, step.at)),
                None => drafted.push(step),
            }
        } else if let Concept::Failed(says) = step.concept {
            failed |= says(value);
        } else if let Concept::Stopped(says) = step.concept {
            stopped |= says(value);
        } else {
            return None;
        }
    }
    custom.append(&mut fields);
    let is_short = |(_, sent): &(usize, &[u8])| sent.len() <= MAX_SAME_BYTES;
    let may_be = same.iter().all(is_short) && custom.iter().all(|(_, at)| is_plain(*at));
    let is_read = |at: &usize| {
        same.iter().any(|(other, _)| other == at)
            || custom.iter().any(|(_, other)| other == at)
            || drafted.iter().any(|step| step.at == *at)
    };
    let unread = (0..outline.pairs.len()).filter(|at| !is_read(at)).collect();
    may_be.then(|| Plan {
        same: same.into_iter().map(|(at, sent)| (at, Box::from(sent))).collect(),
        operation: span.operation,
        convention: span.convention,
        failed,
        stopped,
        phantoms: hits.phantoms(),
        fields: custom,
        drafted,
        unread,
    })
}

/// A reader of values by a plan.
struct Reader<'o, 'a> {
    outline: &'o Outline<'a>,
    plan: &'o Plan,
    shared: &'o mut Shared,
    options: &'o ConventionOptions,
    // The sum of input and output tokens, if the span has it.
    total_tokens: Option<u64>,
    // The longest text that shows how the span ended, and its position: it may be read again, and is not checked again.
    longest: Option<(usize, &'a str)>,
}

impl<'a> Reader<'_, 'a> {
    // Not inlined into the loop over fields, before which the address of each would be computed.
    #[inline(never)]
    fn take(&mut self, field: &Field, at: usize, span: &mut Span) -> Option<()> {
        match field {
            Field::Session(attribute) => self.name(at, &mut span.session, |reader, id| {
                // Such a span is read in full, as another attribute may name its session.
                if str::from_utf8(id).is_ok_and(draft::names_response) {
                    return None;
                }
                let (attribute, id) = (Arc::clone(attribute), reader.share(id)?);
                Some(SessionName { attribute, id })
            }),
            Field::User => self.named(at, &mut span.user),
            Field::AgentName => self.named(at, &mut span.agent_name),
            Field::Workflow => self.named(at, &mut span.workflow),
            Field::AgentId => self.named(at, &mut span.agent_id),
            Field::AgentVersion => self.named(at, &mut span.agent_version),
            Field::Environment => self.named(at, &mut span.environment),
            Field::Failed(failed) => {
                span.failed |= failed(&self.answer(at)?);
                Some(())
            }
            Field::Stopped(stopped) => {
                span.stopped |= stopped(&self.answer(at)?);
                Some(())
            }
            Field::ToolName => {
                let tool = span.tool.as_mut()?;
                self.name(at, &mut tool.name, |reader, name| {
                    tool.phantom = reader.plan.is_phantom(name);
                    reader.share(name)
                })
            }
            Field::ToolCallId => self.id(at, &mut span.tool.as_mut()?.call_id),
            Field::Model => self.model(at, &mut span.model.as_mut()?.model),
            Field::Provider => self.provider(at),
            Field::RequestedModel => self.model(at, &mut span.model.as_mut()?.requested),
            Field::ResponseId => self.id(at, &mut span.model.as_mut()?.response_id),
            Field::InputTokens => self.count(at, &mut span.model.as_mut()?.tokens.input),
            Field::CachedTokens => self.count(at, &mut span.model.as_mut()?.tokens.cached),
            Field::CacheWrittenTokens => {
                self.count(at, &mut span.model.as_mut()?.tokens.cache_written)
            }
            Field::OutputTokens => self.count(at, &mut span.model.as_mut()?.tokens.output),
            Field::TotalTokens => {
                let mut total = self.total_tokens;
                self.count(at, &mut total)?;
                self.total_tokens = total;
                Some(())
            }
            Field::FirstChunk => {
                let nanos = lines::nanos(&self.value(at)?);
                let first = &mut span.model.as_mut()?.first_chunk_nanos;
                *first = first.or(nanos);
                Some(())
            }
            Field::ToolArguments => {
                let arguments = &mut span.tool.as_mut()?.arguments;
                if arguments.is_some() {
                    return self.check(at);
                }
                *arguments = text::arguments(&self.value(at)?, self.options.keep_texts);
                Some(())
            }
            Field::ToolResult(rank) => self.result(at, *rank, span),
            Field::Input(rank) => self.input(at, *rank, span),
            Field::Output(rank) => self.output(at, *rank, span),
        }
    }

    /// Checks the name of a provider. Self-hosted servers, and names that may be one in other words, are left to reading in full.
    fn provider(&self, at: usize) -> Option<()> {
        let is_word = |name: &[u8]| {
            [name.first(), name.last()].iter().flatten().all(|byte| byte.is_ascii_alphanumeric())
        };
        match self.plain(at)? {
            Plain::Text(name) if !is_word(name) || price::is_local(name) => None,
            Plain::Text(_) | Plain::Bool(_) | Plain::Int(_) | Plain::Double(_) => self.check(at),
        }
    }

    #[inline(never)]
    fn result(&self, at: usize, rank: u8, span: &mut Span) -> Option<()> {
        let tool = span.tool.as_mut()?;
        if tool.result_hash.is_some() {
            return self.check(at);
        }
        let value = self.value(at)?;
        if self.options.keep_texts && span.output.is_none() {
            span.output = self.whole(text::plain(rank, &value))?;
        }
        if arguments::is_failure(&value) {
            return None;
        }
        tool.result_hash = text::result(&value);
        Some(())
    }

    /// Reads an input as [`Draft::offer_input`] does.
    #[inline(never)]
    fn input(&self, at: usize, rank: u8, span: &mut Span) -> Option<()> {
        let model = span.model.as_mut();
        let knows = model.is_none_or(|model| model.asked_by_user.is_some());
        if span.input.is_some() && (knows || self.plan.operation != Operation::Chat) {
            return self.check(at);
        }
        let value = self.value(at)?;
        let asked = messages::asked(&value);
        if span.input.is_none() {
            span.input = self.asked(rank, &asked)?;
            let is_proper = span.input.as_ref().is_some_and(|text| text.rank < Text::LOOSE);
            let is_given = is_proper && self.plan.operation == Operation::InvokeAgent;
            let given =
                asked.text.as_deref().and_then(draft::without_placeholder).filter(|_| is_given);
            span.input_hash = given.map(IdHash::from);
        }
        if let Some(model) = &mut span.model {
            model.asked_by_user = model.asked_by_user.or(asked.by_user);
            if model.tool_results.is_empty() {
                model.tool_results = asked.results;
            }
        }
        Some(())
    }

    /// Reads an output as [`Draft::offer_output`] does.
    #[inline(never)]
    fn output(&self, at: usize, rank: u8, span: &mut Span) -> Option<()> {
        let model = span.model.as_mut();
        let knows = model.is_none_or(|model| !model.tool_calls.is_empty());
        if span.output.is_some() && (knows || self.plan.operation != Operation::Chat) {
            return self.check(at);
        }
        let value = self.value(at)?;
        let said = messages::said(&value);
        if span.output.is_none() {
            span.output = self.whole(text::of_message(rank, said.loose, said.text))?;
        }
        if let Some(model) = span.model.as_mut().filter(|model| model.tool_calls.is_empty()) {
            model.tool_calls = said.calls;
            for call in &mut model.tool_calls {
                let named = call.name.as_deref();
                call.phantom |= named.is_some_and(|name| self.plan.is_phantom(name.as_bytes()));
            }
        }
        Some(())
    }

    /// Returns the text of an input, if there is one, without its words unless texts are kept; `None` if it has to be cut.
    fn asked(&self, rank: u8, asked: &messages::InputFacts<'_>) -> Option<Option<Text>> {
        let Some(text) = asked.text.as_deref().and_then(draft::without_placeholder) else {
            return Some(None);
        };
        let ConventionOptions { keep_texts, max_text_bytes, .. } = *self.options;
        (text.len() <= max_text_bytes).then(|| {
            let text = if keep_texts { Arc::from(text) } else { Arc::default() };
            Some(Text { rank: text::message_rank(rank, asked.loose), text })
        })
    }

    /// Returns the text, if there is one; `None` if it has to be cut.
    fn whole(&self, text: Option<Text>) -> Option<Option<Text>> {
        let max = self.options.max_text_bytes;
        text.as_ref().is_none_or(|text| text.text.len() <= max).then_some(text)
    }

    /// Returns the value at a place; `None` if it is not plain.
    fn plain(&self, at: usize) -> Option<Plain<'a>> {
        self.outline.pairs.get(at)?.value
    }

    /// Returns the value at a place; `None` if it is not plain or has to be mended.
    fn value(&self, at: usize) -> Option<RawValue<'a>> {
        match self.longest {
            Some((place, text)) if place == at => Some(RawValue::Str(text.into())),
            Some(_) | None => self.plain(at)?.checked(),
        }
    }

    /// Returns the value at a position that shows how the span ended, which may be its answer.
    fn answer(&mut self, at: usize) -> Option<RawValue<'a>> {
        let value = self.value(at)?;
        if let RawValue::Str(Cow::Borrowed(text)) = value
            && self.longest.is_none_or(|(_, longest)| longest.len() < text.len())
        {
            self.longest = Some((at, text));
        }
        Some(value)
    }

    /// Checks the value at a place, which is not read; `None` if it is not plain or has to be mended.
    fn check(&self, at: usize) -> Option<()> {
        match self.plain(at)? {
            Plain::Text(text) => is_text(text).then_some(()),
            Plain::Bool(_) | Plain::Int(_) | Plain::Double(_) => Some(()),
        }
    }

    /// Reads the name at a position, as [`draft::name`] reads it, into a field that has none; `keep` makes the field's value from
    /// the name's bytes, which it checks.
    #[inline]
    fn name<T>(
        &mut self,
        at: usize,
        to: &mut Option<T>,
        keep: impl FnOnce(&mut Self, &[u8]) -> Option<T>,
    ) -> Option<()> {
        if to.is_some() {
            return self.check(at);
        }
        match self.plain(at)? {
            // Most names.
            Plain::Text(text @ [first, .., b'!'..=b'~']) if draft::begins_name(*first) => {
                *to = Some(keep(self, text)?);
            }
            value @ (Plain::Text(_) | Plain::Bool(_) | Plain::Int(_) | Plain::Double(_)) => {
                if let Some(name) = draft::name(&value.checked()?) {
                    *to = Some(keep(self, name.as_bytes())?);
                }
            }
        }
        Some(())
    }

    fn named(&mut self, at: usize, to: &mut Option<Arc<str>>) -> Option<()> {
        self.name(at, to, Self::share)
    }

    /// Reads the name of a model, as [`draft::model`] does.
    fn model(&mut self, at: usize, to: &mut Option<Arc<str>>) -> Option<()> {
        self.name(at, to, |reader, name| {
            // Names that name no model are left to reading in full.
            draft::names_model(name).then(|| reader.share(name)).flatten()
        })
    }

    /// Reads an id that is only compared.
    fn id(&mut self, at: usize, to: &mut Option<IdHash>) -> Option<()> {
        self.name(at, to, |reader, id| {
            (is_text(id) && id.len() <= reader.options.max_name_bytes).then(|| IdHash::of(id))
        })
    }

    fn count(&mut self, at: usize, to: &mut Option<u64>) -> Option<()> {
        if to.is_some() {
            return self.check(at);
        }
        *to = match self.plain(at)? {
            Plain::Int(number) => u64::try_from(number).ok(),
            value @ (Plain::Text(_) | Plain::Bool(_) | Plain::Double(_)) => {
                draft::count(&value.checked()?)
            }
        };
        Some(())
    }

    /// Shares a name; `None` if it has to be mended or cut, which is left to reading in full.
    fn share(&mut self, name: &[u8]) -> Option<Arc<str>> {
        (name.len() <= self.options.max_name_bytes).then(|| self.shared.share(name)).flatten()
    }
}

/// Whether all of these bytes are valid UTF-8; mostly they are ASCII.
fn is_text(bytes: &[u8]) -> bool {
    bytes.is_ascii() || checked(bytes).is_some()
}

/// The text of these bytes; `None` if they are not valid UTF-8.
fn checked(text: &[u8]) -> Option<&str> {
    from_utf8(text).ok()
}

impl<'a> Plain<'a> {
    /// The value, if there is nothing to mend.
    fn checked(self) -> Option<RawValue<'a>> {
        Some(match self {
            Self::Text(text) => RawValue::Str(checked(text)?.into()),
            Self::Bool(flag) => RawValue::Bool(flag),
            Self::Int(number) => RawValue::Int(number),
            Self::Double(number) => RawValue::Double(number),
        })
    }
}
