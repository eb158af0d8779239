use proptest::prelude::*;

use super::*;

fn raw(text: &str) -> RawValue<'_> {
    RawValue::Str(text.into())
}

#[test]
fn the_last_user_message_is_what_was_asked() {
    for text in [
        r#"[{"role":"user","parts":[{"type":"text","content":"old"}]},{"role":"user","parts":[{"type":"text","content":"Hi"}]}]"#,
        r#"[{"role":"user","content":"old"},{"role":"assistant","content":"x"},{"role":"user","content":[{"type":"text","text":"Hi"}]}]"#,
        r#"{"messages":[[{"lc":1,"type":"constructor","id":["langchain","schema","messages","HumanMessage"],"kwargs":{"content":"Hi","type":"human"}}]]}"#,
        r#"{"messages":[{"type":"human","data":{"content":"Hi"}},{"type":"ai","data":{"content":"x"}}]}"#,
        r#"{"question":"Hi"}"#,
        "Hi",
    ] {
        assert_eq!(asked(&raw(text)).text.as_deref(), Some("Hi"), "{text}");
    }
}

#[test]
fn an_answer_in_pieces_is_put_together() {
    let piece = |text: &str, reason: &str| {
        format!(
            r#"{{"role":"assistant","parts":[{{"type":"text","content":"{text}"}}],"finish_reason":"{reason}"}}"#
        )
    };
    let list = [piece("old", "stop"), piece("It ", ""), piece("rains", ""), piece(".", "stop")];
    assert_eq!(said(&raw(&format!("[{}]", list.join(",")))).text.as_deref(), Some("It rains."));
    assert_eq!(said(&raw(&format!("[{}]", list[..3].join(",")))).text.as_deref(), Some("It rains"));
    assert_eq!(said(&raw(&format!("[{}]", list[0]))).text.as_deref(), Some("old"));
}

#[test]
fn calls_that_langchain_has_as_the_provider_sent_them_are_read() {
    let text = r#"{"messages":[{"type":"ai","content":"","tool_calls":[],"additional_kwargs":{"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}"#;
    let calls = said(&raw(text)).calls;
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].name.as_deref(), calls[0].call_id), (Some("f"), Some(IdHash::from("c"))));
}

#[test]
fn the_last_assistant_message_is_the_answer() {
    for text in [
        r#"[{"role":"assistant","parts":[{"type":"text","content":"Hello"},{"type":"tool_call","name":"f"}]}]"#,
        r#"{"generations":[[{"text":"Hello","type":"ChatGeneration","message":{"lc":1,"type":"constructor","id":["x","AIMessage"],"kwargs":{"content":"Hello"}}}]]}"#,
        r#"{"choices":[{"message":{"role":"assistant","content":"Hello"}}]}"#,
        r#"{"answer":"Hello"}"#,
        "Hello",
    ] {
        assert_eq!(said(&raw(text)).text.as_deref(), Some("Hello"), "{text}");
    }
    // Structured output is its own text; a call without text is none.
    assert_eq!(said(&raw(r#"{"city":"Paris"}"#)).text.as_deref(), Some(r#"{"city":"Paris"}"#));
    assert_eq!(
        said(&raw(r#"[{"role":"assistant","parts":[{"type":"tool_call","name":"f"}]}]"#)).text,
        None
    );
}

#[test]
fn what_was_said_before_the_last_user_message_is_of_earlier_turns() {
    let earlier = r#"{"role":"user","content":"Hi"},{"role":"assistant","content":"old","tool_calls":[{"id":"0","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"0","content":"x"},{"role":"assistant","content":"old"},{"role":"user","content":"Mail Bob"}"#;
    let call =
        r#"{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"send"}}]}"#;
    let result =
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"sent"}]}"#;
    let answer = r#"{"role":"assistant","content":"Done"}"#;
    for (after, text, calls) in [
        ("".to_owned(), None, 0),
        (format!(",{call}"), None, 1),
        (format!(",{answer}"), Some("Done"), 0),
        (format!(",{call},{answer},{result}"), Some("Done"), 1),
    ] {
        let state = format!(r#"{{"messages":[{earlier}{after}]}}"#);
        let sent = raw(&state);
        let said = said(&sent);
        assert_eq!((said.text.as_deref(), said.calls.len()), (text, calls), "{state}");
    }
    let texts = r#"[{"role":"user","content":"Hi"},{"role":"assistant","content":"old"},{"role":"user","content":"Mail Bob"}]"#;
    assert_eq!(said(&raw(texts)).text, None);
    // What came in comes first, wherever it is.
    let both = r#"{"output":{"role":"assistant","content":"Done"},"input":[{"role":"user","content":"Hi"}]}"#;
    assert_eq!(said(&raw(both)).text.as_deref(), Some("Done"));
}

#[test]
fn calls_come_from_the_assistant_alone() {
    for text in [
        r#"[{"role":"assistant","parts":[{"type":"tool_call","id":"1","name":"f","arguments":{"b":1,"a":2}}]}]"#,
        r#"[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]}]"#,
        r#"{"messages":[{"type":"ai","data":{"content":"","tool_calls":[{"name":"f","args":{"a":2,"b":1},"id":"1"}]}}]}"#,
    ] {
        let calls = said(&raw(text)).calls;
        assert_eq!(calls.len(), 1, "{text}");
        assert_eq!(calls[0].name.as_deref(), Some("f"));
        assert_eq!(&**calls[0].arguments.as_ref().unwrap().text().unwrap(), r#"{"a":2,"b":1}"#);
    }
    let tool = r#"[{"role":"tool","parts":[{"type":"tool_call_response","id":"1","result":"x"}]}]"#;
    assert_eq!(said(&raw(tool)).calls, []);
}

#[test]
fn results_are_those_after_the_last_word_of_anybody_else() {
    for text in [
        r#"[{"role":"user","content":"Hi"},{"role":"assistant","tool_calls":[{"id":"0","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"0","content":"old"},{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"1","content":"x"}]"#,
        r#"[{"role":"user","content":"Hi"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}]"#,
        r#"[{"role":"user","parts":[{"type":"text","content":"Hi"}]},{"role":"tool","parts":[{"type":"tool_call_response","id":"1","result":"x"}]}]"#,
        r#"[{"role":"user","content":"Hi"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}]"#,
        r#"[{"role":"user","content":[{"text":"Hi"}]},{"role":"user","content":[{"toolResult":{"toolUseId":"1","status":"success","content":"x"}}]}]"#,
        r#"{"contents":[{"role":"user","parts":[{"text":"Hi"}]},{"role":"user","parts":[{"function_response":{"id":"1","name":"f","response":"x"}}]}]}"#,
    ] {
        let sent = raw(text);
        let asked = asked(&sent);
        assert_eq!(asked.text.as_deref(), Some("Hi"), "{text}");
        assert_eq!(asked.by_user, Some(false), "{text}");
        let hash = arguments::hash_of(Json::Text("x".into()));
        let result = ToolResult { call_id: Some(IdHash::from("1")), failed: false, hash };
        assert_eq!(asked.results, [result], "{text}");
    }
}

/// Messages and what else may stand among them.
const ITEMS: [&str; 16] = [
    r#"{"role":"user","content":"Hi"}"#,
    r#"{"role":"user","content":""}"#,
    r#"{"role":"user","content":null}"#,
    r#"{"role":"user","parts":[{"type":"text","content":"a\nb"},{"text":"c"}]}"#,
    r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}"#,
    r#"{"role":"assistant","content":"x","tool_calls":[{"id":"1","function":{"name":"f"}}]}"#,
    r#"{"role":"tool","tool_call_id":"1","content":"{\"a\": 1}"}"#,
    r#"{"role":"tool","parts":[{"type":"tool_call_response","id":"1","result":[1]}]}"#,
    r#"{"type":"function_call_output","call_id":"1","output":"x"}"#,
    r#"{"type":"human","data":{"content":"Hi"}}"#,
    r#"[{"role":"tool","content":"y"},{"role":"user","content":"é"}]"#,
    r#"{"messages":[{"role":"user","content":"Hi"}]}"#,
    r#"{"text":"Hi"}"#,
    r#"{"toolUse":{"name":"f"}}"#,
    "1",
    "[]",
];

proptest! {
    #[test]
    fn the_end_of_a_list_says_what_all_of_it_says(
        items in prop::collection::vec(prop::sample::select(&ITEMS[..]), 0..20),
        at in any::<prop::sample::Index>(),
        other in prop::sample::select(&["", "\"", "\\", "\\ud83d", ",", "]", "}", "NaN", "e9"][..]),
    ) {
        let whole = format!("[{}]", items.join(" , "));
        let at = whole.floor_char_boundary(at.index(whole.len()));
        let (before, after) = whole.split_at(at);
        for text in [format!("{before}{other}{after}"), before.to_owned(), whole.clone()] {
            if let Some(last) = asked_last(&text) {
                let sent = raw(&text);
                prop_assert_eq!(last, asked_in_all(&sent), "{}", text);
            }
        }
    }
}

/// What may be in a message of texts, and what else may stand there.
const SAID: [&str; 14] = [
    r#"[{"type":"text","content":"a"}]"#,
    r#"[ {"type" : "text", "text" : "a\u0062"} , {"type":"text","content":""},{"type":"text","content":"c"} ]"#,
    r#""Hi""#,
    r#""""#,
    r#""\ud83d""#,
    r#"[{"type":"text","content":"a"},{"type":"tool_call","id":"1","name":"f"}]"#,
    r#"[{"type":"text","content":null}]"#,
    r#"[{"type":"text","content":"a","text":"b"}]"#,
    r#"[{"type":"tool_call_response","content":"a"}]"#,
    r#"["a"]"#,
    "[]",
    "null",
    "1",
    r#"{"parts":[{"type":"text","content":"a"}]}"#,
];

proptest! {
    #[test]
    fn texts_are_what_the_tree_says(
        parts in prop::collection::vec((
            prop::sample::select(&["user", "assistant", "system", "tool", "text", "HUMAN", "us\\u0065r"][..]),
            prop::sample::select(&["parts", "content", "text", "p\\u0061rts"][..]),
            prop_oneof![3 => prop::sample::select(&SAID[..4]), 1 => prop::sample::select(&SAID[4..])],
            prop::sample::select(&["", "", r#","finish_reason":"stop""#, r#","tool_calls":[{"name":"f"}]"#, r#","role":"user""#][..]),
        ), 0..4),
        at in any::<prop::sample::Index>(),
        other in prop::sample::select(&["", " ", "\"", "\\", ",", "]", "}", "NaN"][..]),
    ) {
        let parts = parts.iter().map(|(role, key, said, more)| format!(r#"{{"role":"{role}","{key}":{said}{more}}}"#));
        let whole = format!("[{}]", parts.collect::<Vec<_>>().join(" ,\n"));
        let (before, after) = whole.split_at(at.index(whole.len()));
        for text in [format!("{before}{other}{after}"), before.to_owned(), whole.clone()] {
            for role in [Role::User, Role::Assistant] {
                let Some((said, last)) = texts(&text, role) else { continue };
                let tree = json::parse(&text).unwrap();
                let messages = messages_in(&tree, role);
                let (asked, by_user) = (asked_by(&messages).0, Some(last != Role::Assistant));
                prop_assert_eq!((asked.by_user, asked.results), (by_user, vec![]), "{}", text);
                let by_tree = if role == Role::User { asked.text } else { said_in(&messages).text };
                prop_assert_eq!((said, said_in(&messages).calls), (by_tree, vec![]), "{}", text);
            }
        }
    }
}

#[test]
fn most_messages_are_texts() {
    for (list, said) in [
        (r#"[{"role":"user","parts":[{"type":"text","content":"Hi"}]}]"#, Some("Hi")),
        (
            r#" [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x"}] "#,
            Some("Hi"),
        ),
        (
            r#"[{"role":"assistant","parts":[{"type":"text","content":"x"}],"finish_reason":"stop"}]"#,
            None,
        ),
    ] {
        let (text, _) = texts(list, Role::User).unwrap();
        assert_eq!(text.as_deref(), said, "{list}");
    }
}

#[test]
fn of_a_long_history_the_end_is_enough() {
    for (last, by_user) in [(ITEMS[0], true), (ITEMS[4], false), (ITEMS[6], false)] {
        let text = format!("[{}{},{last}]", ITEMS[0], format!(",{}", ITEMS[5]).repeat(50));
        assert_eq!(asked_last(&text).is_some(), last == ITEMS[0]);
        let text = format!("{},{},{last}]", text.trim_end_matches(']'), ITEMS[0]);
        let said = asked_last(&text).unwrap();
        assert_eq!((said.text.as_deref(), said.by_user), (Some("Hi"), Some(by_user)));
        assert_eq!(said, asked_in_all(&raw(&text)));
    }
}

#[test]
fn instructions_are_from_nobody_that_takes_part() {
    const SYSTEM: &str = r#"{"role":"system","content":"Look after the inbox."}"#;
    const DEVELOPER: &str = r#"{"role":"developer","content":"Be brief."}"#;
    const USER: &str = r#"{"role":"user","content":"Hi"}"#;
    const ANSWER: &str = r#"{"role":"assistant","content":"Done."}"#;
    const RESULT: &str = r#"{"role":"tool","tool_call_id":"1","content":"18 C"}"#;
    for (messages, by_user) in [
        (&[SYSTEM][..], true),
        (&[SYSTEM, DEVELOPER], true),
        (&[USER, SYSTEM], true),
        (&[USER, ANSWER, SYSTEM], false),
        (&[USER, ANSWER, RESULT, DEVELOPER], false),
    ] {
        let text = format!("[{}]", messages.join(","));
        assert_eq!(asked(&raw(&text)).by_user, Some(by_user), "{text}");
        let mut flat = crate::convention::raw::RawAttributes::with_capacity(8);
        for (number, message) in messages.iter().enumerate() {
            let message = json::parse(message).unwrap();
            for key in ["role", "content", "tool_call_id"] {
                let text = message.get(key).and_then(Json::as_str);
                let name = format!("llm.input_messages.{number}.message.{key}");
                text.into_iter().for_each(|text| {
                    flat.push(name.clone().into(), RawValue::Str(text.to_owned().into()));
                });
            }
        }
        let flat = crate::convention::flat::Messages::of(&flat, "llm.input_messages.");
        assert_eq!(flat.asked().by_user, Some(by_user), "{text}");
    }
}

#[test]
fn a_failed_result_says_so() {
    for text in [
        r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","is_error":true,"content":"x"}]}]"#,
        r#"[{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","output":{"type":"error-text","value":"x"}}]}]"#,
        r#"[{"toolResult":{"toolUseId":"1","status":"error","content":[{"text":"x"}]}}]"#,
    ] {
        assert!(asked(&raw(text)).results[0].failed, "{text}");
    }
}

#[test]
fn blocks_without_a_role_are_content() {
    let sent = raw(r#"[{"text":"Hi"}]"#);
    let asked = asked(&sent);
    assert_eq!((asked.text.as_deref(), asked.by_user), (Some("Hi"), Some(true)));
    let sent = raw(r#"[{"toolUse":{"toolUseId":"1","name":"f","input":{"a":1}}}]"#);
    let said = said(&sent);
    assert_eq!((said.text, said.calls.len()), (None, 1));
}

#[test]
fn an_answer_among_events_is_the_choice() {
    let events = r#"[{"event.name":"gen_ai.assistant.message","role":"assistant","content":"old"},{"event.name":"gen_ai.choice","index":0,"message":{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}}]"#;
    let sent = raw(events);
    let said = choices(&sent);
    assert_eq!((said.text, said.calls.len()), (None, 1));
}
