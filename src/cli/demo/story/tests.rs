use std::time::Duration;

use prost::Message;

use super::*;
use crate::config::Config;
use crate::engine::pipeline::Pipeline;
use crate::engine::span::Timestamp;
use crate::engine::view::DropView;
use crate::ingest::decode::Decoder;
use crate::ingest::{Encoding, Signal};

const BEGIN: u64 = 1_800_000_000 * SECOND;

/// The engine, fed with the story second by second.
struct Played {
    pipeline: Pipeline,
    decoder: Decoder,
    story: Story,
}

impl Played {
    fn new() -> Self {
        let mut config = Config::default();
        config.assemble.trace_idle = Duration::from_secs(1);
        config.assemble.rootless_idle = Duration::from_secs(15);
        let decoder = Decoder::new(config.ingest.clone(), config.convention.clone());
        let pipeline = Pipeline::new(&config.engine_options([].into()), 2);
        let story = Story { seed: 7, begin: BEGIN };
        let mut told = Self { pipeline, decoder, story };
        told.apply(&story.past(), BEGIN);
        told
    }

    fn apply(&mut self, sent: &SentTraces, now: u64) {
        let spans = sent.spans.iter().map(|spans| (Signal::Traces, spans.encode_to_vec()));
        let logs = sent.logs.iter().map(|logs| (Signal::Logs, logs.encode_to_vec()));
        for (signal, bytes) in spans.chain(logs) {
            let batch = self.decoder.decode_plain(signal, Encoding::Protobuf, &bytes).unwrap();
            assert!(batch.tally.rejected.is_empty(), "{:?}", batch.tally.rejected);
            self.pipeline.apply(batch.spans, batch.logs, batch.reports, Timestamp(now));
        }
        self.pipeline.advance(Timestamp(now));
    }

    /// Feeds one second, and returns the state of the share of failing traces of an agent version after it.
    fn second(&mut self, second: u64) {
        self.apply(&self.story.second(second), BEGIN + second * SECOND);
    }

    fn verdict(&self, agent: Agent, version: &str) -> Option<DropView> {
        let update = self.pipeline.board().values().find(|update| {
            &*update.agent.agent_name == agent.name && &*update.agent.agent_version == version
        })?;
        update.view.drops.iter().find(|drop| drop.stream == "verdict").cloned()
    }

    fn looping(&self) -> u64 {
        self.pipeline.board().values().map(|facts| facts.looping).sum()
    }
}

#[test]
fn the_story_goes_as_it_is_told() {
    let mut told = Played::new();
    let (mut pages, mut loops, mut out, mut over) = (None, None, None, None);
    for second in 0..LASTS {
        told.second(second);
        let is = |agent, version, severity: &str| {
            told.verdict(agent, version).is_some_and(|drop| drop.severity == severity)
        };
        let critical = |agent, version| is(agent, version, "critical");
        if pages.is_none() && critical(REFUNDS, "1.5") {
            pages = Some(second);
        }
        if out.is_none() && critical(INVOICES, "2.1") {
            out = Some(second);
        }
        if out.is_some() && over.is_none() && is(INVOICES, "2.1", "quiet") {
            over = Some(second);
        }
        if loops.is_none() && told.looping() > 0 {
            loops = Some(second);
        }
        assert!(!critical(SUPPORT, "3.2"), "support is well, at {second}");
        assert!(!critical(REFUNDS, "1.4"), "the old version is well, at {second}");
    }
    // At about minute two, while both continue.
    assert!(pages.is_some_and(|second| (110..=150).contains(&second)), "{pages:?}");
    assert!(critical_at_the_end(&told), "the new version is still out");
    assert!(out.is_some_and(|second| second < OUTAGE.0 + 40), "{out:?}");
    assert!(over.is_some_and(|second| second < LASTS), "invoices recovers: {over:?}");
    // In flight: long before the turn ends.
    assert!(loops.is_some_and(|second| second < LOOPING.0 + 30), "{loops:?}");
    let agents: Vec<_> = told.pipeline.board().keys().map(|key| key.service_name.clone()).collect();
    assert!(agents.iter().any(|service| &**service == "claude-code"), "{agents:?}");
}

fn critical_at_the_end(told: &Played) -> bool {
    told.verdict(REFUNDS, "1.5").is_some_and(|drop| drop.severity == "critical")
}

#[test]
fn a_second_telling_has_other_sessions() {
    let ids = |seed| {
        let sent = Story { seed, begin: BEGIN }.second(2);
        let spans = sent.spans[0].resource_spans[0].scope_spans[0].spans.clone();
        spans[0].trace_id.clone()
    };
    assert_ne!(ids(1), ids(2));
}
