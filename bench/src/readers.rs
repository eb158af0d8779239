//! Measures how much readers delay senders: the daemon holds many sessions of many agents, takes small requests at a steady
//! pace, and is meanwhile scraped, or asked for what the page of an agent shows, without a pause.
//! Blocks of requests come in turns: without readers, during scrapes, during pages. So other work on the machine affects all three
//! alike. The time of a request is from when it is sent until it is answered, which is when all of it has been applied. If other
//! processes want the server's core, this time says more about them than about the daemon. So the report also has the time without
//! the daemon's waits for its core, which is the time of a request if the daemon had the core for itself.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

use crate::child::Running;
use crate::client::Pace;
use crate::measure::{Cpu, peak_resident_bytes};
use crate::pass::{Pass, message};
use crate::report::Spread;
use crate::workload::Small;
use crate::{Bench, BenchError, Case, Sent, Server, client, failed, since, whole};
use agentgauge::clock::Clock;
use agentgauge::engine::span::Timestamp;

/// Sessions of the first agent, unless that is more than half of them; the others share the rest.
const OF_FIRST: u64 = 10_000;

/// The requests of a block, and the requests a second.
const BLOCK: u64 = 400;
const PACE: f64 = 200.0;

/// While the daemon is filled: the traces a second, the traces of a request, and the traces that are prepared ahead.
const FILLED: f64 = 20_000.0;
const TRACES: u64 = 100;
const AHEAD: u64 = 50_000;

/// The daemon is at rest when it has taken a fiftieth of a core at most for a while: the time of a check, the fewest checks, and
/// the most checks, after which it is measured in any case.
const QUIET: Duration = Duration::from_secs(2);
const LEAST_QUIET: u32 = 8;
const MAX_QUIET: u32 = 60;

/// The requests of the page of an agent: for the agent, its history, its sessions.
const PAGE: [&str; 3] = [
    "/api/v1/agents?service_name=fleet-0&limit=1",
    "/api/v1/agents/history?service_name=fleet-0&agent_name=helper-0&agent_version=14&environment=production",
    "/api/v1/sessions?service_name=fleet-0&detail=row&sort=reliability&limit=100",
];

/// The requests of the landing page, and of lists; each is measured when nothing is sent.
const LANDING: [&str; 3] = ["/api/v1/about", "/api/v1/fleet?limit=1000", "/api/v1/problems"];
const AGENTS: [&str; 1] = ["/api/v1/agents?limit=100"];
const SESSIONS: [&str; 1] = ["/api/v1/sessions?detail=row&sort=recent&limit=25"];

/// How often each of these is requested.
const ASKED: usize = 9;

/// The agents and sessions that the daemon holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fleet {
    /// The number of agents.
    pub(crate) agents: u64,
    /// The number of sessions, of one trace each.
    pub(crate) sessions: u64,
}

/// One block of requests.
struct Block {
    /// The nanoseconds of each request, sorted.
    nanos: Vec<u64>,
    /// The nanoseconds of each request without the daemon's waits for its core, sorted.
    own_nanos: Vec<u64>,
    reads: Vec<Read>,
}

/// A finished read.
#[derive(Clone, Copy)]
struct Read {
    nanos: u64,
    bytes: u64,
}

/// The times of answers, in milliseconds.
struct AnswerTimes {
    took: Spread,
    /// The time for which the daemon's threads had a core, which does not depend on other work on the machine.
    on_core: Spread,
}

/// Three blocks: without readers, during scrapes, during pages.
type Turn = [Block; 3];

impl Bench<'_> {
    /// Fills the daemon, and measures requests with readers and without.
    pub(super) fn readers(&mut self, case: Case) -> Result<(), BenchError> {
        let fleet = self.plan.fleet;
        let running = Server::Daemon.start_with(&self.cores, &fleet.bounds()).map_err(failed)?;
        let mut filling = Filling { small: Small::default(), fleet, next: 0, spans: 0 };
        while filling.next < fleet.sessions {
            let count = AHEAD.min(fleet.sessions - filling.next);
            let pass = filling.pass(count, TRACES, self.clock.now()).map_err(failed)?;
            let rate = FILLED * Small::SPANS as f64;
            let offered = self.offer(case, &running, &pass, self.pace(rate))?;
            whole(Server::Daemon, offered, &pass)?;
        }
        let mut cpu = Cpu::watch(running.id()).map_err(failed)?;
        let sent = Sent { spans: filling.spans, traces: filling.next };
        self.settle(&running, &mut cpu, sent)?;
        come_to_rest(&mut cpu).map_err(failed)?;
        let peak = peak_resident_bytes(running.id()).map_err(failed)?;
        // An error of the progress output does not matter.
        let _ = writeln!(self.progress, "{} sessions, {:.0} MB", fleet.sessions, peak as f64 / 1e6);
        let mut turns: Vec<Turn> = Vec::new();
        for repeat in 1..=self.plan.repeats {
            let mut block = |paths| self.block(&running, case, &mut filling, paths);
            let turn = [block(&[])?, block(&["/metrics"])?, block(&PAGE)?];
            let [quiet, scraped, opened] =
                turn.each_ref().map(|block| percentile(&block.own_nanos, 99));
            let said = format_args!(
                "p99 with the core to itself {quiet:.2} ms, {scraped:.2} ms scraped, {opened:.2} ms with pages"
            );
            self.say(case, repeat, said);
            turns.push(turn);
        }
        come_to_rest(&mut cpu).map_err(failed)?;
        let mut figures = figures(fleet, peak, &turns);
        let asked_for: [(&str, &str, &[&str]); 3] = [
            ("the landing page's requests, ms", "the same, on a core, ms", &LANDING),
            ("a list of 100 agents, ms", "a list of agents, on a core, ms", &AGENTS),
            ("a list of 25 sessions, ms", "a list of sessions, on a core, ms", &SESSIONS),
        ];
        for (took, on_core, paths) in asked_for {
            let asked = asked(&running, paths, &self.clock, &mut cpu).map_err(failed)?;
            figures.extend([(took, asked.took), (on_core, asked.on_core)]);
        }
        self.report.add_figures(case, "daemon while it is read", figures);
        Ok(())
    }

    /// Sends a block of requests while `paths` are read one after the other.
    fn block(
        &self,
        running: &Running,
        case: Case,
        filling: &mut Filling,
        paths: &[&str],
    ) -> Result<Block, BenchError> {
        let pass = filling.pass(BLOCK, 1, self.clock.now()).map_err(failed)?;
        let rate = PACE * pass.spans() as f64 / BLOCK as f64;
        let (clock, enough) = (&self.clock, AtomicBool::new(paths.is_empty()));
        let (sent, reads) = thread::scope(|scope| {
            let reader = scope.spawn(|| read_until(&enough, running, paths, clock));
            // The daemon is watched, so that answers also have their time without waits for a core.
            let pace = Pace { watched: Some(running.id()), ..self.pace(rate) };
            let sent = self.offer(case, running, &pass, pace);
            enough.store(true, Ordering::Relaxed);
            let gone = |_| Err(io::Error::other("the reader panicked"));
            (sent, reader.join().unwrap_or_else(gone))
        });
        let outcome = whole(Server::Daemon, sent?, &pass)?;
        let sorted = |of: fn(&client::Took) -> u64| {
            let mut nanos: Vec<u64> = outcome.took.iter().map(of).collect();
            nanos.sort_unstable();
            nanos
        };
        let (nanos, own_nanos) = (sorted(|took| took.nanos), sorted(|took| took.own_nanos));
        Ok(Block { nanos, own_nanos, reads: reads.map_err(failed)? })
    }
}

/// Waits until the daemon has finished the work that filling it has left.
fn come_to_rest(cpu: &mut Cpu) -> io::Result<()> {
    let mut before = cpu.nanos()?;
    for looks in 1..=MAX_QUIET {
        thread::sleep(QUIET);
        let now = cpu.nanos()?;
        let little = Duration::from_nanos(now - before) < QUIET / 50;
        if little && looks >= LEAST_QUIET {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Reads all of `paths` repeatedly until `enough` is set; each round is one read.
fn read_until(
    enough: &AtomicBool,
    running: &Running,
    paths: &[&str],
    clock: &Clock,
) -> io::Result<Vec<Read>> {
    let mut reads = Vec::new();
    while !enough.load(Ordering::Relaxed) {
        let start = clock.now();
        let mut bytes = 0;
        for path in paths {
            bytes += running.get(path)?.len() as u64;
        }
        reads.push(Read { nanos: since(start, clock.now()), bytes });
    }
    Ok(reads)
}

/// The times that the answers to all of `paths`, one after the other, take.
fn asked(
    running: &Running,
    paths: &[&str],
    clock: &Clock,
    cpu: &mut Cpu,
) -> io::Result<AnswerTimes> {
    let (mut took, mut on_core) = (Vec::with_capacity(ASKED), Vec::with_capacity(ASKED));
    for _ in 0..ASKED {
        let (start, before) = (clock.now(), cpu.nanos()?);
        for path in paths {
            running.get(path)?;
        }
        took.push(millis(since(start, clock.now())));
        on_core.push(millis(cpu.nanos()?.saturating_sub(before)));
    }
    Ok(AnswerTimes { took: Spread::of(took.into_iter()), on_core: Spread::of(on_core.into_iter()) })
}

impl Fleet {
    /// Spans of a request while the daemon is read.
    pub(crate) const SPANS: usize = Small::SPANS;

    /// Environment variables that give the daemon room for all agents and sessions.
    fn bounds(self) -> Vec<(&'static str, String)> {
        let room = self.sessions + self.sessions / 10 + 100_000;
        // No session takes as much.
        let (room, bytes) = (room.to_string(), (room * 4_096).to_string());
        vec![
            ("AGENTGAUGE__SESSION__MAX_BYTES", bytes.clone()),
            ("AGENTGAUGE__ASSEMBLE__MAX_BYTES", bytes),
            ("AGENTGAUGE__SESSION__MAX_SESSIONS", room.clone()),
            ("AGENTGAUGE__ASSEMBLE__MAX_OPEN_TRACES", room),
            ("AGENTGAUGE__AGENTS__MAX_AGENTS", (self.agents + 1).to_string()),
            // Otherwise all these traces, which are sent within seconds, would be sealed while readers are measured.
            ("AGENTGAUGE__ASSEMBLE__LATE_HORIZON", "1s".to_owned()),
        ]
    }

    /// The number of the agent of a session.
    fn agent(self, session: u64) -> u64 {
        let others = self.agents.saturating_sub(1);
        if others == 0 || session < OF_FIRST.min(self.sessions / 2) {
            return 0;
        }
        1 + session % others
    }
}

/// The state of filling: the sessions that were sent so far.
struct Filling {
    small: Small,
    fleet: Fleet,
    next: u64,
    spans: u64,
}

impl Filling {
    /// A pass of the next `count` sessions, `batch` in a request, whose traces have just ended.
    fn pass(&mut self, count: u64, batch: u64, now: Timestamp) -> io::Result<Arc<Pass>> {
        let end = self.next + count;
        let mut pass = Pass::default();
        while self.next < end {
            let last = end.min(self.next + batch);
            let request = self.request(self.next..last, now);
            let spans = Small::SPANS as u64 * (last - self.next);
            pass.messages
                .push(message(&request.encode_to_vec(), agentgauge::ingest::Compression::None)?);
            pass.message_spans.push(spans);
            pass.traces += last - self.next;
            self.next = last;
            self.spans += spans;
        }
        Ok(Arc::new(pass))
    }

    fn request(&self, sessions: Range<u64>, now: Timestamp) -> ExportTraceServiceRequest {
        let trace = |session| self.small.trace(self.fleet.agent(session), session, now.0);
        ExportTraceServiceRequest { resource_spans: sessions.map(trace).collect() }
    }
}

impl Block {
    /// The median of a value of its reads.
    fn median(&self, of: fn(&Read) -> f64) -> f64 {
        Spread::of(self.reads.iter().map(of)).median()
    }
}

fn figures(fleet: Fleet, peak: u64, turns: &[Turn]) -> Vec<(&'static str, Spread)> {
    let once = |figure: f64| Spread::of([figure].into_iter());
    let each = |figure: fn(&Turn) -> f64| Spread::of(turns.iter().map(figure));
    vec![
        ("agents", once(fleet.agents as f64)),
        ("sessions", once(fleet.sessions as f64)),
        ("peak resident, MB", once(peak as f64 / 1e6)),
        ("a scrape, MB", each(|[_, scraped, _]| scraped.median(|read| read.bytes as f64 / 1e6))),
        ("a scrape, ms", each(|[_, scraped, _]| scraped.median(|read| millis(read.nanos)))),
        ("a page of an agent, ms", each(|[_, _, opened]| opened.median(|read| millis(read.nanos)))),
        ("a request, p99, ms", each(|[quiet, ..]| percentile(&quiet.nanos, 99))),
        ("the same, scraped", each(|[_, scraped, _]| percentile(&scraped.nanos, 99))),
        ("the same, with pages", each(|[_, _, opened]| percentile(&opened.nanos, 99))),
        ("with the core to itself, p99, ms", each(|[quiet, ..]| percentile(&quiet.own_nanos, 99))),
        ("longer by, scraped", each(|[quiet, scraped, _]| longer(quiet, scraped))),
        ("longer by, with pages", each(|[quiet, _, opened]| longer(quiet, opened))),
    ]
}

/// How much longer requests take with readers, at the 99th percentile, without the daemon's waits for its core.
fn longer(quiet: &Block, read: &Block) -> f64 {
    percentile(&read.own_nanos, 99) - percentile(&quiet.own_nanos, 99)
}

/// A percentile of sorted nanoseconds, in milliseconds.
fn percentile(nanos: &[u64], percent: usize) -> f64 {
    let index = (nanos.len() * percent / 100).min(nanos.len().saturating_sub(1));
    millis(nanos.get(index).copied().unwrap_or(0))
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_agent_has_many_sessions_and_the_others_share_the_rest() {
        let fleet = Fleet { agents: 11, sessions: 1_000_000 };
        let of =
            |agent| (0..fleet.sessions).filter(|session| fleet.agent(*session) == agent).count();
        assert_eq!((of(0), of(1), of(10), of(11)), (10_000, 99_000, 99_000, 0));
        assert_eq!(Fleet { agents: 1, sessions: 5 }.agent(4), 0);
    }

    #[test]
    fn the_slowest_of_a_hundred_are_beyond_the_99th_percentile() {
        let nanos: Vec<u64> = (1..=200).map(|ms| ms * 1_000_000).collect();
        assert!((percentile(&nanos, 99) - 199.0).abs() < 1e-9);
        assert!((percentile(&nanos, 50) - 101.0).abs() < 1e-9);
        assert!(percentile(&[], 99).abs() < 1e-9);
    }
}
