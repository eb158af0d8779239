use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn same(ours: &Json<'_>, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Json::Null, Value::Null) => true,
        (Json::Bool(a), Value::Bool(b)) => a == b,
        (Json::Number(a), Value::Number(b)) => a == b,
        (Json::Text(a), Value::String(b)) => a == b,
        (Json::List(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Value::Object(b)) => {
            let equal =
                |((key, a), (other, b)): ((&str, _), (&String, _))| key == other && same(a, b);
            a.len() == b.len() && a.iter().zip(b).all(equal)
        }
        _ => false,
    }
}

/// What is written, and the place and the text of each scalar.
fn scalars(
    write: impl FnOnce(&mut Written, &mut dyn FnMut(u64, &[u8])),
) -> (Written, Vec<(u64, Vec<u8>)>) {
    let (mut text, mut scalars) = (Written::new(), Vec::new());
    write(&mut text, &mut |place, scalar| scalars.push((place, scalar.to_vec())));
    (text, scalars)
}

/// Both read the same and write it alike, or neither reads anything; and the items of a list are what is in it.
fn agree(text: &str) {
    let list = parse(text).and_then(|value| Some(value.as_list()?.to_vec()));
    let apart = items(text).map(|items| items.into_iter().filter_map(parse).collect());
    assert_eq!(apart, list.filter(|items| !items.is_empty()), "{text}");
    if let Some(flat) = flat(text) {
        let Some(Json::Object(object)) = parse(text) else { panic!("{text}") };
        let object = Json::Object(object.sorted(|value| value));
        let own = scalars(|text, mut to| flat.write_scalars(text, &mut to));
        let of_tree = scalars(|text, mut to| object.write_scalars(text, &mut to));
        assert_eq!(own, of_tree, "{text}");
    }
    let theirs: Option<Value> = serde_json::from_str(text).ok();
    match (parse(text), theirs) {
        (None, None) => {}
        (Some(ours), Some(theirs)) => {
            assert!(same(&ours, &theirs), "{text}: {ours:?}");
            assert_eq!(ours.to_string(), theirs.to_string(), "{text}");
            assert_eq!(ours.clone().into_owned(), ours);
        }
        (ours, theirs) => panic!("{text}: {ours:?}, {theirs:?}"),
    }
}

#[test]
fn a_few_scalars_under_keys_need_no_tree() {
    for (text, is_flat) in [
        (r#"{"b": "x", "a": 12 , "c":null}"#, true),
        (r#"{"a":true}"#, true),
        (r#"{"a":[]}"#, false),
        (r#"{"a":1,"a":2}"#, false),
        (r#"{"a":1.0}"#, false),
        (r#"{"a":"\n"}"#, false),
        (r#"{"\u0061":1}"#, false),
        ("{}", false),
        ("}", false),
        (&format!("{{{}}}", (0..16).map(|at| format!("\"{at}\":1,")).collect::<String>()), false),
        (r#"{"a":1} 2"#, false),
    ] {
        assert_eq!(flat(text).is_some(), is_flat, "{text}");
        agree(text);
    }
}

#[test]
fn what_is_json_and_what_is_none() {
    for text in [
        "",
        " ",
        "1",
        "-1",
        "-0",
        "-",
        "0",
        "00",
        "01",
        "-01",
        "1.",
        ".5",
        "1.5",
        "1e5",
        "1e",
        "1E+5",
        "1e400",
        "-1e400",
        "1-2",
        "123456789012345678",
        "1234567890123456789",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "0.1234567890123456789",
        "1.0",
        "100000000000000000000",
        "true",
        "tru",
        "truex",
        "null",
        "nul",
        "false ",
        "\"a\"",
        "\"a",
        "\"",
        "\"\\\"",
        "\"\\n\\u0041\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\x\"",
        "\"\\é\"",
        "\"a\nb\"",
        "\"\u{7f}é\"",
        "[]",
        "[1]",
        "[1,]",
        "[,]",
        "[1 2]",
        "[1,2",
        "{}",
        "{\"a\":1}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "{\"a\":1,\"b\":2,\"a\":3}",
        "\t[ 1 ,\r\n{ \"a\" : [ ] } ] ",
        "[1]]",
        "{\"\\u0061\":1,\"a\":2}",
        "\u{feff}1",
        "nan",
        "[\u{a0}1]",
        "\"0123456789abcde\\\"f\"",
    ] {
        agree(text);
    }
}

#[test]
fn what_is_nearly_json_is_read_without_what_is_not() {
    for (text, expected) in [
        (r#"{"city": "Z\ud83d"}"#, Some(r#"{"city":"Z?"}"#)),
        (r#"{"\ude00": ["\ud83d\ude00"]}"#, Some(r#"{"?":["😀"]}"#)),
        ("[1e400, NaN, -Infinity, 1]", Some("[null,null,null,1]")),
        (r#"{"city": "Z"}"#, Some(r#"{"city":"Z"}"#)),
        (r#"{"city": "Z\ud83d}"#, None),
        ("[1e400, nan]", None),
        ("Z\u{fffd}", None),
        ("{'city': 'Z'}", None),
    ] {
        let text = read(text).map(|value| value.to_string());
        assert_eq!(text.as_deref(), expected);
    }
}

#[test]
fn a_string_is_plain_up_to_the_first_byte_that_is_not() {
    for (first, second) in [(b'"', b'\n'), (b'\\', b'"'), (b'\n', b'\\'), (b'\x1f', b'"')] {
        for at in (0..24).chain(250..280).chain(510..530) {
            let mut bytes = [b'a'; 600];
            (bytes[at], bytes[at + 40]) = (first, second);
            assert_eq!((plain(&bytes), plain(&bytes[..at])), (at, at), "{first}");
        }
    }
    assert_eq!(plain("é😀\u{7f} ".as_bytes()), 8);
}

#[test]
fn nesting_ends_where_it_does_for_others() {
    for depth in 125..131 {
        agree(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        agree(&format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
    }
    agree(&"[".repeat(100_000));
}

#[test]
fn of_many_equal_keys_the_last_value_holds_in_the_first_place() {
    for count in [2, 16, 17, 200] {
        let entries: Vec<String> =
            (0..count).map(|at| format!("\"k{}\":{at}", at * 7 % 11)).collect();
        agree(&format!("{{{}}}", entries.join(",")));
    }
}

/// Any value, not too large.
fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0_u64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c\"\\\\é\n\u{1}😀 ]{0,40}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 40, 5, |inner| {
        let entries = prop::collection::vec(("[a-c\"é]{0,3}", inner.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            entries.prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

#[test]
fn what_ends_the_plain_part_of_a_string_is_found_wherever_it_stands() {
    for other in [b'a', b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xff] {
        for length in 0..120 {
            let mut bytes = vec![other; length];
            assert_eq!(plain(&bytes), length);
            for at in 0..length {
                for special in [0, b'\n', 0x1f, b'"', b'\\'] {
                    bytes[at] = special;
                    assert_eq!(plain(&bytes), at, "{special} after {other}");
                }
                bytes[length - 1] = b'"';
                assert_eq!(plain(&bytes), at);
                bytes.fill(other);
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_changed_somewhere_is_read_alike(
        value in any_value(),
        at in any::<prop::sample::Index>(),
        other in prop::sample::select(&["", "\"", "\\", "\\u00e9", "\\ud83d", ",", "]", "}", "0", "-", "e9", "é", "\n", " "][..]),
    ) {
        let mut text = value.to_string();
        agree(&text);
        let at = text.floor_char_boundary(at.index(text.len()));
        let end = text.ceil_char_boundary(at + 1);
        text.replace_range(at..end, other);
        agree(&text);
        agree(&text[..at]);
    }

    #[test]
    fn random_texts_are_read_alike(text in r#"[\[\]{}:," 0-2.eE+\-\\nu"trabé\n]{0,24}"#) {
        agree(&text);
    }

    #[test]
    fn what_is_written_is_read_back(text in any::<String>(), number in any::<f64>(), key in ".{0,20}") {
        let value = serde_json::json!({&key: [text, number, {"b": key}], "a": i64::MIN});
        agree(&value.to_string());
        agree(&serde_json::to_string_pretty(&value).unwrap());
    }
}

#[test]
fn a_text_of_too_many_values_is_no_json() {
    let list = |values: usize| format!("[{}]", vec!["0"; values].join(","));
    assert!(parse(&list(MAX_VALUES - 1)).is_some());
    assert_eq!(parse(&list(MAX_VALUES)), None);
}
