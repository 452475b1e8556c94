//! Files that nobody else may read: pre-shared keys and private keys.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a pre-shared key. Peers show each other a digest that it goes into, so it must be long
/// enough that nobody finds it by trying; for the same reason it is made, and never thought of.
pub const PSK_BYTES: usize = 32;

/// Bytes of a file with a key or certificates at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A pre-shared key.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk([u8; PSK_BYTES]);

/// Says nothing of it.
impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(…)")
    }
}

/// Why a file with a key or a certificate cannot be used. The text names it and says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// The system's reason.
    Read(PathBuf, String),
    /// Mode bits for group or others are set.
    Readable(PathBuf),
    /// It belongs to neither root nor the user that runs this.
    Owner(PathBuf),
    TooLong(PathBuf),
    /// No line of 64 hexadecimal digits.
    NoPsk(PathBuf),
    /// There is a file already; nothing was written.
    Exists(PathBuf),
    Write(PathBuf, String),
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, why) | Self::Write(path, why) => {
                write!(f, "{}: {why}", path.display())
            }
            Self::Readable(path) => {
                let path = path.display();
                write!(f, "{path} can be read by others: chmod 600 {path}")
            }
            Self::Owner(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path} belongs to another user: chown it to the one sluiced runs as"
                )
            }
            Self::TooLong(path) => write!(f, "{} is too long for a key", path.display()),
            Self::NoPsk(path) => write!(
                f,
                "{} has no line of {} hexadecimal digits, which `openssl rand -hex {PSK_BYTES}` \
                 writes",
                path.display(),
                2 * PSK_BYTES
            ),
            Self::Exists(path) => {
                write!(f, "{} is there already: move it away first", path.display())
            }
        }
    }
}

impl std::error::Error for SecretError {}

impl Psk {
    /// A key of given bytes.
    #[cfg(test)]
    pub const fn new(bytes: [u8; PSK_BYTES]) -> Psk {
        Psk(bytes)
    }

    /// Reads a file with 64 hexadecimal digits on a line; empty lines and those that begin with
    /// `#` do not count.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or it says something else.
    pub fn load(path: &Path) -> Result<Psk, SecretError> {
        let bytes = read_private(path)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        match (lines.next().and_then(from_hex), lines.next()) {
            (Some(key), None) => Ok(Psk(key)),
            _ => Err(SecretError::NoPsk(path.to_owned())),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8; PSK_BYTES] {
        &self.0
    }
}

/// Makes a key and writes it to a new file that only its owner may read (mode 0600).
///
/// # Errors
/// There is something at `path` already, or it cannot be written.
pub fn generate_psk(path: &Path) -> Result<(), SecretError> {
    let mut text = to_hex(&random::<PSK_BYTES>().map_err(|why| {
        let path = path.to_owned();
        SecretError::Write(path, why.to_string())
    })?);
    text.push('\n');
    write_private(path, text.as_bytes())
}

/// Bytes that nobody can know.
///
/// # Errors
/// The system has none.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(bytes)
}

/// Writes a new file of mode 0600.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), SecretError> {
    write_new(path, bytes, 0o600)
}

/// Writes a new file of that mode, less what the umask takes.
pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SecretError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => SecretError::Exists(path.to_owned()),
        _ => SecretError::Write(path.to_owned(), error.to_string()),
    };
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(mode);
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// The contents of a file that must be private.
pub(crate) fn read_private(path: &Path) -> Result<Vec<u8>, SecretError> {
    let failed = |error: io::Error| SecretError::Read(path.to_owned(), error.to_string());
    let file = File::open(path).map_err(failed)?;
    // Of the open file: the path may lead elsewhere by now.
    let meta = file.metadata().map_err(failed)?;
    if meta.mode() & 0o077 != 0 {
        return Err(SecretError::Readable(path.to_owned()));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(SecretError::Owner(path.to_owned()));
    }
    read_open(path, file)
}

/// The contents of a file that anybody may read.
pub(crate) fn read_public(path: &Path) -> Result<Vec<u8>, SecretError> {
    let failed = |error: io::Error| SecretError::Read(path.to_owned(), error.to_string());
    read_open(path, File::open(path).map_err(failed)?)
}

fn read_open(path: &Path, file: File) -> Result<Vec<u8>, SecretError> {
    let failed = |error: io::Error| SecretError::Read(path.to_owned(), error.to_string());
    let mut bytes = Vec::new();
    let mut file = file.take(FILE_BYTES_MAX + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(SecretError::TooLong(path.to_owned()));
    }
    Ok(bytes)
}

/// 64 hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 {
        return None;
    }
    let mut digits = text.chars().map(|digit| digit.to_digit(16));
    let mut bytes = [0; 32];
    for byte in &mut bytes {
        let (high, low) = (digits.next()??, digits.next()??);
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_key_that_was_made_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peering.key");
        generate_psk(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let key = Psk::load(&path).unwrap();
        assert_eq!(format!("{key:?}"), "Psk(…)");
        let other = dir.path().join("other.key");
        generate_psk(&other).unwrap();
        assert_ne!(Psk::load(&other).unwrap(), key);
        // It is not lost to a second call.
        let error = generate_psk(&path).unwrap_err();
        assert_eq!(error, SecretError::Exists(path.clone()));
        assert_eq!(Psk::load(&path).unwrap(), key);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        generate_psk(&path).unwrap();
        for mode in [0o640, 0o604, 0o666] {
            chmod(&path, mode);
            let text = Psk::load(&path).unwrap_err().to_string();
            assert!(text.contains("chmod 600 /"), "{text}");
        }
        chmod(&path, 0o400);
        Psk::load(&path).unwrap();
    }

    #[test]
    fn other_texts_are_no_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let good = "0f".repeat(32);
        for (text, is_good) in [
            (good.clone(), true),
            (format!("# for all\n\n  {}  \n", good.to_uppercase()), true),
            (String::new(), false),
            ("secret".into(), false),
            (good.replace('f', "g"), false),
            (format!("{good}0"), false),
            (format!("{good}\n{good}"), false),
            ("é".repeat(32), false),
        ] {
            let _ = fs::remove_file(&path);
            write_private(&path, text.as_bytes()).unwrap();
            assert_eq!(Psk::load(&path).is_ok(), is_good, "{text:?}");
        }
        fs::write(&path, vec![b'0'; 2 << 20]).unwrap();
        assert_eq!(Psk::load(&path), Err(SecretError::TooLong(path)));
    }
}
