//! Messages of the usual form, with only a role and texts, which are read without building a tree of their JSON.

use std::borrow::Cow;

use super::Role;
use crate::convention::json::Lexer;

/// The last text of this role in a list of messages (an assistant's after the last user's), and the role of the last message that
/// is not an instruction, as the tree of the list would give them.
/// `None` if the messages have more than texts, or if this is not such a list.
pub(super) fn texts(list: &str, whose: Role) -> Option<(Option<Cow<'_, str>>, Role)> {
    let mut lexer = Lexer::of(list);
    let (mut said, mut last) = (None, Role::Other);
    lexer.take(b'[').then_some(())?;
    loop {
        let (role, text) = message(&mut lexer)?;
        if role == whose && !text.is_empty() {
            said = Some(text);
        } else if role == Role::User && whose == Role::Assistant {
            said = None;
        }
        last = if role == Role::Other { last } else { role };
        if !lexer.take(b',') {
            return (lexer.take(b']') && lexer.is_over()).then_some((said, last));
        }
    }
}

fn message<'v>(lexer: &mut Lexer<'v>) -> Option<(Role, Cow<'v, str>)> {
    lexer.take(b'{').then_some(())?;
    lexer.key("role")?;
    // A tool's message is a result rather than a text.
    let role = Role::named(&lexer.text()?).filter(|role| *role != Role::Tool)?;
    lexer.take(b',').then_some(())?;
    lexer.key("parts").or_else(|| lexer.key("content"))?;
    let text = lexer.text().or_else(|| parts(lexer))?;
    if lexer.take(b',') {
        lexer.key("finish_reason")?;
        // With an empty reason, it is a piece of the next message.
        lexer.text().filter(|reason| !reason.is_empty())?;
    }
    lexer.take(b'}').then_some((role, text))
}

/// The texts of parts, each on lines of its own.
fn parts<'v>(lexer: &mut Lexer<'v>) -> Option<Cow<'v, str>> {
    lexer.take(b'[').then_some(())?;
    let mut call_key = part(lexer)?;
    while lexer.take(b',') {
        let text = part(lexer)?;
        let call_key = call_key.to_mut();
        call_key.push('\n');
        call_key.push_str(&text);
    }
    lexer.take(b']').then_some(call_key)
}

fn part<'v>(lexer: &mut Lexer<'v>) -> Option<Cow<'v, str>> {
    lexer.take(b'{').then_some(())?;
    lexer.key("type")?;
    lexer.text().filter(|kind| kind == "text")?;
    lexer.take(b',').then_some(())?;
    lexer.key("content").or_else(|| lexer.key("text"))?;
    let text = lexer.text()?;
    lexer.take(b'}').then_some(text)
}
