//! Somebody who speaks TLS and frames, and need not keep to any rule.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring::default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};

/// No read of a test waits longer.
const PATIENCE: Duration = Duration::from_secs(60);

trait Both: Read + Write + Send {}

impl<T: Read + Write + Send> Both for T {}

/// One end of a connection, blocking.
pub struct Raw {
    stream: Box<dyn Both>,
    input: Vec<u8>,
}

impl Raw {
    /// Connects as a dialer that authenticates with that protocol.
    pub fn connect(to: SocketAddr, protocol: &str) -> Raw {
        let socket = TcpStream::connect(to).unwrap();
        let provider = Arc::new(default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Gullible(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::try_from("x.invalid").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        Raw::new(StreamOwned::new(tls, patient(socket)))
    }

    /// Accepts one connection.
    pub fn accept(listener: &TcpListener, protocol: &str) -> Raw {
        Raw::serve(listener.accept().unwrap().0, protocol)
    }

    /// Is the other end of one that was accepted.
    pub fn serve(socket: TcpStream, protocol: &str) -> Raw {
        let provider = default_provider();
        let pair = rcgen::KeyPair::generate().unwrap();
        let key = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let public = CertificateDer::from(key.public_key().unwrap().to_vec());
        let own = Arc::new(CertifiedKey::new(vec![public], key));
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let tls = ServerConnection::new(Arc::new(config)).unwrap();
        Raw::new(StreamOwned::new(tls, patient(socket)))
    }

    fn new(stream: impl Both + 'static) -> Raw {
        Raw {
            stream: Box::new(stream),
            input: Vec::new(),
        }
    }

    /// Sends any bytes inside of TLS.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    pub fn send_frame(&mut self, kind: u8, body: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let frame = [&[kind], &length[1..], body].concat();
        self.send(&frame)
    }

    /// The next frame; `None` when the connection ends instead.
    pub fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let [kind, a, b, c, rest @ ..] = self.input.as_slice() {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if rest.len() >= length {
                    let frame = (*kind, rest[..length].to_vec());
                    self.input.drain(..4 + length);
                    return Some(frame);
                }
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input.extend(&bytes[..count]),
            }
        }
    }
}

fn patient(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A TCP connection from an address of its own.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(&socket, &SocketAddr::new(from.into(), 0))?;
    connect(&socket, &to)?;
    Ok(socket.into())
}

#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
