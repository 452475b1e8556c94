//! How many connections may be captured at once: as many as find a port.
//!
//! A host has a range of local ports for each destination. What is captured goes to one listener on loopback, and shares one
//! range. Where that is used up connect() fails, which a connection that goes its own way would not.

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// `ip_local_port_range` of ip(7), of both families.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// What it is when nothing is configured.
const RANGE_DEFAULT: RangeInclusive<u16> = 32768..=60999;
/// How often it is looked at while connections come.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Room {
    looked_at: Option<Instant>,
    told: Option<u32>,
}

impl Room {
    /// What the programs in the kernel are to be told, if that is something new.
    pub fn change(&mut self, now: Instant) -> Option<u32> {
        let is_soon = |last| now.saturating_duration_since(last) < INTERVAL;
        if self.looked_at.is_some_and(is_soon) {
            return None;
        }
        self.looked_at = Some(now);
        let range = fs::read_to_string(RANGE).ok();
        let range = range.and_then(|text| parse(&text)).unwrap_or(RANGE_DEFAULT);
        let room = room_in(&range);
        (self.told.replace(room) != Some(room)).then_some(room)
    }

    /// They do not know.
    pub fn has_failed(&mut self) {
        self.told = None;
    }
}

fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => Some(first..=last),
        _ => None,
    }
}

/// A closed connection keeps its port for a while (TIME-WAIT, for a second at loopback), and so do sockets that programs have
/// bound: a quarter is for those.
fn room_in(range: &RangeInclusive<u16>) -> u32 {
    range.len() as u32 * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_ports_is_left() {
        for (text, room) in [
            ("32768\t60999\n", Some(21174)),
            ("40000 40499", Some(375)),
            ("5 5", Some(0)),
            ("1 65535", Some(49151)),
            ("60999 32768", None),
            ("", None),
            ("1 70000", None),
        ] {
            assert_eq!(parse(text).map(|range| room_in(&range)), room, "{text:?}");
        }
    }

    #[test]
    fn it_is_looked_at_now_and_then_and_said_once() {
        let mut room = Room::default();
        let start = Instant::now();
        assert!(room.change(start).is_some());
        assert_eq!(room.change(start), None);
        assert_eq!(room.change(start + INTERVAL), None);
        room.has_failed();
        assert_eq!(room.change(start + INTERVAL), None);
        assert!(room.change(start + 2 * INTERVAL).is_some());
    }
}
