//! Measures the time from sending a span to the gauge that it changes, at a tenth and at eight tenths of the sustainable rate.
//!
//! That rate is found first, in the same repeat and with the same settings, by a long pass, as a span costs more while many traces
//! are held: its spans over the processor time until all of its traces are scored. Then a share of it is offered for a while, of
//! the same workload, together with probes at a steady pace. A probe is a trace with its own agent, in which one tool is called
//! repeatedly with the same arguments. The API is asked for that agent until its loop appears, which happens while the trace is
//! open, and until its trace is scored, which takes `assemble.trace_idle` more. That time is not counted, and neither is a refused
//! probe. The wait between two checks of an agent is a quarter of the time so far, so figures may be too high by that.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use prost::Message;
use serde_json::Value;

use crate::child::{Asker, Running};
use crate::pass::{Material, Pass, message};
use crate::report::Spread;
use crate::workload::Small;
use crate::{Bench, BenchError, Case, Server, client, failed, since};
use agentgauge::clock::Clock;
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::Compression;

/// The shares of the sustainable rate.
const SHARES: [f64; 2] = [0.1, 0.8];

/// How many times longer the pass that finds the sustainable rate is.
const LONGER: u64 = 20;

/// The most and the fewest probes of a share, and the spans of a pass for each probe; then the probes a second.
const PROBES: u64 = 200;
const LEAST_PROBES: u64 = 10;
const SPANS: u64 = 500;
const PACE: f64 = 20.0;

/// Seconds for which a share is offered after the last probe.
const AFTER: f64 = 3.0;

/// Seconds before the first probe.
const AHEAD: f64 = 1.0;

/// Calls of a probe: more than enough for a loop.
const CALLS: usize = 8;

/// The quiet time after which a trace is done in this measurement.
const TRACE_IDLE: Duration = Duration::from_secs(2);

/// Connections of each sender, and the numbers of threads that look for loops and for scores.
const LOOKERS: usize = 8;

/// The first wait between two checks, and the longest time of checking: a probe that was not seen until then counts as seen.
const FIRST_WAIT: Duration = Duration::from_micros(500);
const MAX_LOOKING: Duration = Duration::from_secs(20);

/// The results of one share of one repeat, in milliseconds, each in order.
struct Found {
    loops: Vec<f64>,
    scores: Vec<f64>,
    refused: f64,
}

/// The numbers of probes, and when each was seen.
type Sightings = Vec<(usize, Timestamp)>;

/// The results of one repeat.
struct Turn {
    saturation: f64,
    shares: Vec<Found>,
}

impl Bench<'_> {
    /// Measures a case.
    pub(super) fn latency(&mut self, case: Case) -> Result<(), BenchError> {
        let mut material = Material::new(&case);
        let mut turns = Vec::new();
        for repeat in 1..=self.plan.repeats {
            let passes = self.passes(&mut material, self.plan.spans * LONGER)?;
            let sample = self.measure(Server::Daemon, &settings(), self.sending(case), &passes)?;
            let cores = self.cores.server.len().max(1) as f64;
            let saturation = cores * 1e6 / sample.micros_per_span();
            let mut shares = Vec::new();
            for share in SHARES {
                let found = self.probe(case, &mut material, saturation * share)?;
                let said = format_args!(
                    "{:.0} spans/s: a loop after {:.1} ms, p99 {:.1}; a score {:.1}, p99 {:.1}",
                    saturation * share,
                    percentile(&found.loops, 50),
                    percentile(&found.loops, 99),
                    percentile(&found.scores, 50),
                    percentile(&found.scores, 99),
                );
                self.say(case, repeat, said);
                shares.push(found);
            }
            turns.push(Turn { saturation, shares });
        }
        self.report.add_figures(case, "from a span to its gauge", figures(&turns));
        Ok(())
    }

    /// Offers `rate` spans a second, and probes.
    fn probe(&self, case: Case, material: &mut Material, rate: f64) -> Result<Found, BenchError> {
        let server = Server::Daemon.name();
        let sent = |source| BenchError::Send { server, source };
        let running = Server::Daemon.start_with(&self.cores, &settings()).map_err(failed)?;
        // The number of spans is made an integer through a duration, whose seconds are its whole part.
        let count = (self.plan.spans / SPANS).clamp(LEAST_PROBES, PROBES);
        let seconds = AHEAD + count as f64 / PACE + AFTER;
        let spans = Duration::from_secs_f64(rate * seconds).as_secs();
        let load = self.passes(material, spans)?.measured;
        let clock = &self.clock;
        let probes = probes(count, clock.now()).map_err(failed)?;
        let begun = Timestamp(clock.now().0 + nanos(AHEAD));
        let sending = client::Sending { connections: LOOKERS, ..self.sending(case) };
        let offered = self.pace(rate);
        let probing = client::Pace { rate: PACE * probes.message_spans[0] as f64, ..offered };
        let (outcomes, seen) = thread::scope(|scope| {
            let (running, last) = (&running, probes.messages.len());
            let later = Timestamp(begun.0 + nanos(TRACE_IDLE.as_secs_f64()));
            let gauges = [("sessions_looping", begun), ("window_traces", later)];
            let lookers = gauges.map(|(what, begun)| {
                let look = |first| {
                    let probes = (first..last).step_by(LOOKERS);
                    scope.spawn(move || look(running, probes, what, begun, clock))
                };
                (0..LOOKERS).map(look).collect::<Vec<_>>()
            });
            let outcomes = self.runtime.block_on(async {
                let probing = async {
                    tokio::time::sleep(clock.until(begun)).await;
                    let plain = client::Sending { compression: Compression::None, ..sending };
                    client::offer(running.grpc, &probes, plain, probing).await
                };
                tokio::join!(client::offer(running.grpc, &load, sending, offered), probing)
            });
            (outcomes, lookers.map(all))
        });
        let (loaded, probed) = (outcomes.0.map_err(sent)?, outcomes.1.map_err(sent)?);
        let refused = (loaded.refused + probed.refused) as f64;
        let [loops, scores] = seen.map(|seen| Ok(after(&seen.map_err(failed)?, &probed.took)));
        let (loops, mut scores) = (loops?, scores?);
        scores.iter_mut().for_each(|millis| *millis -= TRACE_IDLE.as_secs_f64() * 1e3);
        Ok(Found { loops, scores, refused })
    }
}

/// The daemon's settings as environment variables.
fn settings() -> [(&'static str, String); 1] {
    [("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", format!("{}ms", TRACE_IDLE.as_millis()))]
}

/// The sightings of all threads.
fn all(lookers: Vec<thread::ScopedJoinHandle<'_, io::Result<Sightings>>>) -> io::Result<Sightings> {
    let mut found = Vec::new();
    for looker in lookers {
        let gone = |_| Err(io::Error::other("one that looks panicked"));
        found.append(&mut looker.join().unwrap_or_else(gone)?);
    }
    Ok(found)
}

/// The milliseconds from sending each accepted probe to seeing it, in order.
fn after(seen: &[(usize, Timestamp)], took: &[client::Took]) -> Vec<f64> {
    let accepted = |number| took.iter().find(|took| took.number == number && took.accepted);
    let sent = |number| accepted(number).map(|took| took.sent);
    let millis = |(number, at): &(usize, Timestamp)| Some(since(sent(*number)?, *at) as f64 / 1e6);
    let mut millis: Vec<f64> = seen.iter().filter_map(millis).collect();
    millis.sort_by(f64::total_cmp);
    millis
}

/// Looks for probes, each from its due time; returns when they were seen.
fn look(
    running: &Running,
    probes: impl Iterator<Item = usize>,
    what: &str,
    begun: Timestamp,
    clock: &Clock,
) -> io::Result<Sightings> {
    let mut asker = running.asker()?;
    probes
        .map(|number| {
            let due = Timestamp(begun.0 + nanos(number as f64 / PACE));
            Ok((number, wait(&mut asker, number, what, due, clock)?))
        })
        .collect()
}

/// Asks for an agent from `due` on until it has the expected values; returns when that was.
fn wait(
    asker: &mut Asker,
    number: usize,
    what: &str,
    due: Timestamp,
    clock: &Clock,
) -> io::Result<Timestamp> {
    let path = format!("/api/v1/fleet?service_name=fleet-{number}&limit=1");
    thread::sleep(clock.until(due));
    loop {
        let answer: Value = serde_json::from_str(&asker.get(&path)?).map_err(io::Error::other)?;
        let now = clock.now();
        let looked = Duration::from_nanos(since(due, now));
        if answer["agents"][0][what].as_u64() > Some(0) || looked > MAX_LOOKING {
            return Ok(now);
        }
        thread::sleep((looked / 4).max(FIRST_WAIT));
    }
}

/// A pass of probes, each in a separate request.
fn probes(count: u64, now: Timestamp) -> io::Result<Arc<Pass>> {
    let small = Small::default();
    let mut pass = Pass::default();
    for number in 0..count {
        let request = small.looping(number, now.0, CALLS);
        pass.messages.push(message(&request.encode_to_vec(), Compression::None)?);
        pass.message_spans.push((CALLS + 2) as u64);
        pass.traces += 1;
    }
    Ok(Arc::new(pass))
}

fn figures(turns: &[Turn]) -> Vec<(&'static str, Spread)> {
    let each = |share: usize, of: fn(&Found) -> &[f64], percent| {
        let found = turns.iter().filter_map(|turn| turn.shares.get(share));
        Spread::of(found.map(|found| percentile(of(found), percent)))
    };
    let loops: fn(&Found) -> &[f64] = |found| &found.loops;
    let scores: fn(&Found) -> &[f64] = |found| &found.scores;
    let refused = |turn: &Turn| turn.shares.iter().map(|found| found.refused).sum();
    vec![
        ("saturation, spans/s", Spread::of(turns.iter().map(|turn| turn.saturation))),
        ("10 %: loop visible, p50, ms", each(0, loops, 50)),
        ("10 %: loop visible, p99, ms", each(0, loops, 99)),
        ("10 %: score visible after trace_idle, p50, ms", each(0, scores, 50)),
        ("10 %: score visible after trace_idle, p99, ms", each(0, scores, 99)),
        ("80 %: loop visible, p50, ms", each(1, loops, 50)),
        ("80 %: loop visible, p99, ms", each(1, loops, 99)),
        ("80 %: score visible after trace_idle, p50, ms", each(1, scores, 50)),
        ("80 %: score visible after trace_idle, p99, ms", each(1, scores, 99)),
        ("requests refused", Spread::of(turns.iter().map(refused))),
    ]
}

/// A percentile of sorted values.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

fn nanos(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX)
}
