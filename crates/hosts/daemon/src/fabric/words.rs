//! What two daemons say to each other on their control connection: links, ends and lanes.
//!
//! A word is one message of the control connection: a kind (8 bits), then its fields
//! ([`crate::words`]).

use sluice_fabric::halves::Far;
use sluice_fabric::message::LaneNumber;
use sluice_fabric::wire::Remote;
use sluice_rdma::{ENDPOINT_BYTES, Endpoint};

use super::window::{Loan, Seat, SlotProof};
use crate::matching::Tuple;
use crate::namespace::Numbers;
use crate::words::{Fields, address_bytes};

/// An end, by a number that its daemon gives out once in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A daemon's life: a random number, so that another one is told from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life(pub u64);

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// First of all.
    Hello { life: Life },
    /// Before `Hello`, by who can have several queue pairs with the other one: how many. Both take the lesser
    /// number. Who does not say it has one. Said to daemons that speak [`SEVERAL_VERSION`].
    QueuePairs { count: u8 },
    /// The queue pair of that place, counted from 0. `attempt` counts from 1; a higher one takes the
    /// place of what was before, and is answered with the same.
    Link {
        at: u8,
        attempt: u32,
        endpoint: Endpoint,
    },
    /// The queue pair of this attempt has failed at the one who does not make new ones.
    Broken { at: u8, attempt: u32 },
    /// An end is here, between these addresses as it sees them. With its initial sequence numbers, as far as
    /// this daemon can read them; said with them to daemons that speak [`NUMBERS_VERSION`] alone.
    End {
        token: Token,
        tuple: Tuple,
        numbers: Option<Numbers>,
    },
    /// An end is not to be matched any more.
    Gone { token: Token },
    /// An end waits here, and has for long: is the other one there? Answered by `Nobody` if it is not. With
    /// numbers as [`Word::End`].
    Ask {
        token: Token,
        tuple: Tuple,
        numbers: Option<Numbers>,
    },
    /// Every program here was heard, and none of them has the other end of this one.
    Nobody { yours: Token },
    /// The lane of one connection here. Who has the greater address of the two ends says it first.
    Lane {
        /// The end of the daemon that is told.
        yours: Token,
        /// The end of the daemon that says it.
        mine: Token,
        /// The place of the queue pair that it goes by.
        at: u8,
        far: Far,
    },
    /// There is no lane for this end after all.
    NoLane { yours: Token },
    /// This host has that slot of that window.
    Seat(Seat),
    /// What proves that: said when the link with the slot of the other one is up, to daemons that speak
    /// [`NUMBERS_VERSION`].
    Proof(SlotProof),
    /// An end here, of the program with this number, and the other one there can have a direct lane:
    /// lend one. Answered by `Direct`, or `NoDirect`.
    Want {
        yours: Token,
        mine: Token,
        client: u32,
    },
    /// No direct lane for this end; the fabric may have one.
    NoDirect { yours: Token },
    /// A lane is lent. Answered by `Taken`, or `Refused`.
    Direct {
        yours: Token,
        mine: Token,
        loan: Loan,
    },
    /// The end of the daemon that says it uses the lane that was lent for this one.
    Taken { yours: Token },
    /// It does not.
    Refused { yours: Token },
    /// It has used it, and is done: the lane of a piece by the number of who has lent it.
    Returned { piece: u32, lane: u32 },
    /// The program with this number is gone.
    ClientGone { client: u32 },
    /// A piece was taken back by who has lent it.
    Withdrawn { piece: u32 },
    /// No process of the host that says it has that piece mapped any more: its lender's number.
    Released { piece: u32 },
}

mod kind {
    pub const HELLO: u8 = 1;
    pub const LINK: u8 = 2;
    pub const END: u8 = 3;
    pub const GONE: u8 = 4;
    pub const LANE: u8 = 5;
    pub const NO_LANE: u8 = 6;
    pub const BROKEN: u8 = 7;
    pub const ASK: u8 = 8;
    pub const NOBODY: u8 = 9;
    pub const SEAT: u8 = 10;
    pub const WANT: u8 = 11;
    pub const NO_DIRECT: u8 = 12;
    pub const DIRECT: u8 = 13;
    pub const TAKEN: u8 = 14;
    pub const REFUSED: u8 = 15;
    pub const RETURNED: u8 = 16;
    pub const CLIENT_GONE: u8 = 17;
    pub const WITHDRAWN: u8 = 18;
    pub const RELEASED: u8 = 19;
    pub const QUEUE_PAIRS: u8 = 20;
    // The words of the first queue pair say no place, as all did when there was one.
    pub const LINK_AT: u8 = 21;
    pub const BROKEN_AT: u8 = 22;
    pub const LANE_AT: u8 = 23;
    // An end whose daemon has read its numbers.
    pub const END_NUMBERED: u8 = 24;
    pub const ASK_NUMBERED: u8 = 25;
    pub const PROOF: u8 = 26;
}

/// The first version of control connections in which two daemons can have several queue pairs.
pub const SEVERAL_VERSION: u16 = 2;

/// The first version in which daemons compare the initial sequence numbers of two ends, and prove their slots of
/// windows.
pub const NUMBERS_VERSION: u16 = 3;

impl Word {
    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Hello { life } => {
                out.push(kind::HELLO);
                out.extend(life.0.to_be_bytes());
            }
            Self::QueuePairs { count } => out.extend([kind::QUEUE_PAIRS, *count]),
            Self::Link {
                at,
                attempt,
                endpoint,
            } => {
                begin(&mut out, [kind::LINK, kind::LINK_AT], *at);
                out.extend(attempt.to_be_bytes());
                out.extend(endpoint.encode());
            }
            Self::Broken { at, attempt } => {
                begin(&mut out, [kind::BROKEN, kind::BROKEN_AT], *at);
                out.extend(attempt.to_be_bytes());
            }
            Self::End {
                token,
                tuple,
                numbers,
            }
            | Self::Ask {
                token,
                tuple,
                numbers,
            } => {
                let is_end = matches!(self, Self::End { .. });
                out.push(match (is_end, numbers) {
                    (true, None) => kind::END,
                    (true, Some(_)) => kind::END_NUMBERED,
                    (false, None) => kind::ASK,
                    (false, Some(_)) => kind::ASK_NUMBERED,
                });
                out.extend(token.0.to_be_bytes());
                for address in [tuple.local, tuple.peer] {
                    out.extend(address_bytes(address));
                }
                for number in numbers.iter().flat_map(|it| [it.sent, it.received]) {
                    out.extend(number.to_be_bytes());
                }
            }
            Self::Nobody { yours } => {
                out.push(kind::NOBODY);
                out.extend(yours.0.to_be_bytes());
            }
            Self::Gone { token } => {
                out.push(kind::GONE);
                out.extend(token.0.to_be_bytes());
            }
            Self::Lane {
                yours,
                mine,
                at,
                far,
            } => {
                begin(&mut out, [kind::LANE, kind::LANE_AT], *at);
                out.extend(yours.0.to_be_bytes());
                out.extend(mine.0.to_be_bytes());
                out.extend(far.number.0.to_be_bytes());
                out.extend(far.ring.address.to_be_bytes());
                out.extend(far.ring.rkey.to_be_bytes());
                out.extend(far.ring_bytes.to_be_bytes());
            }
            Self::NoLane { yours } => {
                out.push(kind::NO_LANE);
                out.extend(yours.0.to_be_bytes());
            }
            Self::Seat(seat) => {
                out.push(kind::SEAT);
                out.extend(seat.id.into_iter().flat_map(u64::to_be_bytes));
                out.extend(seat.slot.to_be_bytes());
                out.extend(seat.kernel.into_iter().flat_map(u64::to_be_bytes));
            }
            Self::Proof(proof) => {
                out.push(kind::PROOF);
                out.extend(proof.id.into_iter().flat_map(u64::to_be_bytes));
                out.extend(proof.slot.to_be_bytes());
                out.extend(proof.code);
            }
            Self::Want {
                yours,
                mine,
                client,
            } => {
                out.push(kind::WANT);
                out.extend(yours.0.to_be_bytes());
                out.extend(mine.0.to_be_bytes());
                out.extend(client.to_be_bytes());
            }
            Self::NoDirect { yours } | Self::Taken { yours } | Self::Refused { yours } => {
                out.push(match self {
                    Self::NoDirect { .. } => kind::NO_DIRECT,
                    Self::Taken { .. } => kind::TAKEN,
                    _ => kind::REFUSED,
                });
                out.extend(yours.0.to_be_bytes());
            }
            Self::Direct { yours, mine, loan } => {
                out.push(kind::DIRECT);
                out.extend(yours.0.to_be_bytes());
                out.extend(mine.0.to_be_bytes());
                out.extend(loan.window.into_iter().flat_map(u64::to_be_bytes));
                out.extend(loan.at.to_be_bytes());
                for number in [loan.piece, loan.lanes, loan.ring_bytes, loan.lane] {
                    out.extend(number.to_be_bytes());
                }
            }
            Self::Returned { piece, lane } => {
                out.push(kind::RETURNED);
                out.extend(piece.to_be_bytes());
                out.extend(lane.to_be_bytes());
            }
            Self::ClientGone { client: number }
            | Self::Withdrawn { piece: number }
            | Self::Released { piece: number } => {
                out.push(match self {
                    Self::ClientGone { .. } => kind::CLIENT_GONE,
                    Self::Withdrawn { .. } => kind::WITHDRAWN,
                    _ => kind::RELEASED,
                });
                out.extend(number.to_be_bytes());
            }
        }
        out
    }

    /// Reads one whole message; `None` for what no daemon of this version says.
    pub fn decode(message: &[u8]) -> Option<Word> {
        let (&kind, rest) = message.split_first()?;
        let mut rest = Fields(rest);
        let word = match kind {
            kind::HELLO => Self::Hello {
                life: Life(rest.u64()?),
            },
            kind::QUEUE_PAIRS => Self::QueuePairs { count: rest.u8()? },
            kind::LINK | kind::LINK_AT => Self::Link {
                at: place(kind == kind::LINK_AT, &mut rest)?,
                attempt: rest.u32()?,
                endpoint: Endpoint::decode(&rest.take::<ENDPOINT_BYTES>()?).ok()?,
            },
            kind::BROKEN | kind::BROKEN_AT => Self::Broken {
                at: place(kind == kind::BROKEN_AT, &mut rest)?,
                attempt: rest.u32()?,
            },
            kind::END | kind::END_NUMBERED => Self::End {
                token: Token(rest.u64()?),
                tuple: tuple(&mut rest)?,
                numbers: numbers(kind == kind::END_NUMBERED, &mut rest)?,
            },
            kind::ASK | kind::ASK_NUMBERED => Self::Ask {
                token: Token(rest.u64()?),
                tuple: tuple(&mut rest)?,
                numbers: numbers(kind == kind::ASK_NUMBERED, &mut rest)?,
            },
            kind::NOBODY => Self::Nobody {
                yours: Token(rest.u64()?),
            },
            kind::GONE => Self::Gone {
                token: Token(rest.u64()?),
            },
            kind::LANE | kind::LANE_AT => Self::Lane {
                at: place(kind == kind::LANE_AT, &mut rest)?,
                yours: Token(rest.u64()?),
                mine: Token(rest.u64()?),
                far: Far {
                    number: LaneNumber(rest.u32()?),
                    ring: Remote {
                        address: rest.u64()?,
                        rkey: rest.u32()?,
                    },
                    ring_bytes: rest.u32()?,
                },
            },
            kind::NO_LANE => Self::NoLane {
                yours: Token(rest.u64()?),
            },
            kind::SEAT => Self::Seat(Seat {
                id: [rest.u64()?, rest.u64()?],
                slot: rest.u32()?,
                kernel: [rest.u64()?, rest.u64()?],
            }),
            kind::PROOF => Self::Proof(SlotProof {
                id: [rest.u64()?, rest.u64()?],
                slot: rest.u32()?,
                code: rest.take()?,
            }),
            kind::WANT => Self::Want {
                yours: Token(rest.u64()?),
                mine: Token(rest.u64()?),
                client: rest.u32()?,
            },
            kind::NO_DIRECT => Self::NoDirect {
                yours: Token(rest.u64()?),
            },
            kind::DIRECT => Self::Direct {
                yours: Token(rest.u64()?),
                mine: Token(rest.u64()?),
                loan: Loan {
                    window: [rest.u64()?, rest.u64()?],
                    at: rest.u64()?,
                    piece: rest.u32()?,
                    lanes: rest.u32()?,
                    ring_bytes: rest.u32()?,
                    lane: rest.u32()?,
                },
            },
            kind::TAKEN => Self::Taken {
                yours: Token(rest.u64()?),
            },
            kind::REFUSED => Self::Refused {
                yours: Token(rest.u64()?),
            },
            kind::RETURNED => Self::Returned {
                piece: rest.u32()?,
                lane: rest.u32()?,
            },
            kind::CLIENT_GONE => Self::ClientGone {
                client: rest.u32()?,
            },
            kind::WITHDRAWN => Self::Withdrawn { piece: rest.u32()? },
            kind::RELEASED => Self::Released { piece: rest.u32()? },
            _ => return None,
        };
        rest.0.is_empty().then_some(word)
    }
}

/// The kind of a word of the queue pair in this place, which the first of the two has for the first one.
fn begin(out: &mut Vec<u8>, [first, other]: [u8; 2], at: u8) {
    match at {
        0 => out.push(first),
        at => out.extend([other, at]),
    }
}

/// The place of a queue pair, if the word says one.
fn place(is_said: bool, fields: &mut Fields<'_>) -> Option<u8> {
    if is_said { fields.u8() } else { Some(0) }
}

/// The numbers of an end, if the word says some.
fn numbers(are_said: bool, fields: &mut Fields<'_>) -> Option<Option<Numbers>> {
    if !are_said {
        return Some(None);
    }
    Some(Some(Numbers {
        sent: fields.u32()?,
        received: fields.u32()?,
    }))
}

fn tuple(fields: &mut Fields<'_>) -> Option<Tuple> {
    Some(Tuple {
        local: fields.address()?,
        peer: fields.address()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::check_word;

    #[test]
    fn words_come_back_and_pieces_of_them_do_not() {
        let tuple = Tuple {
            local: "10.0.0.1:80".parse().expect("an address"),
            peer: "[2001:db8::1]:40000".parse().expect("an address"),
        };
        let words = [
            Word::Hello { life: Life(9) },
            Word::QueuePairs { count: 4 },
            Word::Broken { at: 0, attempt: 3 },
            Word::Broken { at: 2, attempt: 3 },
            Word::End {
                token: Token(5),
                tuple,
                numbers: None,
            },
            Word::End {
                token: Token(5),
                tuple,
                numbers: Some(Numbers {
                    sent: 1,
                    received: u32::MAX,
                }),
            },
            Word::Gone { token: Token(5) },
            Word::Ask {
                token: Token(6),
                tuple,
                numbers: None,
            },
            Word::Ask {
                token: Token(6),
                tuple,
                numbers: Some(Numbers {
                    sent: u32::MAX,
                    received: 2,
                }),
            },
            Word::Nobody { yours: Token(6) },
            Word::Lane {
                yours: Token(1),
                mine: Token(u64::MAX),
                at: 0,
                far: Far {
                    number: LaneNumber(77),
                    ring: Remote {
                        address: 1 << 47,
                        rkey: 0xdead_beef,
                    },
                    ring_bytes: 1 << 20,
                },
            },
            Word::Lane {
                yours: Token(1),
                mine: Token(2),
                at: 3,
                far: Far {
                    number: LaneNumber(4),
                    ring: Remote {
                        address: 5,
                        rkey: 6,
                    },
                    ring_bytes: 4096,
                },
            },
            Word::NoLane { yours: Token(3) },
            Word::Seat(Seat {
                id: [1, u64::MAX],
                slot: 31,
                kernel: [2, u64::MAX],
            }),
            Word::Proof(SlotProof {
                id: [7, u64::MAX],
                slot: 3,
                code: [9; 32],
            }),
            Word::Want {
                yours: Token(1),
                mine: Token(2),
                client: 3,
            },
            Word::NoDirect { yours: Token(4) },
            Word::Direct {
                yours: Token(5),
                mine: Token(6),
                loan: Loan {
                    window: [7, 8],
                    piece: 9,
                    at: 1 << 40,
                    lanes: 16,
                    ring_bytes: 4096,
                    lane: 10,
                },
            },
            Word::Taken { yours: Token(11) },
            Word::Refused { yours: Token(12) },
            Word::Returned {
                piece: 13,
                lane: 14,
            },
            Word::ClientGone { client: 15 },
            Word::Withdrawn { piece: 16 },
            Word::Released { piece: 17 },
        ];
        for word in words {
            let bytes = word.encode();
            check_word(word, &bytes, Word::decode);
        }
        assert_eq!(Word::decode(&[99, 0, 0]), None);
    }

    fn name_of(word: &Word) -> &'static str {
        match word {
            Word::Hello { .. } => "hello",
            Word::QueuePairs { .. } => "queue pairs",
            Word::Link { .. } => "link",
            Word::Broken { .. } => "broken",
            Word::End { numbers: None, .. } => "end",
            Word::End { .. } => "end, numbered",
            Word::Gone { .. } => "gone",
            Word::Ask { numbers: None, .. } => "ask",
            Word::Ask { .. } => "ask, numbered",
            Word::Nobody { .. } => "nobody",
            Word::Lane { .. } => "lane",
            Word::NoLane { .. } => "no lane",
            Word::Seat(_) => "seat",
            Word::Proof(_) => "slot proof",
            Word::Want { .. } => "want",
            Word::NoDirect { .. } => "no direct",
            Word::Direct { .. } => "direct",
            Word::Taken { .. } => "taken",
            Word::Refused { .. } => "refused",
            Word::Returned { .. } => "returned",
            Word::ClientGone { .. } => "program gone",
            Word::Withdrawn { .. } => "withdrawn",
            Word::Released { .. } => "released",
        }
    }

    /// Zeros are a word of every kind but one, of the one length that the kind has.
    #[test]
    fn the_document_has_each_word() {
        let document = include_str!("../../../../../docs/protocols.md");
        let mut kinds = 0;
        for kind in 1..64 {
            let zeros = (1..128).find_map(|bytes| {
                let mut message = vec![0; bytes];
                message[0] = kind;
                let endpoint = match kind {
                    kind::LINK => 1 + 4,
                    kind::LINK_AT => 1 + 1 + 4,
                    _ => bytes,
                };
                if bytes > endpoint {
                    // An endpoint of this version.
                    message[endpoint..].fill(1);
                    for zero in [2, 3, 12, 13, 14, 15, 8, 4] {
                        if let Some(byte) = message.get_mut(endpoint + zero) {
                            *byte = 0;
                        }
                    }
                }
                Some((Word::decode(&message)?, bytes))
            });
            let Some((word, bytes)) = zeros else { break };
            kinds += 1;
            let row = format!("| {kind} | {} | {bytes} |", name_of(&word));
            assert!(document.contains(&row), "the document lacks {row}");
        }
        assert_eq!(kinds, kind::PROOF);
    }
}
