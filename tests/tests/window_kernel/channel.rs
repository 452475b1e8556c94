//! `kernel/rdma`'s channel as a process (`test/channel.c`), and the crates' rings and frames, over one file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libtest_mimic::Trial;
use sluice_tests::asked::Asked;
use sluice_tests::guest::module::{kernel_folder, program};
use sluice_tests::job::command;
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, fail, trial};
use sluice_transport_window::frame::{Frame, HEADER_BYTES, What, padded};
use sluice_window::region::{Region, RegionView};
use sluice_window::{In, Kind, Out, View};

use crate::sure;

const BYTES: u64 = 1 << 20;
/// Of the ring that the program of C lends, and of the one that it borrows.
const RINGS: [u64; 2] = [32 << 10, 64 << 10];
const CONTROL_BYTES: u64 = 4096;
const TAIL: u64 = 0;
const HEAD: u64 = 64;
const SLEEP: u64 = 128;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::Coherent, Kind::Flush] {
        trials.push(trial(format!("channel/frames/{kind}"), move || {
            frames(kind)
        }));
        trials.push(trial(format!("channel/lies/{kind}"), move || lies(kind)));
        trials.push(trial(format!("channel/rewritten/{kind}"), move || {
            rewritten(kind)
        }));
    }
    trials.push(trial("channel/pieces_that_lie", pieces));
    trials
}

/// The program of C has slot 0, this one slot 1.
struct Both {
    _place: tempfile::TempDir,
    view: RegionView<'static>,
    c: Asked,
    /// Where heaps begin.
    heap: u64,
    slot_bytes: u64,
    /// What this side has written and read.
    tail: u64,
    head: u64,
}

impl Both {
    fn new(kind: Kind) -> Verdict<Both> {
        let place = tempfile::tempdir()?;
        let (rdma, window) = (kernel_folder().join("rdma"), kernel_folder().join("window"));
        let sources: Vec<PathBuf> = ["test/channel.c", "sr_channel.c", "sr_frame.c"]
            .iter()
            .map(|name| rdma.join(name))
            .chain([window.join("sw_header.c")])
            .collect();
        let include = format!("-I{}", window.display());
        let options = [
            "-O1",
            "-g",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            &include,
        ];
        let program = program(place.path(), "channel", &sources, &options)?;
        let file = place.path().join("window");
        let region: &'static Region = match Region::create(&file, Some(BYTES), 2, kind, false) {
            // Views borrow it.
            Ok(region) => Box::leak(Box::new(region)),
            Err(error) => return fail(error.to_string()),
        };
        let mut start = command(&program);
        start.arg(&file);
        let mut c = Asked::start(start)?;
        let ready = c.line()?;
        sure(ready == "ready", ready)?;
        let geometry = region.header().geometry;
        Ok(Both {
            _place: place,
            view: region.view(1),
            c,
            heap: geometry.heap().0,
            slot_bytes: geometry.slot_bytes(),
            tail: 0,
            head: 0,
        })
    }

    /// A channel anew: both pieces are the first of their heaps.
    fn begin(&mut self) -> Verdict {
        let (heap, [lent, borrowed]) = (self.heap, RINGS);
        for word in [TAIL, HEAD, SLEEP] {
            self.view.say(self.out(word), 0);
        }
        (self.tail, self.head) = (0, 0);
        self.c
            .expect(&format!("begin {heap} {lent} {heap} {borrowed}"), "ok")
    }

    fn out(&self, at: u64) -> Out {
        Out {
            slot: 0,
            at: self.heap + at,
        }
    }

    fn tell(&self, tail: u64) {
        self.view.say(self.out(TAIL), tail);
    }

    /// Writes bytes behind what was written.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = self.out(CONTROL_BYTES + self.tail % RINGS[0]);
            self.view.write(at, &[*byte]);
            self.view.publish(at, 1);
            self.tail += 1;
        }
    }

    fn send(&mut self, frame: &Frame, payload: &[u8]) {
        self.write(&frame.emit());
        self.write(payload);
        let rest = padded(payload.len() as u64) as usize - HEADER_BYTES - payload.len();
        self.write(&[0; 8][..rest]);
        self.tell(self.tail);
    }

    fn read(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            let at = In(self.heap + CONTROL_BYTES + self.head % RINGS[1]);
            self.view.refresh(at, 1);
            self.view.read(at, core::slice::from_mut(byte));
            self.head += 1;
        }
    }

    /// The next frame from C, and its bytes.
    fn receive(&mut self) -> Verdict<(Frame, Vec<u8>)> {
        let tail = self.view.look(In(self.heap + TAIL));
        let mut header = [0; HEADER_BYTES];
        sure(tail - self.head >= HEADER_BYTES as u64, "no frame")?;
        self.read(&mut header);
        let Some(frame) = Frame::parse(&header) else {
            return fail("no frame of the crate's");
        };
        let mut bytes = vec![0; padded(u64::from(frame.len)) as usize - HEADER_BYTES];
        self.read(&mut bytes);
        sure(self.head <= tail, "a piece of a frame")?;
        let rest = bytes.split_off(frame.len as usize);
        sure(rest.iter().all(|byte| *byte == 0), "what is behind it")?;
        self.view.say(self.out(HEAD), self.head);
        Ok((frame, bytes))
    }
}

fn some_frame(random: &mut Random, len: u32) -> Frame {
    let whats = [
        What::Request,
        What::More,
        What::Answer,
        What::Data,
        What::NotYet,
        What::Ready,
    ];
    Frame {
        flags: random.next() as u8,
        code: random.next() as u16,
        len,
        to: random.next() as u32,
        from: random.next() as u32,
        seq: random.next(),
        psn: random.next() as u32,
        imm: random.next() as u32,
        addr: random.next(),
        rkey: random.next() as u32,
        about: random.next() as u32,
        words: [random.next(), random.next()],
        ..Frame::new(whats[random.below(6) as usize])
    }
}

fn numbers(frame: &Frame) -> String {
    format!(
        "{} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        frame.what as u8,
        frame.flags,
        frame.code,
        frame.to,
        frame.from,
        frame.seq,
        frame.psn,
        frame.imm,
        frame.addr,
        frame.rkey,
        frame.about,
        frame.words[0],
        frame.words[1],
        frame.len
    )
}

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Frames of all lengths both ways, many times around, and a ring that runs full.
fn frames(kind: Kind) -> Verdict {
    let mut both = Both::new(kind)?;
    both.begin()?;
    let mut random = Random::new(3);
    let mut told = 0;
    for round in 0..300 {
        let len = match round % 3 {
            0 => random.below(9) as u32,
            1 => random.below(8129) as u32,
            _ => 8 * 1024 - 64 - random.below(9) as u32,
        };
        let frame = some_frame(&mut random, len);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        both.send(&frame, &bytes);
        let expected = format!("{} {}", numbers(&frame), sum_of(&bytes));
        let got = both.c.ask("next")?;
        told += u32::from(got.ends_with(" room"));
        sure(got.trim_end_matches(" room") == expected, got)?;
        both.c.expect("next", "none")?;
        let given = both.view.look(In(both.heap + HEAD));
        let behind = both
            .tail
            .checked_sub(given)
            .is_some_and(|owed| owed < RINGS[0] / 8);
        sure(behind, "room that nobody hears of")?;

        let len = 2 * len.min(8000);
        let frame = some_frame(&mut random, len);
        let seed = random.next() as u8;
        let ask = format!("put {} {seed}", numbers(&frame));
        both.c.expect(&ask, "ok")?;
        let expected: Vec<u8> = (0..len)
            .map(|at| seed.wrapping_add((at as u8).wrapping_mul(7)))
            .collect();
        let (got, bytes) = both.receive()?;
        sure(got == frame && bytes == expected, format!("{got:?}"))?;
    }
    sure(told > 100, "it tells of no room")?;

    both.begin()?;
    let frame = some_frame(&mut random, 10_000);
    let ask = format!("put {} 1", numbers(&frame));
    let fits = RINGS[1] / padded(10_000);
    for _ in 0..fits {
        both.c.expect(&ask, "ok")?;
    }
    both.c.expect(&ask, "full")?;
    both.receive()?;
    both.c.expect(&ask, "ok")?;
    both.c.expect(&ask, "full")?;

    // It rings once for each sleep, and says itself that it sleeps.
    both.begin()?;
    let ask = format!("put {} 1", numbers(&some_frame(&mut random, 0)));
    both.c.expect(&ask, "ok")?;
    for sleep in [5, 9, 15] {
        both.view.say(both.out(SLEEP), sleep);
        both.c.expect(&ask, "ring")?;
        both.c.expect(&ask, "ok")?;
    }
    both.view.say(both.out(SLEEP), 18);
    both.c.expect(&ask, "ok")?;
    for (ask, word) in [("sleep 0", 5), ("sleep 1", 11), ("sleep 0", 13)] {
        both.c.expect(ask, "ok")?;
        let said = both.view.look(In(both.heap + SLEEP));
        sure(said == word, format!("{ask}: {said}"))?;
    }
    Ok(())
}

/// Positions and frames that cannot be.
fn lies(kind: Kind) -> Verdict {
    let mut both = Both::new(kind)?;
    let mut random = Random::new(9);
    let ring = RINGS[0];
    for tail in [1, 63, ring + 8, 1 << 40, u64::MAX, 1 << 63] {
        both.begin()?;
        both.tell(tail);
        let got = both.c.ask("next")?;
        sure(got == "broken", format!("tail {tail}: {got}"))?;
    }
    // Back, and over what was not read.
    for tail in [0, 64, ring + 128] {
        both.begin()?;
        let frame = some_frame(&mut random, 64);
        both.send(&frame, &[1; 64]);
        sure(
            both.c
                .ask("next")?
                .starts_with(|c: char| c.is_ascii_digit()),
            "a frame",
        )?;
        both.tell(tail);
        let got = both.c.ask("next")?;
        sure(got == "broken", format!("tail {tail}: {got}"))?;
    }
    // Frames of no kind, that are longer than any, and of which a part is there.
    for (what, len, there) in [
        (0u8, 0, 64),
        (7, 0, 64),
        (255, 0, 64),
        (1, ring / 4 - 63, ring),
        (1, 32 * 1024 + 1, ring),
        (1, u64::from(u32::MAX), ring),
        (1, 1, 64),
        (1, 8, 71),
        (1, 4000, 4056),
    ] {
        both.begin()?;
        let mut header = some_frame(&mut random, len as u32).emit();
        header[4] = what;
        both.write(&header);
        both.tell(there);
        let got = both.c.ask("next")?;
        sure(got == "broken", format!("{what} {len} {there}: {got}"))?;
    }
    // That it has read what was not written, or unread what it had read.
    let ask = format!("put {} 1", numbers(&some_frame(&mut random, 10_000)));
    for head in [RINGS[1] + 8, u64::MAX, 1 << 40] {
        both.begin()?;
        both.view.say(both.out(HEAD), head);
        let mut answer = String::from("ok");
        for _ in 0..10 {
            if answer == "ok" {
                answer = both.c.ask(&ask)?;
            }
        }
        sure(answer == "broken", format!("head {head}: {answer}"))?;
    }
    both.begin()?;
    for _ in 0..RINGS[1] / padded(10_000) {
        both.c.expect(&ask, "ok")?;
    }
    both.receive()?;
    both.c.expect(&ask, "ok")?;
    both.view.say(both.out(HEAD), 0);
    both.c.expect(&ask, "broken")
}

/// A host that rewrites length and kind of a frame while the program reads its header. What was checked is what is used.
fn rewritten(kind: Kind) -> Verdict {
    const ROUNDS: usize = 300;
    let piece = RINGS[0] / 4 - HEADER_BYTES as u64;
    let what = |what: u64, len: u64| what << 32 | len;
    let wrong = [
        what(99, 8),
        what(0, 8),
        what(1, piece + 1),
        what(1, u64::from(u32::MAX)),
    ];
    let mut both = Both::new(kind)?;
    let mut frames = 0;
    for round in 0..ROUNDS {
        both.begin()?;
        let (view, data) = (both.view, both.out(CONTROL_BYTES));
        let (stop, position) = (AtomicBool::new(false), AtomicU64::new(0));
        // Right headers, all over the ring.
        for at in (0..RINGS[0]).step_by(8) {
            view.say(data.add(at), what(1, 8));
        }
        both.tell(RINGS[0]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let wrong = wrong[round % wrong.len()];
                while !stop.load(Ordering::Relaxed) {
                    let at = data.add(position.load(Ordering::Relaxed) % RINGS[0]);
                    for word in [what(1, 8), wrong, what(1, 8), wrong] {
                        view.say(at, word);
                    }
                }
            });
            let taken = take_until_broken(&mut both.c, &position, piece);
            stop.store(true, Ordering::Relaxed);
            taken
        })
        .map(|taken| frames += taken)?;
    }
    sure(frames > 0, "it believes nothing that is right")
}

/// How many frames the program takes before it says that the channel is broken, or has all that there are.
fn take_until_broken(c: &mut Asked, position: &AtomicU64, piece: u64) -> Verdict<u64> {
    let mut frames = 0;
    loop {
        let got = c.ask("next")?;
        if got == "broken" || got == "none" {
            return Ok(frames);
        }
        let mut numbers = got.split(' ').map_while(|word| word.parse::<u64>().ok());
        let (what, len) = (numbers.next(), numbers.nth(12));
        let right =
            what.is_some_and(|what| (1..=6).contains(&what)) && len.is_some_and(|len| len <= piece);
        sure(right, got.clone())?;
        position.fetch_add(padded(len.unwrap_or_default()), Ordering::Relaxed);
        frames += 1;
    }
}

/// What a host may lend: its own heap's pages, and a ring that is one.
fn pieces() -> Verdict {
    let mut both = Both::new(Kind::Coherent)?;
    let (heap, end) = (both.heap, both.slot_bytes);
    let ring = 32 << 10;
    for (at, ring) in [
        (heap, ring),
        (heap + 4096, 4 * ring),
        (end - ring - 4096, ring),
    ] {
        both.c.expect(&format!("check {at} {ring}"), "ok")?;
    }
    for (at, ring) in [
        (0, ring),
        (heap - 4096, ring),
        (heap + 8, ring),
        (end - ring, ring),
        (end, ring),
        (end + 4096, ring),
        (u64::MAX - 4095, ring),
        (heap, 0),
        (heap, ring / 2),
        (heap, ring + 8),
        (heap, 3 * ring),
        (heap, 1 << 31),
        (heap, 1 << 63),
        (heap, u64::MAX),
    ] {
        let got = both.c.ask(&format!("check {at} {ring}"))?;
        sure(got == "broken", format!("{at} {ring}: {got}"))?;
    }
    Ok(())
}
