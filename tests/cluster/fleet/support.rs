//! A broker in the process, instances that share it, and the results that they must show.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::clock::Clock;
use agentgauge::config::Config;
use agentgauge::daemon::Daemon;
use agentgauge::engine::agent_facts::AgentFacts;
use agentgauge::engine::counters::Counter;
use agentgauge::engine::facts::AgentKey;
use agentgauge::engine::pipeline::Pipeline;
use agentgauge::engine::predict::Spread;
use agentgauge::engine::route::Route;
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::view::{DropView, SessionView};
use agentgauge::fleet::{FleetOptions, Role};
use agentgauge::ingest::decode::Decoder;
use agentgauge::ingest::kafka::KafkaOptions;
use agentgauge::ingest::{Encoding, Signal};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long anything is waited for.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time between two looks.
const BETWEEN: Duration = Duration::from_millis(50);

/// Whether something becomes so in time.
async fn comes_true(mut is_so: impl AsyncFnMut() -> bool) -> bool {
    let look = async {
        while !is_so().await {
            tokio::time::sleep(BETWEEN).await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.is_ok()
}

pub(crate) const PARTITIONS: u32 = 8;

/// Agents by name.
pub(crate) type Shown = BTreeMap<AgentKey, AgentFacts>;

/// Instances and the broker between them.
pub(crate) struct Fleet {
    pub(crate) cluster: MockCluster<'static, DefaultProducerContext>,
    pub(crate) checkpoints: TempDir,
    pub(crate) instances: Vec<Daemon>,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let fleet = Self::without_topics();
        fleet.make_topics();
        fleet
    }

    pub(crate) fn without_topics() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        Self { cluster, checkpoints: tempfile::tempdir().unwrap(), instances: Vec::new() }
    }

    pub(crate) fn make_topics(&self) {
        self.make_topics_of("agentgauge");
    }

    pub(crate) fn make_topics_of(&self, prefix: &str) {
        for topic in ["spans", "traces", "agents"] {
            let partitions = i32::try_from(PARTITIONS).unwrap();
            self.cluster.create_topic(&format!("{prefix}.{topic}"), partitions, 1).unwrap();
        }
    }

    /// Puts anything into a topic between the stages.
    pub(crate) fn put(&self, topic: &str, partition: Option<i32>, payload: &[u8]) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap_servers());
        let producer: BaseProducer = config.create().unwrap();
        let topic = format!("agentgauge.{topic}");
        let record: BaseRecord<'_, [u8], [u8]> =
            BaseRecord { partition, ..BaseRecord::to(&topic).payload(payload) };
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(DEADLINE).unwrap();
    }

    /// The records of a topic between the stages, by partition.
    pub(crate) fn records(&self, topic: &str) -> Vec<(i32, Vec<u8>)> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap_servers());
        config.set("group.id", "looks").set("enable.partition.eof", "true");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut all = TopicPartitionList::new();
        let partitions = i32::try_from(PARTITIONS).unwrap();
        all.add_partition_range(topic, 0, partitions - 1);
        all.set_all_offsets(Offset::Beginning).unwrap();
        consumer.assign(&all).unwrap();
        let (mut records, mut ended) = (Vec::new(), 0);
        while ended < partitions {
            match consumer.poll(DEADLINE).unwrap() {
                Ok(record) => {
                    records.push((record.partition(), record.payload().unwrap().to_vec()));
                }
                Err(KafkaError::PartitionEOF(_)) => ended += 1,
                Err(error) => assert!(error.to_string().is_empty(), "{error}"),
            }
        }
        records
    }

    /// How many records each partition of a topic has.
    pub(crate) fn lengths(&self, topic: &str) -> [usize; PARTITIONS as usize] {
        let mut lengths = [0; PARTITIONS as usize];
        for (partition, _) in self.records(topic) {
            lengths[usize::try_from(partition).unwrap()] += 1;
        }
        lengths
    }

    /// All sessions that an instance has, by id, and whether others have more.
    pub(crate) async fn sessions(&self, instance: usize) -> (BTreeMap<String, Value>, bool) {
        let answer = get(&self.instances[instance], "/api/v1/sessions?limit=1000").await;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let page: Value = serde_json::from_str(body).unwrap();
        let all = page["sessions"].as_array().unwrap().iter();
        let named = |session: &Value| session["session_id"].as_str().unwrap().to_owned();
        let sessions: BTreeMap<_, _> =
            all.map(|session| (named(session), session.clone())).collect();
        (sessions, page["partial"].as_bool().unwrap())
    }

    /// The checkpoints of a topic, once each of its partitions has one.
    pub(crate) async fn state_of(&self, topic: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let folder = self.checkpoints.path().join(format!("agentgauge.{topic}"));
        let mut states = BTreeMap::new();
        let all = async || {
            states.clear();
            for partition in 0..PARTITIONS {
                for file in fs::read_dir(folder.join(partition.to_string())).unwrap() {
                    let path = file.unwrap().path();
                    if path.extension().is_some_and(|extension| extension == "state") {
                        states.insert(path.clone(), fs::read(&path).unwrap());
                    }
                }
            }
            states.len() == PARTITIONS as usize
        };
        assert!(comes_true(all).await, "not every partition has one checkpoint: {folder:?}");
        states
    }

    /// Checkpoints of a topic as they were, and none after them.
    pub(crate) fn put_state_back(&self, topic: &str, states: &BTreeMap<PathBuf, Vec<u8>>) {
        fs::remove_dir_all(self.checkpoints.path().join(format!("agentgauge.{topic}"))).unwrap();
        for (path, state) in states {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, state).unwrap();
        }
    }

    /// Waits until an instance has the sessions that are wanted.
    pub(crate) async fn shows_sessions(
        &self,
        instance: usize,
        wanted: impl Fn(&BTreeMap<String, Value>) -> bool,
    ) {
        let shown = comes_true(async || wanted(&self.sessions(instance).await.0)).await;
        assert!(shown, "{:?}", self.sessions(instance).await);
    }

    /// An instance ends in order.
    pub(crate) async fn leave(&mut self, instance: usize) {
        self.instances.remove(instance).stop().await;
    }

    pub(crate) async fn post(&self, instance: usize, body: &[u8]) -> String {
        let address = self.instances[instance].bound().otlp_http.unwrap();
        post(&address.to_string(), body).await
    }

    /// The value of a series; zero if there is none.
    pub(crate) async fn metric(&self, instance: usize, series: &str) -> f64 {
        let page = get(&self.instances[instance], "/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until an instance has applied as many records as a topic has.
    pub(crate) async fn applies_all(&self, instance: usize, topic: &str, applied: &str) {
        let all = async || self.metric(instance, applied).await >= self.records(topic).len() as f64;
        assert!(comes_true(all).await, "{applied} is {}", self.metric(instance, applied).await);
    }

    /// Waits until a series has this value.
    pub(crate) async fn counts(&self, instance: usize, series: &str, wanted: f64) {
        let is_so = async || (self.metric(instance, series).await - wanted).abs() <= 0.5;
        assert!(comes_true(is_so).await, "{series} is {}", self.metric(instance, series).await);
    }

    /// Asks an instance until its answer has all of these.
    pub(crate) async fn answers(&self, instance: usize, path: &str, wanted: &[&str]) {
        let mut last = String::new();
        let has_all = async || {
            last = get(&self.instances[instance], path).await;
            wanted.iter().all(|wanted| last.contains(wanted))
        };
        let answered = comes_true(has_all).await;
        assert!(answered, "waited in vain for {wanted:?}: {last}");
    }

    pub(crate) fn config(&self, roles: &[Role]) -> Config {
        let mut config = Config {
            kafka: KafkaOptions {
                brokers: vec![self.cluster.bootstrap_servers()],
                traces_topics: Vec::new(),
                logs_topics: Vec::new(),
                ..KafkaOptions::default()
            },
            fleet: FleetOptions {
                roles: roles.to_vec(),
                partitions: PARTITIONS,
                checkpoints: self.checkpoints.path().to_string_lossy().into_owned(),
                checkpoint_interval: Duration::from_millis(300),
                tell_interval: Duration::from_millis(50),
                session_timeout: Duration::from_secs(6),
                ..FleetOptions::default()
            },
            ..engine()
        };
        for address in
            [&mut config.listen.otlp_grpc, &mut config.listen.otlp_http, &mut config.listen.http]
        {
            "127.0.0.1:0".clone_into(address);
        }
        config
    }

    /// One more instance, with every role.
    pub(crate) async fn join(&mut self) {
        let roles = [Role::Gateway, Role::Assemble, Role::Score, Role::Fleet];
        self.join_as(&roles).await;
    }

    pub(crate) async fn join_as(&mut self, roles: &[Role]) {
        let instance = Daemon::start(&self.config(roles)).await.unwrap();
        self.instances.push(instance);
    }

    /// Waits until the instances have all partitions between them and have caught up.
    pub(crate) async fn ready(&self) {
        let owned = |page: &str, role: &str| -> u32 {
            let name = format!("agentgauge_fleet_partitions_owned{{role=\"{role}\"}} ");
            let value = page.lines().find_map(|line| line.strip_prefix(&name));
            value.map_or(0, |value| value.parse().unwrap())
        };
        let mut last = String::new();
        let look = async {
            loop {
                last.clear();
                let mut sums = [0; 3];
                let mut ready = true;
                for instance in &self.instances {
                    let page = get(instance, "/metrics").await;
                    for (sum, role) in sums.iter_mut().zip(["assemble", "score", "fleet"]) {
                        *sum += owned(&page, role);
                    }
                    let answer = get(instance, "/readyz").await;
                    ready &= answer.starts_with("HTTP/1.1 200");
                    last.push_str(&answer);
                }
                last.push_str(&sums.map(|sum| sum.to_string()).join(" "));
                if ready && sums == [PARTITIONS; 3] {
                    return;
                }
                tokio::time::sleep(BETWEEN).await;
            }
        };
        let ready = tokio::time::timeout(DEADLINE, look).await.is_ok();
        assert!(ready, "they do not become ready: {last}");
    }

    /// Waits until an instance takes requests.
    pub(crate) async fn ready_to_take(&self, instance: usize) {
        self.answers(instance, "/readyz", &["HTTP/1.1 200"]).await;
    }

    /// Posts a request to an instance until it is acknowledged.
    pub(crate) async fn send(&self, instance: usize, body: &[u8]) {
        let sent = tokio::time::timeout(DEADLINE, async {
            loop {
                let answer = self.post(instance, body).await;
                if answer.starts_with("HTTP/1.1 200") {
                    return;
                }
                assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
                tokio::time::sleep(BETWEEN).await;
            }
        });
        if sent.await.is_err() {
            let ready = get(&self.instances[instance], "/readyz").await;
            assert_eq!(ready, self.post(instance, body).await, "nobody takes it");
        }
    }

    /// What all instances show; an agent that two of them show is an error.
    pub(crate) fn shown(&self) -> Shown {
        let mut shown = Shown::new();
        for instance in &self.instances {
            for update in instance.board().sorted() {
                let twice = shown.insert(update.agent.clone(), lasting(AgentFacts::clone(&update)));
                assert!(twice.is_none(), "{:?} is shown twice", update.agent);
            }
        }
        shown
    }

    /// Waits until they show just this.
    pub(crate) async fn shows(&self, expected: &Shown) {
        if !comes_true(async || self.shown() == *expected).await {
            differ(&self.shown(), expected);
        }
    }

    /// Waits until the verdicts of the one agent that fails have come to this.
    pub(crate) async fn drops(&self, wanted: impl Fn(&DropView) -> bool) {
        let verdicts = || {
            let shown = self.instances.iter().flat_map(|instance| instance.board().sorted());
            let mut failing = shown.filter(|update| &*update.agent.agent_name == FAILING);
            failing.find_map(|update| update.view.drops.first().cloned())
        };
        let so = comes_true(async || verdicts().is_some_and(|drop| wanted(&drop))).await;
        assert!(so, "{:?}", verdicts());
    }

    /// Tells an instance that the level of that agent is usual; returns the answer.
    pub(crate) async fn accept(&self, instance: usize) -> String {
        let body = format!(r#"{{"service_name": "shop", "agent_name": "{FAILING}"}}"#);
        self.tell(instance, "/api/v1/agents/baseline", &body).await
    }

    /// Tells an instance that all agents of the service were rolled out, and that their levels are usual; returns the answer.
    pub(crate) async fn deploy(&self, instance: usize) -> String {
        let body = r#"{"service_name": "shop", "id": "7", "accept": true}"#;
        self.tell(instance, "/api/v1/deployments", body).await
    }

    /// Waits until the failing agent is shown with this many deployments.
    pub(crate) async fn deployed(&self, wanted: usize) {
        let shown = || {
            let mut shown = self.instances.iter().flat_map(|instance| instance.board().sorted());
            let failing = shown.find(|update| &*update.agent.agent_name == FAILING);
            failing.map(|update| update.view.deployments.len())
        };
        let so = comes_true(async || shown() == Some(wanted)).await;
        assert!(so, "{:?}", shown());
    }

    /// Tells an instance that a run failed; returns the answer.
    pub(crate) async fn report_failure(&self, instance: usize, trace: usize) -> String {
        let run = format!(
            r#"{{"agent": {{"service_name": "shop", "agent_name": "{}"}}, "task_id": "{}", "run_id": "{}"}}"#,
            agent(trace),
            task(trace),
            run(trace)
        );
        let body = format!(
            r#"{{"reports": [{{"id": "ci", "run": {run}, "name": "outcome", "score": 0}}]}}"#
        );
        self.tell(instance, "/api/v1/reports", &body).await
    }

    /// Waits until a trace has failed.
    pub(crate) async fn fails(&self, trace: usize) {
        let id = format!("{:032x}", trace + 1);
        let look = async {
            loop {
                for instance in 0..self.instances.len() {
                    let (sessions, _) = self.sessions(instance).await;
                    let flagged = sessions.get(&session(trace)).map(|session| &session["flagged"]);
                    let flagged = flagged.and_then(Value::as_array).into_iter().flatten();
                    if flagged.filter_map(Value::as_str).any(|flagged| flagged == id) {
                        return;
                    }
                }
                tokio::time::sleep(BETWEEN).await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, look).await.is_ok(), "trace {trace} does not fail");
    }

    /// Posts JSON to the API of an instance; returns the answer.
    async fn tell(&self, instance: usize, path: &str, body: &str) -> String {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        exchange(&self.instances[instance].bound().http.to_string(), request.as_bytes()).await
    }

    pub(crate) async fn stop(self) {
        for instance in self.instances {
            instance.stop().await;
        }
    }
}

/// The values that are promised bit for bit: not those that look at each trace once, when it is done, and so at the neighbours that
/// had arrived until then.
fn lasting(mut update: AgentFacts) -> AgentFacts {
    update
        .counters
        .retain(|family| family != Counter::TraceEvaluations && family != Counter::GateBreaches);
    update.trace_signals.retain(|_, _| false);
    // Said by shard, and as good as one.
    for spreads in [&mut update.spreads, &mut update.trace_spreads] {
        *spreads = vec![Arc::new(Spread::of_all(spreads))];
    }
    // Drops follow from the order and the times in which traces arrive.
    (update.view.last_trace_unix_nano, update.view.usual_gap_seconds) = (None, None);
    for drop in &mut update.view.drops {
        (drop.severity, drop.evidence, drop.drop) = ("", 0.0, None);
    }
    update
}

/// Says where two differ.
fn differ(shown: &Shown, expected: &Shown) {
    let keys = |of: &Shown| of.keys().map(|key| key.agent_name.clone()).collect::<Vec<_>>();
    assert_eq!(keys(shown), keys(expected));
    for (key, expected) in expected {
        let (shown, expected) = (format!("{:#?}", shown[key]), format!("{expected:#?}"));
        let lines = shown.lines().zip(expected.lines());
        let other: Vec<_> = lines.filter(|(shown, expected)| shown != expected).collect();
        assert!(other.is_empty(), "{}: {other:#?}", key.agent_name);
    }
}

/// How stages work in these tests.
fn engine() -> Config {
    let mut config = Config::default();
    config.assemble.trace_idle = Duration::from_millis(300);
    config
}

/// Requests, each a part of a trace, sent in their order.
pub(crate) struct Input {
    base: u64,
    first: usize,
    requests: usize,
}

impl Input {
    /// This many traces of twelve sessions or more, and five agents.
    pub(crate) fn new(traces: usize) -> Self {
        // All of them have ended when the first is sent.
        let base = Clock::system().now().before(Duration::from_secs(1)).0;
        Self { base, first: 0, requests: 2 * traces }
    }

    /// This many traces, one of them with a loop that is sent to the shard of its session before anything names that session.
    pub(crate) fn with_a_neighbour(traces: usize) -> Self {
        // The trace with this number and its session are of one shard of 256.
        const NEIGHBOUR: usize = 2852;
        let input = Self { first: 2 * (NEIGHBOUR - NEIGHBOUR % 5), ..Self::new(traces) };
        let route = Route::new(256, 0);
        let [alone, session] = [format!("{:032x}", NEIGHBOUR + 1), session(NEIGHBOUR)];
        assert_eq!(route.session("", &alone), route.session("", &session));
        input
    }

    pub(crate) fn len(&self) -> usize {
        self.requests
    }

    pub(crate) fn request(&self, number: usize) -> Vec<u8> {
        request(self.first + number, self.base)
    }

    /// What one process shows after all of it.
    pub(crate) fn replayed(&self) -> Shown {
        let pipeline = self.pipeline();
        let board = pipeline.board().clone().into_iter();
        board.map(|(key, update)| (key, lasting(update))).collect()
    }

    /// The sessions of a process by itself after all of it, as JSON.
    pub(crate) fn sessions(&self) -> BTreeMap<String, Value> {
        let pipeline = self.pipeline();
        let named = |session: SessionView| {
            (session.session_id.clone(), serde_json::to_value(session).unwrap())
        };
        pipeline.document().sessions.into_iter().map(named).collect()
    }

    fn pipeline(&self) -> Pipeline {
        let config = engine();
        let decoder = Decoder::new(config.ingest.clone(), config.convention.clone());
        let mut pipeline = Pipeline::new(&config.engine_options(Arc::default()), 1);
        let now = Timestamp(self.base).after(Duration::from_secs(1));
        for number in 0..self.requests {
            let body = self.request(number);
            let batch = decoder.decode_plain(Signal::Traces, Encoding::Protobuf, &body).unwrap();
            let now = now.after(Duration::from_millis(number as u64));
            pipeline.advance(now);
            pipeline.apply(batch.spans, batch.logs, batch.reports, now);
        }
        pipeline.advance(now.after(Duration::from_secs(30)));
        pipeline
    }
}

async fn exchange(address: &str, request: &[u8]) -> String {
    let Ok(mut stream) = TcpStream::connect(address).await else { return String::new() };
    let mut answer = Vec::new();
    if stream.write_all(request).await.is_ok() {
        // An answer that is cut off does not count.
        let _ = stream.read_to_end(&mut answer).await;
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// What an instance answers, head and body.
pub(crate) async fn get(instance: &Daemon, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    exchange(&instance.bound().http.to_string(), head.as_bytes()).await
}

async fn post(address: &str, body: &[u8]) -> String {
    let mut request = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    exchange(address, &request).await
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// The agent whose traces all fail.
const FAILING: &str = "failing";

/// A trace of it; each ends a minute after the one before.
pub(crate) fn failing(number: usize, base: u64) -> Vec<u8> {
    let end = base + number as u64 * 60_000_000_000;
    let span = Span {
        trace_id: (number as u128 + 1).to_be_bytes().to_vec(),
        span_id: 1_u64.to_be_bytes().to_vec(),
        name: "invoke_agent".to_owned(),
        start_time_unix_nano: end - 1_000_000_000,
        end_time_unix_nano: end,
        attributes: vec![
            attribute("gen_ai.operation.name", "invoke_agent"),
            attribute("gen_ai.agent.name", FAILING),
            attribute("gen_ai.conversation.id", &format!("session-{number}")),
            attribute("error.type", "timeout"),
        ],
        ..Span::default()
    };
    exported(vec![span])
}

/// The verdicts of a single process for this many failing traces.
pub(crate) fn failing_alone(traces: usize, base: u64) -> DropView {
    let config = engine();
    let decoder = Decoder::new(config.ingest.clone(), config.convention.clone());
    let mut pipeline = Pipeline::new(&config.engine_options(Arc::default()), 1);
    let now = Timestamp(base).after(Duration::from_secs(3_600));
    for number in 0..traces {
        let body = failing(number, base);
        let batch = decoder.decode_plain(Signal::Traces, Encoding::Protobuf, &body).unwrap();
        pipeline.apply(batch.spans, batch.logs, batch.reports, now);
    }
    pipeline.advance(now.after(Duration::from_secs(30)));
    let update = pipeline.board().values().next().unwrap();
    update.view.drops.first().unwrap().clone()
}

fn session(trace: usize) -> String {
    format!("session-{}", trace / 5)
}

fn agent(trace: usize) -> String {
    format!("agent-{}", trace / 5 % 5)
}

fn task(trace: usize) -> String {
    format!("task-{}", trace % 3)
}

fn run(trace: usize) -> String {
    format!("run-{trace}")
}

/// A part of a trace, numbered by its trace; five traces make a session. The first part has the tool calls, some of them in a loop,
/// the second the root, which alone knows the session. Both know the agent: loops that are sent before anything names it go to the
/// agent that the shard received last, and there are 256 shards here and one in a replay.
fn request(number: usize, base: u64) -> Vec<u8> {
    let (trace, root) = (number / 2, number % 2 == 1);
    let session = session(trace);
    let agent = agent(trace);
    let start = base + trace as u64 * 1_000_000;
    let span = |id: u64, name: &str, attributes: Vec<KeyValue>| Span {
        trace_id: (trace as u128 + 1).to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: if id == 1 { Vec::new() } else { 1_u64.to_be_bytes().to_vec() },
        name: name.to_owned(),
        start_time_unix_nano: start + id * 1_000,
        end_time_unix_nano: start + id * 1_000 + 900 + u64::from(id == 1) * 100_000,
        attributes,
        ..Span::default()
    };
    let spans = if root {
        vec![span(
            1,
            "invoke_agent busy",
            vec![
                attribute("gen_ai.operation.name", "invoke_agent"),
                attribute("gen_ai.agent.name", &agent),
                attribute("gen_ai.conversation.id", &session),
                attribute("gen_ai.output.messages", &format!("answer {} of {session}", trace % 4)),
                attribute("agentgauge.task.id", &task(trace)),
                attribute("agentgauge.run.id", &run(trace)),
                attribute("agentgauge.outcome", if trace % 11 < 8 { "success" } else { "failure" }),
            ],
        )]
    } else {
        let call = |id: u64| {
            let argument = if trace.is_multiple_of(4) { 0 } else { id };
            let failed = trace.is_multiple_of(7) && id == 3;
            let mut attributes = vec![
                attribute("gen_ai.operation.name", "execute_tool"),
                attribute("gen_ai.tool.name", "search"),
                attribute("gen_ai.agent.name", &agent),
                attribute("gen_ai.tool.call.arguments", &format!("{{\"query\":{argument}}}")),
                attribute("gen_ai.tool.call.result", "nothing"),
            ];
            attributes.extend(failed.then(|| attribute("error.type", "timeout")));
            span(id, "execute_tool search", attributes)
        };
        (2..4 + trace as u64 % 5).map(call).collect()
    };
    exported(spans)
}

fn exported(spans: Vec<Span>) -> Vec<u8> {
    let attributes = vec![attribute("service.name", "shop")];
    let resource = Resource { attributes, ..Resource::default() };
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    let spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec()
}
