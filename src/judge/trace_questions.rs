//! The questions about one trace: a question with a known answer is not asked again, and each new answer is logged.

use std::collections::BTreeMap;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::case::TraceCase;
use super::client::Question;
use super::options::JudgeOptions;
use super::prompt::VERSION;
use super::reply;
use super::stage::Stage;
use super::verdict::{brief, evaluator};
use super::worker::Judge;
use crate::engine::expect::Judgements;
use crate::engine::expect::judge::{JudgeVerdict, Judgement};
use crate::engine::judging::{JudgeReply, RubricRequest};
use crate::engine::math::Quanta;
use crate::engine::span::Timestamp;
use crate::engine::tenants::TraceKey;
use crate::ingest::Sink;

/// The questions about one trace.
pub(super) struct TraceQuestions<'j, S> {
    judge: &'j Judge,
    sink: &'j S,
    trace: TraceKey,
    due: Timestamp,
    answered: BTreeMap<String, String>,
    // Whether answers are logged, for a later process.
    lasting: bool,
    // The cost that was not reported to the engine yet.
    unreported_cost: Quanta,
}

impl<'j, S: Sink> TraceQuestions<'j, S> {
    /// The questions about a trace; `answered` has the answers that an earlier process got.
    pub(super) fn new(
        judge: &'j Judge,
        sink: &'j S,
        trace: TraceKey,
        due: Timestamp,
        answered: BTreeMap<String, String>,
    ) -> Self {
        let lasting = sink.keeps_log();
        Self { judge, sink, trace, due, answered, lasting, unreported_cost: Quanta(0) }
    }

    /// Questions that test the judge itself, so that their answers are not logged.
    pub(super) fn passing(judge: &'j Judge, sink: &'j S, due: Timestamp) -> Self {
        let questions = Self::new(judge, sink, TraceKey::default(), due, BTreeMap::new());
        Self { lasting: false, ..questions }
    }

    /// Asks all questions that the metrics of a case need.
    pub(super) async fn ask_all(
        &mut self,
        case: &mut TraceCase,
        options: &JudgeOptions,
        agent: &str,
    ) {
        while let Some((metric, stage)) = case.next() {
            let model = options.model(metric, agent);
            let (temperature, prompt) = (options.temperature, case.prompt(stage));
            let question = Question {
                model,
                tenant: self.trace.tenant,
                temperature,
                stage,
                prompt,
                due: self.due,
            };
            match self.ask(&question, "").await {
                Ok(answer) => case.answer(stage, answer),
                Err(why) => case.fail(stage, why),
            }
        }
    }

    /// Judges by rules. A rule that even one of its judges could not judge has no judgement: it neither passes nor fails.
    pub(super) async fn rubrics(
        &mut self,
        case: &TraceCase,
        rubrics: &[RubricRequest],
        options: &JudgeOptions,
        agent: &str,
    ) -> Judgements {
        let mut judgements = Judgements::new();
        for rubric in rubrics {
            let judgement = self.rubric(case, rubric, options, agent).await;
            self.judge.meter.rubric(judgement.as_ref().map_or_else(|why| *why, |_| "scored"));
            judgements.extend(judgement.ok().map(|judgement| (rubric.key.clone(), judgement)));
        }
        judgements
    }

    async fn rubric(
        &mut self,
        case: &TraceCase,
        rubric: &RubricRequest,
        options: &JudgeOptions,
        agent: &str,
    ) -> Result<Judgement, &'static str> {
        let judges = &rubric.judges;
        let own = [options.model_of(agent).to_owned()];
        let models = if judges.models.is_empty() { &own[..] } else { &judges.models[..] };
        let rule = format!("{:016x}", xxh3_64(rubric.key.as_bytes()));
        let stage = if rubric.judged.is_some() { Stage::RubricOfText } else { Stage::Rubric };
        let mut verdicts: Vec<JudgeVerdict> = Vec::new();
        for (number, model) in models.iter().enumerate() {
            let question = Question {
                model,
                tenant: self.trace.tenant,
                temperature: judges.temperature.unwrap_or(options.temperature),
                stage,
                prompt: case.rubric(rubric),
                due: self.due,
            };
            let answer = self.ask(&question, &format!("/{rule}/{number}")).await?;
            let verdict = reply::verdict(&answer).ok_or("wrong_form")?;
            let rationale = verdict.rationale.as_deref().map(brief).map(str::to_owned);
            verdicts.push(JudgeVerdict { rationale, judge: Some(evaluator(model)), ..verdict });
        }
        match verdicts.pop() {
            Some(verdict) if !judges.ensemble => Ok(Judgement::Single(verdict)),
            last => {
                verdicts.extend(last);
                Ok(Judgement::Ensemble(verdicts))
            }
        }
    }

    /// Takes the cost that was not reported to the engine yet.
    pub(super) fn unreported_cost(&mut self) -> Quanta {
        std::mem::take(&mut self.unreported_cost)
    }

    /// The answer to a question, known or new; `about` distinguishes it from others of its stage.
    async fn ask(&mut self, question: &Question<'_>, about: &str) -> Result<Value, &'static str> {
        let key = format!("{}/{}/p{VERSION}{about}", question.stage.name(), question.model);
        let known = self.answered.get(&key).and_then(|text| serde_json::from_str(text).ok());
        if let Some(answer) = known {
            self.judge.meter.call("known");
            return Ok(answer);
        }
        let (answer, paid) = self.judge.client.ask(question).await;
        self.unreported_cost = Quanta(self.unreported_cost.0.saturating_add(paid.0));
        let answer = answer?;
        if self.lasting {
            let reply = JudgeReply {
                trace: self.trace,
                answered: [(key, answer.to_string())].into(),
                cost: self.unreported_cost(),
                ..JudgeReply::default()
            };
            self.judge.deliver(reply, Vec::new(), self.due, self.sink).await;
        }
        Ok(answer)
    }
}
