//! Keys of endpoints, from an environment variable or a file: never from the configuration itself, as that is shown.

use std::io;
use std::path::{Path, PathBuf};

use crate::files;
use crate::secret::Secret;

/// Why a key cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("failed to read {} (`{option}`)", path.display())]
    Read {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The key in a file, or else in an environment variable; `None` if there is neither.
///
/// # Errors
///
/// Fails if a file is named and cannot be read.
pub fn read(option: &'static str, file: &Path, variable: &str) -> Result<Option<Secret>, KeyError> {
    if !file.as_os_str().is_empty() {
        let text = files::read_text(file).map_err(|source| KeyError::Read {
            option,
            path: file.to_owned(),
            source,
        })?;
        return Ok(Secret::new(&text));
    }
    if variable.is_empty() {
        return Ok(None);
    }
    #[expect(clippy::disallowed_methods, reason = "part of reading the configuration, once")]
    let value = std::env::var(variable);
    Ok(value.ok().and_then(|text| Secret::new(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_before_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "from-the-file\n").unwrap();
        let key = read("judge.api_key_file", &file, "PATH").unwrap();
        assert_eq!(key, Secret::new("from-the-file"));
        assert!(read("judge.api_key_file", Path::new(""), "PATH").unwrap().is_some());
        assert!(read("judge.api_key_file", Path::new(""), "").unwrap().is_none());
        assert!(read("judge.api_key_file", Path::new(""), "NO_SUCH_VARIABLE").unwrap().is_none());
        let error = read("judge.api_key_file", Path::new("/nowhere/key"), "").unwrap_err();
        assert!(error.to_string().contains("/nowhere/key"), "{error}");
    }
}
