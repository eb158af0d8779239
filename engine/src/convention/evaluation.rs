//! Evaluation results: scores from judges, humans and other products.
//!
//! They travel as `gen_ai.evaluation.result` log records or span events, as attributes of evaluator spans, and as
//! OpenInference's numbered annotations. Scores are floats, integers or strings; without a value the label counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{name, number, without_placeholder};
use super::index::Hits;
use super::json::Json;
use super::raw::{RawAttributes, RawSpan, RawValue};
use super::{Caps, Trigger, messages};
use crate::math::Quanta;
use crate::signal::{CONSTRAINT_VIOLATION, outcome};
use crate::span::{Operation, Report, Source, Target, Timestamp, TraceId};

/// The name of the log record and span event.
pub(super) const RESULT: &str = "gen_ai.evaluation.result";

/// The agent's own confidence, as it states it.
const CONFIDENCE: &str = "agentgauge.confidence";

/// The triggers of the code: each span that has results has one of them.
pub(super) const LOOKS_FOR: &[Trigger] = &[
    Trigger::Event,
    Trigger::Key(CONFIDENCE),
    Trigger::Key("gen_ai.evaluation.name"),
    Trigger::Keys("annotations."),
    Trigger::Keys("evaluations."),
    Trigger::Keys("trace.annotations."),
    Trigger::Keys("trace.evaluations."),
    Trigger::Keys("session.annotations."),
    Trigger::Keys("session.evaluations."),
];

/// Results of one span or record; an error is the reason why something is no result.
pub(super) type Results = Vec<Result<Report, &'static str>>;

/// What one result says, before its target is known.
#[derive(Default)]
struct Finding<'a> {
    name: Option<Arc<str>>,
    value: Option<&'a RawValue<'a>>,
    label: Option<&'a str>,
    identifier: Option<Arc<str>>,
    failed: bool,
    /// Least and greatest value, as sent.
    range: Option<&'a RawValue<'a>>,
}

/// What an OpenInference annotation is about, by the beginning of its key.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Scope {
    Span,
    Trace,
    Session,
}

/// A score that arrives over agentgauge's own API.
#[derive(Clone, Debug)]
pub struct SentReport<'a> {
    /// What it is about.
    pub target: Target,
    /// Its name, as sent.
    pub name: &'a str,
    /// Its value.
    pub score: Option<f64>,
    /// Its label.
    pub label: Option<&'a str>,
    /// An id that distinguishes it from other scores of its name.
    pub id: &'a str,
    /// When it was made; 0 if not sent.
    pub time: Timestamp,
}

impl Caps<'_> {
    /// Reads a score that arrives over agentgauge's own API, by the same names and ranges as any other.
    ///
    /// # Errors
    ///
    /// Returns the reason why it is not a score: `report_without_name`, `report_without_score`, `report_out_of_range`.
    pub fn reported(&self, sent: &SentReport<'_>) -> Result<Report, &'static str> {
        let value = sent.score.map(RawValue::Double);
        let finding = Finding {
            name: without_placeholder(sent.name).map(Arc::from),
            value: value.as_ref(),
            label: sent.label,
            identifier: without_placeholder(sent.id).map(Arc::from),
            ..Finding::default()
        };
        report(self, finding, sent.target.clone(), sent.time)
    }
}

/// All results on a span: its attributes, its events, its annotations.
pub(super) fn of_span(
    caps: &Caps<'_>,
    raw: &RawSpan<'_>,
    operation: Operation,
    tenant: Option<&Arc<str>>,
) -> Results {
    let own = Target::Trace(raw.trace_id);
    let linked = raw.links.first().map(|link| Target::Trace(link.trace_id));
    let evaluator = operation == Operation::Evaluation;
    // An evaluator's span is about the trace that it links to; else, if it is a root, about the target that its ids name; else
    // about its own trace.
    let standing_alone = evaluator && raw.parent.is_none();
    let by_id = || target_by_id(caps, &raw.attributes, tenant);
    let about = linked
        .filter(|_| evaluator)
        .or_else(|| standing_alone.then(by_id).flatten())
        .unwrap_or_else(|| own.clone());
    let mut results = Results::new();
    if let Some(value) = raw.attributes.get(CONFIDENCE) {
        let finding = Finding {
            name: Some(Arc::from("confidence")),
            value: Some(value),
            ..Finding::default()
        };
        results.push(report(caps, finding, own, raw.end));
    }
    if raw.attributes.str("gen_ai.evaluation.name").is_some() {
        results.push(report(caps, semconv(&raw.attributes), about.clone(), raw.end));
    }
    for event in raw.events.iter().filter(|event| event.name == RESULT) {
        // Of several on one span the last one counts.
        let time = if event.time.0 == 0 { raw.end } else { event.time.max(raw.start) };
        results.push(report(caps, semconv(&event.attributes), about.clone(), time));
    }
    for ((scope, _, _), finding) in annotations(&raw.attributes) {
        let target = match scope {
            Scope::Session => session(caps, &raw.attributes, tenant).ok_or("report_without_target"),
            Scope::Span | Scope::Trace => Ok(about.clone()),
        };
        results.push(target.and_then(|target| report(caps, finding, target, raw.end)));
    }
    results
}

/// The result in a log record.
pub(super) fn of_log(
    caps: &Caps<'_>,
    attributes: &RawAttributes<'_>,
    own: Option<Target>,
    time: Timestamp,
    tenant: Option<&Arc<str>>,
) -> Result<Report, &'static str> {
    let target =
        own.or_else(|| target_by_id(caps, attributes, tenant)).ok_or("report_without_target")?;
    report(caps, semconv(attributes), target, time)
}

fn target_by_id(
    caps: &Caps<'_>,
    attributes: &RawAttributes<'_>,
    tenant: Option<&Arc<str>>,
) -> Option<Target> {
    let response = attributes.get("gen_ai.response.id").and_then(name).map(Arc::from);
    // Strands' evaluators send a trace id as the response id; no provider's id looks like one.
    let response = response.map(|id| match trace_id(&id) {
        Some(trace_id) => Target::Trace(trace_id),
        None => Target::Response { tenant: tenant.cloned(), id: caps.shared_id(id) },
    });
    response.or_else(|| session(caps, attributes, tenant))
}

/// A trace id from 32 hex digits; `None` if it is none.
pub fn trace_id(text: &str) -> Option<TraceId> {
    let digits = Some(text).filter(|text| text.len() == 32 && text.is_ascii())?;
    let mut id = [0; 16];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(TraceId(id)).filter(|id| !id.is_zero())
}

fn session(
    caps: &Caps<'_>,
    attributes: &RawAttributes<'_>,
    tenant: Option<&Arc<str>>,
) -> Option<Target> {
    let hits = Hits::once(&caps.conventions.index, attributes);
    let name = caps.conventions.session_of(&hits, attributes)?;
    let id = Arc::from(caps.id(&name.id));
    Some(Target::Session { tenant: tenant.cloned(), id, scope: None })
}

fn semconv<'a>(attributes: &'a RawAttributes<'a>) -> Finding<'a> {
    let value = |key: &str| attributes.get(key);
    Finding {
        name: value("gen_ai.evaluation.name").and_then(name).map(Arc::from),
        value: value("gen_ai.evaluation.score.value"),
        label: attributes.str("gen_ai.evaluation.score.label"),
        identifier: value("gen_ai.evaluation.evaluator.version").and_then(name).map(Arc::from),
        failed: attributes.str("error.type").is_some(),
        range: value("gen_ai.evaluation.score.range"),
    }
}

/// `(trace.|session.)?(annotations|evaluations).N.(annotation|evaluation).FIELD`, by scope, kind and N.
fn annotations<'a>(
    attributes: &'a RawAttributes<'a>,
) -> BTreeMap<(Scope, &'a str, usize), Finding<'a>> {
    let mut found: BTreeMap<(Scope, &str, usize), Finding<'_>> = BTreeMap::new();
    for (key, value) in attributes.iter() {
        // The first letter rules out nearly all keys.
        if !key.starts_with(['a', 'e', 's', 't']) {
            continue;
        }
        let (scope, rest) = match key.split_once('.') {
            Some(("trace", rest)) => (Scope::Trace, rest),
            Some(("session", rest)) => (Scope::Session, rest),
            _ => (Scope::Span, key.as_ref()),
        };
        let mut parts = rest.splitn(4, '.');
        let (
            Some(list @ ("annotations" | "evaluations")),
            Some(number),
            Some("annotation" | "evaluation"),
            Some(field),
        ) = (
            parts.next(),
            parts.next().and_then(|number| number.parse().ok()),
            parts.next(),
            parts.next(),
        )
        else {
            continue;
        };
        let finding = found.entry((scope, list, number)).or_default();
        match field {
            "name" => finding.name = name(value).map(Arc::from),
            "score" => finding.value = Some(value),
            "label" => finding.label = value.as_str(),
            "identifier" => finding.identifier = name(value).map(Arc::from),
            _ => {}
        }
    }
    found
}

fn report(
    caps: &Caps<'_>,
    finding: Finding<'_>,
    target: Target,
    time: Timestamp,
) -> Result<Report, &'static str> {
    let sent = finding.name.ok_or("report_without_name")?;
    if finding.failed {
        return Err("evaluator_failed");
    }
    let options = &caps.conventions.options;
    let mapped = options.score_names.get(&*sent).map_or(&*sent, String::as_str);
    let said = finding.label.and_then(verdict);
    let value = match (finding.value.map(number), finding.label) {
        (Some(value), _) => value.ok_or("report_without_score")?,
        (None, Some(label)) if sent.as_ref() == CONSTRAINT_VIOLATION => severity(label),
        (None, Some(_)) => said.map(whole).ok_or("report_without_score")?,
        (None, None) => return Err("report_without_score"),
    };
    let range = options.score_ranges.get(&*sent).or_else(|| options.score_ranges.get(mapped));
    let range = range.copied().or_else(|| range_of(finding.range?));
    let value = range.map_or(value, |[min, max]| (value - min) / (max - min));
    // An outcome with a label that states the result needs no range.
    let labelled = said.filter(|_| outcome::TOLD_BY.contains(&mapped)).map(whole);
    let score = Quanta::from_f64(value)
        .filter(|score| (0..=Quanta::ONE).contains(&score.0))
        .or_else(|| Quanta::from_f64(labelled?))
        .ok_or("report_out_of_range")?;
    let threshold = options.signal_thresholds.get(mapped).copied();
    Ok(Report {
        target,
        name: Arc::from(caps.name(mapped)),
        score,
        label: finding.label.map(|label| caps.shared(Arc::from(label))),
        success: outcome::success_of(mapped, said, score, threshold),
        explanation: None,
        source: Source::Reported,
        identifier: finding
            .identifier
            .map_or_else(|| Arc::from(""), |identifier| caps.shared_id(identifier)),
        judge: None,
        time,
        tenant: None,
    })
}

/// A range as a list of two numbers, or the text of one: `[0, 5]`, `0,5`, `0-5`.
fn range_of(sent: &RawValue<'_>) -> Option<[f64; 2]> {
    let json = messages::parsed(sent).unwrap_or_else(|| Json::of(sent));
    let range = match json {
        Json::List(ends) => match ends.as_slice() {
            [least, most] => [least.as_f64()?, most.as_f64()?],
            _ => return None,
        },
        Json::Text(text) => {
            let (least, most) = text.split_once(',').or_else(|| text.split_once('-'))?;
            [least.trim().parse().ok()?, most.trim().parse().ok()?]
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => return None,
    };
    (range[0] < range[1]).then_some(range)
}

/// The score of a violation: 1 minus the severity's weight, as the Princeton methodology has it (low
/// 0.25, medium 0.5, high 1; anything else counts as medium).
fn severity(label: &str) -> f64 {
    match label.trim() {
        "none" => 1.0,
        "low" => 0.75,
        "high" => 0.0,
        _ => 0.5,
    }
}

/// Whether a label says that something passed.
fn verdict(label: &str) -> Option<bool> {
    match label.trim().to_ascii_lowercase().as_str() {
        "pass" | "passed" | "true" | "yes" | "success" => Some(true),
        "fail" | "failed" | "false" | "no" | "failure" => Some(false),
        _ => None,
    }
}

fn whole(passed: bool) -> f64 {
    if passed { 1.0 } else { 0.0 }
}
