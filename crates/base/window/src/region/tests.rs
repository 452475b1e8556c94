use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use sluice_sys::mapping::Access;
use sluice_sys::memfd;

use super::*;
use crate::claim::{Claim, Claimed, Hold};
use crate::layout::Pair;
use crate::link::{Ended, Event, Link};
use crate::mailbox::{MESSAGE_BYTES_MAX, Sent};

const BYTES: u64 = 1 << 20;
const MESSAGES: u32 = 3_000;

/// New memory, mapped twice, as two hosts have it.
fn memory(bytes: u64) -> [Mapping; 2] {
    let fd = memfd::create(c"window-test").unwrap();
    memfd::set_len(fd.raw(), bytes).unwrap();
    [0, 1].map(|_| Mapping::shared(fd.raw(), bytes as usize, Access::ReadWrite).unwrap())
}

/// Runs a host: it waits for the other one, sends messages to it and takes as many, and leaves.
fn talk(view: &impl View, me: u32) {
    let mut link = Link::new(Pair::new(me, 1 - me), 100 + u64::from(me), view);
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut gone = false;
    while received < MESSAGES || sent < MESSAGES {
        assert!(
            start.elapsed() < Duration::from_secs(180),
            "{sent} {received}"
        );
        link.beat(view);
        // The clock stands still, so that nobody is silent whose thread does.
        match link.poll(view, 0) {
            None => {}
            Some(Event::Up { generation }) => assert_eq!(generation, 100 + u64::from(1 - me)),
            // The other one may be finished before this one has read its last message.
            Some(Event::Down(Ended::Left)) => gone = true,
            Some(event) => panic!("{event:?}"),
        }
        if link.is_up() && sent < MESSAGES {
            let message = vec![sent as u8; sent as usize * 7 % MESSAGE_BYTES_MAX];
            if link.sender.send(view, sent, &message).unwrap() == Sent::Yes {
                sent += 1;
            }
        }
        if link.is_up() || gone {
            let got = link.receiver.receive(view, &mut buffer).unwrap();
            if let Some((kind, message)) = got {
                assert_eq!(kind, received);
                assert_eq!(message.len(), received as usize * 7 % MESSAGE_BYTES_MAX);
                assert!(message.iter().all(|byte| *byte == received as u8));
                received += 1;
            } else {
                assert!(!gone, "the other host left before it had sent everything");
            }
        }
        thread::yield_now();
    }
    link.leave(view);
}

#[test]
fn two_hosts_talk_in_a_region_of_each_kind() {
    for kind in [Kind::Coherent, Kind::Flush] {
        let [first, second] = memory(BYTES);
        let first = Region::format(first, 2, kind, false).unwrap();
        let second = Region::of(second).unwrap();
        assert_eq!(first.header(), second.header());
        thread::scope(|scope| {
            scope.spawn(|| talk(&first.view(0), 0));
            scope.spawn(|| talk(&second.view(1), 1));
        });
    }
}

#[test]
fn two_hosts_talk_across_a_bridge() {
    let [mine, mine_far] = memory(BYTES);
    let [theirs_far, theirs] = memory(BYTES + 4096 + 17);
    let first = Bridge::new(0, mine, theirs_far).unwrap();
    let second = Bridge::new(1, theirs, mine_far).unwrap();
    assert_eq!(first.geometry(), second.geometry());
    thread::scope(|scope| {
        scope.spawn(|| talk(&first, 0));
        scope.spawn(|| talk(&second, 1));
    });
}

#[test]
fn claims_in_a_region_are_seen_by_everybody_who_mapped_it() {
    for kind in [Kind::Coherent, Kind::Flush] {
        let [first, second] = memory(BYTES);
        let first = Region::format(first, 2, kind, false).unwrap();
        let second = Region::of(second).unwrap();
        let claim = |region: &Region, generation| -> Hold {
            let mut now = 0;
            let mut claim = Claim::new(generation, "test", None);
            loop {
                match claim.poll(region, now) {
                    Claimed::Held(hold) => return hold,
                    Claimed::Wait { until_ns } => now = until_ns,
                }
            }
        };
        let mut a = claim(&first, 11);
        let b = claim(&second, 22);
        assert_eq!((a.slot(), b.slot()), (0, 1));
        assert_eq!(second.look(0, Word::Generation), 11);
        a.beat(&first).unwrap();
        b.release(&second);
        assert_eq!(first.look(1, Word::Generation), 0);
    }
}

#[test]
fn a_window_is_not_made_over_another_one_unasked() {
    let [first, second] = memory(BYTES);
    let first = Region::format(first, 2, Kind::Coherent, false).unwrap();
    let [third, _] = memory(BYTES);
    assert!(matches!(
        Region::of(third),
        Err(RegionError::Header(HeaderError::NoWindow))
    ));
    let again = Region::format(second, 3, Kind::Coherent, false);
    assert!(matches!(again, Err(RegionError::Exists)));
    drop(first);
}

#[test]
fn files_are_made_opened_and_refused() {
    let folder = std::env::temp_dir().join(format!("sluice-window-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("w");
    let create = |bytes, force| Region::create(&path, bytes, 2, Kind::Coherent, force);
    assert!(matches!(
        create(None, false),
        Err(RegionError::Source(SourceError::NoSize(_)))
    ));
    assert!(!path.exists());
    assert!(matches!(
        create(Some(1), false),
        Err(RegionError::Geometry(_))
    ));
    assert!(!path.exists());
    let made = create(Some(BYTES), false).unwrap();
    assert_eq!(Region::open(&path).unwrap().header(), made.header());
    assert!(matches!(create(None, false), Err(RegionError::Exists)));
    let again = create(None, true).unwrap();
    assert_ne!(again.header().id, made.header().id);
    // Somebody cut the file: what is left is no window.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(BYTES / 2)
        .unwrap();
    assert!(matches!(
        Region::open(&path),
        Err(RegionError::Header(HeaderError::Longer { .. }))
    ));
    for wrong in [
        folder.as_path(),
        Path::new("/dev/null"),
        Path::new("/dev/zero"),
    ] {
        assert!(Region::open(wrong).is_err(), "{}", wrong.display());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_address_outside_a_slot_is_caught_in_every_build() {
    let [memory, _] = memory(BYTES);
    let region = Region::format(memory, 2, Kind::Coherent, false).unwrap();
    let view = region.view(0);
    let end = region.header().geometry.slot_bytes();
    for at in [end, end - 1, u64::MAX - 3] {
        let caught = std::panic::catch_unwind(|| {
            view.write(Out { slot: 1, at }, &[0; 8]);
        });
        assert!(caught.is_err());
    }
}

/// A stranger writes everywhere while two hosts talk: whatever becomes of the link, nobody
/// crashes, and nobody is kept for ever.
#[test]
fn a_stranger_who_scribbles_over_everything_ends_links_only() {
    let [first, second] = memory(BYTES);
    let first = Region::format(first, 2, Kind::Coherent, false).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (first, stop) = (&first, &stop);
        scope.spawn(move || {
            let view = first.view(0);
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            for round in 0..300_u64 {
                let mut link = Link::new(Pair::new(0, 1), round + 1, &view);
                for now in 0..200 {
                    let _ = link.poll(&view, now);
                    if link.receiver.receive(&view, &mut buffer).is_err()
                        || link.sender.send(&view, 1, &[7; 60]).is_err()
                    {
                        break;
                    }
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
        scope.spawn(move || {
            let mut state = 0x1234_5678_9abc_def1_u64;
            while !stop.load(Ordering::SeqCst) {
                for _ in 0..64 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let at = (state % (BYTES / 8)) as usize;
                    let value = match state >> 61 {
                        0 => 0,
                        1 => u64::MAX,
                        2 => crate::link::HELLO,
                        3 => state % 300,
                        _ => state,
                    };
                    // SAFETY: within the mapping, and reached as an atomic.
                    let word = unsafe { &*second.base().as_ptr().cast::<AtomicU64>().add(at) };
                    word.store(value, Ordering::Relaxed);
                }
            }
        });
    });
}
