//! gRPC over HTTP/2 as far as the kubelet speaks it: one message there, one or several back
//! (`doc/PROTOCOL-HTTP2.md` of grpc/grpc). Messages are bounded, and none is compressed.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// A message of the other side is no longer. The longest that a kubelet has reason for names each of 4096
/// devices once.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// The byte that says whether the message is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// All headers of a request together.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// Requests that one connection may have under way.
pub const STREAMS_MAX: u32 = 16;
/// In which the other side must have said what it wants to say.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What the other side says to explain itself is cut here.
const REMARK_CHARS_MAX: usize = 200;
const CONTENT_TYPE: &str = "application/grpc";

/// The numbers of gRPC that we say or tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
}

/// How a call ended that did not end well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    text: String,
}

impl Status {
    /// `text` is printable ASCII, and says nothing that the other side has sent.
    pub fn new(code: Code, text: &str) -> Self {
        Self {
            code,
            text: text.to_owned(),
        }
    }

    /// What stands in the headers of an answer without a message, or behind its messages.
    fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(self.code as u16));
        if let Ok(text) = HeaderValue::from_str(&self.text) {
            trailers.insert("grpc-message", text);
        }
        trailers
    }
}

/// Takes the one message of a stream, which ends behind it.
pub async fn read_message<M: Message + Default>(body: &mut RecvStream) -> Result<M, Status> {
    let received = timeout(PATIENCE, read_bytes(body)).await;
    let bytes =
        received.map_err(|_| Status::new(Code::DeadlineExceeded, "the message did not come"))??;
    let message = unframe(&bytes)?;
    M::decode(message).map_err(|_| Status::new(Code::InvalidArgument, "the message is not one"))
}

async fn read_bytes(body: &mut RecvStream) -> Result<Bytes, Status> {
    let mut whole = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(|_| Status::new(Code::Internal, "the stream broke"))?;
        if whole.len() + part.len() > PREFIX_BYTES + MESSAGE_BYTES_MAX {
            return Err(too_long());
        }
        whole.put_slice(&part);
        if announced(&whole).is_some_and(|length| length > MESSAGE_BYTES_MAX) {
            return Err(too_long());
        }
        // As many as there are again: more than is taken never lies here.
        let released = body.flow_control().release_capacity(part.len());
        released.map_err(|_| Status::new(Code::Internal, "the stream broke"))?;
    }
    Ok(whole.freeze())
}

fn too_long() -> Status {
    Status::new(Code::ResourceExhausted, "the message is too long")
}

/// The length that a message says it has, once that is there.
fn announced(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..PREFIX_BYTES)?;
    usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()
}

/// The message in a body that has one.
fn unframe(bytes: &Bytes) -> Result<Bytes, Status> {
    let wrong = || Status::new(Code::InvalidArgument, "the body is not one message");
    let length = announced(bytes).ok_or_else(wrong)?;
    if length > MESSAGE_BYTES_MAX {
        return Err(too_long());
    }
    if bytes[0] != 0 {
        let text = "messages are not taken compressed";
        return Err(Status::new(Code::Unimplemented, text));
    }
    if bytes.len() != PREFIX_BYTES + length {
        return Err(wrong());
    }
    Ok(bytes.slice(PREFIX_BYTES..))
}

/// A message with what stands before it.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    // Our own messages have some kilobytes.
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    framed.put_slice(&message.encode_to_vec());
    framed.freeze()
}

/// The server's side of a connection.
pub async fn accept(
    socket: UnixStream,
) -> Result<h2::server::Connection<UnixStream, Bytes>, h2::Error> {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX);
    match timeout(PATIENCE, builder.handshake(socket)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(h2::Error::from(h2::Reason::SETTINGS_TIMEOUT)),
    }
}

/// The method that a request calls: its last word, if it is one of that service.
pub fn method<'a>(request: &'a Request<RecvStream>, service: &str) -> Result<&'a str, Status> {
    let content = request.headers().get(http::header::CONTENT_TYPE);
    let is_grpc = content.is_some_and(|it| it.as_bytes().starts_with(CONTENT_TYPE.as_bytes()));
    let path = request.uri().path();
    let method = path
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(service))
        .and_then(|rest| rest.strip_prefix('/'));
    match method {
        Some(method) if is_grpc && request.method() == Method::POST => Ok(method),
        _ => Err(Status::new(Code::Unimplemented, "there is no such service")),
    }
}

fn head() -> Response<()> {
    let mut head = Response::new(());
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    head.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    head
}

/// An answer without a message.
pub fn refuse(respond: &mut SendResponse<Bytes>, status: &Status) -> Result<(), h2::Error> {
    let mut head = head();
    head.headers_mut().extend(status.trailers());
    respond.send_response(head, true)?;
    Ok(())
}

/// Begins an answer with messages.
pub fn begin(respond: &mut SendResponse<Bytes>) -> Result<SendStream<Bytes>, h2::Error> {
    respond.send_response(head(), false)
}

/// Sends some of an answer, no faster than the other side takes it.
pub async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while bytes.has_remaining() {
        stream.reserve_capacity(bytes.len());
        match std::future::poll_fn(|context| stream.poll_capacity(context)).await {
            Some(Ok(room)) => {
                let part = bytes.split_to(room.min(bytes.len()));
                if !part.is_empty() {
                    stream.send_data(part, false)?;
                }
            }
            Some(Err(error)) => return Err(error),
            None => return Err(h2::Error::from(h2::Reason::CANCEL)),
        }
    }
    Ok(())
}

/// Ends an answer that had its messages.
pub fn end(stream: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}

/// Calls a method on a connection of its own, and takes its word that all went well. What it says besides is
/// not read.
pub async fn call(socket: UnixStream, path: &str, message: &impl Message) -> io::Result<()> {
    let called = timeout(PATIENCE, call_now(socket, path, message)).await;
    called.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn call_now(socket: UnixStream, path: &str, message: &impl Message) -> io::Result<()> {
    let broken = |error: h2::Error| io::Error::other(error.to_string());
    let mut builder = h2::client::Builder::new();
    builder
        .max_header_list_size(HEADERS_BYTES_MAX)
        .enable_push(false);
    let (mut client, connection) = builder.handshake(socket).await.map_err(broken)?;
    let request = Request::builder()
        .method(Method::POST)
        // The name of a host that has none: the socket is it.
        .uri(format!("http://localhost{path}"))
        .header(http::header::CONTENT_TYPE, CONTENT_TYPE)
        .header(http::header::TE, "trailers")
        .body(())
        .map_err(io::Error::other)?;
    let talk = async {
        std::future::poll_fn(|context| client.poll_ready(context)).await?;
        let (response, mut stream) = client.send_request(request, false)?;
        send(&mut stream, frame(message)).await?;
        stream.send_data(Bytes::new(), true)?;
        let (head, mut body) = response.await?.into_parts();
        if head.status != http::StatusCode::OK || head.headers.contains_key("grpc-status") {
            return Ok((head.status, head.headers));
        }
        // Windows are not opened again: a message that is longer than what is there by itself ends in
        // the time-out.
        while let Some(part) = body.data().await {
            part?;
        }
        Ok((head.status, body.trailers().await?.unwrap_or_default()))
    };
    let (status, headers) = tokio::select! {
        outcome = talk => outcome.map_err(broken)?,
        outcome = connection => {
            outcome.map_err(broken)?;
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
    };
    let said = |name: &str| {
        let value = headers.get(name).map(HeaderValue::as_bytes);
        let text = String::from_utf8_lossy(value.unwrap_or_default());
        text.chars().take(REMARK_CHARS_MAX).collect::<String>()
    };
    match (status, said("grpc-status").as_str()) {
        (http::StatusCode::OK, "0") => Ok(()),
        (status, number) => Err(io::Error::other(format!(
            "HTTP status {}, gRPC status {number:?}: {:?}",
            status.as_u16(),
            said("grpc-message")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::AllocateRequest;
    use super::*;

    #[test]
    fn a_body_is_one_message_and_nothing_else() {
        let whole = frame(&AllocateRequest::default());
        assert_eq!(&whole[..], [0, 0, 0, 0, 0]);
        assert!(unframe(&whole).unwrap().is_empty());
        for (bytes, code) in [
            (&[][..], Code::InvalidArgument),
            (&[0, 0, 0, 0], Code::InvalidArgument),
            (&[0, 0, 0, 0, 1], Code::InvalidArgument),
            (&[0, 0, 0, 0, 0, 9], Code::InvalidArgument),
            (&[1, 0, 0, 0, 0], Code::Unimplemented),
            (&[0, 255, 255, 255, 255, 0], Code::ResourceExhausted),
            (&[0, 0, 4, 0, 1, 0], Code::ResourceExhausted),
        ] {
            let refused = unframe(&Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(refused.code, code, "{bytes:?}");
        }
    }

    #[test]
    fn a_status_is_two_headers() {
        let trailers = Status::new(Code::Unimplemented, "no such method").trailers();
        assert_eq!(trailers["grpc-status"], "12");
        assert_eq!(trailers["grpc-message"], "no such method");
    }
}
