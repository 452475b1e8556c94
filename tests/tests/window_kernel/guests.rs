//! The module in guests, whose windows are served by `sluice window serve`.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sluice_tests::guest::module::Kernel;
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, fail, trial};
use sluice_window::claim::{Table, Word};
use sluice_window::layout::{HEADER_BYTES, MAILBOX_BYTES, PEER_BYTES, Pair};
use sluice_window::link::Ended;
use sluice_window::mailbox::MESSAGE_BYTES_MAX;
use sluice_window::{Out, View};

use crate::build;
use crate::guest::{Extra, Guest, HOSTS, serve};
use crate::host::{Heard, Host};
use crate::sure;

/// Where a guest's program listens, and where nobody does.
const PORT: u32 = 0x1001;
const NOBODY: u32 = 0x1fff;
/// Of `kernel/window/client_test.c`.
const CLIENT_PORT: u32 = 0x1002;
const CLIENT_LIES: u32 = 12;

/// What the programs say to each other; `kernel/window/test/user.c`.
mod said {
    pub const HELLO: u32 = 1;
    pub const DATA: u32 = 2;
    pub const SUM: u32 = 3;
    pub const END: u32 = 4;
    pub const LENT: u32 = 5;
    pub const WRITTEN: u32 = 6;
    pub const LEND: u32 = 7;
    pub const FILLED: u32 = 8;
    pub const TAKEN: u32 = 9;
    pub const GONE: u32 = 10;
}

/// What the kernels say to each other (docs/windows.md, "Pieces for programs").
mod kernel {
    pub const GRANT: u32 = 0x5700_0001;
    pub const RETURN: u32 = 0x5700_0002;
    pub const TAKE: u32 = 0x5700_0003;
    pub const BELL: u32 = 0x5700_0004;
}

pub fn trials() -> Vec<Trial> {
    vec![
        trial("builds_without_a_warning_on_6_1", || builds("bookworm")),
        trial("builds_without_a_warning_on_6_12", || {
            builds("bookworm-backports")
        }),
        trial("builds_without_a_warning_on_7_3", || {
            builds("trixie-backports")
        }),
        trial("guest_killed_then_another_6_1_then_6_12", killed_and_whole),
        trial("guest_7_3", || short("trixie-backports")),
    ]
}

fn builds(suite: &'static str) -> Verdict {
    let kernel = Kernel::find(suite)?;
    build::modules(&kernel)?;
    build::bridge_compiles(&kernel)
}

/// One turn of the program that answers with sums: from its HELLO to the end of that link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// So many messages, then the end of the program.
    Whole(u32),
    /// So many, then a link anew without a word, as of a host that was restarted.
    Restart(u32),
    /// So many, then an orderly end.
    Leave(u32),
    /// So many, then nothing any more; another host takes a slot.
    Silence(u32),
    /// So many, then its slot is somebody else's.
    Steal(u32),
    /// A lie, which ends the link.
    Lie(usize),
}

/// What the guest's programs talk to.
struct Partner {
    socket: PathBuf,
    host: Host,
    turns: VecDeque<Turn>,
    turn: Option<Turn>,
    random: Random,
    /// Sums that are to come, in order.
    expected: VecDeque<u64>,
    sent: u32,
    answered: u32,
    /// Pieces that the guest has lent to this host.
    granted: Vec<(u64, u64)>,
    lent: Option<u64>,
    returned: bool,
    gone: bool,
    rung: bool,
    /// By slot, as what the peers said that they can be rung.
    bells: BTreeMap<u32, u16>,
    /// Whose program it is that talks.
    talker: Option<u32>,
    load: u64,
    ups: u32,
    downs: Vec<Ended>,
    finished: bool,
    /// By the client in the kernel.
    greeted: u32,
}

impl Partner {
    fn new(socket: &Path) -> Verdict<Partner> {
        Ok(Partner {
            socket: socket.to_owned(),
            host: Host::join(socket)?,
            turns: VecDeque::new(),
            turn: None,
            random: Random::new(7),
            expected: VecDeque::new(),
            sent: 0,
            answered: 0,
            granted: Vec::new(),
            lent: None,
            returned: false,
            gone: false,
            rung: false,
            bells: BTreeMap::new(),
            talker: None,
            load: 0,
            ups: 0,
            downs: Vec::new(),
            finished: false,
            greeted: 0,
        })
    }

    fn step(&mut self) -> Verdict {
        for heard in self.host.step()? {
            match heard {
                Heard::Up(peer) => {
                    self.ups += 1;
                    let number = self.host.client().number();
                    let mut words = [0; 8];
                    words[..4].copy_from_slice(&u32::from(number).to_le_bytes());
                    words[4..].copy_from_slice(&1u32.to_le_bytes());
                    sure(self.host.send(peer, kernel::BELL, &words)?, "a bell")?;
                }
                Heard::Down(peer, why) => {
                    self.downs.push(why);
                    self.bells.remove(&peer);
                    if self.talker == Some(peer) {
                        self.forget();
                    }
                }
                Heard::Message(peer, kind, bytes) => self.hear(peer, kind, &bytes)?,
            }
        }
        self.listen_for_rings();
        for peer in self.host.peers() {
            if self.host.is_up(peer) {
                self.talk(peer)?;
            }
        }
        Ok(())
    }

    /// Where it stands, for who wonders why nothing happens.
    fn describe(&self) -> String {
        format!(
            "{:?}, then {:?}; sent {}, answered {}, talker {:?} of {:?}, ups {}, downs {:?}",
            self.turn,
            self.turns,
            self.sent,
            self.answered,
            self.talker,
            self.bells,
            self.ups,
            self.downs
        )
    }

    /// What was of a link that is over.
    fn forget(&mut self) {
        self.turn = None;
        self.expected.clear();
        self.granted.clear();
        self.lent = None;
    }

    fn listen_for_rings(&mut self) {
        let number = self.host.client().number();
        let mut rings = [0; 8];
        if let Some(bell) = self.host.client().bell(number, 0) {
            // Without a ring there is nothing to read.
            self.rung |= rustix::io::read(bell, &mut rings).is_ok();
        }
    }

    /// The guest looks when it hears this; else it looks every quarter of a second at the latest.
    fn ring(&mut self, peer: u32) {
        if let Some(number) = self.bells.get(&peer)
            && let Some(bell) = self.host.client().bell(*number, 0)
        {
            // A full counter rings as well.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    fn say(&mut self, peer: u32, kind: u32, bytes: &[u8]) -> Verdict {
        let sent = self.host.send(peer, kind, bytes)?;
        self.ring(peer);
        sure(sent, format!("no room for {kind:#x}"))
    }

    /// Load at a port where nobody listens, and messages to the program that answers.
    fn talk(&mut self, peer: u32) -> Verdict {
        if self.turn.is_none() && self.host.send(peer, NOBODY << 16, &[7; 500])? {
            self.load += 1;
            self.ring(peer);
        }
        if self.talker != Some(peer) {
            return Ok(());
        }
        let count = match self.turn {
            Some(
                Turn::Whole(count)
                | Turn::Restart(count)
                | Turn::Leave(count)
                | Turn::Steal(count)
                | Turn::Silence(count),
            ) => count,
            Some(Turn::Lie(_)) | None => return Ok(()),
        };
        while self.sent < count && self.expected.len() < 5 {
            let length = self.random.below(1025) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| self.random.next() as u8).collect();
            if !self.host.send(peer, PORT << 16 | said::DATA, &bytes)? {
                break;
            }
            self.expected.push_back(sum_of(&bytes));
            self.sent += 1;
            self.ring(peer);
        }
        if count == 0 || self.answered < count {
            return Ok(());
        }
        match self.turn.take() {
            Some(Turn::Whole(_)) => {
                self.finished = true;
                self.say(peer, PORT << 16 | said::END, &[])
            }
            Some(Turn::Restart(_)) => {
                self.host.begin(peer);
                Ok(())
            }
            Some(Turn::Leave(_)) => {
                self.host.leave(peer);
                Ok(())
            }
            Some(Turn::Steal(_)) => {
                self.host.region().say(peer, Word::Generation, 7);
                self.host.region().say(peer, Word::Beat, 7);
                Ok(())
            }
            Some(Turn::Silence(_)) => {
                self.forget();
                self.bells.clear();
                // The old one's slot stays as it is, as that of a process that was killed.
                self.host = Host::join(&self.socket)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn hear(&mut self, peer: u32, kind: u32, bytes: &[u8]) -> Verdict {
        let word = |at: usize| -> u64 {
            let mut word = [0; 8];
            if let Some(there) = bytes.get(8 * at..8 * at + 8) {
                word.copy_from_slice(there);
            }
            u64::from_le_bytes(word)
        };
        match kind {
            kernel::BELL => {
                self.bells.insert(peer, word(0) as u16);
                return Ok(());
            }
            kernel::GRANT => {
                let (heap, end) = (u64::from(HOSTS) * PEER_BYTES, self.slot_bytes());
                let fits = word(0) >= heap && word(0) + word(1) <= end;
                self.granted.push((word(0), word(1)));
                return sure(fits, "a piece outside the heap");
            }
            kernel::TAKE => {
                let known = self.granted.iter().any(|(at, _)| *at == word(0));
                self.granted.retain(|(at, _)| *at != word(0));
                sure(known, "it takes back what it has not lent")?;
                return self.say(peer, kernel::RETURN, &word(0).to_le_bytes());
            }
            kernel::RETURN => {
                self.returned = true;
                return sure(self.lent == Some(word(0)), "returned what was not lent");
            }
            _ => {}
        }
        if kind >> 16 == CLIENT_PORT {
            // It greets everybody, and is told of a piece that cannot be, until it must have seen that.
            self.greeted += 1;
            if self.greeted > CLIENT_LIES {
                return Ok(());
            }
            return self.say(peer, CLIENT_PORT << 16 | 1, &u64::MAX.to_le_bytes());
        }
        sure(kind >> 16 == PORT, format!("a message of kind {kind:#x}"))?;
        match kind & 0xffff {
            said::HELLO => {
                self.talker = Some(peer);
                (self.sent, self.answered) = (0, 0);
                self.expected.clear();
                // Programs that are killed have no turn of their own.
                self.turn = Some(self.turns.pop_front().unwrap_or(Turn::Whole(u32::MAX)));
                if let Some(Turn::Lie(number)) = self.turn {
                    self.lie(peer, number)?;
                }
                Ok(())
            }
            said::SUM => {
                self.answered += 1;
                sure(self.expected.pop_front() == Some(word(0)), "a wrong sum")
            }
            said::LENT => self.fill(peer, word(0), word(1)),
            said::FILLED => {
                let Some(at) = self.lent else {
                    return fail("it fills what nobody lent");
                };
                let mut there = vec![0; 8192];
                self.host.view().read(sluice_window::In(at), &mut there);
                sure(sum_of(&there) == word(0), "other bytes than were written")?;
                self.say(peer, kernel::TAKE, &at.to_le_bytes())?;
                self.say(peer, PORT << 16 | said::TAKEN, &[])
            }
            said::GONE => {
                self.gone = true;
                Ok(())
            }
            other => fail(format!("a message {other}")),
        }
    }

    fn slot_bytes(&self) -> u64 {
        self.host.region().header().geometry.slot_bytes()
    }

    /// Writes to the guest's piece, and lends one.
    fn fill(&mut self, peer: u32, at: u64, length: u64) -> Verdict {
        sure(self.granted.contains(&(at, length)), "an unknown piece")?;
        let bytes: Vec<u8> = (0..length).map(|_| self.random.next() as u8).collect();
        let view = self.host.view();
        view.write(Out { slot: peer, at }, &bytes);
        view.publish(Out { slot: peer, at }, length);
        let sum = sum_of(&bytes).to_le_bytes();
        self.say(peer, PORT << 16 | said::WRITTEN, &sum)?;
        let (heap, _) = self.host.region().header().geometry.heap();
        let mut words = [0; 24];
        words[..8].copy_from_slice(&heap.to_le_bytes());
        words[8..16].copy_from_slice(&8192u64.to_le_bytes());
        words[16..].copy_from_slice(&u64::from(PORT).to_le_bytes());
        self.lent = Some(heap);
        self.say(peer, kernel::GRANT, &words)?;
        self.say(peer, PORT << 16 | said::LEND, &heap.to_le_bytes())
    }

    /// Everything that ends a link if it is said.
    fn lie(&mut self, peer: u32, number: usize) -> Verdict {
        let heap = u64::from(HOSTS) * PEER_BYTES;
        let end = self.slot_bytes();
        let grants = [
            [0, 4096, 1],
            [heap - 4096, 4096, 1],
            [heap + 8, 4096, 1],
            [heap, 100, 1],
            [heap, 0, 1],
            [end, 4096, 1],
            [heap, u64::MAX - 4095, 1],
            [u64::MAX - 4095, 8192, 1],
            [heap, 4096, 1 << 20],
        ];
        let mut said: Vec<(u32, Vec<u8>)> = grants
            .iter()
            .map(|words| {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                (kernel::GRANT, bytes.collect())
            })
            .collect();
        said.extend([
            (kernel::GRANT, vec![0; 8]),
            (kernel::RETURN, heap.to_le_bytes().to_vec()),
            (kernel::RETURN, vec![]),
            (kernel::TAKE, vec![1; 1000]),
            (kernel::BELL, vec![0xff; 8]),
            (0x5700_0000, vec![0; 8]),
            (0x5700_ffff, vec![0; 8]),
        ]);
        if let Some((kind, bytes)) = said.get(number) {
            return self.say(peer, *kind, bytes);
        }
        let (view, ring) = (
            self.host.view(),
            Pair::new(self.host.slot(), peer).mailbox_out(),
        );
        match number - said.len() {
            // The same piece twice.
            0 => {
                let bytes: Vec<u8> = [heap, 4096, 1u64]
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect();
                self.say(peer, kernel::GRANT, &bytes)?;
                self.say(peer, kernel::GRANT, &bytes)
            }
            // More pieces than anybody has.
            1 => {
                for number in 0..65 {
                    let bytes: Vec<u8> = [heap + 4096 * number, 4096, 1u64]
                        .iter()
                        .flat_map(|word| word.to_le_bytes())
                        .collect();
                    self.say(peer, kernel::GRANT, &bytes)?;
                }
                Ok(())
            }
            2 => {
                view.say(ring.tail, u64::MAX / 2);
                self.ring(peer);
                Ok(())
            }
            number => self.rewrite(peer, number % 4 == 0),
        }
    }

    /// The length of a message, how far it has written, and all words of its page, which change while the kernel reads
    /// them, until the kernel has had enough.
    fn rewrite(&mut self, peer: u32, page: bool) -> Verdict {
        const LOOKS: usize = 64;
        const WRONG: [u64; 3] = [MESSAGE_BYTES_MAX as u64 + 1, 8000, u32::MAX as u64];
        let (view, pair) = (self.host.view(), Pair::new(self.host.slot(), peer));
        let (ring, generation) = (pair.mailbox_out(), pair.hello_in(1));
        let theirs = view.look(generation);
        let started = Instant::now();
        while view.look(generation) == theirs {
            sure(started.elapsed() < REWRITE_LIMIT, "it is believed")?;
            self.ring(peer);
            let wrong = WRONG[self.random.below(3) as usize];
            for _ in 0..LOOKS {
                // Where the kernel reads next; where there is a message nobody listens.
                let head = view.look(ring.head);
                let at = ring.data.add(head % MAILBOX_BYTES);
                for length in [8, wrong, 8] {
                    view.say(at, u64::from(NOBODY) << 48 | length);
                    view.say(ring.tail, head + 16);
                }
                view.say(ring.tail, head + wrong);
                if page {
                    let word = pair.hello_out(self.random.below(3));
                    view.say(word, self.random.next());
                }
            }
        }
        Ok(())
    }
}

/// How many [`Partner::lie`] knows.
const LIES: usize = 31;
/// For the kernel to end the link of a host that rewrites what it has said.
const REWRITE_LIMIT: Duration = Duration::from_secs(60);

/// FNV-1a.
fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Lets the partner talk to a guest until that is over or `until` says so.
fn run(guest: &mut Guest, partner: &mut Partner, until: impl Fn(&Partner) -> bool) -> Verdict {
    let ran = guest.run(|_| {
        partner.step()?;
        Ok(until(partner))
    });
    ran.map_err(|problem| problem.with(|| partner.describe()))
}

/// A guest that is killed in the middle of a talk, and one that boots into the same window and does
/// everything.
fn killed_and_whole() -> Verdict {
    let place = tempfile::tempdir()?;
    let (old, usual) = (
        Kernel::find("bookworm")?,
        Kernel::find("bookworm-backports")?,
    );
    let server = serve(place.path())?;
    let mut partner = Partner::new(&server.socket)?;
    partner.turns.push_back(Turn::Whole(u32::MAX));
    let mut first = Guest::boot(
        &old,
        Some((&server, 1)),
        Extra::default(),
        "load; $USER echo $DEVICE",
    )?;
    run(&mut first, &mut partner, |partner| partner.answered >= 100)?;
    sure(partner.answered >= 100, first.console())?;
    drop(first);
    partner.answered = 0;

    partner.turns = [
        Turn::Leave(40),
        Turn::Restart(40),
        Turn::Steal(40),
        Turn::Silence(40),
    ]
    .into();
    partner.turns.extend((0..LIES).map(Turn::Lie));
    partner.turns.push_back(Turn::Whole(300));
    let script = r#"
load
$USER echo $DEVICE
$USER pieces $DEVICE
$USER attack $DEVICE
echo attacked
mkfifo /run/go
card=$(basename /sys/bus/pci/drivers/sluice_window/0000*)
for round in 1 2 3; do
    $USER removal $DEVICE </run/go >/run/removal &
    exec 3>/run/go
    until grep -q holding /run/removal; do sleep 0.1; done
    echo $card >/sys/bus/pci/drivers/sluice_window/unbind
    echo go >&3
    exec 3>&-
    wait $!
    grep removal=ok /run/removal
    fails test -e $DEVICE
    echo $card >/sys/bus/pci/drivers/sluice_window/bind
    $USER up $DEVICE
done
rmmod sluice_window
nothing_left
for round in $(seq 20); do
    load
    if [ $((round % 4)) = 0 ]; then
        $USER echo $DEVICE &
        sleep 0.3
        fails rmmod sluice_window
        kill -9 $!
        wait $! || :
    fi
    rmmod sluice_window
done
nothing_left
echo unloaded=20
"#;
    let mut second = Guest::boot(&usual, Some((&server, 1)), Extra::default(), script)?;
    run(&mut second, &mut partner, |_| false)?;
    let console = second.finish()?;
    for word in ["pieces=ok", "attack=ok", "removal=ok", "unloaded=20"] {
        sure(console.contains(word), format!("no {word}\n{console}"))?;
    }
    let links = format!("links={}", 5 + LIES);
    sure(console.contains(&links), format!("no {links}\n{console}"))?;
    sure(partner.returned && partner.gone, "pieces were not returned")?;
    sure(partner.rung, "no doorbell has rung here")?;
    sure(partner.load > 100, format!("a load of {}", partner.load))?;
    sure(partner.ups >= 40, format!("{} links", partner.ups))?;
    let silent = partner.downs.contains(&Ended::Silent);
    sure(silent, "nobody noticed that the first guest was killed")?;
    // The window is as it was: nobody wrote to its header.
    sure(
        partner.host.region().header().geometry.region_bytes() > HEADER_BYTES,
        "the header",
    )
}

/// Two devices, which talk to each other and to the host outside.
fn short(suite: &'static str) -> Verdict {
    let place = tempfile::tempdir()?;
    let kernel = Kernel::find(suite)?;
    let server = serve(place.path())?;
    let mut partner = Partner::new(&server.socket)?;
    partner.turns = [Turn::Whole(100)].into();
    let script = "load\n$USER echo $DEVICE\n$USER pieces $DEVICE\n$USER attack $DEVICE\n\
                  $USER pair $DEVICE\nclient\nrmmod sluice_window\nnothing_left\n";
    let mut guest = Guest::boot(&kernel, Some((&server, 2)), Extra::default(), script)?;
    run(&mut guest, &mut partner, |_| false)?;
    let console = guest.finish()?;
    for word in ["links=1", "pieces=ok", "attack=ok", "pair=ok", "client=ok"] {
        sure(console.contains(word), format!("no {word}\n{console}"))?;
    }
    sure(partner.finished && partner.rung, "no doorbell, or no end")
}
