//! A specification with its baselines: which queries a trace answers, and with what results.
//!
//! A trace answers the queries of the task that it names; if there are none, those whose text is its input, but for space
//! around it. Several queries may have the same text; all of them count.

use std::collections::BTreeMap;

use super::{Baseline, Judgements, Observed, Query, QueryResult, Spec, evaluate};

/// One file of expectations.
#[derive(Clone, Debug)]
pub struct Suite {
    spec: Spec,
    // Baselines by the trimmed text of their query.
    baselines: BTreeMap<String, Baseline>,
}

impl Suite {
    /// A suite of a specification and of baselines by the text of their query.
    pub fn new(spec: Spec, baselines: impl IntoIterator<Item = (String, Baseline)>) -> Self {
        let trimmed = |(query, baseline): (String, Baseline)| (query.trim().to_owned(), baseline);
        Self { spec, baselines: baselines.into_iter().map(trimmed).collect() }
    }

    /// The specification.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The queries that a trace answers, in the order of the file.
    pub fn answered(&self, task: Option<&str>, input: Option<&str>) -> Vec<&Query> {
        let those = |holds: &dyn Fn(&Query) -> bool| -> Vec<&Query> {
            self.spec.queries.iter().filter(|query| holds(query)).collect()
        };
        let by_task = those(&|query| task.is_some() && query.task_id.as_deref() == task);
        if !by_task.is_empty() {
            return by_task;
        }
        let input = input.map(str::trim);
        those(&|query| input == Some(query.query.trim()))
    }

    /// Checks a trace against one query, and against the query's baseline if there is one.
    pub fn evaluate(
        &self,
        query: &Query,
        observed: &Observed,
        judgements: &Judgements,
    ) -> QueryResult {
        evaluate(query, observed, self.baselines.get(query.query.trim()), judgements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::LayerStatus;

    fn suite() -> Suite {
        let text = "agent: a
queries:
  - {query: Hello, path: {}}
  - {query: ' Hello ', task_id: greet}
  - {query: Bye}
";
        let baseline = Baseline { tools: vec!["wave".to_owned()], cost_usd: 0.0 };
        Suite::new(Spec::parse(text).unwrap(), [("Hello\n".to_owned(), baseline)])
    }

    #[test]
    fn a_task_goes_before_a_text() {
        let suite = suite();
        let answered = |task, input| -> Vec<&str> {
            suite.answered(task, input).into_iter().map(|query| query.query.as_str()).collect()
        };
        assert_eq!(answered(Some("greet"), Some("Bye")), [" Hello "]);
        assert_eq!(answered(Some("other"), Some("Bye\n")), ["Bye"]);
        assert_eq!(answered(None, Some("Hello")), ["Hello", " Hello "]);
        assert!(answered(None, None).is_empty());
        assert!(answered(None, Some("hello")).is_empty());
    }

    #[test]
    fn the_baseline_is_that_of_the_text() {
        let suite = suite();
        let [query, ..] = suite.spec().queries.as_slice() else { panic!("no query") };
        let result = suite.evaluate(query, &Observed::default(), &Judgements::new());
        assert_eq!(result.path.status, LayerStatus::Warn, "{result:?}");
        assert!(!result.hard_fail());
    }
}
