//! Five minutes of a small company, second by second: what its agents do, and what goes wrong.
//!
//! | Second | What happens |
//! |---|---|
//! | before 0 | all agents have worked well for an hour |
//! | 10 to 70 | `invoices` cannot book: it fails half of its turns, and recovers |
//! | 35 to 215 | `analyst` searches for the same thing again and again, at 11 cents a time |
//! | from 100 | `refunds` 1.5 takes over from 1.4 and fails more than a third of its turns |
//!
//! `support` works well all the time, and so does a coding agent that sends log records. After the five minutes, `refunds` 1.5 stays in
//! use, and every five minutes `invoices` and `analyst` begin again.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::coding;
use super::turn::{Agent, Step, Turn};

/// One run of the story.
#[derive(Clone, Copy, Debug)]
pub(super) struct Story {
    /// The seed of its ids, so that those of two runs differ.
    pub(super) seed: u64,
    /// The time of its first second, Unix nanoseconds.
    pub(super) begin: u64,
}

/// The requests that are sent together.
#[derive(Clone, Debug, Default)]
pub(super) struct SentTraces {
    pub(super) spans: Vec<ExportTraceServiceRequest>,
    pub(super) logs: Vec<ExportLogsServiceRequest>,
}

const SUPPORT: Agent = Agent { service: "shop", name: "support", model: "gpt-4o-mini" };
const REFUNDS: Agent = Agent { service: "shop", name: "refunds", model: "gpt-4o" };
const INVOICES: Agent = Agent { service: "billing", name: "invoices", model: "gpt-4o-mini" };
const ANALYST: Agent = Agent { service: "research", name: "analyst", model: "claude-opus-4-1" };

/// A version of an agent, how many of a hundred turns fail, and what fails then.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    agent: Agent,
    version: &'static str,
    percent: u64,
    tool: &'static str,
    why: &'static str,
}

/// Seconds of the story, after which it repeats.
const LASTS: u64 = 300;

/// The second from which the new version of `refunds` is in use.
pub(super) const RELEASE: u64 = 100;

/// The second when `analyst` begins to loop, and for how many seconds it does.
pub(super) const LOOPING: (u64, u64) = (35, 180);

/// The second when `invoices` begins to fail, and for how many seconds it does.
pub(super) const OUTAGE: (u64, u64) = (10, 60);

/// Turns of each agent before the story begins, and how many seconds they reach back.
const PAST_TURNS: u64 = 150;
const PAST_SECONDS: u64 = 3_000;

const SECOND: u64 = 1_000_000_000;

const USERS: [&str; 5] = ["mia", "noah", "li", "amara", "jonas"];

/// Questions of users, the answers, and the answers when the turn fails.
const TALKS: [(&str, &str, &str); 4] = [
    (
        "Where is my order?",
        "Order {order} is with the carrier and comes tomorrow before noon.",
        "I cannot reach the carrier right now; please ask again in an hour.",
    ),
    (
        "I was charged twice, can you look?",
        "One of the two charges was only a reservation. Your bank releases it within two days.",
        "The payment system refuses to tell me; a colleague will write to you today.",
    ),
    (
        "Please send the invoice again.",
        "Done: a copy of invoice {order} should be in your inbox.",
        "Sorry, that did not go through. Could you give me the number on the receipt?",
    ),
    (
        "I want to give this back.",
        "Print the label from our mail and drop the parcel anywhere; money follows in three days.",
        "Returns are closed at the moment, which is our fault. Keep the box, we will call.",
    ),
];

/// Turns in a session.
const PER_SESSION: u64 = 3;

impl Story {
    /// The requests of the time before the story, when everything worked well.
    pub(super) fn past(&self) -> SentTraces {
        let mut sent = SentTraces::default();
        let back = |number: u64| {
            let left = PAST_TURNS - number;
            self.begin - left * (PAST_SECONDS / PAST_TURNS) * SECOND
        };
        for number in 0..PAST_TURNS {
            for part in [support(), refunds(0), invoices(u64::MAX)] {
                let turn = part.turn(self.seed, number);
                sent.spans.push(turn.ended_at(back(number), number));
            }
            if number % 4 == 0 {
                let turn = research(self.seed, number);
                sent.spans.push(turn.ended_at(back(number), number));
            }
            if number % 15 == 0 {
                sent.logs.push(coding::prompt(number / 15, self.seed, back(number)));
            }
        }
        sent
    }

    /// The requests of a second of the story, counted from 0.
    pub(super) fn second(&self, second: u64) -> SentTraces {
        let now = self.begin + second * SECOND;
        let number = PAST_TURNS + second;
        let mut parts = vec![refunds(second), invoices(second % LASTS)];
        if second.is_multiple_of(2) {
            parts.push(support());
        }
        let mut sent = SentTraces::default();
        let turns = parts.iter().map(|part| part.turn(self.seed, number).ended_at(now, number));
        sent.spans.extend(turns);
        if second.is_multiple_of(11) {
            sent.spans.push(research(self.seed, number).ended_at(now, number));
        }
        sent.spans.extend(self.looping(second));
        if second.is_multiple_of(20) {
            sent.logs.push(coding::prompt(PAST_TURNS + second / 20, self.seed, now));
        }
        sent
    }

    /// A piece of the looping turn, every two seconds while it runs: a call of the model and a search.
    fn looping(&self, second: u64) -> Option<ExportTraceServiceRequest> {
        let (begin, lasting) = LOOPING;
        let (round, at) = (second / LASTS, (second % LASTS).checked_sub(begin)?);
        let turn =
            Turn { session: format!("{}-runaway", self.name("market-report", round)), ..loops() };
        let since = self.begin + (round * LASTS + begin) * SECOND;
        if at == lasting {
            return Some(turn.ending(since, since + lasting * SECOND, round));
        }
        // Two steps take two seconds, so they are sent when they are done.
        let done = at.checked_sub(2).filter(|_| at < lasting && at.is_multiple_of(2))?;
        let place = usize::try_from(done).ok()?;
        Some(turn.running(place..place + 2, since + done * SECOND, round))
    }

    fn name(&self, what: &str, number: u64) -> String {
        format!("{what}-{:04x}-{number}", self.seed & 0xffff)
    }
}

impl Behaviour {
    fn turn(&self, seed: u64, number: u64) -> Turn {
        let Self { agent, version, percent, tool, why } = *self;
        let hash = xxh3_64_with_seed(agent.name.as_bytes(), number);
        let failed = hash % 100 < percent;
        let order = 10_000 + number;
        let (question, answer, sorry) = TALKS[usize::try_from(number % 4).unwrap_or_default()];
        let answer = if failed { sorry } else { answer }.replace("{order}", &order.to_string());
        let model = |input: u64| Step::Model {
            ms: 350 + hash % 400,
            tokens: (900.0 + small(hash % 700 + input), 60.0 + small(hash % 90)),
            cost: 0.0021 + small(hash % 13) / 10_000.0,
        };
        let look = Step::Tool {
            name: "find_order",
            arguments: format!(r#"{{"order": "{order}"}}"#),
            result: Ok(format!(r#"{{"order": {order}, "state": "shipped", "total": 49.90}}"#)),
            ms: 80 + hash % 60,
            by: number.is_multiple_of(5).then_some("order-desk"),
        };
        let act = Step::Tool {
            name: tool,
            arguments: format!(r#"{{"order": "{order}", "amount": 49.9}}"#),
            result: if failed {
                Err(why)
            } else {
                Ok(format!(r#"{{"order": {order}, "done": true}}"#))
            },
            ms: if failed { 1_500 } else { 140 },
            by: None,
        };
        Turn {
            agent,
            version,
            session: format!("{}-{:04x}-{}", agent.name, seed & 0xffff, number / PER_SESSION),
            user: USERS[usize::try_from(hash / 500 % 5).unwrap_or_default()],
            question,
            answer,
            steps: vec![model(0), look, model(300), act, model(500)],
            failed,
        }
    }
}

/// A small whole number as a float, which is exact.
fn small(number: u64) -> f64 {
    u32::try_from(number).map_or(0.0, f64::from)
}

fn support() -> Behaviour {
    Behaviour { agent: SUPPORT, version: "3.2", percent: 2, tool: "track_parcel", why: "timeout" }
}

fn refunds(second: u64) -> Behaviour {
    let (version, percent) = if second < RELEASE { ("1.4", 3) } else { ("1.5", 40) };
    Behaviour { agent: REFUNDS, version, percent, tool: "pay_back", why: "amount must be in cents" }
}

fn invoices(second: u64) -> Behaviour {
    let (begin, lasting) = OUTAGE;
    let is_out = (begin..begin + lasting).contains(&second);
    let percent = if is_out { 50 } else { 2 };
    Behaviour {
        agent: INVOICES,
        version: "2.1",
        percent,
        tool: "book_entry",
        why: "ledger is locked",
    }
}

/// Questions to `analyst`, and its answers.
const REPORTS: [(&str, &str); 3] = [
    (
        "What did the competitors announce this week?",
        "Two of them raised prices; nobody launched anything new.",
    ),
    (
        "Which of their shops opened or closed?",
        "One opened in Lyon in March. None has closed since the summer.",
    ),
    (
        "How do reviewers see our last product?",
        "They like its weight and complain about the short cable.",
    ),
];

/// A turn of `analyst` that succeeds.
fn research(seed: u64, number: u64) -> Turn {
    let hash = xxh3_64_with_seed(ANALYST.name.as_bytes(), number);
    let place = usize::try_from(number % 3).unwrap_or_default();
    let model = || Step::Model { ms: 900, tokens: (2_400.0, 310.0), cost: 0.0592 };
    let search = |query: &str| Step::Tool {
        name: "web_search",
        arguments: format!(r#"{{"query": "{query} {number}"}}"#),
        result: Ok(format!("{} results about {query}, number {number}", hash % 40 + 3)),
        ms: 420,
        by: None,
    };
    Turn {
        agent: ANALYST,
        version: "0.9",
        session: format!("market-report-{:04x}-{}", seed & 0xffff, number / PER_SESSION),
        user: "jonas",
        question: REPORTS[place].0,
        answer: REPORTS[place].1.to_owned(),
        steps: vec![model(), search("price changes"), model(), search("new products"), model()],
        failed: false,
    }
}

/// The turn of `analyst` that loops.
fn loops() -> Turn {
    let model = Step::Model { ms: 900, tokens: (21_000.0, 420.0), cost: 0.11 };
    let search = Step::Tool {
        name: "web_search",
        arguments: r#"{"query": "Acme Corp quarterly report 2031"}"#.to_owned(),
        result: Ok("no results".to_owned()),
        ms: 600,
        by: None,
    };
    let steps = usize::try_from(LOOPING.1).unwrap_or_default();
    Turn {
        agent: ANALYST,
        version: "0.9",
        session: String::new(),
        user: "jonas",
        question: "Summarise Acme's quarterly report for 2031.",
        answer: "I could not find the report.".to_owned(),
        steps: [model, search].into_iter().cycle().take(steps).collect(),
        failed: true,
    }
}

#[cfg(test)]
mod tests;
