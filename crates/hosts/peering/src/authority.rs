//! A small certificate authority, for those who have none.

use std::fmt;
use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::digest;
use time::{Duration, OffsetDateTime};

use crate::config::is_name;
use crate::secret::{SecretError, read_private, to_hex, write_new, write_private};

/// Days that an authority's own certificate is valid.
pub const AUTHORITY_DAYS: u32 = 3_650;

/// Days that a certificate is valid at most.
pub const DAYS_MAX: u32 = 3_650;

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
    write_private(&directory.join("ca.key"), key.serialize_pem().as_bytes())?;
    write_new(
        &directory.join("ca.pem"),
        certificate.pem().as_bytes(),
        0o644,
    )?;
    Ok(())
}

/// Makes `NAME.key` (mode 0600) and `NAME.pem` for the daemon of that name, signed with the
/// authority's key in the same directory, valid from now on.
///
/// # Errors
/// No such authority, or one of the files is there already.
pub fn issue_certificate(directory: &Path, name: &str, days: u32) -> Result<(), AuthorityError> {
    if !is_name(name) || name == "ca" {
        return Err(AuthorityError::Name(name.to_owned()));
    }
    if days == 0 || days > DAYS_MAX {
        return Err(AuthorityError::Days);
    }
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
    let private = directory.join(format!("{name}.key"));
    write_private(&private, key.serialize_pem().as_bytes())?;
    let public = directory.join(format!("{name}.pem"));
    if let Err(error) = write_new(&public, certificate.pem().as_bytes(), 0o644) {
        // A key without its certificate would only be in the way.
        let _ = fs::remove_file(&private);
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
