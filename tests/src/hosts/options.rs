//! What middleboxes do to options of the TCP handshake, in frames of IPv4 with complete checksums.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use super::injector::Rewrite;

const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
/// Of a TCP header (RFC 9293 §3.1).
const OPTIONS_BYTES_MAX: usize = 40;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const NO_OPERATION: u8 = 1;
/// Kinds for experiments (RFC 4727).
const EXPERIMENTS: [u8; 2] = [253, 254];

/// A segment with SYN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    pub source: (Ipv4Addr, u16),
    pub destination: (Ipv4Addr, u16),
    /// It is an answer.
    pub is_answer: bool,
    /// As in the header.
    options: Vec<u8>,
}

impl Handshake {
    /// Of a frame; nothing if it is something else.
    pub fn find(frame: &[u8]) -> Option<Handshake> {
        let ip = frame.get(ETHERNET_BYTES..)?;
        let is_tcp = frame.get(12..14)? == [8, 0] && *ip.first()? == 0x45 && *ip.get(9)? == 6;
        let tcp = ip.get(IP_BYTES..).filter(|_| is_tcp)?;
        let flags = *tcp.get(13)?;
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        let address = |at: usize| Some(Ipv4Addr::from(*ip.get(at..)?.first_chunk::<4>()?));
        let port = |at: usize| Some(u16::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
        (flags & SYN != 0).then_some(Handshake {
            source: (address(12)?, port(0)?),
            destination: (address(16)?, port(2)?),
            is_answer: flags & ACK != 0,
            options: tcp.get(TCP_BYTES..header)?.to_vec(),
        })
    }

    /// Where options for experiments are among all.
    fn experiments(&self) -> Vec<std::ops::Range<usize>> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(kind) = self.options.get(at).filter(|kind| **kind != 0) {
            let length = match kind {
                1 => 1,
                _ => usize::from(self.options.get(at + 1).copied().unwrap_or(0)).max(2),
            };
            if EXPERIMENTS.contains(kind) {
                found.push(at..(at + length).min(self.options.len()));
            }
            at += length;
        }
        found
    }

    /// The frame with other options.
    fn with(&self, frame: &[u8], options: &[u8]) -> Option<Vec<u8>> {
        let mut options = options.to_vec();
        options.resize(options.len().next_multiple_of(4), 0);
        let tcp = ETHERNET_BYTES + IP_BYTES;
        let fixed = frame.get(..tcp + TCP_BYTES)?;
        let total = usize::from(u16::from_be_bytes(*frame.get(16..)?.first_chunk()?));
        let data = frame.get(tcp + TCP_BYTES + self.options.len()..ETHERNET_BYTES + total)?;
        if options.len() > OPTIONS_BYTES_MAX {
            return None;
        }
        let mut other = [fixed, &options, data].concat();
        let length = (other.len() - tcp) as u16;
        let words = (TCP_BYTES + options.len()) as u8 / 4;
        put(&mut other, 16, IP_BYTES as u16 + length)?;
        *other.get_mut(tcp + 12)? = words << 4;
        put(&mut other, ETHERNET_BYTES + 10, 0)?;
        let sum = checksum(&[other.get(ETHERNET_BYTES..tcp)?]);
        put(&mut other, ETHERNET_BYTES + 10, sum)?;
        put(&mut other, tcp + 16, 0)?;
        let addresses = other.get(ETHERNET_BYTES + 12..tcp)?;
        let pseudo = [addresses, &[0, 6], &length.to_be_bytes()].concat();
        let sum = checksum(&[&pseudo, other.get(tcp..)?]);
        put(&mut other, tcp + 16, sum)?;
        Some(other)
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes
        .get_mut(at..at + 2)?
        .copy_from_slice(&value.to_be_bytes());
    Some(())
}

/// RFC 1071, of parts of which all but the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let pairs = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = pairs
        .map(|pair| {
            let high = pair.first().copied().unwrap_or(0);
            let low = pair.get(1).copied().unwrap_or(0);
            u32::from(u16::from_be_bytes([high, low]))
        })
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Takes options for experiments out of handshakes.
pub fn strip() -> Rewrite {
    Box::new(|frame| {
        let segment = Handshake::find(frame)?;
        let mut options = segment.options.clone();
        let found = segment.experiments();
        for place in found.iter().cloned() {
            options.get_mut(place)?.fill(NO_OPERATION);
        }
        let frame = segment.with(frame, &options);
        frame.filter(|_| !found.is_empty())
    })
}

/// Loses SYNs and SYN-ACKs with options for experiments.
pub fn lose() -> Rewrite {
    Box::new(|frame| {
        let segment = Handshake::find(frame)?;
        (!segment.experiments().is_empty()).then(Vec::new)
    })
}

/// Keeps what a SYN has of options for experiments, and puts it into the SYN-ACK: one for each
/// direction.
pub fn echo() -> [Rewrite; 2] {
    type Kept = HashMap<((Ipv4Addr, u16), (Ipv4Addr, u16)), Vec<u8>>;
    let kept: Arc<Mutex<Kept>> = Arc::default();
    let one = |kept: Arc<Mutex<Kept>>| -> Rewrite {
        let mut strip = strip();
        Box::new(move |frame| {
            let segment = Handshake::find(frame)?;
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if segment.is_answer {
                let echo = kept.get(&(segment.destination, segment.source))?;
                return segment.with(frame, &[segment.options.as_slice(), echo].concat());
            }
            let found = segment.experiments();
            let parts = found.into_iter().filter_map(|at| segment.options.get(at));
            let all: Vec<u8> = parts.flatten().copied().collect();
            kept.insert((segment.source, segment.destination), all);
            strip(frame)
        })
    };
    [one(Arc::clone(&kept)), one(kept)]
}
