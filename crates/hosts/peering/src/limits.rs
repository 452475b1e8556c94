//! Bounds on what peers and strangers can make a daemon hold and do.

use std::time::Duration;

/// Days that a certificate which is made here is valid at most.
pub const DAYS_MAX: u32 = 3_650;

/// Sessions at most.
pub const SESSIONS_MAX: usize = 1_024;

/// Accepted connections that have not proven anything yet, at most. Another one takes the place of
/// one of them, chosen at random: whoever wants to keep peers out must win against all of them all
/// the time, and not fill the places once.
pub const STRANGERS_MAX: usize = 64;

/// The same from one address (IPv4) or one /64 (IPv6); another one is closed at once.
pub const STRANGERS_PER_ADDRESS_MAX: usize = 8;

/// Bytes that a connection may bring before it has proven anything, TLS and all: room for chains
/// of certificates.
pub const STRANGER_BYTES_MAX: usize = 64 << 10;

/// Failed attempts of one address until it must wait; each is forgotten after
/// [`FAILURE_FORGOTTEN_AFTER`].
pub const FAILURES_PER_ADDRESS_MAX: u32 = 20;

/// See [`FAILURES_PER_ADDRESS_MAX`].
pub const FAILURE_FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// Addresses whose failures are remembered.
pub const FAILING_ADDRESSES_MAX: usize = 1_024;

/// Connections accepted before others get their turn.
pub const ACCEPTS_PER_TURN_MAX: usize = 64;

/// Bytes read from one connection before others get their turn.
pub const READ_BYTES_PER_TURN: usize = 256 << 10;

/// Messages of one session that are told before others get their turn. What each costs is bounded, and so is the turn.
pub const MESSAGES_PER_TURN_MAX: usize = 256;

/// Bytes that wait to be sent to one peer, at most.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Connections being made to addresses that somebody asks about, at a time.
pub const SEEKS_MAX: usize = 32;

/// Addresses that wait for that.
pub const SEEKS_WAITING_MAX: usize = 256;

/// Addresses of one configured peer that somebody asks about, while it has no session.
pub const SOUGHT_PER_PEER_MAX: usize = 256;

/// Addresses of which it is remembered whether a daemon is there.
pub const PLACES_MAX: usize = 4_096;

/// Connections that were refused and wait until the other side has read why.
pub const FAREWELLS_MAX: usize = 64;

/// Times. The default is what a daemon uses; tests use others.
#[derive(Clone, Debug)]
pub struct Timing {
    /// From connecting or accepting to a session.
    pub handshake: Duration,
    /// How long a connection waits for the outcome of another one between the same two daemons.
    pub hold: Duration,
    /// After so long without anything to say, a daemon says that it is there.
    pub alive: Duration,
    /// After so long without anything heard, the peer has vanished.
    pub silence: Duration,
    /// Wait after the first failure to reach a peer; it doubles.
    pub retry_min: Duration,
    /// At most.
    pub retry_max: Duration,
    /// How long an address without a daemon is not asked again, at first; it doubles.
    pub absent_min: Duration,
    /// At most.
    pub absent_max: Duration,
    /// A session that lasted so long ended for another reason than the one before it.
    pub stable: Duration,
    /// How long the other side may take to read why it was refused.
    pub farewell: Duration,
    /// How long no connection is accepted when there is no descriptor left for it.
    pub accept_pause: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            handshake: Duration::from_secs(5),
            hold: Duration::from_secs(2),
            alive: Duration::from_secs(5),
            silence: Duration::from_secs(15),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
            absent_min: Duration::from_secs(5),
            absent_max: Duration::from_secs(600),
            stable: Duration::from_secs(10),
            farewell: Duration::from_secs(1),
            accept_pause: Duration::from_millis(100),
        }
    }
}

/// `first`, doubled with each further failure, at most `most`, and then between half of it and all
/// of it as `random` says, so that hosts that failed together do not come back together.
pub fn backoff(first: Duration, most: Duration, failures: u32, random: u32) -> Duration {
    let doubled = first.saturating_mul(
        1_u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX),
    );
    let whole = doubled.min(most);
    let half = whole / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_limit() {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(60));
        for (failures, whole) in [
            (0, 1),
            (1, 1),
            (2, 2),
            (6, 32),
            (7, 60),
            (40, 60),
            (u32::MAX, 60),
        ] {
            let whole = Duration::from_secs(whole);
            assert_eq!(backoff(first, most, failures, 0), whole / 2, "{failures}");
            assert_eq!(
                backoff(first, most, failures, u32::MAX),
                whole,
                "{failures}"
            );
        }
    }
}
