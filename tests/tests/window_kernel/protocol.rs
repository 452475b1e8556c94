//! `kernel/window`'s protocol as a process (`test/peer.c`), and the crate, over one file: each
//! finds, hears and mistrusts the other.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use sluice_tests::asked::Asked;
use sluice_tests::guest::module::{kernel_folder, program};
use sluice_tests::job::command;
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, fail, trial};
use sluice_window::claim::{BEAT_NS, Claim, Claimed, Hold, SETTLE_NS, SILENCE_NS, Table, Word};
use sluice_window::layout::{MAILBOX_BYTES, Pair};
use sluice_window::link::{Ended, Event, Link};
use sluice_window::mailbox::{MESSAGE_BYTES_MAX, Sent};
use sluice_window::region::{Region, RegionView};
use sluice_window::{Kind, View};

use crate::sure;

const BYTES: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::Coherent, Kind::Flush] {
        trials.push(trial(format!("protocol/messages/{kind}"), move || {
            messages(kind)
        }));
        trials.push(trial(format!("protocol/ends/{kind}"), move || ends(kind)));
        trials.push(trial(format!("protocol/lost_words/{kind}"), move || {
            lost_words(kind)
        }));
        trials.push(trial(format!("protocol/lost_answers/{kind}"), move || {
            lost_answers(kind)
        }));
        trials.push(trial(format!("protocol/claims/{kind}"), move || {
            claims(kind)
        }));
        trials.push(trial(format!("protocol/lies/{kind}"), move || lies(kind)));
        trials.push(trial(format!("protocol/rewritten/{kind}"), move || {
            rewritten(kind)
        }));
    }
    trials.push(trial("protocol/headers_that_lie", headers));
    trials
}

/// A window in a file, the program of C on it, and a host of the crate.
struct Both {
    place: tempfile::TempDir,
    program: PathBuf,
    region: &'static Region,
    c: Asked,
    hold: Option<Hold>,
}

/// The host in C, and what it has said of the file.
fn start(program: &Path, file: &Path) -> Verdict<(Asked, String)> {
    let mut command = command(program);
    command.arg(file);
    let mut process = Asked::start(command)?;
    let first = process.line()?;
    Ok((process, first))
}

fn compile(place: &tempfile::TempDir) -> Verdict<PathBuf> {
    let window = kernel_folder().join("window");
    let sources: Vec<PathBuf> = [
        "test/peer",
        "sw_header",
        "sw_claim",
        "sw_ring",
        "sw_link",
        "sw_heap",
    ]
    .iter()
    .map(|name| window.join(format!("{name}.c")))
    .collect();
    let options = [
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    program(place.path(), "peer", &sources, &options)
}

fn region(path: &Path, kind: Kind) -> Verdict<&'static Region> {
    match Region::create(path, Some(BYTES), 2, kind, false) {
        // Views borrow it.
        Ok(region) => Ok(Box::leak(Box::new(region))),
        Err(error) => fail(error.to_string()),
    }
}

impl Both {
    fn new(kind: Kind) -> Verdict<Both> {
        let place = tempfile::tempdir()?;
        let program = compile(&place)?;
        let file = place.path().join("window");
        let region = region(&file, kind)?;
        let (c, ready) = start(&program, &file)?;
        sure(ready == "ready", ready)?;
        Ok(Both {
            place,
            program,
            region,
            c,
            hold: None,
        })
    }

    /// The program of C has slot 0, the crate slot 1.
    fn seated(kind: Kind) -> Verdict<Both> {
        let mut both = Both::new(kind)?;
        both.c_claims(SECOND_NS)?;
        both.hold = Some(both.crate_claims(0)?);
        Ok(both)
    }

    fn c_claims(&mut self, now_ns: u64) -> Verdict {
        self.c.expect(&format!("time {now_ns}"), "ok")?;
        let mut answer = self.c.ask("claim kernel")?;
        if answer == "wait" {
            self.c
                .expect(&format!("time {}", now_ns + SETTLE_NS), "ok")?;
            answer = self.c.ask("again")?;
        }
        sure(answer == "claimed 0", answer)
    }

    fn crate_claims(&self, now_ns: u64) -> Verdict<Hold> {
        let mut claim = Claim::new(77, "crate", None);
        let mut now_ns = now_ns;
        for _ in 0..3 {
            match claim.poll(self.region, now_ns) {
                Claimed::Held(hold) => return Ok(hold),
                Claimed::Wait { until_ns } => now_ns = until_ns,
            }
        }
        fail("the crate gets no slot")
    }

    fn view(&self) -> RegionView<'static> {
        self.region.view(1)
    }

    /// The program of C looks at the link four times a second, and hears nothing, until so late; `between` is done before
    /// each look.
    fn c_watches(&mut self, times: Range<u64>, mut between: impl FnMut()) -> Verdict {
        for now_ns in times.step_by(BEAT_NS as usize) {
            self.c.expect(&format!("time {now_ns}"), "ok")?;
            between();
            self.c.expect("poll 1", "nothing")?;
        }
        Ok(())
    }

    /// A link from both ends, up.
    fn link(&mut self, generation: u64) -> Verdict<Link> {
        let view = self.view();
        let mut link = Link::new(Pair::new(1, 0), generation, &view);
        self.c.expect("begin 0", "no such peer")?;
        self.c.expect("begin 1", "ok")?;
        let mut events = (None, String::new());
        for _ in 0..3 {
            if let Some(event) = link.poll(&view, 0) {
                events.0 = Some(event);
            }
            let answer = self.c.ask("poll 1")?;
            if answer != "nothing" {
                events.1 = answer;
            }
        }
        sure(
            matches!(events.0, Some(Event::Up { .. })) && events.1 == "up",
            format!("{events:?}"),
        )?;
        Ok(link)
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Thousands of messages each way, of all lengths, with rings that run full.
fn messages(kind: Kind) -> Verdict {
    let mut both = Both::seated(kind)?;
    let names = [Word::NameLow, Word::NameHigh].map(|word| both.region.look(0, word));
    let name: Vec<u8> = names.iter().flat_map(|word| word.to_le_bytes()).collect();
    sure(
        &name == b"kernel\0\0\0\0\0\0\0\0\0\0",
        "the name of the claim",
    )?;
    let view = both.view();
    let mut link = both.link(1234)?;
    let mut random = Random::new(42);
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut filled = [0, 0];
    for round in 0..60 {
        let mut sent = Vec::new();
        // More than there is room for, now and then.
        let count = if round % 10 == 0 {
            200
        } else {
            random.below(12)
        };
        for _ in 0..count {
            let bytes = random_bytes(&mut random);
            let kind = random.next() as u32;
            match link.sender.send(&view, kind, &bytes) {
                Ok(Sent::Yes) => sent.push((kind, bytes)),
                Ok(Sent::Full) => {
                    filled[0] += 1;
                    break;
                }
                Err(broken) => return fail(broken.to_string()),
            }
        }
        for (kind, bytes) in sent {
            let expected = format!("{kind} {}", hex(&bytes));
            both.c.expect("receive 1", expected.trim_end())?;
        }
        both.c.expect("receive 1", "none")?;
        let mut sent = Vec::new();
        for _ in 0..count {
            let bytes = random_bytes(&mut random);
            let kind = random.next() as u32;
            match both
                .c
                .ask(&format!("send 1 {kind} {}", hex(&bytes)))?
                .as_str()
            {
                "ok" => sent.push((kind, bytes)),
                "full" => {
                    filled[1] += 1;
                    break;
                }
                other => return fail(other.to_string()),
            }
        }
        for (kind, bytes) in sent {
            match link.receiver.receive(&view, &mut buffer) {
                Ok(Some((got, message))) if got == kind && message == bytes => {}
                other => return fail(format!("{other:?}")),
            }
        }
        sure(
            matches!(link.receiver.receive(&view, &mut buffer), Ok(None)),
            "a message that nobody sent",
        )?;
    }
    sure(filled.iter().all(|count| *count > 0), "no ring was full")?;
    let long = hex(&[1; MESSAGE_BYTES_MAX + 1]);
    both.c.expect(&format!("send 1 1 {long}"), "refused")
}

fn random_bytes(random: &mut Random) -> Vec<u8> {
    let length = match random.below(4) {
        0 => random.below(9) as usize,
        1 => MESSAGE_BYTES_MAX - random.below(9) as usize,
        _ => random.below(MESSAGE_BYTES_MAX as u64 + 1) as usize,
    };
    (0..length).map(|_| random.next() as u8).collect()
}

/// Leaving, restarting and falling silent, as each end sees it of the other.
fn ends(kind: Kind) -> Verdict {
    let mut both = Both::seated(kind)?;
    let view = both.view();
    let link = both.link(1)?;
    link.leave(&view);
    both.c.expect("poll 1", "left")?;
    both.c.expect("poll 1", "nothing")?;

    let mut link = both.link(2)?;
    both.c.expect("leave 1", "ok")?;
    let down = link.poll(&view, 0);
    sure(down == Some(Event::Down(Ended::Left)), format!("{down:?}"))?;

    // What was sent in a link is not heard in the next.
    let mut link = both.link(3)?;
    both.c.expect("send 1 5 00", "ok")?;
    both.c.expect("begin 1", "ok")?;
    let down = link.poll(&view, 0);
    sure(
        down == Some(Event::Down(Ended::Replaced)),
        format!("{down:?}"),
    )?;
    let mut link = both.link(4)?;
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    sure(
        matches!(link.receiver.receive(&view, &mut buffer), Ok(None)),
        "a message of the link before",
    )?;
    let mut again = Link::new(Pair::new(1, 0), 5, &view);
    again.poll(&view, 0);
    both.c.expect("poll 1", "replaced")?;

    let mut link = both.link(6)?;
    let start = SECOND_NS + SETTLE_NS;
    both.c_watches(start..start + SILENCE_NS, || ())?;
    link.beat(&view);
    // All stands still for long; what nobody has watched is no silence.
    let late = start + 100 * SILENCE_NS;
    both.c_watches(late..late + SILENCE_NS, || ())?;
    link.beat(&view);
    both.c_watches(late + SILENCE_NS..late + 2 * SILENCE_NS, || ())?;
    let end = late + 2 * SILENCE_NS;
    both.c.expect(&format!("time {end}"), "ok")?;
    both.c.expect("poll 1", "silent")?;

    let mut link = both.link(7)?;
    let mut watch = |times: Range<u64>| {
        let mut looks = times.step_by(BEAT_NS as usize);
        looks.find_map(|now_ns| link.poll(&view, now_ns))
    };
    let late = 100 * SILENCE_NS;
    let none = [watch(0..SILENCE_NS / 2), watch(late..late + SILENCE_NS / 4)];
    sure(none == [None, None], format!("{none:?}"))?;
    let down = watch(late + SILENCE_NS / 4..late + SILENCE_NS);
    sure(
        down == Some(Event::Down(Ended::Silent)),
        format!("{down:?}"),
    )?;
    let mut link = both.link(8)?;
    for now_ns in (0..2 * SILENCE_NS).step_by(SILENCE_NS as usize / 2) {
        both.c.expect("pulse 1", "ok")?;
        for now_ns in (now_ns..now_ns + SILENCE_NS / 2).step_by(BEAT_NS as usize) {
            sure(link.poll(&view, now_ns).is_none(), "it has beaten")?;
        }
    }

    let _link = both.link(9)?;
    for word in 0..3 {
        view.say(Pair::new(1, 0).hello_out(word), u64::MAX);
    }
    both.c.expect("poll 1", "cut")?;
    // Another version is said once, and no link.
    both.c.expect("begin 1", "ok")?;
    let pair = Pair::new(1, 0);
    view.say(pair.hello_out(1), 99);
    view.say(pair.hello_out(0), sluice_window::link::HELLO ^ (3 << 48));
    both.c.expect("poll 1", "version")?;
    both.c.expect("poll 1", "nothing")
}

/// What the kernel says while the way is cut is lost: it says it again with each beat.
fn lost_words(kind: Kind) -> Verdict {
    let mut both = Both::seated(kind)?;
    let view = both.view();
    let theirs = both.region.view(0);
    let lose = || (0..3).for_each(|word| theirs.say(Pair::new(0, 1).hello_out(word), 0));
    both.c.expect("begin 1", "ok")?;
    lose();
    let mut link = Link::new(Pair::new(1, 0), 1, &view);
    sure(link.poll(&view, 0).is_none(), "a hello that was lost")?;
    // Its answer to ours.
    both.c.expect("poll 1", "nothing")?;
    lose();
    both.c.expect("pulse 1", "ok")?;
    // Ours, and that we have its answer.
    let up = link.poll(&view, 0);
    sure(matches!(up, Some(Event::Up { .. })), format!("{up:?}"))?;
    both.c.expect("poll 1", "up")?;
    let sent = link.sender.send(&view, 7, b"ab");
    sure(matches!(sent, Ok(Sent::Yes)), format!("{sent:?}"))?;
    both.c.expect("receive 1", "7 6162")
}

/// One is up, and what it said is lost: it says nothing again, and the other one calls anew.
fn lost_answers(kind: Kind) -> Verdict {
    let mut both = Both::seated(kind)?;
    let view = both.view();
    let theirs = both.region.view(0);
    both.c.expect("begin 1", "ok")?;
    let mut link = Link::new(Pair::new(1, 0), 1, &view);
    both.c.expect("poll 1", "nothing")?;
    let up = link.poll(&view, 0);
    sure(matches!(up, Some(Event::Up { .. })), format!("{up:?}"))?;
    (0..3).for_each(|word| view.say(Pair::new(1, 0).hello_out(word), u64::MAX));
    both.c.expect("poll 1", "nothing")?;
    // A peer that lives for so long.
    let start = SECOND_NS + SETTLE_NS;
    both.c_watches(start..start + SILENCE_NS + 1, || link.beat(&view))?;
    let down = link.poll(&view, 0);
    let replaced = Some(Event::Down(Ended::Replaced));
    sure(down == replaced, format!("{down:?}"))?;

    let mut link = Link::new(Pair::new(1, 0), 2, &view);
    both.c.expect("poll 1", "nothing")?;
    sure(link.poll(&view, 0).is_some(), "it is not up")?;
    both.c.expect("poll 1", "up")?;
    let mut link = Link::new(Pair::new(1, 0), 3, &view);
    both.c.expect("poll 1", "replaced")?;
    both.c.expect("begin 1", "ok")?;
    sure(link.poll(&view, 0).is_none(), "an answer of before")?;
    both.c.expect("poll 1", "up")?;
    (0..3).for_each(|word| theirs.say(Pair::new(0, 1).hello_out(word), u64::MAX));
    sure(link.poll(&view, 0).is_none(), "what is lost")?;
    for late in (0..=SILENCE_NS).step_by(BEAT_NS as usize) {
        both.c.expect("poll 1", "nothing")?;
        both.c.expect("pulse 1", "ok")?;
        sure(link.poll(&view, late).is_none(), "what is lost")?;
    }
    both.c.expect("poll 1", "replaced")
}

/// Slots of the dead are taken over, in both directions, and those of the living are not.
fn claims(kind: Kind) -> Verdict {
    let mut both = Both::seated(kind)?;
    both.c.expect("beat", "ok")?;
    let (mut second, ready) = start(&both.program, &both.place.path().join("window"))?;
    sure(ready == "ready", ready)?;
    second.expect("claim late", "wait")?;
    // Neither who stood still himself takes a slot, nor who has not watched for long enough.
    let start = SECOND_NS + 100 * SILENCE_NS;
    second.expect(&format!("time {start}"), "ok")?;
    second.expect("again", "wait")?;
    both.c.expect("beat", "ok")?;
    // The crate's host lives, the other one does not.
    let Some(hold) = &mut both.hold else {
        return fail("no slot");
    };
    for now_ns in (start..start + SILENCE_NS).step_by(BEAT_NS as usize) {
        second.expect(&format!("time {now_ns}"), "ok")?;
        sure(hold.beat(both.region).is_ok(), "the crate's slot")?;
        second.expect("again", "wait")?;
    }
    let end = start + SILENCE_NS;
    second.expect(&format!("time {end}"), "ok")?;
    let mut answer = second.ask("again")?;
    if answer == "wait" {
        second.expect(&format!("time {}", end + SETTLE_NS), "ok")?;
        answer = second.ask("again")?;
    }
    sure(answer == "claimed 0", answer)?;
    both.c.expect("beat", "lost")?;
    sure(hold.beat(both.region).is_ok(), "the crate's slot")?;

    // And the crate from a program of C that is dead.
    drop(second);
    let mut claim = Claim::new(99, "heir", Some(0));
    let mut now_ns = SECOND_NS;
    for _ in 0..30 {
        match claim.poll(both.region, now_ns) {
            Claimed::Held(mut heir) => {
                sure(heir.beat(both.region).is_ok(), "its slot")?;
                heir.release(both.region);
                sure(both.region.look(0, Word::Generation) == 0, "released")?;
                both.c_claims(now_ns)?;
                both.c.expect("release", "ok")?;
                return sure(both.region.look(0, Word::Generation) == 0, "released");
            }
            Claimed::Wait { until_ns } => now_ns = until_ns,
        }
    }
    fail("the crate does not take over a dead one's slot")
}

/// Positions and frames that cannot be end the link at the host of C, and nothing else.
fn lies(kind: Kind) -> Verdict {
    let mut both = Both::seated(kind)?;
    let view = both.view();
    let pair = Pair::new(1, 0);
    let ring = pair.mailbox_out();
    let frame = |length: u64| length | 7 << 32;
    let say_frame = |length: u64, tail: u64| {
        view.say(ring.data, frame(length));
        view.say(ring.tail, tail);
    };
    let tails: [(u64, u64); 8] = [
        (8, MAILBOX_BYTES + 8),
        (8, u64::MAX),
        (8, 1 << 63),
        (MESSAGE_BYTES_MAX as u64 + 1, 4096),
        (u64::from(u32::MAX), 4096),
        (16, 16),
        (1, 8),
        (0, 5),
    ];
    for (number, (length, tail)) in tails.into_iter().enumerate() {
        let _link = both.link(100 + number as u64)?;
        say_frame(length, tail);
        let got = both.c.ask("receive 1")?;
        sure(got == "broken", format!("{length} {tail}: {got}"))?;
    }
    // Back, after a message that was right.
    let mut link = both.link(200)?;
    sure(
        matches!(link.sender.send(&view, 1, &[1; 8]), Ok(Sent::Yes)),
        "a message",
    )?;
    both.c.expect("receive 1", "1 0101010101010101")?;
    view.say(ring.tail, 8);
    both.c.expect("receive 1", "broken")?;
    // That it has read what was not written, or unread what it had read.
    let message = hex(&[3; MESSAGE_BYTES_MAX]);
    for head in [MAILBOX_BYTES + 8, u64::MAX, 1 << 40] {
        both.link(300 + head % 7)?;
        let mut answer = String::from("ok");
        for _ in 0..20 {
            if answer != "ok" {
                break;
            }
            view.say(pair.mailbox_in().head, head);
            answer = both.c.ask(&format!("send 1 1 {message}"))?;
        }
        sure(answer == "broken", format!("{head}: {answer}"))?;
    }
    Ok(())
}

/// A host that rewrites the length of a message, and how far it has written, while the program reads them. Each is read
/// once: what was checked is what is used.
fn rewritten(kind: Kind) -> Verdict {
    const ROUNDS: u64 = 300;
    const WRONG: [u64; 3] = [MESSAGE_BYTES_MAX as u64 + 1, 8000, u32::MAX as u64];
    let mut both = Both::seated(kind)?;
    let view = both.view();
    let ring = Pair::new(1, 0).mailbox_out();
    let mut messages = 0;
    for round in 0..ROUNDS {
        let _link = both.link(1000 + round)?;
        // Right messages, all over the ring.
        for at in (0..MAILBOX_BYTES).step_by(8) {
            view.say(ring.data.add(at), 7 << 32 | 8);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let wrong = WRONG[round as usize % WRONG.len()];
                while !stop.load(Ordering::Relaxed) {
                    // Where the program reads next.
                    let at = ring.data.add(view.look(ring.head) % MAILBOX_BYTES);
                    view.say(ring.tail, MAILBOX_BYTES);
                    for length in [8, wrong, 8, wrong] {
                        view.say(at, 7 << 32 | length);
                    }
                    view.say(ring.tail, wrong | 1 << 40);
                }
            });
            let heard = hear_until_broken(&mut both.c);
            stop.store(true, Ordering::Relaxed);
            heard
        })
        .map(|heard| messages += heard)?;
    }
    sure(messages > 0, "it believes nothing that is right")
}

/// How many messages the program takes before it says that the link is broken.
fn hear_until_broken(c: &mut Asked) -> Verdict<u64> {
    let mut messages = 0;
    loop {
        let got = c.ask("receive 1")?;
        match got.as_str() {
            "broken" => return Ok(messages),
            "none" => {}
            _ => {
                let bytes = got.strip_prefix("7 ").map(str::len);
                sure(bytes == Some(16), got)?;
                messages += 1;
            }
        }
    }
}

/// Whatever the first page says, a window is used only if all of it can be.
fn headers() -> Verdict {
    let place = tempfile::tempdir()?;
    let program = compile(&place)?;
    let file = place.path().join("window");
    let good = region(&file, Kind::Coherent)?.header().emit();
    let mut lies: Vec<(usize, u64)> = vec![
        (0, 0),
        (1, 2),
        (2, 0),
        (2, 3),
        (2, 1 << 32 | 1),
        (3, 0),
        (3, 1),
        (3, 33),
        (3, 1 << 32 | 2),
        (4, 0),
        (4, u64::MAX),
        (4, u64::MAX - 4095),
        (4, BYTES),
        (4, 1 << 62),
    ];
    lies.push((
        4,
        u64::from_le_bytes(good[32..40].try_into().unwrap_or_default()) + 8,
    ));
    for (word, value) in lies {
        let mut bytes = std::fs::read(&file)?;
        bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
        let lying = place.path().join("lying");
        std::fs::write(&lying, &bytes)?;
        let (_process, said) = start(&program, &lying)?;
        sure(
            said.starts_with("no window"),
            format!("{word} {value}: {said}"),
        )?;
    }
    for bytes in [vec![0xff; 1 << 20], vec![0; 100], good.to_vec()] {
        let lying = place.path().join("lying");
        std::fs::write(&lying, &bytes)?;
        let (_process, said) = start(&program, &lying)?;
        sure(said.starts_with("no window"), said)?;
    }
    Ok(())
}
