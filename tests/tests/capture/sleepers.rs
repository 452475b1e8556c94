//! Readers that sleep, and what becomes of what their peers write.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::slow;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::hosts::Two;

pub fn trials() -> Vec<Trial> {
    vec![trial("slow_reader/bounds", bounds)]
}

/// Bytes that are written while the reader sleeps and afterwards.
const TOTAL: u64 = 400_000_000;

/// What a process may grow by. A relay keeps 64 KiB for each direction of a connection; the rest are
/// rings between the relays, the buffers of a device, and pages of programs that are used first.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// The writer is held back through both relays, and neither they nor the kernel keep what the reader
/// would have read.
fn bounds() -> Verdict {
    let two = Two::new(4)?;
    let captured = two.counts(Side::Left)?;
    let processes = || -> Verdict<Vec<u64>> {
        let mut all = Vec::new();
        for side in SIDES {
            let relay = two.relay(side)?.as_raw_nonzero().get().unsigned_abs();
            for process in [relay, two.fleet.daemon(side)?.id()] {
                all.push(slow::resident_bytes(process)?);
            }
        }
        Ok(all)
    };
    let before = processes()?;
    let address = two.address(Side::Right).to_string();
    let program = |side| {
        let two = &two;
        move |python: &Path| two.program(side, python, &[])
    };
    let (reader, writer) = (program(Side::Right), program(Side::Left));
    let sleeper = slow::start(&address, TOTAL, two.fleet.dir(), LIMIT, reader, writer)?;
    two.await_counts(Side::Left, "captured", |now| {
        now.captured == captured.captured + 1 && now.direct == captured.direct
    })?;
    for side in SIDES {
        let (queued, sockets) = slow::queued_bytes(two.fleet.host(side), two.fleet.dir(), LIMIT)?;
        let most = sockets * slow::queues_max()?;
        ensure(queued <= most, || {
            format!("{queued} bytes in {sockets} sockets")
        })?;
    }
    let now = processes()?;
    let is_flat = |(now, before): (&u64, &u64)| *now <= before + GROWTH_BYTES_MAX;
    ensure(now.iter().zip(&before).all(is_flat), || {
        format!("relays and daemons had {before:?} bytes, and have {now:?}")
    })?;
    sleeper.wake(LIMIT)
}
