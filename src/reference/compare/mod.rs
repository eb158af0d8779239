//! Compares every value of a document of the engine with the model, and lists the differences.

mod agents;
mod traces;

use std::collections::BTreeMap;
use std::fmt;

use super::agents::agents;
use super::gather::{self, Recorded};
use super::sessions::{Session, sessions};
use super::trace;
use crate::engine::options::Profile;
use crate::engine::pipeline::EngineOptions;
use crate::engine::span::Timestamp;
use crate::engine::view::Document;

/// The greatest permitted difference between the engine's integers and the model's floats.
const EXACT: f64 = 1e-9;

/// The greatest permitted difference in a profile that rounds to four decimals, and for agents, whose risks are in steps of 1e-4.
const ROUNDED: f64 = 5.1e-5;

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// By kind of value: how many were compared, and the greatest difference between numbers.
    pub compared: BTreeMap<&'static str, (usize, f64)>,
    /// The differences, a sentence each.
    pub differences: Vec<String>,
}

/// A part that is compared: its name, its kind, and the greatest permitted difference.
struct Compared<'c> {
    at: String,
    kind: &'static str,
    tolerance: f64,
    comparison: &'c mut Comparison,
}

/// Computes everything again from decoded data, and compares it with a document; windows are those at a moment of wall time. Texts
/// must have been kept, and no bound may have been reached.
pub fn compare(
    recorded: &Recorded,
    options: &EngineOptions,
    wall: Timestamp,
    document: &Document,
) -> Comparison {
    let traces = gather::traces(recorded).into_iter();
    let traces = traces.filter_map(|(id, parts)| trace::read(id, parts, options)).collect();
    let model = sessions(traces, &recorded.reports, options);
    let mut comparison = Comparison::default();
    let tolerance = match options.session.profile {
        Profile::Agentgauge => EXACT,
        Profile::Pandaprobe => ROUNDED,
    };
    let mut part = Compared {
        at: "the document".to_owned(),
        kind: "sessions",
        tolerance,
        comparison: &mut comparison,
    };
    let name = |session: &Session| (session.key.id.clone(), session.key.scope.clone());
    let ours = document.sessions.iter().map(|view| (view.session_id.clone(), view.scope.clone()));
    part.same_set("sessions", ours, model.iter().map(name));
    for session in &model {
        let named = |tenant: Option<&str>| tenant.unwrap_or_default() == session.key.tenant;
        let view = document.sessions.iter().find(|view| {
            (view.session_id.clone(), view.scope.clone()) == name(session)
                && named(view.agent.tenant.as_deref())
        });
        if let Some(view) = view {
            traces::session(view, session, options, &mut part);
        }
    }
    let by_agent = agents(&model);
    part.at = "the document".to_owned();
    for (agent, own) in &by_agent {
        match document.agents.iter().find(|view| view.agent == *agent) {
            Some(view) => {
                agents::agent(view, own, options, wall, &mut part);
                agents::over_sessions(view, &model, &recorded.reports, options, &mut part);
            }
            None => part.differ("agents", "absent", format!("{agent:?}")),
        }
    }
    for view in document.agents.iter().filter(|view| view.traces > 0) {
        if !by_agent.contains_key(&view.agent) {
            part.differ("agents", format!("{:?}", view.agent), "absent");
        }
    }
    comparison
}

impl Comparison {
    /// How many values were compared.
    pub fn count(&self) -> usize {
        self.compared.values().map(|(count, _)| count).sum()
    }
}

/// Writes each kind, how many values were compared, and the greatest difference.
impl fmt::Display for Comparison {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, (count, greatest))) in self.compared.iter().enumerate() {
            let end = if at + 1 == self.compared.len() { "" } else { "\n" };
            write!(to, "{kind}: {count} values, greatest difference {greatest:.1e}{end}")?;
        }
        Ok(())
    }
}

impl Compared<'_> {
    /// Compares numbers.
    fn number(&mut self, what: &str, engine: Option<f64>, model: Option<f64>) {
        let entry = self.comparison.compared.entry(self.kind).or_default();
        entry.0 += 1;
        let same = match (engine, model) {
            (Some(engine), Some(model)) => {
                let difference = (engine - model).abs();
                entry.1 = entry.1.max(difference);
                difference <= self.tolerance
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            self.differ(what, format!("{engine:?}"), format!("{model:?}"));
        }
    }

    /// Compares whole numbers, names, texts.
    #[expect(clippy::needless_pass_by_value, reason = "what is compared is mostly made for it")]
    fn same<T: fmt::Debug + PartialEq>(&mut self, what: &str, engine: T, model: T) {
        self.comparison.compared.entry(self.kind).or_default().0 += 1;
        if engine != model {
            self.differ(what, format!("{engine:?}"), format!("{model:?}"));
        }
    }

    /// Compares numbers by name.
    fn numbers<'n>(
        &mut self,
        what: &str,
        engine: impl IntoIterator<Item = (&'n str, f64)>,
        model: impl IntoIterator<Item = (&'n str, f64)>,
    ) {
        let (engine, model): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (engine.into_iter().collect(), model.into_iter().collect());
        for name in engine.keys().chain(model.keys().filter(|name| !engine.contains_key(*name))) {
            let (engine, model) = (engine.get(name).copied(), model.get(name).copied());
            self.number(&format!("{what} {name}"), engine, model);
        }
    }

    /// Compares sets.
    fn same_set<T: fmt::Debug + Ord>(
        &mut self,
        what: &str,
        engine: impl IntoIterator<Item = T>,
        model: impl IntoIterator<Item = T>,
    ) {
        let (mut engine, mut model): (Vec<T>, Vec<T>) =
            (engine.into_iter().collect(), model.into_iter().collect());
        engine.sort();
        model.sort();
        self.same(what, engine, model);
    }

    fn differ(&mut self, what: &str, engine: impl fmt::Display, model: impl fmt::Display) {
        let at = &self.at;
        self.comparison
            .differences
            .push(format!("{at}: {what} is {engine}, by the reference model {model}"));
    }
}

/// A whole number as in views.
fn count(number: usize) -> u64 {
    number as u64
}
