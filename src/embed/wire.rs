//! `POST {url}/embeddings`, as OpenAI defined it and many other servers accept it.

use serde::Deserialize;
use serde_json::json;

use super::Vector;
use crate::outbound::{bearer, with_path};
use crate::secret::Secret;

/// A reply.
#[derive(Deserialize)]
struct Reply {
    data: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    index: usize,
    embedding: Vec<f32>,
}

pub(super) fn address(url: &str) -> String {
    with_path(url, "embeddings")
}

pub(super) fn headers(url: &str, key: Option<&Secret>) -> Vec<(&'static str, String)> {
    key.map(|key| bearer(url, key)).into_iter().collect()
}

pub(super) fn request(model: &str, texts: &[String]) -> Vec<u8> {
    json!({ "model": model, "input": texts, "encoding_format": "float" }).to_string().into_bytes()
}

/// The number of parts of the longest vector that is accepted; models have hundreds to thousands.
const MAX_PARTS: usize = 16_384;

/// The vectors of a reply, in the order of the texts; `None` unless there is one for each, all of one length, finite, and with a
/// direction, which a vector of zeros lacks.
pub(super) fn vectors(reply: &[u8], texts: usize) -> Option<Vec<Vector>> {
    let mut items = serde_json::from_slice::<Reply>(reply).ok()?.data;
    items.sort_by_key(|item| item.index);
    let length = items.first()?.embedding.len();
    let whole = items.len() == texts
        && (1..=MAX_PARTS).contains(&length)
        && items.iter().enumerate().all(|(at, item)| {
            item.index == at
                && item.embedding.len() == length
                && item.embedding.iter().all(|part| part.is_finite())
                && item.embedding.iter().any(|part| *part != 0.0)
        });
    whole.then(|| items.into_iter().map(|item| Vector::from(item.embedding)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_one_vector_of_each_text() {
        let read = |reply: &str| vectors(reply.as_bytes(), 2);
        let good = r#"{"data":[{"index":1,"embedding":[0,1]},{"index":0,"embedding":[1,0]}]}"#;
        assert_eq!(read(good).unwrap()[0].as_ref(), [1.0, 0.0]);
        for bad in [
            "",
            r#"{"data":[]}"#,
            r#"{"data":[{"index":0,"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1,2]}]}"#,
            r#"{"data":[{"index":0,"embedding":[]},{"index":1,"embedding":[]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1,0]},{"index":1,"embedding":[0,-0.0]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1e99]},{"index":1,"embedding":[1]}]}"#,
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }
}
