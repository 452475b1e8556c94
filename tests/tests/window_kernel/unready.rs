//! A host outside that asks queue pairs of a program in the guest (`kernel/rdma/test/unready.c`) which are not ready,
//! as that program says.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, fail, trial};
use sluice_transport_window::frame::{Frame, What, flag};

use crate::guest::serve;
use crate::outsider::{Change, Outsider};
use crate::rdma::{boot, run_beside};
use crate::sure;

/// Both ends' first packet numbers.
const PSN: u32 = 0xff_fff0;
/// `ibv_wr_opcode`: WRITE, SEND, READ, FETCH_AND_ADD, SEND_WITH_INV.
const OPCODES: [u16; 5] = [0, 2, 4, 6, 9];
const SEND: u16 = 2;
const READ: u16 = 4;
/// `IBV_WC_RETRY_EXC_ERR`
const RETRY_EXCEEDED: u16 = 12;
/// More than its ring has room for, together.
const READS: u32 = 3;
const READ_BYTES: u64 = 1 << 20;

pub fn trials() -> Vec<Trial> {
    vec![trial("rdma_unready_6_12", unready)]
}

/// A line of the program.
#[derive(Clone, Copy, Debug)]
struct Line {
    kind: u32,
    number: u32,
    qpn: u32,
    addr: u64,
    rkey: u32,
    bell: u32,
}

impl Line {
    fn parse(line: &str) -> Option<Line> {
        let mut words = line.trim_end().strip_prefix("unready ")?.split(' ');
        Some(Line {
            kind: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            qpn: words.next()?.parse().ok()?,
            addr: words.next()?.parse().ok()?,
            rkey: words.next()?.parse().ok()?,
            bell: words.next()?.parse().ok()?,
        })
    }
}

/// A request, and what was heard of it.
struct Asked {
    frame: Frame,
    put_off: bool,
    /// Its queue pair is this host's peer, and takes it in the end.
    is_known: bool,
}

struct Stranger {
    host: Outsider,
    next: u32,
    bells: u32,
    asked: Vec<Asked>,
    /// It takes nothing of what comes.
    holds: bool,
    downs: u32,
}

impl Stranger {
    fn describe(&self) -> String {
        let open: Vec<_> = self.asked.iter().map(|asked| asked.frame).collect();
        let (next, downs) = (self.next, self.downs);
        format!(
            "{next} lines, {downs} links ended, open {open:?}; {}",
            self.host.describe()
        )
    }

    fn step(&mut self, console: &str) -> Verdict {
        let is_down = self.host.step()? == Change::Down;
        self.downs += u32::from(is_down && self.next > 0);
        let whole = console.rfind('\n').map_or("", |end| &console[..end]);
        let lines: Vec<Line> = whole.lines().filter_map(Line::parse).collect();
        let Some(first) = lines.first() else {
            return Ok(());
        };
        if !self.host.turn_to(first.qpn >> 19) || !self.host.join()? {
            return Ok(());
        }
        let next = self.next;
        for line in lines.iter().filter(|line| line.number >= next) {
            self.obey(line);
        }
        self.next = lines.len() as u32;
        while !self.holds
            && let Some(frame) = self.host.receive()
        {
            self.heard(&frame)?;
        }
        Ok(())
    }

    fn obey(&mut self, line: &Line) {
        let request = Frame {
            flags: flag::RELIABLE,
            code: OPCODES[line.number as usize % OPCODES.len()],
            to: line.qpn,
            // Another queue pair of its own each time; the peers of two of the program's are 0 and 1.
            from: self.host.slot() << 19 | (2 + line.number),
            seq: u64::from(line.number),
            psn: PSN,
            addr: line.addr,
            rkey: line.rkey,
            words: [8, 0],
            ..Frame::new(What::Request)
        };
        match line.kind {
            0 => {
                let brings = request.code != READ && request.code != OPCODES[3];
                let bytes = if brings { 8 } else { 0 };
                self.ask(request, bytes, false);
            }
            1 => {
                self.holds = true;
                let from = self.host.slot() << 19;
                for read in 0..READS {
                    let read = Frame {
                        code: READ,
                        from,
                        psn: PSN + read,
                        words: [READ_BYTES, 0],
                        ..request
                    };
                    self.host.send(&read, &[]);
                }
                let send = Frame {
                    code: SEND,
                    from,
                    psn: PSN + READS,
                    words: [0, 0],
                    ..request
                };
                self.ask(send, 0, true);
            }
            _ => {
                self.holds = false;
                return;
            }
        }
        let bell = Frame {
            code: SEND,
            to: line.bell,
            from: self.host.slot() << 19 | 1,
            psn: PSN.wrapping_add(self.bells) & 0xff_ffff,
            words: [0, 0],
            ..request
        };
        self.bells += 1;
        self.host.send(&bell, &[]);
    }

    fn ask(&mut self, frame: Frame, bytes: u32, is_known: bool) {
        let frame = Frame {
            len: bytes,
            ..frame
        };
        self.host.send(&frame, &vec![0x11; bytes as usize]);
        self.asked.push(Asked {
            frame,
            put_off: false,
            is_known,
        });
    }

    fn heard(&mut self, frame: &Frame) -> Verdict {
        let about = |asked: &Asked| asked.frame.from == frame.to && asked.frame.psn == frame.psn;
        let Some(at) = self.asked.iter().position(about) else {
            return Ok(());
        };
        let asked = &mut self.asked[at];
        match frame.what {
            What::NotYet => {
                sure(!asked.put_off, format!("put off twice: {frame:?}"))?;
                asked.put_off = true;
            }
            What::Ready => {
                sure(asked.is_known, format!("a stranger may come: {frame:?}"))?;
                sure(asked.put_off, "READY in front of its NOT_YET")?;
                let again = asked.frame;
                self.host.send(&again, &[]);
            }
            What::Answer => {
                let wanted = if asked.is_known { 0 } else { RETRY_EXCEEDED };
                sure(frame.code == wanted, format!("{frame:?}"))?;
                self.asked.remove(at);
            }
            _ => return fail(format!("{frame:?}")),
        }
        Ok(())
    }
}

fn unready() -> Verdict {
    let place = tempfile::tempdir()?;
    let server = serve(place.path())?;
    let mut stranger = new_stranger(&server.socket)?;
    let script = format!(
        "both\n$UNREADY sluice1 sluice0 {}\nrmmod sluice_rdma\nrmmod sluice_window\nnothing_left\n",
        stranger.host.slot()
    );
    let devices = Some((&server, 2));
    let guest = boot(place.path(), devices, "bookworm-backports", &script, None)?;
    let console = run_beside(guest, &mut stranger, Stranger::step, Stranger::describe)?;
    let said = format!("{}\n{console}", stranger.describe());
    sure(console.contains("unready=ok"), said.clone())?;
    // Whoever asked has heard what became of it.
    sure(stranger.next > 100 && stranger.asked.is_empty(), said)
}

fn new_stranger(socket: &Path) -> Verdict<Stranger> {
    Ok(Stranger {
        host: Outsider::new(socket)?,
        next: 0,
        bells: 0,
        asked: Vec::new(),
        holds: false,
        downs: 0,
    })
}
