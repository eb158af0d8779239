//! The model of AgentCI's own `agentci_spec.yaml` (later `ciagent_spec.yaml`), which states for each query how a trace must
//! look.
//!
//! Source: AgentCI v2, `schema/spec_models.py` and `loader.py`. Settings under `defaults` hold for every query that does
//! not set them itself, at any depth; unlike there, a setting that a query does not write never overrides them. An unknown key is
//! an error, while AgentCI ignores it. `task_id` is an addition: traces of that task are matched to the query whatever
//! their text.

use serde::Deserialize;
use serde::de::{Error, IgnoredAny};
use serde_json::Value;

use super::checked::{from_one, not_blank, share, some_not_negative, some_positive, some_share};
use super::judge::Judgements;
use super::pattern::Pattern;
use super::schema::Schema;
use super::span_spec::SpanAssertion;
use super::yaml::{self, SpecError};
use crate::judging::Judges;
use crate::named::named;

/// The version of the format that is read.
const VERSION: u64 = 1;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of the format.
    #[serde(default = "version")]
    pub version: u64,
    /// The agent that is tested; its baselines are in a folder of that name.
    pub agent: String,
    /// The folder of the baselines.
    #[serde(default = "baseline_dir")]
    pub baseline_dir: String,
    /// The function that AgentCI would call to run the agent.
    #[serde(alias = "runner")]
    adapter: Option<String>,
    #[serde(alias = "conversation_runner")]
    conversation_adapter: Option<String>,
    /// Merged into the queries while the file is read.
    #[serde(rename = "defaults")]
    _defaults: Option<IgnoredAny>,
    /// How rubrics are judged.
    pub judge_config: Option<JudgeConfig>,
    persona_config: Option<IgnoredAny>,
    /// The expectations for each query.
    #[serde(default)]
    pub queries: Vec<Query>,
    #[serde(default)]
    scenarios: Vec<IgnoredAny>,
    staging: Option<IgnoredAny>,
}

/// The judges of rubrics.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JudgeConfig {
    /// The model.
    pub model: Option<String>,
    /// Its temperature.
    pub temperature: Option<f64>,
    /// Several models.
    pub ensemble: Option<EnsembleConfig>,
}

/// Several judges.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EnsembleConfig {
    /// Whether all of them are asked.
    pub enabled: bool,
    /// The models.
    pub models: Vec<String>,
}

/// The expectations for the traces of one query.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// The user's text.
    #[serde(deserialize_with = "not_blank")]
    pub query: String,
    /// The task that its traces name; an addition of agentgauge.
    pub task_id: Option<String>,
    /// The purpose of the query.
    pub description: Option<String>,
    /// Words to choose queries by.
    pub tags: Option<Vec<String>>,
    /// Layer 1.
    pub correctness: Option<CorrectnessSpec>,
    /// Layer 2.
    pub path: Option<PathSpec>,
    /// Layer 2.5.
    pub retrieval: Option<RetrievalSpec>,
    /// Layer 3.
    pub cost: Option<CostSpec>,
    /// A part of layer 1.
    #[serde(default)]
    pub span_assertions: Vec<SpanAssertion>,
}

/// Layer 1: what the answer must say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CorrectnessSpec {
    /// Terms that must all be in the answer, in upper or lower case.
    pub expected_in_answer: Option<Vec<String>>,
    /// Terms, at least one of which must be in the answer, in upper or lower case.
    pub any_expected_in_answer: Option<Vec<String>>,
    /// Terms that must not be in the answer, in upper or lower case.
    pub not_in_answer: Option<Vec<String>>,
    /// The whole answer, but for space around it.
    pub exact_match: Option<String>,
    /// A pattern that must be found in the answer.
    pub regex_match: Option<Pattern>,
    /// A schema that the answer must match as JSON.
    pub json_schema: Option<Schema>,
    /// Rubrics that judges must find satisfied.
    pub llm_judge: Option<Vec<Rubric>>,
    /// A rubric that is judged only if nothing has failed before it.
    pub safety_check: Option<Rubric>,
    /// Another rubric that is judged only if nothing has failed before it.
    pub hallucination_check: Option<Rubric>,
    /// Whether the answer must correct a false premise of the query; if so, judges alone decide.
    pub refutes_premise: bool,
}

/// A rule for a judge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rubric {
    /// The rule, which is the key of its judgement.
    pub rule: String,
    /// The meaning of each score.
    pub scale: Option<Vec<String>>,
    /// The least share of the full score with which the rule is satisfied.
    #[serde(default = "rubric_threshold", deserialize_with = "share")]
    pub threshold: f64,
    /// Examples for the judge.
    pub few_shot_examples: Option<Vec<Value>>,
    /// The path of a file with the true facts, relative to this file.
    pub context_file: Option<String>,
}

/// Layer 2: which tools must be called.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathSpec {
    /// Greatest number of tool calls.
    pub max_tool_calls: Option<u64>,
    /// Tools that must be used; an empty list: no tool may be used.
    pub expected_tools: Option<Vec<String>>,
    /// Tools that must not be used.
    pub forbidden_tools: Option<Vec<String>>,
    /// Greatest number of adjacent calls of equal name, at least 1.
    #[serde(deserialize_with = "from_one")]
    pub max_loops: u64,
    /// How the tools are compared with the baseline's; `subset` if not given.
    pub match_mode: Option<MatchMode>,
    /// The least share of the expected tools that is used.
    #[serde(deserialize_with = "some_share")]
    pub min_tool_recall: Option<f64>,
    /// The least share of the used tools that is expected.
    #[serde(deserialize_with = "some_share")]
    pub min_tool_precision: Option<f64>,
    /// The least similarity to the baseline's sequence.
    #[serde(deserialize_with = "some_share")]
    pub min_sequence_similarity: Option<f64>,
    /// The exact sequence of tools, call by call.
    pub expected_tool_sequence: Option<Vec<String>>,
    /// An agent that must take over.
    pub expected_handoff: Option<String>,
    /// Agents that must be able to take over.
    pub expected_handoffs_available: Option<Vec<String>>,
    /// Greatest number of handoffs.
    pub max_handoff_count: Option<u64>,
}

named! {
    /// How tools are compared with those of a baseline.
    #[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
    #[serde(rename_all = "lowercase")]
    pub enum MatchMode {
        /// The same calls in the same order.
        Strict = "strict",
        /// The same tools.
        Unordered = "unordered",
        /// All of the baseline's tools, and maybe others.
        #[default]
        Subset = "subset",
        /// No tools but the baseline's.
        Superset = "superset",
    }
}

/// Layer 2.5: what a retriever must return.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrievalSpec {
    /// The tool that retrieves.
    pub tool: String,
    /// Whether an answer must say that it does not know if nothing was retrieved.
    #[serde(default)]
    pub forbid_empty: bool,
    /// Least number of items.
    pub min_results: Option<u64>,
    /// Texts that must be in what was retrieved, in upper or lower case.
    pub expected_sources: Option<Vec<String>>,
    /// Whether to note if the expected terms of the answer were retrieved; does not affect the status.
    #[serde(default)]
    pub facts_in_context: bool,
    /// The format of results; if one has another format, nothing is checked.
    pub result_format: Option<ResultFormat>,
    /// Texts that mean that nothing was found.
    pub empty_markers: Option<Vec<String>>,
    /// Texts by which an answer says that it does not know, in place of the usual ones.
    pub refusal_markers: Option<Vec<String>>,
}

/// The format of a retriever's results.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum ResultFormat {
    /// A list, or the JSON of one.
    List,
    /// A list or object, or the JSON of one.
    Json,
    /// A text.
    Text,
}

/// Layer 3: what a trace may cost.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostSpec {
    /// Greatest multiple of the baseline's cost, over 0.
    #[serde(deserialize_with = "some_positive")]
    pub max_cost_multiplier: Option<f64>,
    /// Greatest number of tokens, read and written.
    pub max_total_tokens: Option<u64>,
    /// Greatest number of model calls.
    pub max_llm_calls: Option<u64>,
    /// Greatest time from first start to last end.
    pub max_latency_ms: Option<u64>,
    /// Greatest cost, in US dollars.
    #[serde(deserialize_with = "some_not_negative")]
    pub max_cost_usd: Option<f64>,
}

impl Spec {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// Fails with the line and the key of the first thing that is not YAML, unknown, missing or out of range.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let mut tree = yaml::parse(text)?;
        if let Some(defaults) = tree.get("defaults").cloned() {
            // Read alone first, so that an error in the defaults is not reported for a query.
            match defaults.read::<Query>() {
                Err(error) if !error.missing => return Err(error.below("defaults")),
                Ok(_) | Err(_) => {}
            }
            tree.map_items("queries", |query| defaults.merged(query));
        }
        let spec: Self = tree.read()?;
        if spec.queries.is_empty() && spec.scenarios.is_empty() {
            return Err(SpecError::custom("there are neither queries nor scenarios").on(1));
        }
        Ok(spec)
    }

    /// Requests in the file that are not supported here, in plain sentences.
    pub fn not_supported(&self) -> Vec<String> {
        let mut said = Vec::new();
        let mut say = |holds: bool, sentence: String| {
            if holds {
                said.push(sentence);
            }
        };
        say(
            self.version != VERSION,
            format!("version {} is read as version {VERSION}", self.version),
        );
        say(
            self.adapter.is_some() || self.conversation_adapter.is_some(),
            "no agent is run (`runner`, `adapter`, `conversation_adapter`): traces come from \
             telemetry"
                .into(),
        );
        say(
            !self.scenarios.is_empty(),
            format!("{} `scenarios` are not played", self.scenarios.len()),
        );
        say(self.persona_config.is_some(), "`persona_config` has no effect".into());
        say(self.staging.is_some(), "`staging` has no effect: nothing is staged".into());
        said
    }

    /// The judges of its rubrics: all models of an ensemble, else the model that is named, else the configured one.
    pub fn judges(&self) -> Judges {
        let Some(config) = &self.judge_config else { return Judges::default() };
        let ensemble = config.ensemble.as_ref().filter(|several| several.enabled);
        let several = ensemble.map(|several| several.models.clone()).unwrap_or_default();
        let ensemble = !several.is_empty();
        let models = if ensemble { several } else { config.model.iter().cloned().collect() };
        Judges { models, ensemble, temperature: config.temperature }
    }

    /// The number of rubrics without a judgement.
    pub fn rubrics_without(&self, judgements: &Judgements) -> usize {
        let rubrics = self.queries.iter().flat_map(Query::rubrics);
        rubrics.filter(|rule| !judgements.contains_key(*rule)).count()
    }
}

impl CorrectnessSpec {
    /// The rubric of a rule for answers; `None` if the file has none with this rule.
    pub fn rubric(&self, rule: &str) -> Option<&Rubric> {
        let judges = self.llm_judge.iter().flatten();
        let others = self.safety_check.iter().chain(&self.hallucination_check);
        judges.chain(others).find(|rubric| rubric.rule == rule)
    }
}

impl Query {
    /// The rules of all rubrics, in the order in which they are asked.
    pub fn rubrics(&self) -> impl Iterator<Item = &str> {
        let of_answer = self.correctness.iter().flat_map(super::correctness::rules);
        let asserts = self.span_assertions.iter().flat_map(|assertion| &assertion.asserts);
        of_answer.chain(asserts.filter_map(|assert| Some(assert.rubric()?.rule.as_str())))
    }
}

impl Default for PathSpec {
    fn default() -> Self {
        Self {
            max_tool_calls: None,
            expected_tools: None,
            forbidden_tools: None,
            max_loops: 3,
            match_mode: None,
            min_tool_recall: None,
            min_tool_precision: None,
            min_sequence_similarity: None,
            expected_tool_sequence: None,
            expected_handoff: None,
            expected_handoffs_available: None,
            max_handoff_count: None,
        }
    }
}

fn version() -> u64 {
    VERSION
}

fn baseline_dir() -> String {
    "./golden".to_owned()
}

fn rubric_threshold() -> f64 {
    0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Spec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn settings_that_a_query_does_not_write_are_the_defaults() {
        let spec = Spec::parse(
            "agent: a
defaults:
  path: {max_loops: 7, max_tool_calls: 2}
  correctness:
    not_in_answer: [sorry]
    safety_check: {threshold: 0.9}
queries:
  - query: one
  - query: two
    path: {max_tool_calls: 5}
    correctness:
      not_in_answer: [no, never]
      safety_check: {rule: be kind}
  - query: three
    path:
",
        );
        // The threshold alone is no rubric: a query must complete it.
        assert_eq!(spec.unwrap_err().key, "queries[0].correctness.safety_check");
        let spec = Spec::parse(
            "agent: a
defaults: {path: {max_loops: 7, max_tool_calls: 2}, cost: {max_llm_calls: 1}}
queries:
  - query: one
  - query: two
    path: {max_tool_calls: 5}
  - {query: three, path: null}
",
        )
        .unwrap();
        let limits: Vec<_> = spec
            .queries
            .iter()
            .map(|query| query.path.as_ref().map(|path| (path.max_loops, path.max_tool_calls)))
            .collect();
        assert_eq!(limits, [Some((7, Some(2))), Some((7, Some(5))), Some((7, Some(2)))]);
        assert!(spec.queries.iter().all(|query| query.cost.is_some()));
        assert_eq!((spec.version, spec.baseline_dir.as_str()), (1, "./golden"));
        assert!(spec.not_supported().is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_key() {
        let cases = [
            (
                "agent: a\nqueries:\n  - query: x\n    path:\n      max_loop: 3\n",
                "line 5, `queries[0].path.max_loop`: there is no such key; the nearest is `max_loops`",
            ),
            (
                "agent: a\nqueries:\n  - query: x\n  - query: y\n    cost: {max_llm_calls: many}\n",
                "line 5, `queries[1].cost.max_llm_calls`: invalid type: string \"many\", expected u64",
            ),
            (
                "agent: a\nqueries:\n  - query: x\n    correctness:\n      regex_match: '('\n",
                "line 5, `queries[0].correctness.regex_match`: this is not a regular expression",
            ),
            (
                "agent: a\ndefaults:\n  path:\n    min_tool_recall: 2\nqueries:\n  - query: x\n",
                "line 4, `defaults.path.min_tool_recall`: this must be from 0 to 1",
            ),
            ("agent: a\nqueries:\n  - tags: [x]\n", "line 3, `queries[0]`: `query` is missing"),
            ("queries:\n  - query: x\n", "line 1: `agent` is missing"),
            ("agent: a\n", "line 1: there are neither queries nor scenarios"),
            (
                "agent: a\nqueries:\n  - query: x\n    path: {match_mode: subsett}\n",
                "line 4, `queries[0].path.match_mode`: unknown variant `subsett`",
            ),
            (
                "agent: a\nqueries:\n  - query: x\n    correctness: {json_schema: {type: objekt}}\n",
                "line 4, `queries[0].correctness.json_schema`: this is not a JSON schema",
            ),
            (
                "agent: a\nqueries:\n  - query: x\n    span_assertions:\n      - selector: {kind: TOOL, name: t}\n        asserts: [{type: equals, field: name}]\n",
                "line 6, `queries[0].span_assertions[0].asserts[0]`: `value` is missing",
            ),
            (
                "version: 1.5\nagent: a\n",
                "line 1, `version`: invalid type: floating point `1.5`, expected u64",
            ),
            ("agent: a\n  b: c\n", "line 2: "),
        ];
        for (text, expected) in cases {
            let message = refused(text);
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn what_is_not_done_is_named() {
        let spec = Spec::parse(
            "version: 2
agent: a
runner: mine.run:run
staging: false
judge_config: {model: m, temperature: 0, structured_output: true}
scenarios:
  - turns: [hello]
queries:
  - query: x
    correctness:
      refutes_premise: true
      llm_judge: [{rule: r}]
    span_assertions:
      - selector: {kind: LLM, name: chat}
        asserts: [{type: llm_judge, field: output_data, rule: s}]
",
        )
        .unwrap();
        assert_eq!(spec.not_supported().len(), 4, "{:?}", spec.not_supported());
        assert_eq!(spec.rubrics_without(&Judgements::new()), 3);
    }

    #[test]
    fn a_file_says_who_judges() {
        let judges = |config: &str| {
            let text = format!("agent: a\n{config}\nqueries: [{{query: x}}]\n");
            Spec::parse(&text).unwrap().judges()
        };
        let models = |models: &[&str]| models.iter().map(|model| (*model).to_owned()).collect();
        assert_eq!(judges("version: 1.0"), Judges::default());
        let one = Judges { models: models(&["m"]), ensemble: false, temperature: Some(0.5) };
        assert_eq!(judges("judge_config: {model: m, temperature: 0.5}"), one);
        let off =
            "judge_config: {model: m, temperature: 0.5, ensemble: {enabled: false, models: [a]}}";
        assert_eq!(judges(off), one);
        let several = Judges { models: models(&["a", "b"]), ensemble: true, temperature: None };
        assert_eq!(
            judges("judge_config: {model: m, ensemble: {enabled: true, models: [a, b]}}"),
            several
        );
    }

    #[test]
    fn words_and_numbers_are_what_is_asked_for() {
        let spec = Spec::parse(
            "version: 1.0
agent: a
queries:
  - query: y
    correctness: {expected_in_answer: [no, on, Off], refutes_premise: yes}
",
        )
        .unwrap();
        let correctness = spec.queries[0].correctness.as_ref().unwrap();
        assert_eq!(correctness.expected_in_answer.as_ref().unwrap(), &["no", "on", "Off"]);
        assert!(correctness.refutes_premise);
        assert_eq!(spec.version, 1);
    }

    #[test]
    fn anchors_and_merge_keys_are_read() {
        let spec = Spec::parse(
            "agent: a
queries:
  - query: x
    path: &tools
      forbidden_tools: [rm]
  - query: y
    path: {<<: *tools, max_tool_calls: 1}
",
        )
        .unwrap();
        let path = spec.queries[1].path.as_ref().unwrap();
        assert_eq!(path.forbidden_tools.as_deref(), Some(&["rm".to_owned()][..]));
        assert_eq!(path.max_tool_calls, Some(1));
    }
}
