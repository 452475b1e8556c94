//! A small certificate authority, for those who have none.

use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::digest;
use time::{Duration, OffsetDateTime};

use crate::config::{Config, is_name};
use crate::identity::Identity;
use crate::limits::DAYS_MAX;
use crate::secret::{SecretError, read_private, read_public, to_hex, write_new, write_private};

/// Days that an authority's own certificate is valid.
pub const AUTHORITY_DAYS: u32 = 3_650;

/// Clocks of two hosts may differ by that much.
const CLOCK_SKEW: Duration = Duration::hours(1);

/// Why there is no certificate.
#[derive(Debug)]
pub enum AuthorityError {
    File(SecretError),
    /// No daemon's name; see [`is_name`].
    Name(String),
    /// 0, or more than [`DAYS_MAX`].
    Days,
    /// What is in the file is no private key.
    Key(String),
    /// No daemon would take what was made: `ca.pem` and `ca.key` do not belong together, say.
    Useless(String),
}

impl fmt::Display for AuthorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Name(name) => write!(
                f,
                "{name:?} is no daemon's name: write letters a-z, digits, - and _, with dots between"
            ),
            Self::Days => write!(f, "a certificate is valid for 1 to {DAYS_MAX} days"),
            Self::Key(why) => write!(f, "the authority's key cannot be used: {why}"),
            Self::Useless(why) => write!(
                f,
                "no daemon would take this certificate: {why}; are ca.pem and ca.key of one authority?"
            ),
        }
    }
}

impl std::error::Error for AuthorityError {}

impl From<SecretError> for AuthorityError {
    fn from(error: SecretError) -> AuthorityError {
        AuthorityError::File(error)
    }
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> AuthorityError {
        AuthorityError::Key(error.to_string())
    }
}

/// Makes an authority: `ca.key` (mode 0600), which need not be on any host that runs sluiced, and
/// `ca.pem`, which all of them have.
///
/// # Errors
/// One of the files is there already, or cannot be written.
pub fn create_authority(directory: &Path) -> Result<(), AuthorityError> {
    let key = KeyPair::generate()?;
    let params = authority_params(&key)?;
    let certificate = params.self_signed(&key)?;
    let private = directory.join("ca.key");
    write_private(&private, key.serialize_pem().as_bytes())?;
    let public = directory.join("ca.pem");
    write_new(&public, certificate.pem().as_bytes(), 0o644).map_err(|error| {
        let _ = fs::remove_file(&private);
        error.into()
    })
}

/// Makes `NAME.key` (mode 0600) and `NAME.pem` for the daemon of that name, signed with the
/// authority's key in the same directory, valid from now on.
///
/// # Errors
/// No such authority, or one of the files is there already.
pub fn issue_certificate(directory: &Path, name: &str, days: u32) -> Result<(), AuthorityError> {
    let file = |end: &str| directory.join(format!("{name}.{end}"));
    issue(directory, name, days, &file("key"), &file("pem"))
}

/// Makes the folder `NAME` (mode 0700) beside the authority's files, with what `/etc/sluice` of that
/// host is to have: `ca.pem`, `host.pem`, `host.key`, a `sluiced.toml` that names them, and `environment`,
/// by which `sluiced.service` reads that. It has a
/// `[[peer]]` for each of `peers`, or without any a `[discovery]`, by which hosts find each other.
/// Returns the folder's path.
///
/// # Errors
/// As [`issue_certificate`], or the folder is there already, or a daemon would not take what was made.
/// Nothing stays of a folder that could not be finished.
pub fn issue_folder(
    directory: &Path,
    name: &str,
    days: u32,
    peers: &[(String, SocketAddr)],
) -> Result<PathBuf, AuthorityError> {
    check(name, days)?;
    for (peer, _) in peers {
        if !is_name(peer) || peer == name {
            return Err(AuthorityError::Name(peer.clone()));
        }
    }
    let certificate = read_public(&directory.join("ca.pem"))?;
    let folder = directory.join(name);
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => SecretError::Exists(folder.clone()),
        _ => SecretError::Write(folder.clone(), error.to_string()),
    })?;
    let fill = || {
        let file = |name: &str| folder.join(name);
        issue(directory, name, days, &file("host.key"), &file("host.pem"))?;
        write_new(&file("ca.pem"), &certificate, 0o644)?;
        let text = configuration(name, peers);
        write_private(&file("sluiced.toml"), text.as_bytes())?;
        write_private(&file("environment"), ENVIRONMENT.as_bytes())?;
        would_be_taken(&file("sluiced.toml"))
    };
    fill().inspect_err(|_| {
        let _ = fs::remove_dir_all(&folder);
    })?;
    Ok(folder)
}

/// Read by `sluiced.service` before `/etc/default/sluiced`.
const ENVIRONMENT: &str = "SLUICED_OPTIONS=--config /etc/sluice/sluiced.toml\n";

fn configuration(name: &str, peers: &[(String, SocketAddr)]) -> String {
    let mut text = format!(
        "# Of sluiced on {name}, made by 'sluice ca host'. sluiced.toml(5) has every key.\n\n\
         [daemon]\n\
         name = \"{name}\"\n\
         certificate = \"host.pem\"\n\
         private_key = \"host.key\"\n\
         ca = \"ca.pem\"\n"
    );
    if peers.is_empty() {
        text.push_str(
            "\n# Hosts with a certificate of the same authority find each other on networks that are not the\n\
             # internet's. \"networks\" says on which others, or on which of these alone.\n\
             [discovery]\n",
        );
    }
    for (peer, address) in peers {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n[[peer]]\nname = \"{peer}\"\ncontrol = \"{address}\"\n"
        );
    }
    text
}

/// Reads the configuration and what it names as the daemon will.
fn would_be_taken(configuration: &Path) -> Result<(), AuthorityError> {
    let useless = |error: &dyn fmt::Display| AuthorityError::Useless(error.to_string());
    let config = Config::load(configuration).map_err(|error| useless(&error))?;
    let identity = Identity::load(&config).map_err(|error| useless(&error))?;
    match identity.problems().first() {
        None => Ok(()),
        Some(problem) => Err(useless(problem)),
    }
}

fn check(name: &str, days: u32) -> Result<(), AuthorityError> {
    if !is_name(name) || name == "ca" {
        return Err(AuthorityError::Name(name.to_owned()));
    }
    if days == 0 || days > DAYS_MAX {
        return Err(AuthorityError::Days);
    }
    Ok(())
}

fn issue(
    directory: &Path,
    name: &str,
    days: u32,
    private: &Path,
    public: &Path,
) -> Result<(), AuthorityError> {
    check(name, days)?;
    let authority = read_private(&directory.join("ca.key"))?;
    let authority = String::from_utf8_lossy(&authority);
    let authority = KeyPair::from_pem(&authority)?;
    let issuer = Issuer::new(authority_params(&authority)?, authority);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + Duration::days(i64::from(days));
    let certificate = params.signed_by(&key, &issuer)?;
    write_private(private, key.serialize_pem().as_bytes())?;
    if let Err(error) = write_new(public, certificate.pem().as_bytes(), 0o644) {
        // A key without its certificate would only be in the way.
        let _ = fs::remove_file(private);
        return Err(error.into());
    }
    Ok(())
}

/// What follows from the key alone, so that the certificate need not be read to sign with it. Its
/// time begins when it is made and goes into that certificate only.
fn authority_params(key: &KeyPair) -> Result<CertificateParams, AuthorityError> {
    let digest = digest::digest(&digest::SHA256, key.public_key_raw());
    let short = digest.as_ref().get(..4).map(to_hex).unwrap_or_default();
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = format!("Sluice peers {short}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + Duration::days(i64::from(AUTHORITY_DAYS));
    Ok(params)
}
