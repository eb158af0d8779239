//! What is asked of a judge, and what is kept for it.

use super::*;
use crate::assemble::texts::SpanBatch;

#[test]
fn what_comes_while_a_judge_is_away_is_not_kept_for_it() {
    let text = |text: &str| Some(Text { text: Arc::from(text), rank: 0 });
    let rules = JudgeRules {
        sample_rate: 1.0,
        max_transcript_bytes: 1_000,
        max_open_bytes: 100_000,
        ..JudgeRules::default()
    };
    let full = |tenant| JudgeAvailability::Full(Arc::new([tenant].into()));
    for (while_it_came, when_done, asks) in [
        (JudgeAvailability::Available, JudgeAvailability::Available, true),
        (full(0), JudgeAvailability::Available, false),
        (JudgeAvailability::Available, full(0), false),
        (full(1), full(1), true),
        (JudgeAvailability::Available, JudgeAvailability::Away, false),
        (JudgeAvailability::Away, JudgeAvailability::Available, false),
    ] {
        let mut stage = stage().judging(Some(rules.clone()));
        stage.attend(while_it_came.clone());
        feed(&mut stage, vec![Span { input: text("Hello"), ..root() }], at(0));
        stage.attend(when_done);
        stage.handle_timeout(at(10), &nothing());
        assert_eq!(stage.drain(&nothing()).len(), 1);
        let [asked] = stage.requests().try_into().unwrap();
        assert!(asked.metrics, "it is told what it was not asked, too");
        let input = asked.transcript.input.as_deref();
        assert_eq!((asked.unread, input), (!asks, asks.then_some("Hello")), "{while_it_came:?}");
    }
}

#[test]
fn what_nobody_is_going_to_judge_is_not_kept_for_it() {
    let long = |id| Span {
        input: Some(Text { text: Arc::from("Hello ".repeat(100)), rank: 0 }),
        ..span(id, 1, Operation::Chat)
    };
    let looping: Vec<Span> = (2..6).map(tool).collect();
    let failed = vec![Span { failed: true, ..long(3) }];
    let late = || Span { failed: true, ..long(9) };
    let other = Arc::new(Resource { instance_id: Some(Arc::from("2")), ..Resource::default() });
    let elsewhere = vec![Span { resource: other, ..long(3) }];
    for (flags, kept) in [(looping, true), (failed, true), (elsewhere, true), (vec![], false)] {
        let rules = JudgeRules {
            flagged: true,
            max_transcript_bytes: 10_000,
            max_open_bytes: 1_000_000,
            ..JudgeRules::default()
        };
        let mut stage = stage().judging(Some(rules));
        let spans: Vec<Span> = [long(2)].into_iter().chain(flags).chain([root()]).collect();
        feed(&mut stage, spans, at(0));
        // What is flagged late is flagged; where its texts have gone that is said.
        feed(&mut stage, vec![late()], at(1));
        stage.handle_timeout(at(20), &nothing());
        stage.drain(&nothing());
        let [asked] = stage.requests().try_into().unwrap();
        assert_eq!((asked.metrics, asked.unread), (true, !kept));
        let shown = asked.transcript.steps.iter().any(|step| step.input.is_some());
        assert_eq!(shown, kept);
    }
}

#[test]
fn rules_for_an_answer_are_asked_stage_by_stage_and_each_once() {
    use crate::expect::judge::{JudgeVerdict, Judgement, Label};
    let spec = Spec::parse(
        "agent: a
queries:
  - query: Hello
    correctness:
      expected_in_answer: [hi]
      llm_judge: [{rule: kind, scale: [bad, good]}, {rule: short}]
      safety_check: {rule: safe}
",
    );
    let text = |text: &str| Some(Text { text: Arc::from(text), rank: 0 });
    let root = Span { input: text("Hello"), output: text("Hi"), ..root() };
    let rules = JudgeRules {
        max_transcript_bytes: 1_000,
        max_open_bytes: 100_000,
        ..JudgeRules::default()
    };
    let mut stage =
        stage().expecting(Arc::new([Suite::new(spec.unwrap(), [])])).judging(Some(rules));
    feed(&mut stage, vec![root], at(0));
    assert!(stage.requests().is_empty(), "it is not done yet");
    let asked = |stage: &mut Assembler| -> Vec<String> {
        let requests = stage.requests();
        assert!(requests.iter().all(|request| !request.metrics));
        requests.into_iter().flat_map(|request| request.rubrics).map(|rubric| rubric.rule).collect()
    };
    let judgements = |rules: &[&str], score| -> Judgements {
        let verdict =
            JudgeVerdict { score, label: Label::Borderline, rationale: None, judge: None };
        rules.iter().map(|rule| ((*rule).to_owned(), Judgement::Single(verdict.clone()))).collect()
    };
    let judged = |id: u8, judgements: Judgements| {
        let rules_over = judgements.keys().cloned().collect();
        let trace = TraceId([id; 16]).into();
        Input::Judged(Box::new(JudgeReply {
            trace,
            judgements,
            rules_over,
            ..JudgeReply::default()
        }))
    };
    let status = |updates: &[Box<TraceFacts>]| {
        let [held] = updates[0].expectations.as_slice() else { panic!("{updates:?}") };
        held.correctness.as_ref().unwrap().status.name()
    };
    stage.handle_timeout(at(10), &nothing());
    assert_eq!(status(&stage.drain(&nothing())), "warn");
    assert_eq!(asked(&mut stage), ["kind", "short"]);
    stage.handle(judged(7, judgements(&["kind", "short"], 5)), at(11));
    assert_eq!(status(&stage.drain(&nothing())), "warn");
    assert_eq!(asked(&mut stage), ["safe"]);
    stage.handle(judged(7, judgements(&["safe"], 5)), at(12));
    assert_eq!(status(&stage.drain(&nothing())), "pass");
    assert!(asked(&mut stage).is_empty());
    // A late span does not cost another judgement.
    feed(&mut stage, vec![tool(2)], at(13));
    stage.handle_timeout(at(30), &nothing());
    assert_eq!(status(&stage.drain(&nothing())), "pass");
    assert!(asked(&mut stage).is_empty());
    stage.handle(judged(9, judgements(&["safe"], 5)), at(31));
    assert!(stage.counts().iter().any(|count| count == ("late", "judgement_dropped", 1)));
}

/// The bytes of long texts that the traces hold, recounted.
fn text_bytes(stage: &Assembler) -> usize {
    held_bytes(stage).extra
}

#[test]
fn texts_are_held_for_a_judge_within_a_bound_and_until_it_has_answered() {
    let rules = JudgeRules {
        sample_rate: 1.0,
        max_transcript_bytes: 10_000,
        max_open_bytes: 1_500,
        ..JudgeRules::default()
    };
    let mut stage = stage().judging(Some(rules));
    let mut turn = |ids: std::ops::Range<u8>, second: u64| {
        for id in ids {
            let own = |span| Span { trace_id: TraceId([id; 16]), ..span };
            let input = Some(Text { text: Arc::from("Hello ".repeat(100)), rank: 0 });
            let said = Span { input, ..span(2, 1, Operation::Chat) };
            feed(&mut stage, vec![own(said), own(root())], at(second));
        }
        let held = stage.bytes.all().extra;
        assert_eq!(held, text_bytes(&stage));
        stage.handle_timeout(at(second + 20), &nothing());
        stage.drain(&nothing());
        let asked = stage.requests();
        let unread: Vec<bool> = asked.iter().map(|request| request.unread).collect();
        for request in asked.iter().filter(|request| !request.unread) {
            let metrics_over =
                JudgeReply { trace: request.trace(), metrics_over: true, ..JudgeReply::default() };
            stage.handle(Input::Judged(Box::new(metrics_over)), at(second + 21));
        }
        (held, unread, stage.bytes.all().extra)
    };
    assert_eq!(turn(1..6, 0), (1_800, vec![false, false, true, true, true], 0));
    assert_eq!(turn(6..8, 60), (1_200, vec![false, false], 0));
    assert!(stage.counts().iter().any(|count| count == ("texts", "full", 5)));
}

#[test]
fn texts_of_who_has_the_most_for_its_share_give_way_to_those_of_others() {
    let rules = JudgeRules {
        sample_rate: 1.0,
        max_transcript_bytes: 10_000,
        max_open_bytes: 2_000,
        ..JudgeRules::default()
    };
    let shares = TenantOptions { share: 0.4, shares: [("quiet".to_owned(), 0.6)].into() };
    let mut stage = stage().judging(Some(rules)).shared_by(shares.shares(2));
    let tenants = ["flood", "quiet"].map(|tenant| {
        Arc::new(Resource { tenant: Some(Arc::from(tenant)), ..Resource::default() })
    });
    let turn = |stage: &mut Assembler, id: u8, resource: &Arc<Resource>| {
        let resource = Arc::clone(resource);
        let input = Some(Text { text: Arc::from("Hello ".repeat(100)), rank: 0 });
        let said = Span { input, ..span(2, 1, Operation::Chat) };
        let own =
            |span| Span { trace_id: TraceId([id; 16]), resource: Arc::clone(&resource), ..span };
        feed(stage, vec![own(said), own(root())], at(u64::from(id)));
        assert_eq!(stage.bytes.all().extra, text_bytes(stage));
    };
    let given_up = |stage: &Assembler| stage.counts().get("texts", "given_up");
    let [flood, quiet] = &tenants;
    // While no other tenant needs it, one may use all the room; beyond that, its own traces give way.
    (1..6).for_each(|id| turn(&mut stage, id, flood));
    assert_eq!((stage.bytes.all().extra, given_up(&stage)), (2_400, 0));
    (6..8).for_each(|id| turn(&mut stage, id, quiet));
    assert_eq!((stage.bytes.all().extra, given_up(&stage)), (1_800, 3));
    // Who has the most itself takes nothing from others.
    (8..11).for_each(|id| turn(&mut stage, id, quiet));
    assert_eq!((stage.bytes.all().extra, given_up(&stage)), (2_400, 3));
    stage.handle_timeout(at(30), &nothing());
    stage.drain(&nothing());
    let asked = stage.requests();
    let read = asked.iter().filter(|request| !request.unread);
    let read: Vec<u8> = read.map(|request| request.trace_id.0[0]).collect();
    // Room ended within 4 and 8.
    assert_eq!(read, [6, 7]);
}

#[test]
fn an_answer_that_comes_before_its_question_takes_no_texts_away() {
    let rules = JudgeRules {
        sample_rate: 1.0,
        max_transcript_bytes: 10_000,
        max_open_bytes: 10_000,
        ..JudgeRules::default()
    };
    let mut stage = stage().judging(Some(rules));
    let input = Some(Text { text: Arc::from("Hello ".repeat(100)), rank: 0 });
    feed(&mut stage, vec![Span { input, ..span(2, 1, Operation::Chat) }], at(0));
    let known = JudgeReply {
        trace: TraceId([7; 16]).into(),
        answered: [("task".to_owned(), "{}".to_owned())].into(),
        ..JudgeReply::default()
    };
    stage.handle(Input::Judged(Box::new(known.clone())), at(0));
    feed(&mut stage, vec![root()], at(1));
    stage.handle_timeout(at(20), &nothing());
    stage.drain(&nothing());
    let [asked] = stage.requests().try_into().unwrap();
    assert_eq!((asked.unread, asked.answered), (false, known.answered));
}

/// One of several traces, whose roots say that they are passed over or not, in a request of its own or with others.
fn span_of_some() -> impl Strategy<Value = Span> {
    let kind = prop_oneof![Just(Operation::Chat), Just(Operation::ExecuteTool)];
    (0..4_u8, 1..9_u8, kind, prop::bool::weighted(0.1), prop::bool::weighted(0.1)).prop_map(
        |(trace, id, kind, failed, elsewhere)| {
            let long =
                |of: u8| Some(Text { text: Arc::from(format!("{of} ").repeat(60)), rank: 0 });
            let mut span = match (id, kind) {
                (1, _) => root(),
                (2, Operation::Chat) => Span { span_id: SpanId([2; 8]), ..root() },
                (_, Operation::ExecuteTool) => tool(id),
                _ => Span { input: long(id), ..span(id, 1, Operation::Chat) },
            };
            let session = format!("s{}", trace + id);
            let named = SessionName { attribute: Arc::from("session"), id: Arc::from(session) };
            span.session = span.session.map(|_| named);
            if elsewhere {
                let other =
                    Resource { service_name: Some(Arc::from("other")), ..Resource::default() };
                span.resource = Arc::new(other);
            }
            Span { trace_id: TraceId([trace + 1; 16]), failed, ..span }
        },
    )
}

proptest! {
    /// Batches between two drains, and seconds after them: what is sent and asked does not depend on the batching of spans.
    #[test]
    fn texts_that_are_left_out_are_those_that_nobody_would_have_read(
        bursts in prop::collection::vec(
            (prop::collection::vec(prop::collection::vec(span_of_some(), 1..16), 1..4), 0..12_u64),
            1..5,
        ),
    ) {
        let rules = || JudgeRules {
            sample_rate: 0.5,
            flagged: true,
            max_transcript_bytes: 10_000,
            max_open_bytes: 1_000_000,
            ..JudgeRules::default()
        };
        let [mut together, mut apart] = [(); 2].map(|()| stage().judging(Some(rules())));
        let mut now = 0;
        for (batches, seconds) in bursts {
            for batch in batches {
                for span in &batch {
                    apart.handle(Input::Span(Box::new(span.clone())), at(now));
                }
                let places = (0..batch.len()).collect();
                together.spans(SpanBatch { all: Arc::new(batch), places }, at(now));
            }
            let [one, other] = [&mut together, &mut apart].map(|stage| {
                let updates = stage.drain(&nothing());
                (updates, stage.requests(), stage.paid_to_judge().count())
            });
            prop_assert_eq!(one, other);
            prop_assert_eq!(together.bytes.all(), held_bytes(&together));
            prop_assert_eq!(apart.bytes.all(), held_bytes(&apart));
            now += seconds;
            let [one, other] = [&mut together, &mut apart].map(|stage| {
                stage.handle_timeout(at(now), &nothing());
                (stage.drain(&nothing()), stage.requests())
            });
            prop_assert_eq!(&one, &other);
            // Some are answered.
            for request in one.1.iter().filter(|request| request.trace_id.0[0] > 2) {
                let (trace, metrics_over) = (request.trace(), true);
                let over = JudgeReply { trace, metrics_over, ..JudgeReply::default() };
                together.handle(Input::Judged(Box::new(over.clone())), at(now));
                apart.handle(Input::Judged(Box::new(over)), at(now));
            }
            prop_assert_eq!(together.bytes.all(), held_bytes(&together));
            prop_assert_eq!(apart.bytes.all(), held_bytes(&apart));
        }
    }
}
