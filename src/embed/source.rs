//! The source of vectors: an endpoint, or a model in this process.

use super::endpoint::Endpoint;
#[cfg(feature = "minilm")]
use super::minilm::InProcess;
use super::{EmbedError, EmbedOptions, Vector};
use crate::clock::Clock;
use crate::outbound::redact::Redactor;
use crate::secret::Secret;

/// Why texts have no vectors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lost {
    /// Embedding failed.
    Now,
    /// Embedding them together failed; one of them may be to blame.
    Batch,
}

/// An embedding model.
#[derive(Debug)]
pub(super) enum Source {
    /// A model at an endpoint.
    Endpoint(Box<Endpoint>),
    /// A model in this process.
    #[cfg(feature = "minilm")]
    InProcess(InProcess),
}

impl Source {
    pub(super) fn new(
        options: &EmbedOptions,
        key: Option<Secret>,
        redactor: Redactor,
        clock: Clock,
    ) -> Result<Self, EmbedError> {
        if options.directory.as_os_str().is_empty() {
            let endpoint = Endpoint::new(options, key, redactor, clock)?;
            return Ok(Self::Endpoint(Box::new(endpoint)));
        }
        if !options.url.is_empty() {
            return Err(EmbedError::TwoModels);
        }
        // No redactor, as nothing leaves the process.
        Self::in_process(options)
    }

    #[cfg(feature = "minilm")]
    fn in_process(options: &EmbedOptions) -> Result<Self, EmbedError> {
        Ok(Self::InProcess(InProcess::new(options)?))
    }

    #[cfg(not(feature = "minilm"))]
    fn in_process(_: &EmbedOptions) -> Result<Self, EmbedError> {
        Err(EmbedError::NotBuilt)
    }

    /// The model's name; vectors of different models are not compared.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Endpoint(endpoint) => endpoint.model(),
            #[cfg(feature = "minilm")]
            Self::InProcess(model) => model.name(),
        }
    }

    /// The vectors of texts, in their order.
    ///
    /// # Errors
    ///
    /// Fails if embedding does; for a single text always with [`Lost::Now`].
    pub(super) async fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vector>, Lost> {
        let embedded = match self {
            Self::Endpoint(endpoint) => endpoint.embed(texts).await,
            #[cfg(feature = "minilm")]
            Self::InProcess(model) => model.embed(texts).await.ok_or(Lost::Batch),
        };
        embedded.map_err(|lost| if texts.len() > 1 { lost } else { Lost::Now })
    }
}
