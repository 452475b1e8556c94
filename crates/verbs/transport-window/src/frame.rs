//! What goes over a channel: a header of one cache line, and the bytes that it announces, padded to
//! eight. docs/windows.md has the same in words.

/// Packet numbers have 24 bits, as those of queue pairs. Here a request has one, however long it is.
pub const PSN_MASK: u32 = 0xff_ffff;
/// To a group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Bits of a queue pair's number that say which of its host's it is; the slot is above.
pub const NUMBER_BITS: u32 = 19;

/// The slot of the host that has this queue pair.
pub const fn slot_of(qpn: u32) -> u32 {
    (qpn & PSN_MASK) >> NUMBER_BITS
}

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Bytes that one frame carries at most; longer messages take several, so that those of other
/// queue pairs have their turn.
pub const PIECE_BYTES_MAX: u64 = 32 * 1024;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// A request, and the first bytes of what it sends or writes.
    Request = 1,
    /// The next bytes of the request before it of the same queue pair.
    More = 2,
    /// How a request ended, and that all before it of the same queue pair ended well.
    Answer = 3,
    /// Bytes that a READ or an atomic brings.
    Data = 4,
    /// A request found no receive, or a queue pair that is not ready: it is to be sent again.
    NotYet = 5,
    /// What a request was sent back for is there now.
    Ready = 6,
}

/// Bits of [`Frame::flags`].
pub mod flag {
    pub const SOLICITED: u8 = 1;
    /// Of a request: an answer is waited for.
    pub const RELIABLE: u8 = 2;
    /// Of [`What::NotYet`](super::What::NotYet): no receive, rather than a queue pair in INIT.
    pub const NO_RECEIVE: u8 = 4;
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub what: What,
    pub flags: u8,
    /// A request's opcode (`ibv_wr_opcode`), an answer's status (`ibv_wc_status`), the timer's code
    /// of what is not ready yet (IBTA 9.7.5.2.8).
    pub code: u16,
    /// Bytes that follow.
    pub len: u32,
    pub to: u32,
    /// Requests: the queue pair that sends, and in the eight bits above which connection of its it
    /// is. Answers carry this back in `to`.
    pub from: u32,
    /// Which request: as the requester counts, and its packet number.
    pub seq: u64,
    pub psn: u32,
    pub imm: u32,
    /// Where to, of a request for memory; how many bytes of the answer came before, of data.
    pub addr: u64,
    pub rkey: u32,
    /// XRC: the shared receive queue. UD: the Q_Key.
    pub about: u32,
    /// Of an atomic its operands, of a datagram the GID that it goes to; else the bytes of the
    /// whole message, and nothing.
    pub words: [u64; 2],
}

impl Frame {
    pub const fn new(what: What) -> Frame {
        Frame {
            what,
            flags: 0,
            code: 0,
            len: 0,
            to: 0,
            from: 0,
            seq: 0,
            psn: 0,
            imm: 0,
            addr: 0,
            rkey: 0,
            about: 0,
            words: [0; 2],
        }
    }

    /// A frame to the requester of `request` about it.
    pub const fn about(what: What, request: &Frame) -> Frame {
        let mut frame = Frame::new(what);
        frame.to = request.from;
        frame.seq = request.seq;
        frame.psn = request.psn;
        frame
    }

    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let kind =
            u32::from(self.what as u8) | u32::from(self.flags) << 8 | u32::from(self.code) << 16;
        let words = [
            pair(self.len, kind),
            pair(self.to, self.from),
            self.seq,
            pair(self.psn, self.imm),
            self.addr,
            pair(self.rkey, self.about),
            self.words[0],
            self.words[1],
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// None: there is no such frame.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Frame> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(word)
        };
        let low = |index: usize| word(index) as u32;
        let high = |index: usize| (word(index) >> 32) as u32;
        let what = match high(0) as u8 {
            1 => What::Request,
            2 => What::More,
            3 => What::Answer,
            4 => What::Data,
            5 => What::NotYet,
            6 => What::Ready,
            _ => return None,
        };
        Some(Frame {
            what,
            flags: (high(0) >> 8) as u8,
            code: (high(0) >> 16) as u16,
            len: low(0),
            to: low(1),
            from: high(1),
            seq: word(2),
            psn: low(3),
            imm: high(3),
            addr: word(4),
            rkey: low(5),
            about: high(5),
            words: [word(6), word(7)],
        })
    }

    pub const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Bytes of a frame in a ring that carries so many.
pub const fn padded(len: u64) -> u64 {
    HEADER_BYTES as u64 + len.next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_no_frame_is_refused() {
        let mut frame = Frame {
            flags: 7,
            code: 0x1234,
            len: 1,
            to: 2,
            from: 0xff00_0003,
            seq: 4 << 40,
            psn: 5,
            imm: 6,
            addr: u64::MAX,
            rkey: 8,
            about: 9,
            words: [10, 11],
            ..Frame::new(What::Request)
        };
        for code in 0..=u8::MAX {
            let mut bytes = frame.emit();
            bytes[4] = code;
            let parsed = Frame::parse(&bytes);
            assert_eq!(parsed.is_some(), (1..=6).contains(&code), "{code}");
            if let Some(parsed) = parsed {
                frame.what = parsed.what;
                assert_eq!(parsed, frame);
                assert_eq!(parsed.what as u8, code);
            }
        }
    }

    #[test]
    fn the_document_has_the_header() {
        let document = include_str!("../../../../docs/windows.md");
        let frame = Frame {
            flags: 2,
            code: 0x0403,
            len: 5,
            to: 6,
            from: 7,
            seq: 8,
            psn: 9,
            imm: 10,
            addr: 11,
            rkey: 12,
            about: 13,
            words: [14, 15],
            ..Frame::new(What::Request)
        };
        let bytes = frame.emit();
        let rows = [
            ("| 0 | 32 | bytes that follow", vec![(0, 5)]),
            (
                "| 4 | 8, 8, 16 | what: 1 request, 2 more of it, 3 answer, 4 data, 5 not yet, 6 ready; flags: \
                 1 solicited, 2 an answer is waited for, 4 no receive; code:",
                vec![(4, 1), (5, 2), (6, 3), (7, 4)],
            ),
            ("| 8 | 32, 32 | to:", vec![(8, 6), (12, 7)]),
            ("| 16 | 64 | the request's number", vec![(16, 8)]),
            ("| 24 | 32, 32 | packet number", vec![(24, 9), (28, 10)]),
            ("| 32 | 64 | address of remote memory", vec![(32, 11)]),
            ("| 40 | 32, 32 | remote key", vec![(40, 12), (44, 13)]),
            ("| 48 | 64, 64 | atomics", vec![(48, 14), (56, 15)]),
        ];
        for (row, places) in rows {
            assert!(document.contains(row), "the document lacks {row}");
            for (at, byte) in places {
                assert_eq!(bytes[at], byte, "{row}");
            }
        }
        for text in [
            format!("host's slot times 2^{NUMBER_BITS}"),
            format!("carries frames: {HEADER_BYTES} bytes of header"),
            format!(
                "a quarter of the ring less {HEADER_BYTES}, and at most {} KiB",
                PIECE_BYTES_MAX >> 10
            ),
        ] {
            assert!(document.contains(&text), "the document lacks {text}");
        }
    }
}
