//! Whose packets are ours: addresses, and blocks of queue pair numbers.

use core::fmt;
use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::RawFd;

use sluice_sys::errno::Errno;

use crate::attachment::Attachment;
use crate::mode::Mode;
use crate::program::{ADDRESSES_MAX, BLOCK_WORDS, Maps};

/// `OURS` and `SOCKETS_TOO` of steer.bpf.c.
const OURS: u8 = 1;
const SOCKETS_TOO: u8 = 2;

/// What the XDP program counts, in the order of steer.bpf.c.
enum Counter {
    Redirected,
    ForeignAddress,
    ForeignQp,
    NoSocket,
    OfSocket,
}

/// What the XDP program has done with RoCEv2 packets; others it does not count. On a busy
/// interface the numbers are of slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Given to one of our sockets. The socket may have had no room ([`crate::Statistics`]).
    pub redirected: u64,
    /// Left to the kernel: for an address that is not ours.
    pub foreign_address: u64,
    /// Left to the kernel: for queue pair 0 or 1, or one in no block of ours.
    pub foreign_qp: u64,
    /// Left to the kernel: ours, but on a queue without a socket.
    pub no_socket: u64,
    /// Left to the kernel: ours, and a peer's UDP socket sent it. There may be several in one, as
    /// the kernel's generic code gets them ([`Mode::native`]); AF_XDP sockets cannot tell.
    pub of_socket: u64,
}

/// Why steering was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerError {
    /// More than [`ADDRESSES_MAX`] addresses.
    TooManyAddresses,
    /// The kernel refused.
    System(Errno),
}

impl fmt::Display for SteerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyAddresses => write!(
                f,
                "more than {ADDRESSES_MAX} addresses; packets for the others take the way \
                 through the kernel"
            ),
            Self::System(errno) => write!(f, "bpf(BPF_MAP_UPDATE_ELEM): {errno}"),
        }
    }
}

impl std::error::Error for SteerError {}

/// The attached program. It is detached when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct Steering {
    maps: Maps,
    attachment: Attachment,
    mode: Mode,
    interface: u32,
    addresses: HashSet<IpAddr>,
    /// A copy of the map, because words are written whole.
    blocks: Box<[u64; BLOCK_WORDS]>,
}

impl Steering {
    pub(crate) fn new(maps: Maps, attachment: Attachment, mode: Mode, interface: u32) -> Self {
        Self {
            maps,
            attachment,
            mode,
            interface,
            addresses: HashSet::new(),
            blocks: Box::new([0; BLOCK_WORDS]),
        }
    }

    /// Has the program attached, or detached, soon: without it all packets go to the kernel's stack. By
    /// a thread of the interface's network namespace. Where another program is attached by then, that
    /// stays, and this is to be asked for again a second later.
    pub fn want(&self, is_wanted: bool) {
        self.attachment.want(is_wanted);
    }

    /// Steers packets for the 256 queue pairs whose numbers have these upper 16 bits. Block 0
    /// has queue pairs 0 and 1 in it, which stay with the kernel.
    pub fn add_block(&mut self, block: u16) -> Result<(), SteerError> {
        self.change(block, |word, bit| word | bit)
    }

    /// Leaves the block's packets to the kernel again. Those on their way still come.
    pub fn remove_block(&mut self, block: u16) -> Result<(), SteerError> {
        self.change(block, |word, bit| word & !bit)
    }

    fn change(&mut self, block: u16, to: impl Fn(u64, u64) -> u64) -> Result<(), SteerError> {
        let index = usize::from(block >> 6);
        let Some(word) = self.blocks.get_mut(index) else {
            return Ok(());
        };
        let new = to(*word, 1 << (block & 63));
        let key = (index as u32).to_ne_bytes();
        self.maps
            .blocks
            .set(&key, &new.to_ne_bytes())
            .map_err(SteerError::System)?;
        *word = new;
        Ok(())
    }

    /// Steers packets to these addresses and to no other. Those that stay are ours without a
    /// gap. On an error some of the changes are made; calling it again goes on.
    pub fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), SteerError> {
        let wanted: HashSet<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        if wanted.len() > ADDRESSES_MAX as usize {
            return Err(SteerError::TooManyAddresses);
        }
        let gone: Vec<IpAddr> = self.addresses.difference(&wanted).copied().collect();
        for address in gone {
            match self.maps.addresses.remove(&key(address)) {
                Ok(()) | Err(Errno(libc::ENOENT)) => self.addresses.remove(&address),
                Err(errno) => return Err(SteerError::System(errno)),
            };
        }
        for address in wanted {
            if !self.addresses.contains(&address) {
                // The driver gives the program one packet at a time, whoever sent it.
                let value = OURS | if self.mode.native { SOCKETS_TOO } else { 0 };
                let set = self.maps.addresses.set(&key(address), &[value]);
                set.map_err(SteerError::System)?;
                self.addresses.insert(address);
            }
        }
        Ok(())
    }

    /// What the program has done since it was attached.
    pub fn counters(&self) -> Result<SteeringCounters, SteerError> {
        let sum = |counter: Counter| {
            let key = (counter as u32).to_ne_bytes();
            self.maps.counters.sum(&key).map_err(SteerError::System)
        };
        Ok(SteeringCounters {
            redirected: sum(Counter::Redirected)?,
            foreign_address: sum(Counter::ForeignAddress)?,
            foreign_qp: sum(Counter::ForeignQp)?,
            no_socket: sum(Counter::NoSocket)?,
            of_socket: sum(Counter::OfSocket)?,
        })
    }

    /// How the interface is used.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The index of the interface.
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// Every descriptor that keeps the program or its maps alive, but for what keeps it attached. A
    /// child of fork closes them; nobody else does.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let maps = &self.maps;
        let left = maps.left.number().map();
        let maps = [
            &maps.addresses,
            &maps.blocks,
            &maps.sockets,
            &maps.counters,
            left,
        ];
        let mut all: Vec<RawFd> = maps.iter().map(|map| map.raw()).collect();
        all.push(self.attachment.program().raw());
        all
    }
}

/// As the program looks an address up: IPv4 as `::ffff:a.b.c.d`.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
