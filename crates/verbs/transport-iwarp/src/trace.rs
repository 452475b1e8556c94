//! What a trace is told of a connection (`sluice verbs --trace`): the bytes that the kernel's calls took
//! and gave. Off, it is one look at a null pointer for each call.
#![allow(unsafe_code)]

use sluice_shmem::verbs::copy;
use sluice_trace::{Conversation, Direction, Recorder};

use crate::socket::{Piece, Socket};

/// A connection's trace, if somebody traces.
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Conversation>>);

impl Trace {
    /// Of a connection that the kernel has made. `asked`: by this end.
    pub fn begin(socket: &Socket, asked: bool) -> Self {
        Self::to(sluice_trace::of_process(), socket, asked)
    }

    fn to(recorder: Option<&std::sync::Arc<Recorder>>, socket: &Socket, asked: bool) -> Self {
        let begun = || {
            let (local, peer) = (socket.local().ok()?, socket.peer().ok()?);
            let recorder = recorder?.clone();
            Some(Conversation::begin(recorder, local, peer, asked))
        };
        Self(recorder.and_then(|_| begun()).map(Box::new))
    }

    /// Bytes of our own went that way.
    pub fn bytes(&mut self, direction: Direction, bytes: &[u8]) {
        if let Some(conversation) = &mut self.0 {
            conversation.data(direction, bytes.len(), |at, into| {
                if let Some(bytes) = bytes.get(at..at + into.len()) {
                    into.copy_from_slice(bytes);
                }
            });
        }
    }

    /// As many bytes of these pieces went that way.
    ///
    /// # Safety
    /// The pieces are readable during the call.
    pub unsafe fn pieces(&mut self, direction: Direction, pieces: &[Piece], bytes: usize) {
        let Some(conversation) = &mut self.0 else {
            return;
        };
        // Where the next bytes are: they are asked for one after the other.
        let mut rest = pieces.iter().copied();
        let mut piece: Option<Piece> = None;
        conversation.data(direction, bytes, |_, into| {
            let mut done = 0;
            while done < into.len() {
                let Some(Piece { iov_base, iov_len }) = piece.take().or_else(|| rest.next()) else {
                    return;
                };
                let part = iov_len.min(into.len() - done);
                if let Some(place) = into.get_mut(done..done + part) {
                    // SAFETY: readable by the caller's contract; others may write there meanwhile,
                    // which this copy stands.
                    unsafe { copy::ascending(place.as_mut_ptr(), iov_base.cast(), part) };
                }
                done += part;
                if part < iov_len {
                    piece = Some(Piece {
                        iov_base: iov_base.wrapping_byte_add(part),
                        iov_len: iov_len - part,
                    });
                }
            }
        });
    }

    /// Nothing more comes that way.
    pub fn finish(&mut self, direction: Direction) {
        if let Some(conversation) = &mut self.0 {
            conversation.finish(direction);
        }
    }

    /// The connection was reset.
    pub fn reset(&mut self, direction: Direction) {
        if let Some(conversation) = &mut self.0 {
            conversation.reset(direction);
        }
    }
}
