//! Packets out of nothing: UDP over IPv4 from one address to another, in as many flows as asked
//! for, told apart by their source port.

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a frame without its checksum.
    pub len: usize,
    pub flows: u16,
    /// Frames altogether; 0 is no end.
    pub count: u64,
}

/// Ethernet, IPv4 and UDP headers.
const HEADERS_LEN: usize = 42;
pub const LEN_MIN: usize = 60;
/// Of one round.
const BATCH: usize = 256;

pub struct Generator {
    frames: Vec<Vec<u8>>,
    left: Option<u64>,
    next: usize,
    pub made: u64,
}

impl Generator {
    /// Frames for the station 02:00:00:00:00:01 plus the port.
    pub fn new(plan: Plan, port: u8) -> Self {
        let len = plan.len.clamp(LEN_MIN, crate::qdma_packet_len_max());
        let frames = (0..plan.flows.max(1))
            .map(|flow| frame(len, flow, port))
            .collect();
        Self {
            frames,
            left: (plan.count > 0).then_some(plan.count),
            next: 0,
            made: 0,
        }
    }

    /// The frames of this round, in turn over the flows, as long as `take` takes them. A flow whose
    /// queue is full is passed over: this source waits and does not lose.
    pub fn run(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> bool {
        let before = self.made;
        let mut refused = 0;
        for _ in 0..BATCH {
            if self.left == Some(0) || refused == self.frames.len() {
                break;
            }
            let Some(frame) = self.frames.get(self.next) else {
                break;
            };
            self.next = (self.next + 1) % self.frames.len();
            if take(frame) {
                refused = 0;
                self.made += 1;
                self.left = self.left.map(|left| left - 1);
            } else {
                refused += 1;
            }
        }
        self.made != before
    }
}

fn frame(len: usize, flow: u16, port: u8) -> Vec<u8> {
    let mut frame = Vec::with_capacity(len);
    frame.extend([2, 0, 0, 0, 0, port + 1]);
    frame.extend([2, 0, 0, 0, 0xFF, port + 1]);
    frame.extend([8, 0]);
    let ip_len = (len - 14) as u16;
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&ip_len.to_be_bytes());
    header[8] = 64;
    header[9] = 17;
    header[12..16].copy_from_slice(&[198, 18, port, 2]);
    header[16..20].copy_from_slice(&[198, 18, port, 1]);
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    frame.extend(header);
    frame.extend(1024_u16.wrapping_add(flow).to_be_bytes());
    // The discard port; no checksum.
    frame.extend(9_u16.to_be_bytes());
    frame.extend((ip_len - 20).to_be_bytes());
    frame.extend([0; 2]);
    debug_assert_eq!(frame.len(), HEADERS_LEN);
    frame.resize(len, 0);
    frame
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_and_flows_take_turns() {
        let plan = Plan {
            len: 100,
            flows: 2,
            count: 5,
        };
        let mut generator = Generator::new(plan, 0);
        let mut ports = Vec::new();
        generator.run(|frame| {
            assert_eq!(frame.len(), 100);
            assert_eq!(checksum(&frame[14..34]), 0, "the header sums up");
            ports.push(u16::from_be_bytes([frame[34], frame[35]]));
            true
        });
        assert_eq!(ports, [1024, 1025, 1024, 1025, 1024]);
        assert!(!generator.run(|_| true), "the plan is done");
    }

    #[test]
    fn a_full_queue_stops_its_own_flow_only() {
        let plan = Plan {
            len: 60,
            flows: 2,
            count: 0,
        };
        let mut generator = Generator::new(plan, 0);
        let mut taken = 0;
        generator.run(|frame| {
            let wanted = frame[35] == 1 && taken < 10;
            taken += u32::from(wanted);
            wanted
        });
        assert_eq!((taken, generator.made), (10, 10));
    }
}
