//! One TCP connection with TLS on it, and frames in that. Never blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConnection, Connection, Error, ServerConnection};

use crate::event::Why;
use crate::frame::{self, Kind};
use crate::limits::{READ_BYTES_PER_TURN, STRANGER_BYTES_MAX};
use crate::proof::{BINDING_LABEL, Binding, EXPORTER_BYTES, EXPORTER_LABEL, Side};
use crate::tls::{Method, Tls, describe_certificate};

/// Plaintext given to TLS at a time: one record (RFC 8446 5.1).
const RECORD_BYTES: usize = 16 << 10;

/// A connection, from the moment that the kernel begins to make it.
#[derive(Debug)]
pub struct Channel {
    socket: TcpStream,
    tls: Connection,
    method: Method,
    /// Frames that came; those before `taken` were handled.
    input: Vec<u8>,
    taken: usize,
    /// Frames that wait; what is before `written` was given to TLS.
    output: Vec<u8>,
    written: usize,
    /// Bytes from the network while it may not bring more than [`STRANGER_BYTES_MAX`].
    stranger_bytes: Option<usize>,
    has_ended: bool,
}

impl Channel {
    /// Over a socket that does not block.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(socket: TcpStream, side: Side, tls: &Tls, method: Method) -> Result<Channel, Why> {
        let failed = |error: Error| Why::Tls(error.to_string());
        let tls: Connection = match side {
            Side::Dialer => {
                // Never sent, see `Tls`; certificates are compared with names of daemons.
                let name = ServerName::try_from("sluice.invalid");
                let name = name.map_err(|error| Why::Tls(error.to_string()))?;
                let config = Arc::clone(&tls.client);
                ClientConnection::new(config, name).map_err(failed)?.into()
            }
            Side::Acceptor => {
                let config = Arc::clone(&tls.server);
                ServerConnection::new(config).map_err(failed)?.into()
            }
        };
        // Messages are short and somebody waits for them. Without it they are only later.
        let _ = socket.set_nodelay(true);
        Ok(Channel {
            socket,
            tls,
            method,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            written: 0,
            stranger_bytes: Some(0),
            has_ended: false,
        })
    }

    /// The outcome of connecting.
    pub fn connected(&self) -> Result<(), Why> {
        match self.socket.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(Why::Io(error.kind())),
        }
    }

    /// Reads what is there, at most [`READ_BYTES_PER_TURN`] and one record. Returns whether
    /// anything came.
    ///
    /// # Errors
    /// The connection is of no use any more. What came before is still there to be taken.
    pub fn receive(&mut self) -> Result<bool, Why> {
        let mut bytes = 0;
        while bytes < READ_BYTES_PER_TURN && !self.has_ended {
            let count = match self.tls.read_tls(&mut &self.socket) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(Why::Lost);
                }
                Err(error) => return Err(Why::Io(error.kind())),
            };
            bytes += count;
            self.has_ended |= count == 0;
            if let Some(before) = &mut self.stranger_bytes {
                *before += count;
                if *before > STRANGER_BYTES_MAX {
                    return Err(Why::TooMuch);
                }
            }
            let state = match self.tls.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    // The alert, if the other side still takes it.
                    let _ = self.tls.write_tls(&mut &self.socket);
                    return Err(self.describe(error));
                }
            };
            self.take_plaintext(state.plaintext_bytes_to_read())?;
            self.has_ended |= state.peer_has_closed();
        }
        Ok(bytes > 0)
    }

    fn take_plaintext(&mut self, count: usize) -> Result<(), Why> {
        if count == 0 {
            return Ok(());
        }
        self.input.drain(..self.taken);
        self.taken = 0;
        let before = self.input.len();
        self.input.resize(before + count, 0);
        let fresh = self.input.get_mut(before..).unwrap_or_default();
        let read = self.tls.reader().read_exact(fresh);
        read.map_err(|error| Why::Io(error.kind()))
    }

    /// The next frame that is complete.
    ///
    /// # Errors
    /// What comes is no frame.
    pub fn take_frame(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Why> {
        let bytes = self.input.get(self.taken..).unwrap_or_default();
        match frame::split(bytes).map_err(Why::Frame)? {
            Some(frame) => {
                let (kind, body, bytes) = (frame.kind, frame.body.to_vec(), frame.bytes());
                self.taken += bytes;
                Ok(Some((kind, body)))
            }
            None => {
                if self.taken == self.input.len() {
                    // Most of the time nothing is under way: no memory is kept for it.
                    self.input = Vec::new();
                    self.taken = 0;
                }
                Ok(None)
            }
        }
    }

    /// Reads what is there and forgets it; for a connection that is over. Returns whether the
    /// other side has closed it as well.
    pub fn drain(&mut self) -> bool {
        let mut scratch = [0; 4096];
        for _ in 0..READ_BYTES_PER_TURN / scratch.len() {
            match (&self.socket).read(&mut scratch) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
        false
    }

    /// Adds a frame to what waits; [`Channel::flush`] sends it.
    pub fn queue(&mut self, kind: Kind, body: &[u8]) {
        frame::append(&mut self.output, kind, body);
    }

    /// Bytes of frames that wait.
    pub fn queued(&self) -> usize {
        self.output.len() - self.written
    }

    /// Sends what the kernel takes.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn flush(&mut self) -> Result<(), Why> {
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut &self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return unless_full(&error),
                }
            }
            if self.tls.is_handshaking() || self.queued() == 0 {
                return Ok(());
            }
            let end = self.output.len().min(self.written + RECORD_BYTES);
            let chunk = self.output.get(self.written..end).unwrap_or_default();
            let accepted = self.tls.writer().write(chunk);
            self.written += accepted.map_err(|error| Why::Io(error.kind()))?;
            if self.queued() == 0 {
                self.output = Vec::new();
                self.written = 0;
            } else if self.written >= self.output.len() / 2 {
                self.output.drain(..self.written);
                self.written = 0;
            }
        }
    }

    /// Whether something waits for the kernel.
    pub fn wants_write(&self) -> bool {
        self.tls.wants_write() || (!self.tls.is_handshaking() && self.queued() > 0)
    }

    /// Whether the other side will send nothing more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether TLS is set up. The other side may still refuse our certificate after that.
    ///
    /// # Errors
    /// It is, and the other side speaks another protocol inside.
    pub fn is_ready(&self) -> Result<bool, Why> {
        if self.tls.is_handshaking() {
            return Ok(false);
        }
        // A server or client that knows nothing of ALPN passes it over.
        if self.tls.alpn_protocol() != Some(self.method.protocol()) {
            return Err(Why::Method { ours: self.method });
        }
        Ok(true)
    }

    /// The secret that stands for this connection and no other.
    ///
    /// # Errors
    /// TLS is not set up yet.
    pub fn exporter(&self) -> Result<[u8; EXPORTER_BYTES], Why> {
        self.export(EXPORTER_LABEL)
    }

    /// The secret of the session on this connection.
    ///
    /// # Errors
    /// TLS is not set up yet.
    pub fn binding(&self) -> Result<Binding, Why> {
        self.export(BINDING_LABEL).map(Binding::new)
    }

    fn export(&self, label: &[u8]) -> Result<[u8; EXPORTER_BYTES], Why> {
        let secret = [0; EXPORTER_BYTES];
        let exported = self.tls.export_keying_material(secret, label, None);
        exported.map_err(|error| Why::Tls(error.to_string()))
    }

    /// The other side's own certificate, verified as far as the method does that.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates()?.first()
    }

    /// The other side has proven who it is, and may send as much as it likes.
    pub fn trust(&mut self) {
        self.stranger_bytes = None;
    }

    /// Sends what waits and says that nothing follows.
    pub fn say_goodbye(&mut self) {
        // The other side learns of the end in any case.
        let _ = self.flush();
        self.tls.send_close_notify();
        let _ = self.flush();
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// What an error of TLS means for two daemons.
    fn describe(&self, error: Error) -> Why {
        match error {
            Error::InvalidCertificate(error) => Why::Certificate(describe_certificate(&error)),
            Error::NoCertificatesPresented => Why::Certificate("was not shown".to_owned()),
            Error::NoApplicationProtocol
            | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Why::Method { ours: self.method }
            }
            Error::AlertReceived(
                alert @ (AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRequired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::UnsupportedCertificate),
            ) => Why::OwnCertificate(format!("{alert:?}")),
            other => Why::Tls(other.to_string()),
        }
    }
}

fn unless_full(error: &io::Error) -> Result<(), Why> {
    match error.kind() {
        ErrorKind::WouldBlock => Ok(()),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Err(Why::Lost),
        kind => Err(Why::Io(kind)),
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
