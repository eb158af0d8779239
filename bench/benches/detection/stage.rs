//! The stage that watches agents, fed trace by trace as shards send them.

use std::error::Error;

use agentgauge::engine::agents::{Agents, SavedAgents};
use agentgauge::engine::detect::DropOptions;
use agentgauge::engine::facts::{AgentKey, AgentParts, DoneTrace, SessionFacts};
use agentgauge::engine::pipeline::EngineOptions;
use agentgauge::engine::span::{Timestamp, TraceId};
use agentgauge::engine::view::DropView;

/// The stage, and the number of its inputs.
pub(crate) struct Stage {
    agents: Agents,
    told: u64,
}

impl Stage {
    pub(crate) fn new(drops: DropOptions) -> Self {
        let options = EngineOptions { drops, ..EngineOptions::default() };
        Self { agents: options.agents_stage(), told: 0 }
    }

    /// The stage as another process restores it.
    pub(crate) fn restarted(&self, drops: DropOptions) -> Result<Self, Box<dyn Error>> {
        let written = rmp_serde::to_vec_named(&self.agents.save())?;
        let read: SavedAgents = rmp_serde::from_slice(&written)?;
        let mut stage = Self { told: self.told, ..Self::new(drops) };
        stage.agents.restore(read);
        Ok(stage)
    }

    /// Sends traces of the agent's version; returns the state of its streams.
    pub(crate) fn tell(&mut self, version: u64, done_traces: Vec<DoneTrace>) -> Vec<DropView> {
        self.told += 1;
        let agent = AgentKey::from(AgentParts {
            service_name: "shop".into(),
            agent_version: version.to_string().into(),
            ..AgentParts::default()
        });
        let now = done_traces.iter().map(|trace| trace.touched_unix_nano).max().unwrap_or_default();
        let update = SessionFacts {
            agent: Some(agent.clone()),
            revision: self.told,
            done_traces,
            ..SessionFacts::default()
        };
        self.agents.handle(update, Timestamp(now));
        let mut told = self.agents.drain().into_iter();
        told.find(|told| told.agent == agent).map(|told| told.view.drops).unwrap_or_default()
    }
}

/// A trace that is done at this time, with no other facts.
pub(crate) fn done(number: u64, nanos: u64, at: u64) -> DoneTrace {
    DoneTrace {
        trace_id: Some(TraceId(u128::from(number).to_be_bytes())),
        start_unix_nano: at.saturating_sub(nanos),
        at_unix_nano: at,
        touched_unix_nano: at,
        looped: Some(false),
        ..DoneTrace::default()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "over 0, and below what fits"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number as u64
}
