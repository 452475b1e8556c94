//! Several ports at one address, each with its own share of the queue pairs: the kernel gives a
//! packet to the port of its destination.
//!
//! Sockets that share a port number are a group (socket(7), `SO_REUSEPORT`), one for IPv4 and one
//! for IPv6. A classic BPF program (`SO_ATTACH_REUSEPORT_CBPF`, no privilege) names a socket by its
//! place in the group: a new one gets the place behind the last, and where one is closed the last
//! moves (`reuseport_detach_sock`). Programs cannot ask for their places. But who came first has the
//! first ones for as long as it lives, since nobody who moves comes from there; so the first process
//! steers, and only what is for itself. Everything else is left to the kernel, which chooses by
//! addresses, as it does for all where nobody steers; who gets a packet must hand it on then.
//!
//! The program stays with the group when its process ends. Its numbers are nobody's then.

use std::io::{BufRead, BufReader};

use sluice_sys::local_fd::LocalFd;
use sluice_wire::udp::ROCE_PORT;

use super::socket::{self, Instruction};
use super::{Config, OpenError, UdpPort, failed};

/// Blocks that are steered. The kernel looks through all of them for each packet.
const BLOCKS_MAX: usize = 64;

/// The program's answer that leaves the choice to the kernel: no group has that many sockets.
const NOT_OURS: u32 = u32::MAX;

/// The ports' share of the kernel's groups, as far as it can be steered.
#[derive(Debug)]
pub struct Group {
    /// One of the first port's for each group in which the ports came first.
    sockets: Vec<LocalFd>,
    ports: u32,
    blocks: Vec<u16>,
}

impl UdpPort {
    /// Opens so many ports, as [`UdpPort::open`] does one. Packets for a queue pair in a block of
    /// theirs ([`Group::add_block`]) come to the port that its number leaves as the remainder
    /// when divided by `count`, where the kernel can be told so; otherwise, and for other queue
    /// pairs, to any port of this process or another.
    pub fn open_group(config: &Config, count: u32) -> Result<(Vec<Self>, Group), OpenError> {
        let before = FAMILIES.map(bound);
        let ports: Vec<Self> = (0..count)
            .map(|_| Self::open(config))
            .collect::<Result<_, _>>()?;
        // Nobody in front of us, and nobody who was there and has gone, which moves places.
        let after = FAMILIES.map(bound);
        let alone = |family: usize| before[family] == Some(0) && after[family] == Some(count);
        let mut sockets = Vec::new();
        if let Some(first) = ports.first() {
            for (family, socket) in [&first.four, &first.six].into_iter().enumerate() {
                if let Some(socket) = socket.as_ref().filter(|_| alone(family)) {
                    let copy = socket::duplicate(socket).map_err(failed("share a socket"))?;
                    sockets.push(LocalFd::own(copy));
                }
            }
        }
        let group = Group {
            sockets,
            ports: count,
            blocks: Vec::new(),
        };
        Ok((ports, group))
    }
}

/// The kernel's lists of UDP sockets.
const FAMILIES: [&str; 2] = ["udp", "udp6"];

/// Sockets that are bound to the port of RoCEv2 in the calling thread's network namespace. None:
/// nobody says.
fn bound(name: &str) -> Option<u32> {
    let file = std::fs::File::open(format!("/proc/thread-self/net/{name}")).ok()?;
    let mut count = 0;
    for line in BufReader::new(file).lines().skip(1) {
        let line = line.ok()?;
        // "sl local_address rem_address …", addresses and ports in hexadecimal (proc_pid_net(5)).
        let local = line.split_ascii_whitespace().nth(1)?;
        let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        count += u32::from(port == ROCE_PORT);
    }
    Some(count)
}

impl Group {
    /// Has packets for the 256 queue pairs whose numbers have these upper 16 bits come to their
    /// port. Best effort: a packet that comes to another one is not lost.
    pub fn add_block(&mut self, block: u16) {
        if self.blocks.len() >= BLOCKS_MAX || self.blocks.contains(&block) {
            return;
        }
        self.blocks.push(block);
        let program = program(&self.blocks, self.ports);
        // Kernels before 4.5 do not know it.
        self.sockets
            .retain(|socket| socket::steer_group(socket.raw(), &program).is_ok());
    }

    /// Whether the kernel can be told which packets are whose, for one of IPv4 and IPv6 at least.
    pub fn is_steered(&self) -> bool {
        !self.sockets.is_empty()
    }
}

/// The program. It sees the packet from the base transport header on (`run_bpf_filter` of
/// net/core/sock_reuseport.c), and a packet that is too short for a load is the first port's.
fn program(blocks: &[u16], ports: u32) -> Vec<Instruction> {
    use libc::{
        BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_MISC, BPF_MOD,
        BPF_RET, BPF_RSH, BPF_TAX, BPF_TXA, BPF_W,
    };
    /// `BPF_A` of <linux/bpf_common.h>.
    const ACCUMULATOR: u32 = 0x10;
    let plain = |code, k| Instruction::new(code, 0, 0, k);
    let mut program = vec![
        // The number of the destination is in the lower 24 bits of the second word (IBTA 9.2).
        plain(BPF_LD | BPF_W | BPF_ABS, 4),
        plain(BPF_ALU | BPF_AND | BPF_K, 0x00ff_ffff),
        // Queue pairs 0 and 1 are everybody's, and the first port takes care of them.
        Instruction::new(BPF_JMP | BPF_JGT | BPF_K, 1, 0, 1),
        plain(BPF_RET | BPF_K, 0),
        plain(BPF_MISC | BPF_TAX, 0),
        plain(BPF_ALU | BPF_RSH | BPF_K, 8),
    ];
    for (place, block) in blocks.iter().enumerate() {
        // Over the blocks behind it, and over the end.
        let over = u8::try_from(blocks.len() - place).unwrap_or(0);
        let code = BPF_JMP | BPF_JEQ | BPF_K;
        program.push(Instruction::new(code, over, 0, u32::from(*block)));
    }
    program.extend([
        plain(BPF_RET | BPF_K, NOT_OURS),
        plain(BPF_MISC | BPF_TXA, 0),
        plain(BPF_ALU | BPF_MOD | BPF_K, ports.max(1)),
        plain(BPF_RET | ACCUMULATOR, 0),
    ]);
    program
}
