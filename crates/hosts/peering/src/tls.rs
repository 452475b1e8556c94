//! TLS 1.3 (RFC 8446) for each way to authenticate.
//!
//! With a pre-shared key, or with none, the accepting daemon shows a raw public key (RFC 7250) that it
//! made for itself when it started and that nobody knows: who the other one is, is proven inside the
//! connection (see [`proof`](crate::proof)), or not at all. TLS's own pre-shared keys are not
//! what rustls offers.

use std::fmt;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore,
    ServerConfig, SignatureScheme,
};

/// How daemons prove who they are; both must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Psk,
    Certificates,
    None,
}

impl Method {
    /// The name of the protocol inside (ALPN, RFC 7301): daemons that authenticate in different
    /// ways, and servers of other kinds, find that out at once.
    pub fn protocol(self) -> &'static [u8] {
        match self {
            Self::Psk => b"sluice-peering-psk",
            Self::Certificates => b"sluice-peering-certificates",
            Self::None => b"sluice-peering-none",
        }
    }
}

/// As it is written in the configuration.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Psk => "psk",
            Self::Certificates => "certificates",
            Self::None => "none",
        })
    }
}

/// What this daemon shows and whom it trusts, for connections in either direction.
#[derive(Clone, Debug)]
pub struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Tls {
    /// With certificates on both sides.
    ///
    /// # Errors
    /// The key is not that of the certificate, or neither is one.
    pub fn with_certificates(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: RootCertStore,
    ) -> Result<Tls, Error> {
        let provider = provider();
        let signed = Arc::new(AnyName {
            roots: roots.clone(),
            algorithms: provider.signature_verification_algorithms,
        });
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(signed)
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        Ok(Tls::finish(Method::Certificates, client, server))
    }

    /// With a key that means nothing, made now.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn without_certificates(method: Method) -> Result<Tls, Error> {
        let provider = provider();
        let anybody = Arc::new(AnyKey(provider.signature_verification_algorithms));
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(anybody)
            .with_no_client_auth();
        let own = Arc::new(new_key(&provider)?);
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
        Ok(Tls::finish(method, client, server))
    }

    fn finish(method: Method, mut client: ClientConfig, mut server: ServerConfig) -> Tls {
        let protocols = vec![method.protocol().to_vec()];
        client.alpn_protocols.clone_from(&protocols);
        server.alpn_protocols = protocols;
        // Names are those of daemons and are checked inside.
        client.enable_sni = false;
        // Each connection is authenticated anew.
        client.resumption = Resumption::disabled();
        server.send_tls13_tickets = 0;
        Tls {
            client: Arc::new(client),
            server: Arc::new(server),
        }
    }
}

/// A key pair, with its public half in the place of a certificate.
fn new_key(provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let general = |why: &str| Error::General(why.to_owned());
    let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
        .map_err(|_| general("no key can be made"))?;
    let pair = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.as_ref().to_vec()));
    let key = provider.key_provider.load_private_key(pair)?;
    let public = key.public_key().ok_or_else(|| general("no public key"))?;
    let public = CertificateDer::from(public.to_vec());
    Ok(CertifiedKey::new(vec![public], key))
}

/// Whether the certificate is that of the daemon with this name (a DNS name in its
/// subjectAltName, RFC 6125).
pub fn is_certificate_of(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else {
        return false;
    };
    let Ok(name) = ServerName::try_from(name) else {
        return false;
    };
    verify_server_name(&parsed, &name).is_ok()
}

/// What a peer with these roots would say of the certificate; for a look at one's own.
pub fn verify_own(chain: &[CertificateDer<'static>], roots: &RootCertStore) -> Result<(), Error> {
    let Some((own, intermediates)) = chain.split_first() else {
        return Err(Error::NoCertificatesPresented);
    };
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms.all;
    let parsed = ParsedCertificate::try_from(own)?;
    let now = UnixTime::now();
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
    let roots = Arc::new(roots.clone());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    verifier.verify_client_cert(own, intermediates, now)?;
    Ok(())
}

/// Accepts servers that have the key of their certificate, whatever their names: the name comes later,
/// and is checked then.
#[derive(Debug)]
struct AnyName {
    /// Who must have signed the certificate.
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts servers that have the private half of the key that they show, whichever it is.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// What is wrong with a certificate, in words.
pub fn describe_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet: compare the clocks of the hosts".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by the authority in ca".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for both servers and clients (extended key usage)".to_owned()
        }
        other => format!("is refused: {other}"),
    }
}
