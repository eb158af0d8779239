//! Embeddings of the question and the answer of a trace: the engine asks a model, and never waits for the reply.
//!
//! ```text
//! coherence        1 - gap of the two embeddings; see signal::coherence
//! loop_detection   cosine of answers, if both traces have embeddings of one model; else cosine of hashed embeddings
//! ```
//!
//! A reply belongs to the texts that were sent: if a late span has changed them, the model is asked again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::convention::whole_words;
use super::facts::{Content, ModelEmbedding, TraceFacts};
use super::math::Quanta;
use super::math::text::Embedding;
use super::signal::coherence;
use super::tenants::TraceKey;

/// Steps of a unit vector's parts, so that a cosine has the same bits everywhere.
const STEPS: f64 = 1e6;

/// A request to an embedding model about the texts of a trace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EmbedRequest {
    /// The trace.
    pub trace: TraceKey,
    /// Hash of the texts.
    pub texts: u64,
    /// The question; `None`: it was not sent.
    pub input: Option<String>,
    /// The answer; no request is made without one.
    pub output: Option<String>,
    /// Whether a text was truncated.
    pub truncated: bool,
}

/// An embedding model's reply about the texts of a trace.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Embedded {
    /// Hash of the texts that were sent.
    pub texts: u64,
    /// Hash of the model's name; vectors from different models are not compared.
    pub embedder: u64,
    /// How near the answer is to the question; `None`: one of them is missing.
    pub coherence: Option<Quanta>,
    /// The answer's embedding, of length one, in steps of 1e-6; empty: there is none.
    pub output: Embedding,
}

impl EmbedRequest {
    /// The request for a trace with these texts, each cut to `max_bytes`; `None` without an answer, as a question alone is of no
    /// use.
    pub fn new(trace: TraceKey, content: &Content, max_bytes: usize) -> Option<Self> {
        let text = |text: &Option<Arc<str>>| {
            let text = text.as_deref().filter(|text| !text.is_empty())?;
            Some(whole_words(text, max_bytes).to_owned())
        };
        let is_longer =
            |text: &Option<Arc<str>>| text.as_ref().is_some_and(|text| text.len() > max_bytes);
        let truncated = is_longer(&content.input) || is_longer(&content.output);
        let (input, output) = (text(&content.input), text(&content.output));
        let hash = |text: &Option<String>| text.as_ref().map_or(0, |text| xxh3_64(text.as_bytes()));
        let texts = xxh3_64_with_seed(&hash(&output).to_le_bytes(), hash(&input));
        output.is_some().then_some(Self { trace, texts, input, output, truncated })
    }
}

impl Embedded {
    /// The reply made of the embeddings of question and answer, if there are any.
    pub fn new(
        request: &EmbedRequest,
        model: &str,
        input: Option<&[f32]>,
        output: Option<&[f32]>,
    ) -> Self {
        let both = input.zip(output);
        Self {
            texts: request.texts,
            embedder: xxh3_64(model.as_bytes()).max(1),
            coherence: both.and_then(|(input, output)| coherence::score(input, output)),
            output: output.map(steps).unwrap_or_default(),
        }
    }

    /// Adds the reply to a trace with these texts.
    pub fn fill(&self, update: &mut TraceFacts) {
        update.coherence_quanta = self.coherence.map(|score| score.0);
        if let Some(digest) = &mut update.output_digest
            && self.output.dimensions() > 0
        {
            let (embedding, embedder) = (self.output.clone(), self.embedder);
            digest.by_model = Some(Box::new(ModelEmbedding { embedding, embedder }));
        }
    }
}

/// The vector scaled to unit length, in steps of 1e-6; empty if its length is zero.
fn steps(vector: &[f32]) -> Embedding {
    let squares: f64 = vector.iter().map(|part| f64::from(*part) * f64::from(*part)).sum();
    let norm = squares.sqrt();
    if !norm.is_normal() {
        return Embedding::default();
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most a million, as no part is longer than the whole"
    )]
    let step = |part: &f32| (f64::from(*part) / norm * STEPS).round() as i32;
    vector.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::OutputDigest;

    #[test]
    fn texts_are_told_from_each_other() {
        let content = |input: Option<&str>, output: Option<&str>| Content {
            input: input.map(Arc::from),
            output: output.map(Arc::from),
            ..Content::default()
        };
        let texts = |content: Content| {
            EmbedRequest::new(TraceKey::default(), &content, 4).map(|request| request.texts)
        };
        assert_eq!(texts(content(None, Some(""))), None);
        assert_eq!(texts(content(Some("a"), None)), None);
        let all = [
            texts(content(Some("a"), Some("b"))),
            texts(content(Some("b"), Some("a"))),
            texts(content(None, Some("a"))),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert_eq!(texts(content(None, Some("ééé"))), texts(content(None, Some("éé"))));
    }

    #[test]
    fn a_trace_is_filled_in_with_what_the_model_said() {
        let request = EmbedRequest { texts: 5, ..EmbedRequest::default() };
        let (a, b) = ([3.0_f32, 4.0], [4.0_f32, 3.0]);
        let embedded = Embedded::new(&request, "m", Some(&a), Some(&b));
        let mut update =
            TraceFacts { output_digest: Some(OutputDigest::default()), ..TraceFacts::default() };
        embedded.fill(&mut update);
        assert_eq!(update.coherence_quanta, Quanta::from_f64(0.96).map(|score| score.0));
        let digest = update.output_digest.unwrap().by_model.unwrap();
        assert_eq!(*digest.embedding.cells(), [800_000, 600_000]);
        let other = Embedded::new(&request, "m", None, Some(&a));
        assert_eq!((other.coherence, other.embedder), (None, digest.embedder));
        assert!((digest.embedding.cosine(&other.output) - 0.96).abs() < 1e-6);
        assert_eq!(Embedded::new(&request, "m", None, Some(&[0.0, 0.0])).output.dimensions(), 0);
    }
}
