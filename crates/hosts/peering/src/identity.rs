//! What proves who this daemon is, and whom it believes: the contents of the files that a
//! configuration names.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use ring::{digest, hmac};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{Authentication, Config, Fingerprint};
use crate::secret::{Psk, SecretError, read_private, read_public};
use crate::tls::{Method, Tls, describe_certificate, is_certificate_of, verify_own};

/// Keys and certificates, read from their files.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) name: String,
    pub(crate) method: Method,
    pub(crate) tls: Tls,
    common: Option<Psk>,
    /// By the peer's name.
    psks: HashMap<String, Psk>,
    fingerprints: HashMap<String, Fingerprint>,
    /// SHA-256 of the authorities' certificates.
    authorities: Option<[u8; 32]>,
    problems: Vec<String>,
}

/// Why there is no identity. The text says what to do.
#[derive(Debug)]
pub enum IdentityError {
    /// The configuration says nothing of authentication, so there are no control connections.
    Nothing,
    File(SecretError),
    /// What is in the file is not what should be there.
    Contents(PathBuf, &'static str),
    /// The certificate and the private key do not belong together, or are of a kind that cannot
    /// be used.
    Pair(PathBuf, String),
    Tls(String),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str(
                "the configuration does not say how daemons prove who they are: write in \
                 [daemon] psk_file = \"…\", or certificate, private_key and ca",
            ),
            Self::File(error) => error.fmt(f),
            Self::Contents(path, what) => write!(f, "{} has no {what}", path.display()),
            Self::Pair(path, why) => {
                let path = path.display();
                write!(
                    f,
                    "{path}, the certificate, does not go with the private key: {why}"
                )
            }
            Self::Tls(why) => write!(f, "TLS cannot be set up: {why}"),
        }
    }
}

impl std::error::Error for IdentityError {}

impl From<SecretError> for IdentityError {
    fn from(error: SecretError) -> IdentityError {
        IdentityError::File(error)
    }
}

impl Identity {
    /// Reads the files that the configuration names. They must be readable, so a daemon that
    /// gives privileges up reads them before, or owns them.
    ///
    /// # Errors
    /// A file is missing, can be read by others (keys), or has something else in it. A
    /// certificate that peers will refuse is no error, see [`Identity::problems`].
    pub fn load(config: &Config) -> Result<Identity, IdentityError> {
        let authentication = config.authentication.as_ref();
        match authentication.ok_or(IdentityError::Nothing)? {
            Authentication::None => Identity::without(config, Method::None),
            Authentication::Psk { file } => {
                let mut identity = Identity::without(config, Method::Psk)?;
                identity.common = file.as_deref().map(Psk::load).transpose()?;
                for peer in &config.peers {
                    if let Some(file) = &peer.psk_file {
                        let psk = Psk::load(file)?;
                        identity.psks.insert(peer.name.clone(), psk);
                    }
                }
                Ok(identity)
            }
            Authentication::Certificates {
                certificate,
                private_key,
                ca,
            } => Identity::with_certificates(config, certificate, private_key, ca),
        }
    }

    fn without(config: &Config, method: Method) -> Result<Identity, IdentityError> {
        let tls = Tls::without_certificates(method);
        let tls = tls.map_err(|error| IdentityError::Tls(error.to_string()))?;
        Ok(Identity {
            name: config.name.clone(),
            method,
            tls,
            common: None,
            psks: HashMap::new(),
            fingerprints: HashMap::new(),
            authorities: None,
            problems: Vec::new(),
        })
    }

    fn with_certificates(
        config: &Config,
        certificate: &Path,
        private_key: &Path,
        ca: &Path,
    ) -> Result<Identity, IdentityError> {
        let chain = certificates(certificate)?;
        let key = read_private(private_key)?;
        let key = PrivateKeyDer::from_pem_slice(&key);
        let key =
            key.map_err(|_| IdentityError::Contents(private_key.to_owned(), "private key (PEM)"))?;
        let mut roots = RootCertStore::empty();
        let mut authorities = certificates(ca)?;
        authorities.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
        authorities.dedup();
        for root in &authorities {
            let added = roots.add(root.clone());
            added.map_err(|_| IdentityError::Contents(ca.to_owned(), "authority's certificate"))?;
        }
        let all: Vec<&[u8]> = authorities.iter().map(AsRef::as_ref).collect();
        let authorities = sha256(&all.concat());
        let mut problems = Vec::new();
        if let Err(error) = verify_own(&chain, &roots) {
            let why = match &error {
                rustls::Error::InvalidCertificate(error) => describe_certificate(error),
                other => other.to_string(),
            };
            problems.push(format!("{} {why}", certificate.display()));
        }
        let own = chain.first();
        if !own.is_some_and(|own| is_certificate_of(own, &config.name)) {
            problems.push(format!(
                "{} is not for {}: its subjectAltName must have this DNS name, or name in \
                 [daemon] must be what the certificate has",
                certificate.display(),
                config.name
            ));
        }
        let tls = Tls::with_certificates(chain, key, roots)
            .map_err(|error| IdentityError::Pair(certificate.to_owned(), error.to_string()))?;
        let pinned = config.peers.iter().filter_map(|peer| {
            let fingerprint = peer.fingerprint?;
            Some((peer.name.clone(), fingerprint))
        });
        Ok(Identity {
            name: config.name.clone(),
            method: Method::Certificates,
            tls,
            common: None,
            psks: HashMap::new(),
            fingerprints: pinned.collect(),
            authorities: Some(authorities),
            problems,
        })
    }

    /// Why peers will refuse this daemon, as far as it can tell: its certificate has expired, say.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// 16 bytes that are the same for all daemons with one pre-shared key, or with the same
    /// authorities, to tell what they send from what others do. With certificates whoever has
    /// `ca` can compute them; without authentication, and where each peer has a key of its own,
    /// everybody can. They say nothing of the key.
    pub fn cluster(&self) -> [u8; 16] {
        let nothing = [0; 32];
        let secret = match (&self.common, &self.authorities) {
            (Some(psk), _) => psk.bytes(),
            (None, Some(authorities)) => authorities,
            (None, None) => &nothing,
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, b"sluice peering 1 cluster\0");
        tag.as_ref().first_chunk().copied().unwrap_or_default()
    }

    /// The key that this daemon and that peer have; `None` for an address that no peer is known
    /// at gives the key that all have.
    pub(crate) fn psk_for(&self, name: Option<&str>) -> Option<&Psk> {
        let own = name.and_then(|name| self.psks.get(name));
        own.or(self.common.as_ref())
    }

    /// Whether the certificate is that of this peer.
    pub(crate) fn believes(&self, certificate: &CertificateDer<'_>, name: &str) -> bool {
        let pinned = self.fingerprints.get(name);
        pinned.is_none_or(|pinned| pinned.0 == sha256(certificate))
            && is_certificate_of(certificate, name)
    }

    /// Whether that peer would be believed for the same reasons.
    pub(crate) fn trusts_alike(&self, other: &Identity, name: &str) -> bool {
        self.name == other.name
            && self.method == other.method
            && self.psk_for(Some(name)) == other.psk_for(Some(name))
            && self.authorities == other.authorities
            && self.fingerprints.get(name) == other.fingerprints.get(name)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let bytes = read_public(path)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match parsed {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(IdentityError::Contents(
            path.to_owned(),
            "certificate (PEM)",
        )),
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, bytes);
    let mut array = [0; 32];
    for (to, from) in array.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    array
}
