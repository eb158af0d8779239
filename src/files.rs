//! Reads the files that options name: settings, keys, certificates, expectations; and finds how many files may be open.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of such a file. A larger one was named by mistake, such as a device that never ends.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a whole file.
///
/// # Errors
///
/// Fails if the file cannot be read, and if it has more than 16 MiB.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let why = format!("it has more than the {MAX_BYTES} bytes that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads a whole file of text.
///
/// # Errors
///
/// As [`read`], and if the file is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// How many files this process may have open, if known.
pub fn most_open() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, getrlimit};
        getrlimit(Resource::Nofile).current
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("16777216 bytes"), "{error}");
    }

    #[test]
    fn a_file_at_the_limit_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let most = usize::try_from(MAX_BYTES).unwrap();
        std::fs::write(&path, vec![b'x'; most]).unwrap();
        assert_eq!(read(&path).unwrap().len(), most);
        assert_eq!(read_text(&path).unwrap().len(), most);
        std::fs::write(&path, vec![b'x'; most + 1]).unwrap();
        assert!(read(&path).is_err());
    }
}
