//! What two ends do with each other.

use std::time::{Duration, Instant};

use sluice_rdma::{Access, Event, Limits, LinkId, PostError, Remote, Slice, Status};

use crate::exchange;
use crate::side::{LIMIT, Outcome, Side, Words};

/// For how long an end of [`idle`] is left alone, and the processor time that it may take
/// meanwhile: a thread that polls would take all of it.
const IDLE: Duration = Duration::from_secs(3);
const IDLE_CPU_MAX: Duration = Duration::from_millis(300);
/// How often: an end that polls is caught each time, and one that is charged for what its machine stood still is not.
const IDLE_TIMES: usize = 4;

/// Requests after which the left end of [`killed`] says that they flow.
const FLOWING: u64 = 1000;

/// An end that gets no processor for seconds is no dead one: 8 · 1.1 s, which Linux's rxe has as well.
const ACK_TIMEOUT: u8 = 18;

pub fn run(words: &Words) -> Outcome {
    let limits = Limits {
        ack_timeout: ACK_TIMEOUT,
        ..Limits::default()
    };
    match words.case.as_str() {
        "payload" => exchange::run(Side::open(words, limits)?, words.count),
        // Less receive buffers than requests, so that senders are told to wait.
        "pressure" => {
            let limits = Limits {
                receive_depth: 8,
                ..limits
            };
            pressure(Side::open(words, limits)?, words.count)
        }
        "killed" => killed(Side::open(words, limits)?),
        "wrong-key" => wrong_key(Side::open(words, limits)?),
        "sleep" => sleep(Side::open(words, limits)?, words.count),
        "reconnect" => reconnect(Side::open(words, limits)?),
        "idle" => idle(Side::open(words, limits)?),
        "churn" => {
            let limits = Limits {
                links_max: 2,
                ..limits
            };
            churn(Side::open(words, limits)?, words.count)
        }
        other => Err(format!("there is no case {other}").into()),
    }
}

/// The left end writes without a pause; the right one looks now and then, and gets every number in
/// order.
fn pressure(mut side: Side, count: u32) -> Outcome {
    let memory = side.memory(4096, Access::Target)?;
    let remote = side.exchange_remote(&memory.region)?;
    let link = side.link()?;
    let slice = memory.region.slice(0, 64).ok_or("no slice")?;
    if side.is_left {
        let (mut posted, mut done) = (0, 0);
        let started = Instant::now();
        while done < count {
            while posted < count {
                match side
                    .node
                    .write(link, slice, remote, Some(posted), posted.into())
                {
                    Ok(()) => posted += 1,
                    Err(PostError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let mut wrong = None;
            side.node.poll(16, &mut |event| match event {
                Event::Done { id, .. } if id == u64::from(done) => done += 1,
                other => wrong = Some(format!("{other:?} instead of {done}")),
            });
            if let Some(wrong) = wrong {
                return Err(wrong.into());
            }
            if started.elapsed() > LIMIT {
                return Err(format!("only {done} were done").into());
            }
        }
    } else {
        let mut expected = 0;
        while expected < count {
            if expected % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let wanted = expected;
            let number = side.poll_until("a write", |event| match event {
                Event::Arrived { number, bytes, .. } => Some((number, bytes)),
                _ => None,
            })?;
            if number != (wanted, 64) {
                return Err(format!("{number:?} came instead of {wanted}").into());
            }
            expected += 1;
        }
    }
    side.meet()
}

/// The right end is killed while the left one writes: every request comes back, in order, as done
/// and then as failed, and then the link is broken.
fn killed(mut side: Side) -> Outcome {
    let memory = side.memory(1 << 16, Access::Target)?;
    let remote = side.exchange_remote(&memory.region)?;
    let link = side.link()?;
    if !side.is_left {
        return loop_until_killed(side);
    }
    let slice = memory.region.slice(0, 4096).ok_or("no slice")?;
    let (mut posted, mut ended, mut failed, mut broken) = (0_u64, 0_u64, 0_u64, None);
    let (mut full, mut flowing) = (true, false);
    let mut last_done = Instant::now();
    while broken.is_none() {
        while full {
            match side
                .node
                .write(link, slice, remote, Some(posted as u32), posted)
            {
                Ok(()) => posted += 1,
                Err(PostError::Full | PostError::NotConnected) => full = false,
                Err(error) => return Err(error.into()),
            }
        }
        let mut wrong = None;
        side.node.poll(64, &mut |event| match event {
            Event::Done { id, .. } if id == ended && failed == 0 => {
                (ended, last_done) = (ended + 1, Instant::now());
            }
            Event::Failed { id, .. } if id == ended => (ended, failed) = (ended + 1, failed + 1),
            Event::Broken { status, .. } => broken = Some(status),
            other => wrong = Some(format!("{other:?} after {ended} and {failed} failures")),
        });
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
        full = failed == 0;
        if ended >= FLOWING && !flowing {
            println!("flowing");
            flowing = true;
        }
        if last_done.elapsed() > LIMIT {
            let left = side.node.unfinished(link);
            return Err(format!(
                "nobody told that the peer is gone: {posted} were posted, {ended} came back, \
                 {failed} failed, {left} are unfinished"
            )
            .into());
        }
    }
    let waited = last_done.elapsed();
    println!("{ended} requests, {failed} failed, {broken:?} after {waited:?}");
    if failed == 0 || ended != posted || side.node.unfinished(link) != 0 {
        return Err(format!("{posted} were posted, {ended} came back, {failed} failed").into());
    }
    match side.node.write(link, slice, remote, None, 0) {
        Err(PostError::NotConnected) => Ok(()),
        other => Err(format!("a broken link answered {other:?}").into()),
    }
}

fn loop_until_killed(mut side: Side) -> Outcome {
    loop {
        side.node.poll(64, &mut |_| {});
    }
}

/// The cable is pulled while both ends write; both say so when their links are broken. When it is
/// back, a new link between the same nodes takes up the work.
fn reconnect(mut side: Side) -> Outcome {
    let memory = side.memory(1 << 16, Access::Target)?;
    let remote = side.exchange_remote(&memory.region)?;
    let first = side.link()?;
    let slice = memory.region.slice(0, 4096).ok_or("no slice")?;
    let (mut done, mut broken) = (0_u64, false);
    let started = Instant::now();
    while !broken {
        match side.node.write(first, slice, remote, Some(1), 0) {
            Ok(()) | Err(PostError::Full | PostError::NotConnected) => {}
            Err(error) => return Err(error.into()),
        }
        let before = done;
        side.node.poll(64, &mut |event| match event {
            Event::Done { .. } => done += 1,
            Event::Broken { .. } => broken = true,
            _ => {}
        });
        if before < FLOWING && done >= FLOWING {
            println!("flowing");
        }
        if started.elapsed() > LIMIT {
            return Err("nobody told that the cable is gone".into());
        }
    }
    println!("broken");
    side.node.destroy_link(first);
    let second = side.link()?;
    for number in 0..1000 {
        round(&mut side, second, slice, remote, number)?;
    }
    side.meet()
}

/// Keys and places that the left end was not told break the link that they are used on, at both
/// ends, change nothing, and do not touch the other link.
fn wrong_key(mut side: Side) -> Outcome {
    const BYTES: usize = 8192;
    let mut target = side.memory(BYTES, Access::Target)?;
    let source = side.memory(BYTES, Access::Source)?;
    target.fill(0, &[7; BYTES]);
    let good = side.exchange_remote(&target.region)?;
    let not_writable = side.exchange_remote(&source.region)?;
    let steady = side.link()?;
    let slice = source.region.slice(0, 64).ok_or("no slice")?;
    if side.is_left {
        // A sign of life needs neither place nor key.
        let nowhere = Remote::default();
        side.node.write(steady, Slice::EMPTY, nowhere, None, 5)?;
        side.poll_until("a sign of life", |event| match event {
            Event::Done { id: 5, .. } => Some(()),
            _ => None,
        })?;
    }
    let end = good.address + BYTES as u64;
    let attempts = [
        Remote {
            key: good.key ^ 0x5a00,
            ..good
        },
        Remote {
            address: end - 63,
            ..good
        },
        Remote {
            address: good.address - 1,
            ..good
        },
        Remote {
            address: u64::MAX - 7,
            ..good
        },
        not_writable,
    ];
    for (attempt, remote) in attempts.into_iter().enumerate() {
        let link = side.link()?;
        if side.is_left {
            side.node.write(link, slice, remote, Some(1), 1)?;
            side.node.write(link, slice, good, Some(2), 2)?;
            let mut failed = Vec::new();
            let status = side.poll_until("the end of the link", |event| match event {
                Event::Failed { id, status, .. } => {
                    failed.push((id, status));
                    None
                }
                Event::Broken {
                    link: which,
                    status,
                } => Some((which, status)),
                other => Some((link, Status::GENERAL)).filter(|_| {
                    eprintln!("attempt {attempt}: {other:?}");
                    true
                }),
            })?;
            let expected = [(1, Status::REMOTE_ACCESS), (2, Status::FLUSHED)];
            // The kernel says by an event that the queue pair has failed, which may be read first: then the link
            // has ended by that.
            let (which, why) = status;
            let is_end = which == link && [Status::REMOTE_ACCESS, Status::GENERAL].contains(&why);
            if failed != expected || !is_end {
                return Err(format!("attempt {attempt}: {failed:?}, {status:?}").into());
            }
        } else {
            let which = side.poll_until("the end of the link", |event| match event {
                Event::Broken { link, .. } => Some(link),
                other => {
                    eprintln!("attempt {attempt}: {other:?}");
                    Some(steady)
                }
            })?;
            if which != link || target.bytes(0, BYTES) != [7; BYTES] {
                return Err(format!("attempt {attempt} did something to {which:?}").into());
            }
        }
        side.node.destroy_link(link);
        side.meet()?;
        // Nothing but a number.
        round(&mut side, steady, Slice::EMPTY, good, attempt as u32)?;
    }
    side.meet()
}

/// One write from left to right.
fn round(side: &mut Side, link: LinkId, slice: Slice, remote: Remote, number: u32) -> Outcome {
    if side.is_left {
        side.node.write(link, slice, remote, Some(number), 9)?;
        side.poll_until("the write to be done", |event| match event {
            Event::Done { id: 9, .. } => Some(()),
            _ => None,
        })
    } else {
        side.poll_until("a write", |event| match event {
            Event::Arrived { number: came, .. } if came == number => Some(()),
            _ => None,
        })
    }
}

/// A number goes to and fro between two ends that sleep whenever they wait, with gaps of all sizes
/// around the moment of falling asleep.
fn sleep(mut side: Side, count: u32) -> Outcome {
    let memory = side.memory(4096, Access::Target)?;
    let remote = side.exchange_remote(&memory.region)?;
    let link = side.link()?;
    let slice = memory.region.slice(0, 8).ok_or("no slice")?;
    let mut random = exchange::Random::new(u64::from(side.is_left) + 1);
    for number in 0..count {
        if side.is_left {
            side.node.write(link, slice, remote, Some(number), 1)?;
        }
        sleep_until_arrival(&mut side, number)?;
        if !side.is_left {
            let gap = random.below(400);
            if gap > 200 {
                std::thread::sleep(Duration::from_micros(gap - 200));
            }
            side.node.write(link, slice, remote, Some(number), 1)?;
        }
    }
    side.meet()
}

fn sleep_until_arrival(side: &mut Side, wanted: u32) -> Outcome {
    let mut arrived = None;
    loop {
        let mut broken = None;
        let mut take = |event: Event<'_>| match event {
            Event::Arrived { number, .. } => arrived = Some(number),
            Event::Broken { status, .. } => broken = Some(status),
            _ => {}
        };
        let mut events = side.node.poll(16, &mut take);
        if events == 0 {
            side.node.arm()?;
            events = side.node.poll(16, &mut take);
        }
        if let Some(status) = broken {
            return Err(status.to_string().into());
        }
        match arrived {
            Some(number) if number == wanted => return Ok(()),
            Some(number) => return Err(format!("{number} came instead of {wanted}").into()),
            None if events > 0 => {}
            None => {
                if !side.sleep(LIMIT)? {
                    return Err(format!("nobody woke this end for {wanted}").into());
                }
            }
        }
    }
}

/// Two ends with a link that was used sleep, and their processes do nothing.
fn idle(mut side: Side) -> Outcome {
    let memory = side.memory(4096, Access::Target)?;
    let remote = side.exchange_remote(&memory.region)?;
    let link = side.link()?;
    let slice = memory.region.slice(0, 8).ok_or("no slice")?;
    for number in 0..100 {
        round(&mut side, link, slice, remote, number)?;
    }
    side.meet()?;
    let mut used = Vec::new();
    while used.last().is_none_or(|used| *used > IDLE_CPU_MAX) {
        if used.len() == IDLE_TIMES {
            return Err(format!("an idle end used {used:?} of {IDLE:?} each").into());
        }
        used.push(use_of_idle_time(&mut side)?);
    }
    println!("{used:?} in {IDLE:?} each");
    side.meet()
}

/// The processor time that an end takes while it is left alone.
fn use_of_idle_time(side: &mut Side) -> Outcome<Duration> {
    let (before, started) = (cpu_time()?, Instant::now());
    while let Some(left) = IDLE.checked_sub(started.elapsed()) {
        while side.node.poll(16, &mut |_| {}) > 0 {}
        side.node.arm()?;
        if side.node.poll(16, &mut |_| {}) == 0 {
            side.sleep(left)?;
        }
    }
    Ok(cpu_time()?.saturating_sub(before))
}

/// Of this process, all its threads.
fn cpu_time() -> Outcome<Duration> {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(
        clock.tv_sec.try_into()?,
        clock.tv_nsec.try_into()?,
    ))
}

/// In so many parts of the turns the fewest descriptors count: what has gone may be there for a moment longer.
const PARTS: usize = 6;
/// How often descriptors may become more from one part to the next.
const RISES_MAX: usize = 3;

/// Links come and go with requests on their way. Nothing is left of them.
fn churn(mut side: Side, count: u32) -> Outcome {
    let memory = side.memory(4096, Access::Target)?;
    let remote = side.exchange_remote(&memory.region)?;
    let slice = memory.region.slice(0, 64).ok_or("no slice")?;
    let mut open = Vec::new();
    let mut earlier = Vec::new();
    for turn in 0..count {
        let started = Instant::now();
        let (link, endpoint) = loop {
            match side.node.create_link() {
                Ok(made) => break made,
                Err(sluice_rdma::Error::TooManyLinks) if started.elapsed() < LIMIT => {
                    let mut wrong = None;
                    side.node
                        .poll(64, &mut |event| wrong = Some(format!("{event:?}")));
                    if let Some(wrong) = wrong {
                        return Err(format!("turn {turn}: {wrong} of a destroyed link").into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        };
        side.connect(link, &endpoint)?;
        let mut number = 0;
        while number < 200 {
            match side.node.write(link, slice, remote, Some(number), 0) {
                Ok(()) => number += 1,
                Err(PostError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        side.node
            .send(link, &[1; 2000], 0)
            .or_else(|error| match error {
                PostError::Full => Ok(()),
                other => Err(other),
            })?;
        for _ in 0..turn % 5 {
            side.node.poll(8, &mut |_| {});
        }
        side.node.destroy_link(link);
        if side.node.unfinished(link) == usize::MAX || earlier.contains(&link) {
            return Err("a link came back".into());
        }
        earlier.push(link);
        if !matches!(
            side.node.write(link, slice, remote, None, 0),
            Err(PostError::NotConnected)
        ) {
            return Err("a destroyed link took a request".into());
        }
        side.meet()?;
        // The first turns make what the library keeps.
        if turn >= 8 {
            open.push(std::fs::read_dir("/proc/self/fd")?.count());
        }
    }
    // What the library keeps of a peer (its memory, its process, what wakes it) it may have only some turns later: once, and
    // not one more in 3,000 turns. What is left behind comes again and again.
    let parts = open.chunks(open.len().div_ceil(PARTS).max(1));
    let fewest: Vec<_> = parts.filter_map(|part| part.iter().min()).collect();
    let rises = fewest.windows(2).filter(|two| two[1] > two[0]).count();
    if fewest.last() > fewest.first() && rises > RISES_MAX {
        return Err(format!("descriptors stay open: {open:?}").into());
    }
    side.meet()
}
