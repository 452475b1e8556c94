//! The share of the log that each peer has. What a peer says can cause lines without number. Each line of that kind
//! names the peer in its field `peer`; those of one peer that are too many are left out and counted. Lines of level
//! `debug` and below are not counted: who asks for them wants all.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one peer at once.
const LINES_MAX: u32 = 256;
/// After so long there is room for one more.
const LINE_INTERVAL: Duration = Duration::from_secs(4);
/// Peers whose lines are counted; all others have one share in common.
const PEERS_MAX: usize = 1024;
/// After so long without a line a peer is forgotten, if there is no room for another one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The field that names the peer.
const PEER: &str = "peer";
/// Lines of this module.
const TARGET: &str = "sluice_daemon::log_share";

/// What one peer may write.
#[derive(Debug)]
struct Share {
    lines: u32,
    filled: Instant,
    last: Instant,
    left_out: u64,
}

impl Share {
    fn new(now: Instant) -> Self {
        Self {
            lines: LINES_MAX,
            filled: now,
            last: now,
            left_out: 0,
        }
    }

    /// A line is to be written. Some: it may be, and how many were left out since the last one.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = now.saturating_duration_since(self.filled);
        let more = since.as_millis() / LINE_INTERVAL.as_millis();
        if let Ok(more @ 1..) = u32::try_from(more) {
            self.lines = self.lines.saturating_add(more).min(LINES_MAX);
            self.filled += LINE_INTERVAL * more;
        }
        self.last = now;
        match self.lines.checked_sub(1) {
            Some(left) => {
                self.lines = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

/// The shares of all peers.
#[derive(Debug, Default)]
struct Shares {
    peers: HashMap<String, Share>,
    others: Option<Share>,
}

impl Shares {
    /// See [`Share::take`].
    fn take(&mut self, peer: &str, now: Instant) -> Option<u64> {
        if let Some(share) = self.peers.get_mut(peer) {
            return share.take(now);
        }
        if self.peers.len() >= PEERS_MAX {
            let is_kept = |share: &Share| {
                now.saturating_duration_since(share.last) < FORGOTTEN_AFTER || share.left_out > 0
            };
            self.peers.retain(|_, share| is_kept(share));
        }
        if self.peers.len() >= PEERS_MAX {
            let share = self.others.get_or_insert_with(|| Share::new(now));
            return share.take(now);
        }
        let share = self.peers.entry(peer.to_owned());
        share.or_insert_with(|| Share::new(now)).take(now)
    }
}

/// Leaves lines out of the log of which one peer has caused too many.
#[derive(Debug, Default)]
pub struct LogShares(Mutex<Shares>);

impl<S: Subscriber> Layer<S> for LogShares {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        let mut peer = PeerField::default();
        event.record(&mut peer);
        let Some(peer) = peer.0 else {
            return true;
        };
        let taken = {
            let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shares.take(&peer, Instant::now())
        };
        if let Some(count @ 1..) = taken {
            tracing::warn!(target: TARGET, peer, "{count} lines about {peer} were left out of the log");
        }
        taken.is_some()
    }
}

/// What the field [`PEER`] of a line says.
#[derive(Default)]
struct PeerField(Option<String>);

impl Visit for PeerField {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == PEER {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == PEER {
            let mut text = String::new();
            // Writing to a string does not fail.
            let _ = write!(text, "{value:?}");
            self.0 = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_peer_has_so_many_lines_and_then_one_after_each_interval() {
        let mut shares = Shares::default();
        let start = Instant::now();
        for _ in 0..LINES_MAX {
            assert_eq!(shares.take("m", start), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(shares.take("m", start), None);
        }
        // Another one has its own.
        assert_eq!(shares.take("b", start), Some(0));
        let later = start + LINE_INTERVAL;
        assert_eq!(shares.take("m", later), Some(1000));
        assert_eq!(shares.take("m", later), None);
        let much_later = start + LINE_INTERVAL * (LINES_MAX + 9);
        assert_eq!(shares.take("m", much_later), Some(1));
        assert_eq!(shares.peers["m"].lines, LINES_MAX - 1);
    }

    #[test]
    fn names_without_number_have_one_share_in_common() {
        let mut shares = Shares::default();
        let start = Instant::now();
        let mut written = 0;
        for number in 0..10_000 {
            let name = format!("m{number}");
            written += u32::from(shares.take(&name, start).is_some());
        }
        assert_eq!(written, PEERS_MAX as u32 + LINES_MAX);
        assert_eq!(shares.peers.len(), PEERS_MAX);
        // Who has written nothing for long gives way.
        let later = start + FORGOTTEN_AFTER;
        assert_eq!(shares.take("b", later), Some(0));
        assert_eq!(shares.peers.len(), 1);
    }

    /// Where lines go.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("the lines").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_name_a_peer_are_counted_and_no_others() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_writer(move || writer.clone())
            .finish()
            .with(LogShares::default());
        let name: Arc<str> = "m".into();
        tracing::subscriber::with_default(log, || {
            for _ in 0..2 * LINES_MAX {
                tracing::warn!(peer = %name, "of a name");
                tracing::info!(peer = "m", "of a text");
                tracing::debug!(peer = %name, "of detail");
                tracing::warn!("of nobody");
            }
        });
        let text = String::from_utf8(lines.0.lock().expect("the lines").clone()).expect("text");
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!(count("of a name") + count("of a text"), LINES_MAX as usize);
        assert_eq!(count("of detail"), 2 * LINES_MAX as usize);
        assert_eq!(count("of nobody"), 2 * LINES_MAX as usize);
    }
}
