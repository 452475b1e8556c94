//! What goes over the stream: 64-bit words, and the bytes that the first announces.

use std::io::{self, Read};

/// Makes the frame's words from their names.
macro_rules! frame {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        #[derive(Clone, Default)]
        pub struct Frame {
            pub payload: Vec<u8>,
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Frame {
            pub fn emit(&self) -> Vec<u8> {
                let words = [self.payload.len() as u64, $(self.$name),+];
                let words = words.into_iter().flat_map(u64::to_le_bytes);
                words.chain(self.payload.iter().copied()).collect()
            }

            /// The next one of a stream, with no more bytes than `max`; an error at its end.
            pub fn read(stream: &mut impl Read, max: u64) -> io::Result<Frame> {
                let len = word(stream)?.min(max) as usize;
                let mut frame = Frame { payload: vec![0; len], $($name: word(stream)?),+ };
                stream.read_exact(&mut frame.payload)?;
                Ok(frame)
            }
        }
    };
}

frame! {
    /// A request's opcode; an answer's status, after [`ANSWER`].
    what,
    /// Queue pairs.
    to,
    from,
    /// Which request of its queue pair it is: in the send queue, and in the connection.
    seq,
    psn,
    /// The requester waits for an answer; it has `rnr_retry` 7; it asks for a solicited event.
    answered,
    patient,
    solicited,
    imm,
    addr,
    rkey,
    /// XRC: the SRQ. UD: the Q_Key.
    about,
    /// Of an atomic. UD: the GID that it goes to.
    first,
    second,
    /// Bytes that are sent, or asked for.
    length,
}

/// What the first of all statuses is.
pub const ANSWER: u64 = 0x100;

fn word(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
