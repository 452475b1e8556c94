//! A host outside that lies in datagrams, to UC and to the connection manager, where nobody is told of it: in the
//! order of `trials` in `kernel/rdma/test/stranger.c`, whose program waits for what comes behind each lie.

use std::collections::VecDeque;
use std::path::Path;

use sluice_tests::suite::Verdict;
use sluice_transport_window::frame::{Frame, MULTICAST_QPN, What, flag};

use crate::outsider::{Change, Outsider};
use crate::victim::Victim;

/// How many lies it knows.
const LIES: u32 = 21;
/// The one about what the program sends.
const SENT: u32 = 19;
const LENGTH: u32 = 100;
const MEMORY_BYTES: u64 = 4 << 20;
const QKEY: u32 = 0x1111_1111;
const DATAGRAM_BYTES_MAX: u32 = 4096;
const MANAGEMENT: u32 = 0x5600_0003;
const MAIL_BYTES: usize = 288;
/// Where a management datagram begins in one.
const MAD: usize = 32;
/// Requests of a flood.
const FLOOD: u32 = 1000;
/// Ports of the guest: who listens at one, and nobody at the other.
pub const PORT: u16 = 7777;
const NOBODY: u16 = 9;
/// `ibv_wr_opcode`
mod opcode {
    pub const WRITE: u16 = 0;
    pub const SEND: u16 = 2;
    pub const SEND_WITH_IMM: u16 = 3;
    pub const READ: u16 = 4;
    /// What wants an answer, and what is no operation.
    pub const OTHERS: [u16; 6] = [READ, 5, 6, 9, 10, 0xffff];
}

enum Said {
    /// With so many bytes as its header announces.
    Frame(Frame),
    Mail(Box<[u8; MAIL_BYTES]>),
    /// Whether it takes no message from its mailbox from now on.
    Deaf(bool),
}

pub struct Stranger {
    host: Outsider,
    next: u32,
    current: Option<Victim>,
    waiting: VecDeque<Said>,
    random: u32,
    downs: u32,
    /// What the victim of `SENT` has sent.
    asked: Option<Frame>,
}

impl Stranger {
    pub fn new(socket: &Path) -> Verdict<Stranger> {
        Ok(Stranger {
            host: Outsider::new(socket)?,
            next: 0,
            current: None,
            waiting: VecDeque::new(),
            random: 1,
            downs: 0,
            asked: None,
        })
    }

    pub fn slot(&self) -> u32 {
        self.host.slot()
    }

    /// Whether all was said, in one link.
    pub fn is_through(&self) -> bool {
        self.next == LIES && self.waiting.is_empty() && self.downs == 0
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?}, {} to say, {} links ended; {}",
            self.current,
            self.waiting.len(),
            self.downs,
            self.host.describe()
        )
    }

    /// `console`: what the guest has said.
    pub fn step(&mut self, console: &str) -> Verdict {
        let is_down = self.host.step()? == Change::Down;
        self.downs += u32::from(is_down && self.next > 0 && !self.is_over());
        let whole = console.rfind('\n').map_or("", |end| &console[..end]);
        let lines = whole.lines().map(str::trim_end);
        // Which of the guest's devices is lied to.
        let Some(lid) = lines.clone().find_map(|line| line.strip_prefix("lid 0x")) else {
            return Ok(());
        };
        let slot = u32::from_str_radix(lid, 16).unwrap_or_default();
        if !self.host.turn_to(slot.wrapping_sub(1)) || !self.host.join()? {
            return Ok(());
        }
        if self.waiting.is_empty()
            && let Some(victim) = lines
                .filter_map(|line| Victim::parse(line, "stranger "))
                .find(|victim| victim.number == self.next)
        {
            self.next += 1;
            self.current = Some(victim);
            self.lie(victim);
            if victim.number != SENT {
                self.say(self.good(victim));
            }
        }
        // The guest's console may say whose it is later than its window.
        while let Some(frame) = self.host.receive() {
            if frame.to == self.number(SENT) {
                self.asked = Some(frame);
            }
        }
        if let Some(victim) = self.current
            && victim.number == SENT
            && let Some(frame) = self.asked.take()
        {
            self.answer(&frame);
            self.say(self.good(victim));
        }
        self.go_on()
    }

    fn is_over(&self) -> bool {
        self.next == LIES && self.waiting.is_empty()
    }

    /// What there is room for.
    fn go_on(&mut self) -> Verdict {
        while let Some(said) = self.waiting.pop_front() {
            let is_said = match &said {
                Said::Frame(frame) => {
                    let has_room = self.host.has_room(u64::from(frame.len));
                    if has_room {
                        self.host.send(frame, &vec![0x11; frame.len as usize]);
                    }
                    has_room
                }
                Said::Mail(mail) => self.host.mail(MANAGEMENT, &mail[..])?,
                Said::Deaf(is_deaf) => {
                    self.host.be_deaf(*is_deaf);
                    true
                }
            };
            if !is_said {
                self.waiting.push_front(said);
                break;
            }
        }
        Ok(())
    }

    fn say(&mut self, frame: Frame) {
        self.waiting.push_back(Said::Frame(frame));
    }

    fn is_datagram(victim: Victim) -> bool {
        victim.number < 11 || victim.number == 20
    }

    /// The queue pair from which it lies so.
    fn number(&self, lie: u32) -> u32 {
        self.host.slot() << 19 | (100 + lie)
    }

    /// A message as it should be.
    fn good(&self, victim: Victim) -> Frame {
        let frame = Frame {
            code: opcode::SEND_WITH_IMM,
            len: LENGTH,
            to: victim.qpn,
            from: self.number(victim.number),
            imm: victim.number,
            ..Frame::new(What::Request)
        };
        if Self::is_datagram(victim) {
            Frame {
                about: QKEY,
                ..frame
            }
        } else {
            Frame {
                words: [u64::from(LENGTH), 0],
                ..frame
            }
        }
    }

    fn lie(&mut self, victim: Victim) {
        if victim.number == 20 {
            self.lie_to_managers();
        } else if Self::is_datagram(victim) {
            self.lie_in_datagrams(victim);
        } else {
            self.lie_in_uc(victim);
        }
    }

    fn lie_in_datagrams(&mut self, victim: Victim) {
        let good = self.good(victim);
        match victim.number {
            0 => {
                for len in [DATAGRAM_BYTES_MAX + 1, 2 * DATAGRAM_BYTES_MAX] {
                    self.say(Frame { len, ..good });
                }
            }
            1 => {
                let flags = flag::RELIABLE;
                self.say(Frame { flags, ..good });
                self.say(Frame {
                    flags: 0xff,
                    ..good
                });
            }
            2 => {
                let what = What::More;
                self.say(Frame { what, ..good });
            }
            3 => {
                for code in [opcode::WRITE, 1].into_iter().chain(opcode::OTHERS) {
                    self.say(Frame {
                        code,
                        rkey: victim.rkey,
                        addr: victim.addr,
                        ..good
                    });
                }
            }
            4 => {
                for about in [0, QKEY ^ 1, QKEY | 1 << 31, u32::MAX] {
                    self.say(Frame { about, ..good });
                }
            }
            5 => {
                let group = u64::from_le_bytes([0xff, 0x0e, 0, 0, 0, 0, 0, 0]);
                for words in [[group, 1], [0, 0], [u64::MAX; 2], [0x80fe, 7]] {
                    let to = MULTICAST_QPN;
                    self.say(Frame { to, words, ..good });
                }
            }
            6 => {
                let own = self.host.slot() << 19;
                for to in [
                    0,
                    1,
                    victim.qpn ^ 0x7_0000,
                    own | 5,
                    31 << 19 | 5,
                    victim.qpn | 1 << 24,
                    u32::MAX,
                ] {
                    self.say(Frame { to, ..good });
                    let flags = flag::RELIABLE;
                    self.say(Frame { to, flags, ..good });
                }
            }
            7 => {
                for what in [What::Answer, What::Data, What::NotYet, What::Ready] {
                    self.say(Frame { what, ..good });
                }
            }
            8 => self.say(Frame { len: 161, ..good }),
            9 => {
                // One address of IPv4 and one that is none, and a number that no sender counts to.
                self.say(Frame {
                    addr: 0,
                    psn: 0xffff_0000,
                    rkey: 0x0200_090a,
                    words: [0x09fd, 0x0200 << 48],
                    seq: u64::MAX,
                    ..good
                });
            }
            _ => {
                for number in 0..FLOOD {
                    let len = number % (DATAGRAM_BYTES_MAX + 100);
                    let about = QKEY ^ 1;
                    self.say(Frame { len, about, ..good });
                }
            }
        }
    }

    fn lie_in_uc(&mut self, victim: Victim) {
        let good = Frame {
            code: opcode::SEND,
            ..self.good(victim)
        };
        let of = |len: u32, total: u64| Frame {
            len,
            words: [total, 0],
            ..good
        };
        let more = |len: u32| Frame {
            what: What::More,
            len,
            ..good
        };
        match victim.number {
            11 => {
                for code in opcode::OTHERS {
                    for len in [0, LENGTH] {
                        self.say(Frame {
                            code,
                            len,
                            addr: victim.addr,
                            rkey: victim.rkey,
                            imm: victim.rkey,
                            ..good
                        });
                    }
                }
            }
            12 => {
                let flags = flag::RELIABLE;
                self.say(Frame { flags, ..good });
                let from = good.from ^ 1;
                self.say(Frame { from, ..good });
            }
            13 => {
                for len in [0, 1, LENGTH] {
                    self.say(more(len));
                }
            }
            14 => {
                self.say(of(101, 100));
                self.say(of(50, 100));
                self.say(more(51));
                self.say(more(50));
                self.say(of(50, 100));
                let seq = 1;
                self.say(Frame { seq, ..more(50) });
            }
            15 => {
                self.say(of(50, (1 << 31) + 1));
                self.say(of(50, u64::MAX));
                self.say(of(0, 100));
                self.say(of(50, 100));
                self.say(more(0));
                self.say(more(50));
            }
            16 => self.say(of(99, 100)),
            17 => {
                for (addr, rkey) in [
                    (victim.addr, victim.rkey ^ 1),
                    (victim.addr, 0),
                    (victim.addr + MEMORY_BYTES - 99, victim.rkey),
                    (victim.addr - 1, victim.rkey),
                    (u64::MAX - 49, victim.rkey),
                ] {
                    let code = opcode::WRITE;
                    self.say(Frame {
                        code,
                        addr,
                        rkey,
                        ..good
                    });
                    self.say(Frame {
                        code,
                        addr,
                        rkey,
                        ..of(50, 100)
                    });
                    self.say(more(50));
                }
            }
            18 => self.say(of(201, 201)),
            _ => {}
        }
    }

    /// To a SEND that nobody has to answer.
    fn answer(&mut self, request: &Frame) {
        for what in [What::Answer, What::Data, What::NotYet, What::Ready] {
            for code in [0, 12, 255] {
                for len in [0, 8] {
                    let frame = Frame::about(what, request);
                    self.say(Frame { code, len, ..frame });
                    let flags = flag::NO_RECEIVE;
                    let seq = request.seq + 1;
                    self.say(Frame {
                        code,
                        len,
                        flags,
                        seq,
                        ..frame
                    });
                }
            }
        }
    }

    fn random(&mut self) -> u32 {
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.random >> 8
    }

    /// A connection manager's, of this kind; what it says is `fill`, or anything.
    fn mail(
        &mut self,
        source: [u8; 16],
        to: [u8; 16],
        attribute: u16,
        fill: Option<u8>,
    ) -> [u8; MAIL_BYTES] {
        let mut mail = [0; MAIL_BYTES];
        for byte in &mut mail[MAD + 24..] {
            *byte = fill.unwrap_or_else(|| self.random() as u8);
        }
        mail[..16].copy_from_slice(&source);
        mail[16..32].copy_from_slice(&to);
        mail[MAD..MAD + 4].copy_from_slice(&[1, 7, 2, 3]);
        let number = u64::from(self.random()).to_be_bytes();
        mail[MAD + 8..MAD + 16].copy_from_slice(&number);
        mail[MAD + 16..MAD + 18].copy_from_slice(&attribute.to_be_bytes());
        mail
    }

    fn post(&mut self, mail: [u8; MAIL_BYTES]) {
        self.waiting.push_back(Said::Mail(Box::new(mail)));
    }

    fn lie_to_managers(&mut self) {
        let (here, other) = (mapped([10, 9, 0, 1]), mapped([10, 9, 0, 2]));
        let stranger = mapped([10, 9, 0, 77]);
        // What is no connection manager's: version, class, its version, method.
        for header in [
            [0, 7, 2, 3],
            [2, 7, 2, 3],
            [0x80, 7, 2, 3],
            [0xff; 4],
            [0; 4],
            [1, 1, 1, 1],
            [1, 0x81, 1, 1],
            [1, 3, 2, 1],
            [1, 3, 2, 0x12],
            [1, 4, 1, 1],
            [1, 6, 1, 2],
            [1, 8, 1, 5],
            [1, 0x32, 1, 3],
            [1, 7, 1, 3],
            [1, 7, 3, 3],
            [1, 7, 2, 1],
            [1, 7, 2, 2],
            [1, 7, 2, 0x81],
        ] {
            for fill in [Some(0), None] {
                let mut mail = self.mail(stranger, here, 0x10, fill);
                mail[MAD..MAD + 4].copy_from_slice(&header);
                self.post(mail);
            }
        }
        // Every kind that there is, and some that there are not, about connections that are not there.
        for attribute in (0..0x20).chain([0x7fff, 0x8000, 0xffff]) {
            for fill in [Some(0), Some(0xff), None] {
                let mail = self.mail(stranger, here, attribute, fill);
                self.post(mail);
            }
        }
        // From and to addresses that are nobody's, everybody's, and this guest's own.
        let addresses = [
            [0; 16],
            [0xff; 16],
            here,
            other,
            stranger,
            mapped([0; 4]),
            mapped([127, 0, 0, 1]),
            mapped([224, 0, 0, 1]),
            mapped([255; 4]),
            0xfd09_u128.rotate_right(16).to_be_bytes(),
            (0xfd09_u128.rotate_right(16) | 1).to_be_bytes(),
            1_u128.to_be_bytes(),
            (0xff02_u128 << 112 | 1).to_be_bytes(),
        ];
        for source in addresses {
            for to in addresses {
                for attribute in [0x10, 0x14, 0x17] {
                    let mail = self.mail(source, to, attribute, None);
                    self.post(mail);
                }
            }
        }
        // More than anybody waits for, whose answers it does not take.
        self.waiting.push_back(Said::Deaf(true));
        for number in 0..FLOOD {
            let port = if number % 64 == 0 { PORT } else { NOBODY };
            let request = self.request(stranger, here, port);
            self.post(request);
        }
        self.waiting.push_back(Said::Deaf(false));
    }

    /// To begin a connection with who listens at this port, as librdmacm asks for one, with all else anything.
    fn request(&mut self, source: [u8; 16], to: [u8; 16], port: u16) -> [u8; MAIL_BYTES] {
        let mut mail = self.mail(source, to, 0x10, None);
        let [high, low] = port.to_be_bytes();
        mail[MAD + 32..MAD + 40].copy_from_slice(&[0, 0, 0, 0, 1, 6, high, low]);
        let private = &mut mail[MAD + 164..];
        private[..2].copy_from_slice(&[0, 0x40]);
        private[4..20].copy_from_slice(&[[0; 12].as_slice(), &source[12..]].concat());
        private[20..36].copy_from_slice(&[[0; 12].as_slice(), &to[12..]].concat());
        mail
    }
}

/// An address of IPv4.
fn mapped(address: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}
