//! What happens to a frame on a bad path: decisions, without I/O.
//!
//! Only RoCEv2 frames (UDP port 4791) have a fate; all others pass, or are lost. The fate of a direction's nth
//! RoCE frame depends on the seed, n and the faults, and on nothing else, above all not on time.

use std::ops::Range;

use crate::random::Random;

/// IANA: RoCEv2.
const ROCE_PORT: u16 = 4791;

const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
const TCP: u8 = 6;

/// Of the BTH: FECN, BECN and reserved bits, which the ICRC leaves out (IBTA A17.3.3).
const UNPROTECTED: usize = 4;

/// What a direction does to RoCE frames. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Chooses the frames: another seed, other frames.
    pub seed: u64,
    /// The frame disappears.
    pub loss: f64,
    /// The frame comes twice.
    pub duplication: f64,
    /// The frame is held until some later ones have passed, at most `reorder_depth`.
    pub reordering: f64,
    /// In frames, at least 1.
    pub reorder_depth: u32,
    /// One bit of the UDP payload is turned, the ICRC included; of bytes that the ICRC covers.
    pub corruption: f64,
    /// Whether a corrupted frame gets a UDP checksum that is right for it (if it has one), so that
    /// the ICRC alone can find the fault. Otherwise kernels drop it before a UDP socket sees it.
    pub repair_checksum: bool,
    /// A frame of an ECN-capable transport is marked (RFC 3168 §5).
    pub marking: f64,
    /// A frame that is not RoCE disappears.
    pub loss_of_others: f64,
    /// TCP's segments are lost, come twice and are held as RoCE frames are.
    pub of_tcp: bool,
    /// RoCE's faults are of the frames to one queue pair alone: the one that the first frame goes to which comes
    /// from now on.
    pub of_one_queue_pair: bool,
}

impl Faults {
    /// A good path.
    pub const NONE: Faults = Faults {
        seed: 0,
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        reorder_depth: 8,
        corruption: 0.0,
        repair_checksum: false,
        marking: 0.0,
        loss_of_others: 0.0,
        of_tcp: false,
        of_one_queue_pair: false,
    };
}

impl Default for Faults {
    fn default() -> Self {
        Faults::NONE
    }
}

/// What is to be done with a frame (which may have been changed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Lose,
    Twice,
    /// Until so many later frames have passed.
    Hold(u32),
}

/// What one direction did to RoCE frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// RoCE frames that came in.
    pub seen: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub held: u64,
    pub corrupted: u64,
    pub marked: u64,
    /// Frames for which a bottleneck's queue had no place.
    pub overflowed: u64,
    /// Frames of any kind that came while the link was cut.
    pub cut: u64,
    /// Frames that are not RoCE, and those of them that were lost.
    pub others: u64,
    pub others_lost: u64,
    /// Frames that left, of any kind; those that came twice count twice.
    pub carried: u64,
    /// Frames that the injector itself lost, because a queue of the kernel was full. A test that
    /// counts frames must find zero here.
    pub overruns: u64,
}

/// Decides for one direction.
#[derive(Debug)]
pub struct Judge {
    faults: Faults,
    random: Random,
    /// Of its own, so that RoCE frames have the same fates whatever passes beside them.
    random_of_others: Random,
    /// The one queue pair, if the faults are of one.
    victim: Option<[u8; 3]>,
    pub counts: Counts,
}

impl Judge {
    pub fn new(faults: Faults) -> Judge {
        Judge {
            faults,
            random: Random::new(faults.seed),
            random_of_others: Random::new(!faults.seed),
            victim: None,
            counts: Counts::default(),
        }
    }

    /// Begins anew with these faults and their seed. Counts go on.
    pub fn set(&mut self, faults: Faults) {
        self.faults = faults;
        self.random = Random::new(faults.seed);
        self.random_of_others = Random::new(!faults.seed);
        self.victim = None;
    }

    /// The frame's fate; changes the frame if that is its fate.
    pub fn judge(&mut self, frame: &mut [u8]) -> Fate {
        let Some(found) = Roce::find(frame) else {
            self.counts.others += 1;
            if self.faults.of_tcp && is_tcp(frame) {
                return self.judge_segment();
            }
            if self.random_of_others.chance(self.faults.loss_of_others) {
                self.counts.others_lost += 1;
                return Fate::Lose;
            }
            return Fate::Pass;
        };
        self.counts.seen += 1;
        if self.faults.of_one_queue_pair {
            let queue_pair = found.queue_pair(frame);
            if self.victim.is_none() {
                self.victim = queue_pair;
            }
            if self.victim != queue_pair {
                return Fate::Pass;
            }
        }
        // Always as many numbers, so that a frame's fate does not depend on those of others.
        let faults = self.faults;
        let lost = self.random.chance(faults.loss);
        let twice = self.random.chance(faults.duplication);
        let late = self.random.chance(faults.reordering);
        let damaged = self.random.chance(faults.corruption);
        let marked = self.random.chance(faults.marking);
        let depth = 1 + self.random.below(u64::from(faults.reorder_depth.max(1)));
        let place = self.random.next();
        if lost {
            self.counts.lost += 1;
            return Fate::Lose;
        }
        if marked && found.mark(frame) {
            self.counts.marked += 1;
        }
        if damaged && found.corrupt(frame, place, faults.repair_checksum) {
            self.counts.corrupted += 1;
        }
        if late {
            self.counts.held += 1;
            return Fate::Hold(u32::try_from(depth).unwrap_or(1));
        }
        if twice {
            self.counts.duplicated += 1;
            return Fate::Twice;
        }
        Fate::Pass
    }

    /// The fate of a segment of TCP, which its own checksum keeps from being changed.
    fn judge_segment(&mut self) -> Fate {
        let faults = self.faults;
        let random = &mut self.random_of_others;
        let lost = random.chance(faults.loss.max(faults.loss_of_others));
        let twice = random.chance(faults.duplication);
        let late = random.chance(faults.reordering);
        let depth = 1 + random.below(u64::from(faults.reorder_depth.max(1)));
        if lost {
            self.counts.lost += 1;
            self.counts.others_lost += 1;
            Fate::Lose
        } else if late {
            self.counts.held += 1;
            Fate::Hold(u32::try_from(depth).unwrap_or(1))
        } else if twice {
            self.counts.duplicated += 1;
            Fate::Twice
        } else {
            Fate::Pass
        }
    }
}

/// Whether it is a segment of TCP, whole and in an untagged frame.
fn is_tcp(frame: &[u8]) -> bool {
    let kind = frame.get(12..ETHERNET_BYTES);
    let protocol = match kind {
        Some([0x08, 0x00]) => frame.get(ETHERNET_BYTES + 9),
        Some([0x86, 0xdd]) => frame.get(ETHERNET_BYTES + 6),
        _ => None,
    };
    protocol == Some(&TCP)
}

/// Whether it is a frame that has a fate.
pub fn is_roce(frame: &[u8]) -> bool {
    Roce::find(frame).is_some()
}

/// Marks a RoCE frame of an ECN-capable transport. Whether it is one.
pub fn mark(frame: &mut [u8]) -> bool {
    Roce::find(frame).is_some_and(|found| found.mark(frame))
}

/// Where things are in a RoCE frame.
struct Roce {
    version: u8,
    udp: usize,
    payload: Range<usize>,
}

impl Roce {
    /// None for what is not an untagged, whole UDP datagram to port 4791.
    fn find(frame: &[u8]) -> Option<Roce> {
        let at = |index: usize| frame.get(index).copied();
        let word = |index: usize| Some(u16::from_be_bytes([at(index)?, at(index + 1)?]));
        let ip = ETHERNET_BYTES;
        let (version, udp) = match word(12)? {
            0x0800 => {
                let header = usize::from(at(ip)? & 0x0f) * 4;
                let fragment = word(ip + 6)? & 0x3fff;
                if at(ip + 9)? != UDP || fragment != 0 {
                    return None;
                }
                (4, ip + header)
            }
            0x86dd if at(ip + 6)? == UDP => (6, ip + IPV6_BYTES),
            _ => return None,
        };
        if word(udp + 2)? != ROCE_PORT {
            return None;
        }
        let end = (udp + usize::from(word(udp + 4)?)).min(frame.len());
        let payload = udp + UDP_BYTES..end;
        (payload.start < payload.end).then_some(Roce {
            version,
            udp,
            payload,
        })
    }

    /// Where it goes, of the BTH (IBTA 9.2.6).
    fn queue_pair(&self, frame: &[u8]) -> Option<[u8; 3]> {
        let bth = frame.get(self.payload.clone())?;
        bth.get(5..8)?.try_into().ok()
    }

    /// Sets CE if the transport is ECN-capable.
    fn mark(&self, frame: &mut [u8]) -> bool {
        let ip = ETHERNET_BYTES;
        // The lowest two bits of the traffic class: of IPv4's second byte, and in IPv6's second
        // byte behind the two that belong to the flow label's half.
        let (bit0, bit1) = if self.version == 4 { (1, 2) } else { (16, 32) };
        let Some(field) = frame.get_mut(ip + 1) else {
            return false;
        };
        if *field & (bit0 | bit1) == 0 {
            return false;
        }
        let new = *field | bit0 | bit1;
        if self.version == 4 {
            replace(frame, ip + 1, new, Some(ip + 10), ip);
        } else {
            // The UDP checksum does not cover the traffic class.
            replace(frame, ip + 1, new, None, ip);
        }
        true
    }

    /// Turns one bit that the ICRC covers.
    fn corrupt(&self, frame: &mut [u8], place: u64, repair: bool) -> bool {
        let bits = self.payload.len() as u64 * 8;
        let bit = place % bits;
        let mut index = self.payload.start + (bit / 8) as usize;
        if index == self.payload.start + UNPROTECTED {
            index = self.payload.start;
        }
        let Some(&byte) = frame.get(index) else {
            return false;
        };
        let checksum = self.udp + 6;
        let has_checksum = frame.get(checksum..checksum + 2) != Some(&[0, 0]);
        let checksum = (repair && has_checksum).then_some(checksum);
        replace(frame, index, byte ^ (1 << (bit % 8)), checksum, self.udp);
        true
    }
}

/// Replaces a byte and corrects the checksum for it (RFC 1624). `start` is where the words begin
/// that it adds up.
fn replace(frame: &mut [u8], index: usize, new: u8, checksum: Option<usize>, start: usize) {
    let Some(byte) = frame.get_mut(index) else {
        return;
    };
    let old = std::mem::replace(byte, new);
    let Some(at) = checksum else { return };
    let Some([high, low]) = frame.get_mut(at..at + 2) else {
        return;
    };
    let shift = if (index - start).is_multiple_of(2) {
        8
    } else {
        0
    };
    let sum = u32::from(!u16::from_be_bytes([*high, *low]));
    let mut sum = sum + u32::from(!(u16::from(old) << shift)) + (u32::from(new) << shift);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // In UDP, zero says that there is none.
    let fixed = match !(sum as u16) {
        0 => 0xffff,
        other => other,
    };
    [*high, *low] = fixed.to_be_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram over IPv4 or IPv6 with all checksums right.
    fn frame(version: u8, port: u16, payload: &[u8]) -> Vec<u8> {
        let length = (UDP_BYTES + payload.len()) as u16;
        let mut udp = vec![0xc0, 0, 0, 0, 0, 0, 0, 0];
        udp[2..4].copy_from_slice(&port.to_be_bytes());
        udp[4..6].copy_from_slice(&length.to_be_bytes());
        udp.extend(payload);
        let mut frame = vec![2; 12];
        let mut ip = if version == 4 {
            frame.extend([8, 0]);
            let mut ip = vec![0x45, 2, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0];
            ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            let check = !sum(&ip);
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            ip
        } else {
            frame.extend([0x86, 0xdd]);
            let mut ip = vec![0x60, 0x20, 0, 0, 0, 0, UDP, 64];
            ip[4..6].copy_from_slice(&length.to_be_bytes());
            ip.extend([0xfd; 32]);
            ip
        };
        let check = !udp_sum(version, &ip, &udp);
        udp[6..8].copy_from_slice(&check.to_be_bytes());
        frame.append(&mut ip);
        frame.append(&mut udp);
        frame
    }

    fn sum(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// With the pseudo header; all ones when the checksum in it is right.
    fn udp_sum(version: u8, ip: &[u8], udp: &[u8]) -> u16 {
        let addresses = if version == 4 {
            &ip[12..20]
        } else {
            &ip[8..40]
        };
        let mut all = addresses.to_vec();
        all.extend([0, UDP]);
        all.extend((udp.len() as u16).to_be_bytes());
        all.extend(udp);
        sum(&all)
    }

    fn checksums_hold(version: u8, frame: &[u8]) -> bool {
        let (ip, udp) = frame[14..].split_at(if version == 4 { 20 } else { 40 });
        (version == 6 || sum(ip) == 0xffff) && udp_sum(version, ip, udp) == 0xffff
    }

    fn only(change: impl FnOnce(&mut Faults)) -> Judge {
        let mut faults = Faults {
            seed: 7,
            ..Faults::NONE
        };
        change(&mut faults);
        Judge::new(faults)
    }

    #[test]
    fn a_good_path_passes_everything_unchanged() {
        let mut judge = only(|_| {});
        for version in [4, 6] {
            let mut bytes = frame(version, ROCE_PORT, &[1; 33]);
            let before = bytes.clone();
            assert_eq!(judge.judge(&mut bytes), Fate::Pass);
            assert_eq!(bytes, before);
        }
        assert_eq!((judge.counts.seen, judge.counts.others), (2, 0));
    }

    #[test]
    fn frames_of_others_always_pass() {
        let mut judge = only(|faults| {
            (faults.loss, faults.corruption) = (1.0, 1.0);
        });
        let fragment = {
            let mut bytes = frame(4, ROCE_PORT, &[1; 64]);
            bytes[14 + 6] = 0x20;
            bytes
        };
        let whole = frame(4, ROCE_PORT, &[1; 64]);
        let mut others = vec![frame(4, 4790, &[0; 20]), frame(6, 53, &[0; 20]), fragment];
        // Cut anywhere before the UDP header is whole, it is nobody's.
        others.extend((0..14 + 20 + 6).map(|length| whole[..length].to_vec()));
        for bytes in &mut others {
            let before = bytes.clone();
            assert_eq!(judge.judge(bytes), Fate::Pass);
            assert_eq!(*bytes, before);
        }
        assert_eq!(judge.counts.others, others.len() as u64);
    }

    #[test]
    fn segments_have_fates_only_if_told() {
        let mut segment = frame(4, 80, &[7; 40]);
        segment[ETHERNET_BYTES + 9] = TCP;
        let unchanged = segment.clone();
        let mut judge = only(|faults| faults.duplication = 1.0);
        assert_eq!(judge.judge(&mut segment), Fate::Pass);
        let mut judge = only(|faults| (faults.duplication, faults.of_tcp) = (1.0, true));
        assert_eq!(judge.judge(&mut segment), Fate::Twice);
        assert_eq!(judge.judge(&mut frame(4, 53, &[7; 40])), Fate::Pass);
        let mut judge = only(|faults| (faults.corruption, faults.of_tcp) = (1.0, true));
        assert_eq!(judge.judge(&mut segment), Fate::Pass);
        assert_eq!(segment, unchanged);
    }

    #[test]
    fn one_queue_pair_can_have_all_the_faults() {
        let to = |queue_pair: u8| {
            let mut payload = [0; 40];
            payload[7] = queue_pair;
            frame(4, ROCE_PORT, &payload)
        };
        let faults = Faults {
            loss: 1.0,
            of_one_queue_pair: true,
            ..Faults::NONE
        };
        let mut judge = Judge::new(faults);
        let fates = |judge: &mut Judge| [3, 4, 3, 5].map(|it| judge.judge(&mut to(it)));
        let (lost, passed) = (Fate::Lose, Fate::Pass);
        assert_eq!(fates(&mut judge), [lost, passed, lost, passed]);
        judge.set(faults);
        assert_eq!(judge.judge(&mut to(5)), lost);
        assert_eq!(fates(&mut judge), [passed, passed, passed, lost]);
    }

    #[test]
    fn frames_of_others_are_lost_only_if_told() {
        let mut judge = only(|faults| faults.loss_of_others = 1.0);
        assert_eq!(judge.judge(&mut frame(4, 4790, &[0; 20])), Fate::Lose);
        assert_eq!(judge.judge(&mut frame(4, ROCE_PORT, &[0; 20])), Fate::Pass);
        assert_eq!((judge.counts.lost, judge.counts.others_lost), (0, 1));
    }

    #[test]
    fn corruption_turns_one_covered_bit_and_repairs_the_checksum_if_told() {
        for (version, repair) in [(4, false), (4, true), (6, false), (6, true)] {
            let mut judge = only(|faults| {
                (faults.corruption, faults.repair_checksum) = (1.0, repair);
            });
            for _ in 0..2000 {
                let good = frame(version, ROCE_PORT, &[0x5a; 31]);
                assert!(checksums_hold(version, &good));
                let mut bytes = good.clone();
                assert_eq!(judge.judge(&mut bytes), Fate::Pass);
                let payload = bytes.len() - 31;
                let turned: u32 = (payload..bytes.len())
                    .map(|at| (bytes[at] ^ good[at]).count_ones())
                    .sum();
                assert_eq!(turned, 1);
                assert_eq!(bytes[payload + UNPROTECTED], 0x5a);
                assert_eq!(checksums_hold(version, &bytes), repair);
            }
        }
    }

    #[test]
    fn a_datagram_without_checksum_does_not_get_one() {
        let mut judge = only(|faults| (faults.corruption, faults.repair_checksum) = (1.0, true));
        let mut bytes = frame(4, ROCE_PORT, &[0; 20]);
        bytes[14 + 20 + 6..][..2].fill(0);
        judge.judge(&mut bytes);
        assert_eq!(judge.counts.corrupted, 1);
        assert_eq!(bytes[14 + 20 + 6..][..2], [0, 0]);
    }

    #[test]
    fn marks_hit_only_ecn_capable_frames_and_keep_the_checksums() {
        for version in [4, 6] {
            let mut judge = only(|faults| faults.marking = 1.0);
            let mut bytes = frame(version, ROCE_PORT, &[3; 20]);
            judge.judge(&mut bytes);
            let class = u16::from_be_bytes([bytes[14], bytes[15]]);
            let ecn = if version == 4 {
                class & 3
            } else {
                class >> 4 & 3
            };
            assert_eq!(ecn, 3, "IPv{version}");
            assert!(checksums_hold(version, &bytes), "IPv{version}");

            bytes[15] &= if version == 4 { !3 } else { !0x30 };
            let before = bytes.clone();
            judge.judge(&mut bytes);
            assert_eq!(bytes, before, "IPv{version} without ECN");
            assert_eq!(judge.counts.marked, 1);
        }
    }

    #[test]
    fn fates_come_as_often_as_asked_and_depend_on_the_seed_alone() {
        const FRAMES: u32 = 20_000;
        let faults = Faults {
            seed: 1,
            loss: 0.1,
            duplication: 0.05,
            reordering: 0.02,
            ..Faults::NONE
        };
        let run = |seed| {
            let mut judge = Judge::new(Faults { seed, ..faults });
            let fates: Vec<Fate> = (0..FRAMES)
                .map(|number| judge.judge(&mut frame(4, ROCE_PORT, &number.to_be_bytes())))
                .collect();
            (fates, judge.counts)
        };
        let (fates, counts) = run(1);
        assert_eq!(run(1).0, fates);
        assert_ne!(run(2).0, fates);
        // Five standard deviations at most.
        let near = |count: u64, probability: f64| {
            let expected = f64::from(FRAMES) * probability;
            (count as f64 - expected).abs() < 5.0 * expected.sqrt()
        };
        assert!(near(counts.lost, 0.1), "{counts:?}");
        assert!(near(counts.held, 0.02 * 0.9), "{counts:?}");
        assert!(near(counts.duplicated, 0.05 * 0.9 * 0.98), "{counts:?}");
    }
}
