//! What a judge was asked about a trace, and what it has answered. This is in snapshots: no answer is paid for twice, and questions
//! that were with the judge when the process ended are asked again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::expect::Judgements;
use crate::judging::{JudgeReply, JudgeRequest, RubricRequest};

/// Questions to the judge: whether the metrics are judged, and the rules for the answer.
pub(super) type Questions = (bool, Vec<RubricRequest>);

/// What the judge was asked about a trace, and what it has answered.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct PendingJudgement {
    // Whether it has been decided if the metrics are judged, which happens once.
    decided: bool,
    // Whether the metrics are with the judge.
    metrics: bool,
    // Keys of all rules that were ever sent to the judge, and of those that are with it.
    rules: BTreeSet<String>,
    open_rules: BTreeSet<String>,
    judgements: Judgements,
    // Answers by question; kept only while something is with the judge.
    answered: BTreeMap<String, String>,
}

impl PendingJudgement {
    /// The state of a trace about which nothing was asked; `decided`: it has been decided whether the metrics are judged.
    pub(super) fn new(decided: bool) -> Self {
        Self { decided, ..Self::default() }
    }

    /// The questions to ask: the metrics once, if they are picked, and each rule once. [`Self::asked`] notes that they were asked.
    pub(super) fn to_ask(
        &self,
        pick: impl FnOnce() -> bool,
        mut rubrics: Vec<RubricRequest>,
    ) -> Option<Questions> {
        rubrics.retain(|rubric| !self.rules.contains(&rubric.key));
        let metrics = !self.decided && pick();
        (metrics || !rubrics.is_empty()).then_some((metrics, rubrics))
    }

    /// Notes that it has been decided whether the metrics are judged, and that the questions of the request are with the judge.
    pub(super) fn asked(&mut self, request: Option<&JudgeRequest>) {
        self.decided = true;
        let Some(JudgeRequest { metrics, rubrics, .. }) = request else { return };
        self.metrics |= metrics;
        let keys = || rubrics.iter().map(|rubric| rubric.key.clone());
        self.rules.extend(keys());
        self.open_rules.extend(keys());
    }

    /// The questions that are still with the judge; `rubrics` are filtered accordingly.
    pub(super) fn ask_again(&self, mut rubrics: Vec<RubricRequest>) -> Option<Questions> {
        rubrics.retain(|rubric| self.open_rules.contains(&rubric.key));
        (self.metrics || !rubrics.is_empty()).then_some((self.metrics, rubrics))
    }

    /// Whether something is with the judge.
    pub(super) fn is_open(&self) -> bool {
        self.metrics || !self.open_rules.is_empty()
    }

    /// Whether the metrics will not be asked about, and nothing is with the judge. Answers for an earlier process may arrive before
    /// their question.
    /// question.
    pub(super) fn is_over(&self) -> bool {
        self.decided && !self.is_open()
    }

    /// Applies a reply of the judge; returns whether it changes the evaluation of the trace.
    pub(super) fn take(&mut self, reply: JudgeReply) -> bool {
        if reply.metrics_over {
            (self.decided, self.metrics) = (true, false);
        }
        for rule in reply.rules_over {
            self.open_rules.remove(&rule);
            self.rules.insert(rule);
        }
        self.answered.extend(reply.answered);
        if self.is_over() {
            self.answered.clear();
        }
        let changes = !reply.judgements.is_empty();
        self.judgements.extend(reply.judgements);
        changes
    }

    /// The judgements, by rule.
    pub(super) fn judgements(&self) -> &Judgements {
        &self.judgements
    }

    /// The answers so far, by question.
    pub(super) fn answered(&self) -> &BTreeMap<String, String> {
        &self.answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rubric(rule: &str) -> RubricRequest {
        RubricRequest { key: rule.to_owned(), ..RubricRequest::default() }
    }

    #[test]
    fn what_is_with_the_judge_is_asked_again_and_what_is_over_is_not() {
        let mut judgement = PendingJudgement::default();
        let both = vec![rubric("a"), rubric("b")];
        assert_eq!(judgement.to_ask(|| true, both.clone()), Some((true, both.clone())));
        let request = JudgeRequest { metrics: true, rubrics: both, ..JudgeRequest::default() };
        judgement.asked(Some(&request));
        assert_eq!(judgement.to_ask(|| true, vec![rubric("a")]), None);
        let answered = BTreeMap::from([("task".to_owned(), "{}".to_owned())]);
        let part = JudgeReply {
            answered: answered.clone(),
            rules_over: vec!["a".to_owned()],
            ..JudgeReply::default()
        };
        assert!(!judgement.take(part));
        assert_eq!(
            judgement.ask_again(vec![rubric("a"), rubric("b")]),
            Some((true, vec![rubric("b")]))
        );
        assert_eq!(judgement.answered(), &answered);
        let rest = JudgeReply {
            metrics_over: true,
            rules_over: vec!["b".to_owned()],
            ..JudgeReply::default()
        };
        judgement.take(rest);
        assert!(!judgement.is_open() && judgement.answered().is_empty());
        assert_eq!(judgement.ask_again(vec![rubric("a"), rubric("b")]), None);
    }

    #[test]
    fn answers_that_come_before_their_question_are_kept_for_it() {
        let mut judgement = PendingJudgement::default();
        let answered = BTreeMap::from([("task".to_owned(), "{}".to_owned())]);
        judgement.take(JudgeReply { answered, ..JudgeReply::default() });
        assert!(!judgement.is_over());
        assert!(judgement.to_ask(|| true, Vec::new()).is_some());
        judgement.asked(None);
        assert!(judgement.to_ask(|| true, Vec::new()).is_none());
        assert_eq!(judgement.answered().len(), 1);
    }
}
