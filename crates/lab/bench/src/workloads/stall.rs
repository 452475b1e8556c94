//! A reader that sleeps while a writer pushes: the writer must stop, and memory stay bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::helper::stall::{LISTENING, OPEN, Pushed, Received};
use crate::model::{LANES, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::signals;
use crate::usage;

pub(super) const WORKLOAD: Workload = Workload {
    name: "stall",
    title: "A reader that sleeps while a writer pushes",
    about: "A small program of our own writes blocks of 4 KiB as fast as it can while the other \
            end sleeps and reads nothing. 'Accepted' is what all writes before the longest one \
            took; the CPU time is the writer's in that one, in which it was blocked. Memory is \
            the growth of the proportional set size of both programs and sluiced, shared memory \
            included, from before the first of these writes to the end of the sleep; what the \
            kernel holds for the socket is in no process. Then the reader takes everything and \
            16 MiB more, and the run counts only if number and checksum of the bytes are those of \
            the writer.",
    programs: &[],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const ACCEPTED: &str = "accepted before the writer was blocked";
pub const BLOCKED_CPU: &str = "writer's CPU time while it was blocked";
pub const MEMORY: &str = "growth of memory, both ends";

/// How long the writer was blocked, how long the reader slept, and the size of a ring; results
/// beside the values.
pub const BLOCKED_S: &str = "blocked_s";
pub const SLEPT_S: &str = "slept_s";
pub const RING_KIB: &str = "ring_kib";

/// For the start of both programs, and for the bytes after the sleep.
const PATIENCE: Duration = Duration::from_secs(30);

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let seconds = options.stall_seconds;
    let point = |group, unit| PointSpec::cost(group, format!("{seconds} s"), unit, Variant::Tcp);
    let cell = Cell {
        title: format!("stall, {seconds} s"),
        variants,
        // Nothing here varies as rates do, and a repetition takes long.
        repetitions: options.repetitions.min(2),
        points: vec![
            point(ACCEPTED, "KiB"),
            point(BLOCKED_CPU, "ms"),
            point(MEMORY, "KiB"),
        ],
        run: Box::new(move |session, variant| measure(session, variant, seconds)),
    };
    vec![cell]
}

fn measure(session: &Session, variant: Variant, seconds: u32) -> Result<Vec<Sample>> {
    let port = session.free_port()?.to_string();
    let reader_words = session.helper(&["stall-reader", &port]);
    let mut reader = session.interactive(variant.server_accelerated(), &reader_words)?;
    reader.wait_output(LISTENING, PATIENCE)?;
    let lanes_before = session.lanes_given(variant)?;
    let writer_words = session.helper(&["stall-writer", &port, &seconds.to_string()]);
    let mut writer = session.interactive(variant.client_accelerated(), &writer_words)?;
    writer.wait_output(OPEN, PATIENCE)?;
    reader.wait_output(OPEN, PATIENCE)?;

    let daemon = session.daemon_group(variant);
    let mut groups = vec![reader.group(), writer.group()];
    groups.extend(&daemon);
    let sleepers = [&[reader.group()], &daemon[..]].concat();
    let (before, sleepers_before) = (usage::usage(&groups), usage::usage(&sleepers));
    drop(writer.take_input());
    let sleep = Duration::from_secs(u64::from(seconds));
    signals::pause(sleep)?;
    let (end, sleepers_end) = (usage::usage(&groups), usage::usage(&sleepers));
    writer.ensure_running()?;
    let mut details = BTreeMap::new();
    if let (Some(before), Some(after)) = (lanes_before, session.lanes_given(variant)?) {
        details.insert(LANES, (after - before) as f64);
        details.insert(RING_KIB, session.ring_bytes()? as f64 / 1024.0);
    }

    drop(reader.take_input());
    let pushed: Pushed = writer.finish(sleep + PATIENCE)?.read(last_line)?;
    let received: Received = reader.finish(sleep + PATIENCE)?.read(last_line)?;
    check(&pushed, &received)?;
    let sleepers_cpu_ns = sleepers_end.cpu_ns.saturating_sub(sleepers_before.cpu_ns);
    details.extend([
        (BLOCKED_S, pushed.blocked_s),
        (SLEPT_S, f64::from(seconds)),
        ("reader_and_sluiced_cpu_ms", sleepers_cpu_ns as f64 / 1e6),
        ("memory_before_kib", before.pss_kib as f64),
        ("memory_end_kib", end.pss_kib as f64),
        ("delivered_mib", received.bytes as f64 / f64::from(1 << 20)),
    ]);
    let sample = |value: f64| Sample {
        value,
        details: details.clone(),
        ..Sample::default()
    };
    Ok(vec![
        sample(pushed.accepted_bytes as f64 / 1024.0),
        sample(pushed.blocked_cpu_s * 1e3),
        sample(end.pss_kib.saturating_sub(before.pss_kib) as f64),
    ])
}

/// The result of a helper is JSON behind what it said before.
pub(super) fn last_line<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|error| BenchError::Failed(format!("a helper said '{line}': {error}")))
}

fn check(pushed: &Pushed, received: &Received) -> Result<()> {
    let problem = if pushed.endless {
        format!(
            "the writer was never blocked: a reader that slept was sent {} bytes",
            pushed.bytes
        )
    } else if pushed.bytes != received.bytes {
        format!(
            "of {} bytes {} arrived after the reader's sleep",
            pushed.bytes, received.bytes
        )
    } else if pushed.checksum != received.checksum {
        format!(
            "the {} bytes that arrived after the reader's sleep are not those that were sent",
            received.bytes
        )
    } else {
        return Ok(());
    };
    Err(BenchError::Failed(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_and_changed_bytes_are_failures() {
        let pushed = Pushed {
            bytes: 10,
            checksum: 7,
            blocked_s: 1.0,
            blocked_cpu_s: 0.0,
            accepted_bytes: 4,
            endless: false,
        };
        let received = |bytes, checksum| Received { bytes, checksum };
        assert!(check(&pushed, &received(10, 7)).is_ok());
        assert!(check(&pushed, &received(9, 7)).is_err());
        assert!(check(&pushed, &received(10, 8)).is_err());
        let endless = Pushed {
            endless: true,
            ..pushed
        };
        assert!(check(&endless, &received(10, 7)).is_err());
    }

    #[test]
    fn result_is_behind_the_words_before_it() {
        let text = "listening\nopen\n{\"bytes\":3,\"checksum\":18446744073709551615}\n";
        let received: Received = last_line(text).expect("well formed");
        assert_eq!((received.bytes, received.checksum), (3, u64::MAX));
        assert!(last_line::<Received>("open\n").is_err());
    }
}
