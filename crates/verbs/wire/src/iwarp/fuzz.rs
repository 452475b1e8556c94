//! As [`crate::fuzz`], for these formats: panics if something does not hold, and only then.

use super::message::{AtomicRequest, AtomicResponse, ReadRequest};
use super::segment::{Segment, UNTAGGED_BYTES};
use super::startup::{Role, Startup};
use super::terminate::Terminate;
use super::{Kind, fpdu};

/// A frame of the start: what was understood is emitted, and understood as the same.
pub fn startup(bytes: &[u8]) {
    for role in [Role::Request, Role::Reply] {
        let known = Startup::length(role, bytes);
        let Ok((frame, used)) = Startup::parse(role, bytes) else {
            continue;
        };
        assert_eq!(known, Ok(Some(used)));
        let mut buffer = [0; Startup::BYTES_MAX];
        assert_eq!(frame.emit(&mut buffer), Ok(used));
        assert_eq!(Startup::parse(role, &buffer), Ok((frame, used)));
    }
}

/// A stream of FPDUs: each is found, with its segment, which is emitted and understood again.
pub fn stream(bytes: &[u8], crc: bool) {
    let mut rest = bytes;
    // Each takes at least the bytes of an empty one.
    while let Ok(Some((ulpdu, used))) = fpdu::parse(rest, crc) {
        assert_eq!(used, fpdu::bytes(ulpdu.len()));
        segment(ulpdu);
        rest = rest.get(used..).unwrap_or_default();
    }
}

/// A segment, and what it carries.
pub fn segment(ulpdu: &[u8]) {
    let Ok(segment) = Segment::parse(ulpdu) else {
        return;
    };
    let header = segment.header();
    let mut buffer = [0; UNTAGGED_BYTES];
    let used = header.emit(&mut buffer).unwrap_or(0);
    let again = Segment::parse(buffer.get(..used).unwrap_or_default());
    assert_eq!(again.map(|again| *again.header()), Ok(*header));
    assert_eq!(used + segment.payload().len(), ulpdu.len());
    let payload = segment.payload();
    match header.kind {
        Kind::ReadRequest(_) => {
            if let Some(bytes) = payload.first_chunk() {
                assert_eq!(ReadRequest::parse(bytes).emit(), *bytes);
            }
        }
        Kind::AtomicRequest(_) => {
            if let Some(Ok(request)) = payload.first_chunk().map(AtomicRequest::parse) {
                assert_eq!(AtomicRequest::parse(&request.emit()), Ok(request));
            }
        }
        Kind::AtomicResponse(_) => {
            if let Some(bytes) = payload.first_chunk() {
                assert_eq!(AtomicResponse::parse(bytes).emit(), *bytes);
            }
        }
        Kind::Terminate(_) => {
            if let Ok(message) = Terminate::parse(payload) {
                let mut buffer = [0; Terminate::BYTES_MAX];
                assert!(message.emit(&mut buffer).is_ok());
                assert_eq!(Terminate::parse(&buffer), Ok(message));
            }
        }
        _ => {}
    }
}
