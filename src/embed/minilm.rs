//! A sentence-transformers model, in this process.
//!
//! ```text
//! vector = normalise(mean over tokens of BERT(tokens of the text))
//! ```
//!
//! The model is a directory as written by old and new versions of `SentenceTransformer.save`: `modules.json` lists the steps.
//! Supported are BERT as the transformer, pooling by the mean of all tokens or by the first token, and normalising; anything else
//! is refused when the directory is read. Source: sentence-transformers (2.0 to 6.2), and candle's BERT.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};
use tokenizers::{Tokenizer, TruncationParams};
use xxhash_rust::xxh3::xxh3_64;

use super::{EmbedOptions, Vector};
use crate::blocking::blocking;

/// A loaded model.
pub struct Model {
    tokenizer: Tokenizer,
    bert: BertModel,
    pooling: Pooling,
    normalises: bool,
    pool: ThreadPool,
    // The hash of its weights.
    print: u64,
}

/// The model that the daemon embeds texts with, and its name.
#[derive(Clone, Debug)]
pub(super) struct InProcess {
    name: String,
    model: Arc<Model>,
}

/// Why a model cannot be loaded, or a text cannot be embedded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file has the wrong content.
    #[error("cannot use {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The model failed.
    #[error("cannot embed: {0}")]
    Embed(#[from] candle_core::Error),
    /// The tokenizer failed.
    #[error("cannot split a text into tokens: {0}")]
    Tokens(String),
    /// Its threads cannot be started.
    #[error("cannot start threads for the model: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Pooling {
    /// The vector of the first token.
    First,
    /// The mean of all tokens.
    Mean,
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: PathBuf,
    #[serde(rename = "type")]
    kind: String,
}

/// `sentence_bert_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

/// `tokenizer_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    // Some models use a number of thirty digits for no limit.
    model_max_length: Option<Number>,
}

/// `config_sentence_transformers.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Prompts {
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
}

impl Model {
    /// Loads the model of a directory, to compute on this many threads.
    ///
    /// # Errors
    ///
    /// Fails if a file is missing, or needs something that is not supported.
    pub fn load(directory: &Path, threads: usize) -> Result<Self, ModelError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|_| "minilm".to_owned())
            .build()?;
        let list = directory.join("modules.json");
        let modules: Vec<Module> = json(&list)?;
        let kinds: Vec<&str> = modules.iter().map(Module::short_kind).collect();
        let (transformer, pooling, normalises) = match (&kinds[..], &modules[..]) {
            (["Transformer", "Pooling"], [first, second]) => (first, second, false),
            (["Transformer", "Pooling", "Normalize"], [first, second, _]) => (first, second, true),
            _ => {
                let why = format!(
                    "only Transformer, Pooling and Normalize are known, in this order; these are {kinds:?}"
                );
                return Err(ModelError::File { path: list, why });
            }
        };
        no_prompt(&directory.join("config_sentence_transformers.json"))?;
        let pooling = Pooling::read(&directory.join(&pooling.path).join("config.json"))?;
        let home = directory.join(&transformer.path);
        let path = home.join("config.json");
        let config: Config = json(&path)?;
        if config.model_type.as_deref().is_some_and(|kind| kind != "bert") {
            let why = "`model_type` must be bert".to_owned();
            return Err(ModelError::File { path, why });
        }
        let tokenizer = tokenizer(&home, config.max_position_embeddings)?;
        let path = home.join("model.safetensors");
        let weights = bytes(&path)?;
        let print = xxh3_64(&weights);
        let load = || {
            VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)
                .and_then(|weights| BertModel::load(weights, &config))
        };
        // On the model's own threads: elsewhere loading would start as many as there are cores.
        let bert = pool
            .install(load)
            .map_err(|error| ModelError::File { path, why: error.to_string() })?;
        Ok(Self { tokenizer, bert, pooling, normalises, pool, print })
    }

    /// The vectors of texts, in their order.
    ///
    /// # Errors
    ///
    /// Fails if the model does.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        // One by one: a batch would pad all texts to the longest, and gains nothing on a CPU.
        self.pool.install(|| texts.iter().map(|text| self.vector(text)).collect())
    }

    fn vector(&self, text: &str) -> Result<Vec<f32>, ModelError> {
        let encoding = self
            .tokenizer
            .encode(text, true)
            .map_err(|error| ModelError::Tokens(error.to_string()))?;
        let tokens = Tensor::new(encoding.get_ids(), &Device::Cpu)?.unsqueeze(0)?;
        let states = self.bert.forward(&tokens, &tokens.zeros_like()?, None)?.squeeze(0)?;
        let vector = match self.pooling {
            Pooling::First => states.get(0)?,
            Pooling::Mean => states.mean(0)?,
        };
        let vector = if self.normalises {
            // The least length is torch's: so a vector of zeros stays one.
            let length = f64::from(vector.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>()?).max(1e-12);
            (vector / length)?
        } else {
            vector
        };
        Ok(vector.to_vec1()?)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("pooling", &self.pooling).finish_non_exhaustive()
    }
}

impl InProcess {
    pub(super) fn new(options: &EmbedOptions) -> Result<Self, ModelError> {
        let folder = options.directory.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = Some(options.model.clone()).filter(|name| !name.is_empty()).or(folder);
        let model = Arc::new(Model::load(&options.directory, options.threads)?);
        // Models with different weights often have folders of the same name.
        let name = format!("{}@{:016x}", name.unwrap_or_default(), model.print);
        Ok(Self { name, model })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The vectors of texts, in their order; `None` if the model fails.
    pub(super) async fn embed(&self, texts: &[&str]) -> Option<Vec<Vector>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for text in texts {
            let (model, text) = (Arc::clone(&self.model), (*text).to_owned());
            // One at a time, so that a stop waits for one text at most.
            let embedded = blocking(move || model.embed(&[&text]));
            vectors.push(Vector::from(embedded.await.ok()?.ok()?.pop()?));
        }
        Some(vectors)
    }
}

impl Module {
    /// The name of its class, without the module.
    fn short_kind(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }
}

impl Pooling {
    /// Reads the way to pool: old versions have a switch for each way, new ones a name or several; without any it is the mean.
    fn read(path: &Path) -> Result<Self, ModelError> {
        let config: BTreeMap<String, Value> = json(path)?;
        let modes: Vec<&str> = match config.get("pooling_mode") {
            Some(modes) => {
                let several = modes.as_array().into_iter().flatten();
                several.chain([modes]).filter_map(Value::as_str).collect()
            }
            None => {
                let on = config.iter().filter(|(_, switch)| switch.as_bool() == Some(true));
                on.filter_map(|(name, _)| name.strip_prefix("pooling_mode_")).collect()
            }
        };
        match modes.as_slice() {
            [] | ["mean" | "mean_tokens"] => Ok(Self::Mean),
            ["cls" | "cls_token"] => Ok(Self::First),
            other => Err(ModelError::File {
                path: path.to_owned(),
                why: format!(
                    "only the mean of all tokens and the first token alone are known, not {other:?}"
                ),
            }),
        }
    }
}

/// Refuses a model that puts a prompt before each text.
fn no_prompt(path: &Path) -> Result<(), ModelError> {
    let Prompts { prompts, default_prompt_name } = if_there(path)?;
    let prompt = default_prompt_name.and_then(|name| prompts.get(&name)?.clone());
    if prompt.is_none_or(|prompt| prompt.is_empty()) {
        return Ok(());
    }
    let why = "`default_prompt_name` names a prompt, and prompts are not known".to_owned();
    Err(ModelError::File { path: path.to_owned(), why })
}

/// Loads the tokenizer, which truncates texts at the model's limit and adds no padding.
fn tokenizer(home: &Path, max_positions: usize) -> Result<Tokenizer, ModelError> {
    let limits: Limits = if_there(&home.join("sentence_bert_config.json"))?;
    let config: TokenizerConfig = if_there(&home.join("tokenizer_config.json"))?;
    let path = home.join("tokenizer.json");
    let failed = |why: String| ModelError::File { path: path.clone(), why };
    if limits.do_lower_case {
        return Err(failed("`do_lower_case` outside the tokenizer is not known".to_owned()));
    }
    let mut tokenizer =
        Tokenizer::from_bytes(bytes(&path)?).map_err(|error| failed(error.to_string()))?;
    // New versions have the limit only in the configuration of the tokenizer.
    let of_tokenizer = config.model_max_length.and_then(|length| length.as_u64()?.try_into().ok());
    let max_length = limits.max_seq_length.or(of_tokenizer).unwrap_or(max_positions);
    let max_length = max_length.min(max_positions);
    let truncation = TruncationParams { max_length, ..TruncationParams::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(|error| failed(error.to_string()))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn bytes(path: &Path) -> Result<Vec<u8>, ModelError> {
    fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })
}

/// The content of a file, or the default if there is no such file.
fn if_there<T: Default + DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    if path.exists() { json(path) } else { Ok(T::default()) }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let failed = |error: serde_json::Error| ModelError::File {
        path: path.to_owned(),
        why: error.to_string(),
    };
    serde_json::from_slice(&bytes(path)?).map_err(failed)
}
