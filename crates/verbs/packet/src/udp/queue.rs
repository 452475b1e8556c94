//! Packets that wait to be sent together.

use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;
use sluice_wire::Ecn;
use sluice_wire::icrc::{self, Unseen};
use sluice_wire::udp::ROCE_PORT;

use super::control::Telling;
use super::socket::{Name, Outgoing};
use super::{DATAGRAM_BYTES_MAX, checksum};
use crate::{Kept, Leaving, Path, PortCounters, SendError};

/// Packets that one system call sends, at most.
const SEND_BATCH: usize = 128;

/// Bytes that are worth a system call of their own: when so many wait and no more go with them,
/// the kernel and the receiver work on these while the next ones are made, in places that the
/// processor's cache still has.
const WORTH_BYTES: usize = 32 << 10;

/// Packets of one large datagram: the kernel's limit before Linux 6.9 (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: u16 = 64;

#[derive(Clone, Copy)]
struct Entry {
    path: Path,
    ecn: Ecn,
    /// Base transport header to pad, bytes.
    length: usize,
    /// Place among the segments of a large datagram; 0 starts one.
    segment: u16,
}

impl Entry {
    const fn is_six(&self) -> bool {
        self.path.source.is_ipv6()
    }
}

/// Packets in the order in which they leave.
pub(super) struct Queue {
    places: Vec<u8>,
    /// From one packet's place to the next.
    stride: usize,
    entries: Vec<Entry>,
    /// Entries that the kernel already has.
    gone: usize,
    /// Bytes of the datagram that the last entry is in.
    run_bytes: usize,
    /// Bytes that wait in all.
    bytes: usize,
    segmentation: bool,
    outgoing: Outgoing,
}

impl Queue {
    pub(super) fn new(packet_and_icrc_bytes: usize, segmentation: bool) -> Self {
        let stride = packet_and_icrc_bytes.next_multiple_of(64);
        Self {
            places: vec![0; SEND_BATCH * stride],
            stride,
            entries: Vec::with_capacity(SEND_BATCH),
            gone: 0,
            run_bytes: 0,
            bytes: 0,
            segmentation,
            outgoing: Outgoing::new(SEND_BATCH),
        }
    }

    pub(super) fn room(&self) -> usize {
        SEND_BATCH - self.entries.len()
    }

    /// Whether a packet starts a datagram of its own, and what waits is worth sending before.
    pub(super) fn is_ripe_before(&self, packet: &Leaving<'_>) -> bool {
        self.bytes >= WORTH_BYTES && !self.continues(packet.path, packet.ecn, packet.length)
    }

    /// Puts a packet behind the others.
    pub(super) fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.room() == 0 {
            return Err(SendError::NoRoom);
        }
        let Leaving {
            path, ecn, length, ..
        } = *packet;
        let mut entry = Entry {
            path: *path,
            ecn,
            length,
            segment: 0,
        };
        let bytes = length + icrc::BYTES;
        let continues = self.continues(path, ecn, length);
        if continues {
            entry.segment = self.entries.last().map_or(0, |last| last.segment + 1);
        }
        let Some((place, sum)) = self.place(self.entries.len(), length) else {
            return Err(SendError::TooLong);
        };
        if !fill(place) {
            return Err(SendError::Nothing);
        }
        seal(&entry, place, sum)?;
        self.run_bytes = if continues {
            self.run_bytes + bytes
        } else {
            bytes
        };
        self.bytes += bytes;
        self.entries.push(entry);
        Ok(())
    }

    /// Whether an acknowledgement can be the last segment of the datagram that a packet is in: only that
    /// one may be shorter than the others.
    pub(super) fn takes_behind(&self, packet: &Leaving<'_>, kept: &Kept) -> bool {
        self.segmentation && kept.path == *packet.path && kept.packet().len() <= packet.length
    }

    /// Puts an acknowledgement behind the last packet, into its datagram.
    pub(super) fn put_behind(&mut self, kept: &Kept) {
        let Some(at) = self.entries.len().checked_sub(1) else {
            return;
        };
        let carrier = self.entries.get(at);
        let ecn = carrier.map_or(kept.ecn, |carrier| carrier.ecn);
        if !self.continues(&kept.path, ecn, kept.packet().len()) {
            // All segments are of one length but the last, which it is to be: a datagram for both.
            self.run_bytes = carrier.map_or(0, |carrier| carrier.length) + icrc::BYTES;
            self.part(at, 1);
        }
        let leaving = Leaving {
            ecn,
            ..kept.leaving()
        };
        // It fits into any place; without one it is lost, as on a network, and asked for again.
        let _ = self.put(&leaving, &mut |into| kept.put(into));
    }

    /// Where a packet of that length and its ICRC are put.
    fn place(&mut self, at: usize, length: usize) -> Option<(&mut [u8], &mut [u8])> {
        let mut places = self.places.chunks_exact_mut(self.stride);
        let place = places.nth(at)?.get_mut(..length + icrc::BYTES)?;
        place.split_at_mut_checked(length)
    }

    /// Whether a packet can be one more segment of the last one's datagram: all are of one
    /// length, but the last may be shorter.
    fn continues(&self, path: &Path, ecn: Ecn, length: usize) -> bool {
        let Some(last) = self.entries.last() else {
            return false;
        };
        let first = self
            .entries
            .get(self.entries.len() - 1 - usize::from(last.segment));
        self.segmentation
            && self.gone < self.entries.len()
            && last.ecn == ecn
            && length <= last.length
            && last.segment + 1 < SEGMENTS_MAX
            && self.run_bytes + length + icrc::BYTES <= DATAGRAM_BYTES_MAX
            && last.path == *path
            && first.is_some_and(|first| first.length == last.length)
    }

    /// Hands the kernel what is in the queue. False: it took only a part.
    pub(super) fn flush(
        &mut self,
        four: Option<&Fd>,
        six: Option<&Fd>,
        counters: &mut PortCounters,
    ) -> bool {
        while let Some(next) = self.entries.get(self.gone) {
            let is_six = next.is_six();
            let first = self.run(self.gone);
            let Some(socket) = (if is_six { six } else { four }) else {
                counters.refused += first as u64;
                self.gone += first;
                continue;
            };
            counters.send_calls += 1;
            match self.hand_over(socket, is_six) {
                Ok(messages) => {
                    for _ in 0..messages {
                        let packets = self.run(self.gone);
                        let all = self.entries.iter().skip(self.gone).take(packets);
                        counters.sent += packets as u64;
                        counters.sent_bytes += all.map(|entry| entry.length as u64).sum::<u64>();
                        self.gone += packets;
                    }
                }
                Err(Errno::AGAIN) => return false,
                Err(errno) if first > 1 => {
                    // The device computes no checksums (EIO, before Linux 6.11), or the packets are
                    // longer than the path's MTU (EINVAL, EMSGSIZE): each packet by itself.
                    if errno.0 == libc::EIO || errno == Errno::NOTSUP {
                        self.segmentation = false;
                    }
                    self.part(self.gone, first);
                }
                Err(_) => {
                    counters.refused += 1;
                    self.gone += 1;
                }
            }
        }
        self.entries.clear();
        self.gone = 0;
        self.bytes = 0;
        true
    }

    /// Packets of the datagram that starts at entry `at`.
    fn run(&self, at: usize) -> usize {
        let behind = self.entries.iter().skip(at + 1);
        1 + behind.take_while(|entry| entry.segment > 0).count()
    }

    /// Hands the waiting packets of one socket to the kernel; how many datagrams it took.
    fn hand_over(&mut self, socket: &Fd, is_six: bool) -> Result<usize, Errno> {
        let entries = self.entries.get(self.gone..).unwrap_or_default();
        let messages = entries
            .chunk_by(|_, next| next.segment > 0)
            .take_while(|run| run.first().is_some_and(|entry| entry.is_six() == is_six))
            .filter_map(|run| {
                let entry = run.first()?;
                let path = &entry.path;
                let telling = Telling {
                    source: path.source,
                    interface: path.interface,
                    traffic_class: path.dscp & 0xfc | entry.ecn as u8,
                    hop_limit: path.hop_limit.max(1),
                    segment_bytes: (run.len() > 1)
                        .then(|| (entry.length + icrc::BYTES).min(DATAGRAM_BYTES_MAX) as u16),
                };
                let name = Name::new(path.destination, ROCE_PORT, path.interface);
                Some((name, telling, run.len()))
            });
        let places = self.places.chunks_exact(self.stride).skip(self.gone);
        let parts = entries
            .iter()
            .zip(places)
            .filter_map(|(entry, place)| place.get(..entry.length + icrc::BYTES));
        self.outgoing.send(socket, messages, parts)
    }

    /// Makes single packets of the segments of a datagram.
    fn part(&mut self, at: usize, count: usize) {
        for at in at..at + count {
            let Some(entry) = self.entries.get_mut(at) else {
                return;
            };
            entry.segment = 0;
            let entry = *entry;
            if let Some((packet, sum)) = self.place(at, entry.length) {
                // It was sealed before, so that it is neither too long nor too short.
                let _ = seal(&entry, packet, sum);
            }
        }
    }
}

/// Writes the ICRC of an entry.
fn seal(entry: &Entry, packet: &[u8], sum: &mut [u8]) -> Result<(), SendError> {
    let unseen = Unseen {
        identification: entry.segment,
        dont_fragment: true,
    };
    let path = &entry.path;
    let right = checksum(path.source, path.destination, ROCE_PORT, unseen, packet);
    sum.copy_from_slice(&right.ok_or(SendError::TooLong)?);
    Ok(())
}
