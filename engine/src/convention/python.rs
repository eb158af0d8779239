//! Python literals, as `repr` writes them: what some libraries send where JSON is expected.

use serde_json::Value;

use super::json::Json;

/// The depth of nesting beyond which a text is not read as Python.
const MAX_NESTING: usize = 32;

/// Reads a dict, list or tuple; `None` for anything else, plain words included.
pub(super) fn parse(text: &str) -> Option<Json<'static>> {
    let text = text.trim();
    if !text.starts_with(['{', '[', '(']) {
        return None;
    }
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.rest.trim().is_empty().then_some(value)
}

/// The content in the `repr` of a LangChain message, `content='..' name='..' tool_call_id='..'`.
pub(super) fn content(text: &str) -> Option<Json<'static>> {
    Reader { rest: text.strip_prefix("content=")? }.value(0)
}

/// Whether a text is the `repr` of a LangChain message from a tool that failed, as its last field shows.
pub(super) fn is_failure(text: &str) -> bool {
    let mut reader = Reader { rest: text.strip_prefix("content=").unwrap_or_default() };
    reader.value(0).is_some()
        && reader.rest.contains(" tool_call_id=")
        && reader.rest.ends_with(" status='error'")
}

/// Whether a text is the `repr` of an object, `Event(result=...`, rather than a message.
pub(super) fn is_object(text: &str) -> bool {
    let word = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let Some((class, rest)) = text.split_once('(') else { return false };
    let field = rest.split_once('=').map(|(field, _)| field);
    class.starts_with(|c: char| c.is_ascii_uppercase()) && word(class) && field.is_some_and(word)
}

/// The fields in the `repr` of an object of this class, `ToolCall(tool_name='..', tool_kwargs={..})`, without truncated ones;
/// `None` for anything else.
pub(super) fn fields(text: &str, class: &str) -> Option<Json<'static>> {
    let mut reader = Reader { rest: text.strip_prefix(class)?.strip_prefix('(')? };
    let mut entries = Vec::new();
    while let Some((name, rest)) = reader.rest.split_once('=') {
        let name = name.trim().to_owned();
        reader.rest = rest;
        let Some(value) = reader.value(1) else { break };
        entries.push((name.into(), value));
        if reader.separator(')').is_none() {
            break;
        }
    }
    Some(Json::Object(entries.into_iter().collect()))
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Option<Json<'static>> {
        if depth > MAX_NESTING {
            return None;
        }
        self.skip_space();
        match self.rest.chars().next()? {
            '{' => self.dict(depth),
            '[' => self.list('[', ']', depth),
            '(' => self.list('(', ')', depth),
            '\'' | '"' => self.string().map(|text| Json::Text(text.into())),
            _ => self.word(),
        }
    }

    fn dict(&mut self, depth: usize) -> Option<Json<'static>> {
        self.take('{')?;
        let mut entries = Vec::new();
        while !self.at('}') {
            let key = match self.value(depth + 1)? {
                Json::Text(key) => key,
                other @ (Json::Null | Json::Bool(_) | Json::Number(_)) => other.to_string().into(),
                Json::List(_) | Json::Object(_) => return None,
            };
            self.skip_space();
            self.take(':')?;
            let value = self.value(depth + 1)?;
            entries.push((key, value));
            self.separator('}')?;
        }
        self.take('}')?;
        Some(Json::Object(entries.into_iter().collect()))
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Json<'static>> {
        self.take(open)?;
        let mut items = Vec::new();
        while !self.at(close) {
            items.push(self.value(depth + 1)?);
            self.separator(close)?;
        }
        self.take(close)?;
        Some(Json::List(items))
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        self.take(quote)?;
        let mut text = String::new();
        loop {
            let c = self.rest.chars().next()?;
            self.rest = &self.rest[c.len_utf8()..];
            match c {
                '\\' => text.push(self.escape()?),
                c if c == quote => return Some(text),
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        let digits = match c {
            'n' => return Some('\n'),
            't' => return Some('\t'),
            'r' => return Some('\r'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Some(other),
        };
        let code = u32::from_str_radix(self.rest.get(..digits)?, 16).ok()?;
        self.rest = &self.rest[digits..];
        char::from_u32(code)
    }

    fn word(&mut self) -> Option<Json<'static>> {
        let end = self.rest.find([',', ':', ']', '}', ')']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.trim() {
            "True" => Some(Json::Bool(true)),
            "False" => Some(Json::Bool(false)),
            "None" => Some(Json::Null),
            number => {
                let value: Option<Value> = serde_json::from_str(number).ok();
                if let Some(Value::Number(number)) = value {
                    Some(Json::Number(number))
                } else {
                    None
                }
            }
        }
    }

    /// Takes a comma, which is not needed before the end.
    fn separator(&mut self, close: char) -> Option<()> {
        self.skip_space();
        if self.rest.starts_with(close) { Some(()) } else { self.take(',') }
    }

    fn at(&mut self, c: char) -> bool {
        self.skip_space();
        self.rest.starts_with(c)
    }

    fn take(&mut self, c: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(c)?;
        Some(())
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convention::json;

    #[test]
    fn literals_are_read() {
        let text = r#"{'a': [1, -2.5, True, None], "b": ('it\'s', 'x\u00e9'), 3: {}}"#;
        let same = r#"{"a": [1, -2.5, true, null], "b": ["it's", "xé"], "3": {}}"#;
        assert_eq!(parse(text), json::parse(same));
    }

    #[test]
    fn the_content_of_a_message_is_read() {
        let said = content("content='it\\'s' name='f' tool_call_id='c'");
        assert_eq!(said, Some(Json::Text("it's".into())));
        assert_eq!(content("content"), None);
    }

    #[test]
    fn the_fields_of_an_object_are_read_up_to_one_that_is_cut_off() {
        let call = "ToolCall(tool_name='f', tool_kwargs={'a': 'x=1, y'}, tool_id='c')";
        let all = r#"{"tool_name": "f", "tool_kwargs": {"a": "x=1, y"}, "tool_id": "c"}"#;
        assert_eq!(fields(call, "ToolCall"), json::parse(all));
        let cut = fields(&call[..45], "ToolCall");
        assert_eq!(cut, json::parse(r#"{"tool_name": "f"}"#));
        assert_eq!(fields(call, "AgentInput"), None);
    }

    #[test]
    fn an_object_is_told_from_a_sentence() {
        assert!(is_object("StopEvent(result=AgentOutput(response='x'))"));
        for text in ["Paris", "Call f(x=1) first", "Yes (a = b)", "Sum(1)"] {
            assert!(!is_object(text), "{text}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        for text in ["Paris", "{'a': }", "{'a': f(x)}", "[1, 2", "{'a'}", &"[".repeat(100_000)] {
            assert_eq!(parse(text), None);
        }
    }
}
