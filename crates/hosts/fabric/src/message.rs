//! What two daemons say to each other on a link, beside the payload.
//!
//! A message is a row of records of 16 bytes: a kind, three zero bytes, the number of the lane at the
//! receiver (32 bits) and a value (64 bits), in network byte order.

use core::fmt;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 16;
/// Records in one message, at most.
pub const RECORDS_MAX: usize = 128;
/// Bytes of a message, at most.
pub const MESSAGE_BYTES_MAX: usize = RECORD_BYTES * RECORDS_MAX;

/// The number of a lane at one daemon: its place in a table, and which life of that place it is.
/// It is also the immediate value of payload for this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneNumber(pub u32);

impl LaneNumber {
    /// Lanes that a daemon can have.
    pub const LANES_MAX: u32 = 1 << 20;

    /// The number of a place in a certain life.
    pub const fn new(place: u32, life: u32) -> Self {
        Self(life << 20 | place & (Self::LANES_MAX - 1))
    }

    /// Where in the table.
    pub const fn place(self) -> usize {
        (self.0 & (Self::LANES_MAX - 1)) as usize
    }

    /// The next life of the same place.
    pub const fn next_life(self) -> Self {
        Self::new(self.0 & (Self::LANES_MAX - 1), (self.0 >> 20) + 1)
    }
}

impl fmt::Display for LaneNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place(), self.0 >> 20)
    }
}

/// What is said of one lane. "Sender" and "receiver" are those of the direction in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Receiver: it would make a grant to a daemon that polls.
    Call,
    /// Sender: it polls now, for a while.
    Here,
    /// Receiver: its program polls; the ring may be used.
    Grant,
    /// Receiver: its program wants to sleep. To be answered with `Relinquished`.
    Revoke,
    /// Receiver: so many bytes were consumed from the ring since the lane began.
    Consumed(u64),
    /// Receiver: its program reads no more.
    Closed,
    /// Receiver, after a link came back: so many bytes have arrived in its ring since the lane
    /// began. The sender goes on behind them.
    Resume(u64),
    /// Sender: a ring segment begins, behind so many bytes that went by TCP.
    Segment(u64),
    /// Sender: so many bytes went by TCP, and whatever it writes to the ring comes behind them.
    Tcp(u64),
    /// Sender: the ring segment is over.
    Left,
    /// Sender: its program does not write to the ring, and everything that was there is sent.
    Relinquished,
    /// Sender: nothing comes any more. To be answered with `Finished`.
    Done,
    /// Receiver: it knows that nothing comes any more, and has everything that came before.
    Finished,
    /// Sender: bytes of the stream are missing here, and will not come.
    Missing,
    /// After a link came back: the lane is there, under this number. Where nothing is known of it, the
    /// answer to that number is `Gone`; where it ended without ever being used, `Closed`, `Done` and
    /// `Finished`.
    Present(LaneNumber),
    /// The lane was over here before the link came back.
    Gone,
}

/// A record, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub lane: LaneNumber,
    pub note: Note,
}

impl Record {
    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let (kind, value) = match self.note {
            Note::Grant => (1, 0),
            Note::Revoke => (2, 0),
            Note::Consumed(bytes) => (3, bytes),
            Note::Closed => (4, 0),
            Note::Resume(bytes) => (5, bytes),
            Note::Segment(switch_offset) => (6, switch_offset),
            Note::Left => (7, 0),
            Note::Relinquished => (8, 0),
            Note::Done => (9, 0),
            Note::Missing => (10, 0),
            Note::Call => (11, 0),
            Note::Here => (12, 0),
            Note::Tcp(bytes) => (13, bytes),
            Note::Finished => (14, 0),
            Note::Present(number) => (15, number.0.into()),
            Note::Gone => (16, 0),
        };
        let mut out = [0; RECORD_BYTES];
        out[0] = kind;
        out[4..8].copy_from_slice(&self.lane.0.to_be_bytes());
        out[8..].copy_from_slice(&value.to_be_bytes());
        out
    }

    /// Reads a record; `None` for what no daemon of this version sends.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let [kind, 0, 0, 0, a, b, c, d, value @ ..] = *bytes else {
            return None;
        };
        let value = u64::from_be_bytes(value);
        let note = match (kind, value) {
            (1, 0) => Note::Grant,
            (2, 0) => Note::Revoke,
            (3, bytes) => Note::Consumed(bytes),
            (4, 0) => Note::Closed,
            (5, bytes) => Note::Resume(bytes),
            (6, switch_offset) => Note::Segment(switch_offset),
            (7, 0) => Note::Left,
            (8, 0) => Note::Relinquished,
            (9, 0) => Note::Done,
            (10, 0) => Note::Missing,
            (11, 0) => Note::Call,
            (12, 0) => Note::Here,
            (13, bytes) => Note::Tcp(bytes),
            (14, 0) => Note::Finished,
            (15, number) => Note::Present(LaneNumber(number.try_into().ok()?)),
            (16, 0) => Note::Gone,
            _ => return None,
        };
        let lane = LaneNumber(u32::from_be_bytes([a, b, c, d]));
        Some(Record { lane, note })
    }
}

/// The records of a message; `None` in place of one that is wrong.
pub fn records(message: &[u8]) -> impl Iterator<Item = Option<Record>> {
    let (whole, rest) = message.as_chunks::<RECORD_BYTES>();
    let whole = whole.iter().take(RECORDS_MAX).map(Record::decode);
    whole.chain((!rest.is_empty()).then_some(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_nothing_else_does() {
        let notes = [
            Note::Grant,
            Note::Revoke,
            Note::Consumed(u64::MAX),
            Note::Closed,
            Note::Resume(7),
            Note::Segment(1 << 40),
            Note::Left,
            Note::Relinquished,
            Note::Done,
            Note::Missing,
            Note::Call,
            Note::Here,
            Note::Tcp(3),
            Note::Finished,
            Note::Present(LaneNumber(u32::MAX)),
            Note::Gone,
        ];
        let lane = LaneNumber::new(0xf_ffff, 0xfff);
        let mut message = Vec::new();
        for note in notes {
            message.extend(Record { lane, note }.encode());
        }
        let read: Vec<_> = records(&message).collect();
        assert!(
            read.into_iter()
                .eq(notes.map(|note| Some(Record { lane, note })))
        );
        for kind in [0, 17, 255] {
            let mut bytes = Record {
                lane,
                note: Note::Left,
            }
            .encode();
            bytes[0] = kind;
            assert_eq!(Record::decode(&bytes), None);
        }
        let mut with_value = Record {
            lane,
            note: Note::Left,
        }
        .encode();
        with_value[15] = 1;
        assert_eq!(Record::decode(&with_value), None);
        assert_eq!(records(&message[..17]).last(), Some(None));
    }

    #[test]
    fn a_place_has_many_lives() {
        let mut number = LaneNumber::new(77, 0);
        for _ in 0..5000 {
            let next = number.next_life();
            assert_ne!(next, number);
            assert_eq!(next.place(), 77);
            number = next;
        }
    }

    #[test]
    fn the_document_has_each_note() {
        let document = include_str!("../../../../docs/protocols.md");
        let mut kinds = 0;
        for kind in 1..=u8::MAX {
            // One that has a value, or one that has none.
            let read = [0, 1].iter().find_map(|value| {
                let mut bytes = [0; RECORD_BYTES];
                (bytes[0], bytes[15]) = (kind, *value);
                Some((Record::decode(&bytes)?.note, *value))
            });
            let Some((note, _)) = read else { break };
            kinds += 1;
            let name = format!("{note:?}").to_lowercase();
            let name = name.split('(').next().unwrap_or_default();
            let row = format!("| {kind} | {name} | ");
            assert!(document.contains(&row), "the document lacks {row}");
        }
        assert_eq!(kinds, 16);
        for text in [
            format!("at most {RECORDS_MAX} records of {RECORD_BYTES} bytes"),
            format!("lower {} bits", LaneNumber::LANES_MAX.trailing_zeros()),
        ] {
            assert!(document.contains(&text), "the document lacks {text}");
        }
    }
}
