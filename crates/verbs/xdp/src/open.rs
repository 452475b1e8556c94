//! Opening an interface: the program first, which fails at once where another one is attached, then
//! the sockets. Nothing is steered before addresses and blocks are known, which is last.

use std::net::IpAddr;
use std::sync::Arc;

use sluice_sys::bpf::{Link, Program};
use sluice_sys::errno::Errno;

use crate::attachment::Attachment;
use crate::error::OpenError;
use crate::interface::{Interface, missing_capabilities};
use crate::left::Left;
use crate::mode::Mode;
use crate::port::XdpPort;
use crate::program::{self, Maps};
use crate::socket::{Binding, HEADROOM, Layout, Socket};
use crate::steering::{SteerError, Steering};

/// A path MTU of 4096 bytes with every header that RoCEv2 has, and an Ethernet tag. No packet of
/// ours is longer, whatever the interface would take.
const FRAME_BYTES_MAX: usize = 4096 + 256;
const ETHERNET_BYTES: usize = sluice_wire::ethernet::Header::BYTES_MAX;
/// Chunks of packet memory: small ones where whole frames fit.
const CHUNK_SMALL: usize = 2048;
const CHUNK_LARGE: usize = 4096;
/// The network interfaces that count a receive buffer in whole KiB leave what is over alone (Intel's
/// 82576 and relatives, `SRRCTL.BSIZEPACKET`): what is longer they write into two chunks, and not all
/// drivers know (decision 0080).
const BUFFER_UNIT: usize = 1024;
/// Bounds of ring sizes.
const PACKETS_MIN: u32 = 64;
const PACKETS_MAX: u32 = 16 * 1024;

/// How to open an interface.
#[derive(Clone, Debug)]
pub struct Options {
    /// Open at most so many of the interface's receive queues, from the first on. What comes on
    /// the others goes to the kernel. None: all.
    pub queues: Option<u32>,
    /// Attach to the driver if it can, or to the kernel's generic code. None: to the driver, unless
    /// that has no use: a veth device copies packets either way, and its peer does not segment for
    /// it any more while it has a program in the driver (`veth_xdp_set`), for nobody.
    pub native: Option<bool>,
    /// Let the network interface read and write the packet memory itself if it can.
    pub zero_copy: bool,
    /// First value of [`Steering::set_addresses`].
    pub addresses: Vec<IpAddr>,
    /// Chunks of memory for packets that come, per queue: a power of two from 64 to 16384.
    /// A packet of more than 3.8 KB takes two.
    pub receive_chunks: u32,
    /// Packets on their way out, per queue: a power of two from 64 to 16384.
    pub send_packets: u32,
}

impl Default for Options {
    /// Everything the interface has. Per queue 5 MB with an MTU of 1500, 10 MB where nothing is copied;
    /// 12 MB with 9000.
    fn default() -> Self {
        Self {
            queues: None,
            native: None,
            zero_copy: true,
            addresses: Vec::new(),
            receive_chunks: 2048,
            send_packets: 512,
        }
    }
}

impl Interface {
    /// Binds AF_XDP sockets to the receive queues and attaches the XDP program. Nothing is
    /// steered before there are addresses and blocks.
    pub fn open(&self, options: &Options) -> Result<(Steering, Vec<XdpPort>), OpenError> {
        let queues = self.queues().min(options.queues.unwrap_or(u32::MAX));
        let power =
            |count: u32| count.is_power_of_two() && (PACKETS_MIN..=PACKETS_MAX).contains(&count);
        if queues == 0 || !power(options.receive_chunks) || !power(options.send_packets) {
            return Err(OpenError::Options {
                why: "queues must be more than 0, receive_chunks and send_packets powers of two \
                      from 64 to 16384",
            });
        }
        let maps = Maps::new(self.queues())?;
        let native = options.native.unwrap_or(!self.is_veth());
        let (program, link, native) = self.attach(&maps, native)?;
        let mut mode = Mode {
            native,
            zero_copy: true,
            packet_bytes_max: usize::MAX,
        };
        // Zero-copy is the driver's.
        let zero_copy = options.zero_copy && native;
        let mut ports = Vec::new();
        for queue in 0..queues {
            let left = maps.left.clone();
            let (port, binding) = self.open_queue(queue, options, zero_copy, left)?;
            let key = queue.to_ne_bytes();
            maps.sockets
                .set(&key, &port.raw().to_ne_bytes())
                .map_err(OpenError::system("bpf(BPF_MAP_UPDATE_ELEM), a socket"))?;
            mode.zero_copy &= binding.zero_copy;
            mode.packet_bytes_max = mode.packet_bytes_max.min(port.packet_bytes_max());
            ports.push(port);
        }
        let attachment = Attachment::new(program, link, self.index(), native, maps.left.clone());
        let mut steering = Steering::new(maps, attachment, mode, self.index());
        steering
            .set_addresses(&options.addresses)
            .map_err(|error| match error {
                SteerError::TooManyAddresses => OpenError::Options {
                    why: "at most 1024 addresses can be steered",
                },
                SteerError::System(errno) => OpenError::system("bpf(BPF_MAP_UPDATE_ELEM)")(errno),
            })?;
        Ok((steering, ports))
    }

    /// The program, what keeps it attached, and whether it is in the driver.
    fn attach(&self, maps: &Maps, native: bool) -> Result<(Program, Link, bool), OpenError> {
        let failed = |errno: Errno| match errno.0 {
            // EEXIST: one in the other mode, native or generic.
            libc::EBUSY | libc::EEXIST => OpenError::Attached {
                interface: self.name().to_owned(),
            },
            libc::EPERM => OpenError::NotPermitted {
                what: "to attach an XDP program",
                missing: missing_capabilities(),
            },
            _ => OpenError::system("bpf(BPF_LINK_CREATE)")(errno),
        };
        if native {
            let program = program::load(maps, true)?;
            match program.attach_to_interface(self.index(), true) {
                Ok(link) => return Ok((program, link, true)),
                Err(errno @ Errno(libc::EBUSY | libc::EEXIST | libc::EPERM)) => {
                    return Err(failed(errno));
                }
                // The driver has no XDP, or not with this MTU or these settings.
                Err(_) => {}
            }
        }
        let program = program::load(maps, false)?;
        let link = program
            .attach_to_interface(self.index(), false)
            .map_err(failed)?;
        Ok((program, link, false))
    }

    fn open_queue(
        &self,
        queue: u32,
        options: &Options,
        zero_copy: bool,
        left: Arc<Left>,
    ) -> Result<(XdpPort, Binding), OpenError> {
        let frame = (self.mtu() + ETHERNET_BYTES).min(FRAME_BYTES_MAX);
        let mut opened = Err(OpenError::Options {
            why: "there is no way to bind a socket",
        });
        for (layout, bindings) in ways(frame, zero_copy, options) {
            opened = Socket::open(self, queue, &layout, &bindings)
                .map(|(socket, binding)| (socket, binding, layout));
            // The others would not help: it is the queue, or what this process may do.
            let is_of_the_way = |error: &OpenError| {
                matches!(
                    error,
                    OpenError::System { .. } | OpenError::LockedMemory { .. }
                )
            };
            if !opened.as_ref().is_err_and(is_of_the_way) {
                break;
            }
        }
        let (socket, binding, layout) = opened?;
        let fits = if binding.pieces {
            frame
        } else {
            frame.min(layout.chunk_bytes - HEADROOM)
        };
        let packet_bytes_max = (fits - ETHERNET_BYTES).min(self.mtu());
        let port = XdpPort::new(self.index(), queue, socket, layout, packet_bytes_max, left);
        Ok((port, binding))
    }
}

/// The ways to have a socket, best first. Packets in pieces before zero-copy: large packets are worth
/// more. Before Linux 6.6 nothing takes them.
fn ways(frame: usize, zero_copy: bool, options: &Options) -> Vec<(Layout, Vec<Binding>)> {
    let binding = |zero_copy, pieces| Binding { zero_copy, pieces };
    let copy = layout(frame, CHUNK_SMALL - HEADROOM, options);
    if frame + HEADROOM > copy.chunk_bytes {
        let pieces = [true, false].into_iter();
        let all = pieces.flat_map(|pieces| [binding(true, pieces), binding(false, pieces)]);
        let usable = all.filter(|binding| zero_copy || !binding.zero_copy);
        return vec![(copy, usable.collect())];
    }
    let whole = layout(
        frame,
        (CHUNK_SMALL - HEADROOM) / BUFFER_UNIT * BUFFER_UNIT,
        options,
    );
    let mut ways = vec![(copy, vec![binding(false, false)])];
    if zero_copy {
        ways.insert(0, (whole, vec![binding(true, false)]));
    }
    ways
}

/// How packet memory for frames of so many bytes is cut up. `small`: what fits a small chunk.
fn layout(frame: usize, small: usize, options: &Options) -> Layout {
    let chunk_bytes = if frame <= small {
        CHUNK_SMALL
    } else {
        CHUNK_LARGE
    };
    Layout {
        chunk_bytes,
        receive_chunks: options.receive_chunks as usize,
        send_slots: options.send_packets as usize,
        slot_chunks: if frame + HEADROOM > chunk_bytes {
            frame.div_ceil(chunk_bytes)
        } else {
            1
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a chunk, whether zero-copy, whether in pieces: of each way in its order.
    fn ways_of(mtu: usize, zero_copy: bool) -> Vec<(usize, bool, bool)> {
        let frame = (mtu + ETHERNET_BYTES).min(FRAME_BYTES_MAX);
        let ways = ways(frame, zero_copy, &Options::default());
        let each = ways.into_iter().flat_map(|(layout, bindings)| {
            let chunk = layout.chunk_bytes;
            bindings
                .into_iter()
                .map(move |binding| (chunk, binding.zero_copy, binding.pieces))
        });
        each.collect()
    }

    #[test]
    fn without_copies_a_frame_fits_the_whole_kib_of_a_chunk() {
        assert_eq!(
            ways_of(1500, true),
            [(4096, true, false), (2048, false, false)]
        );
        assert_eq!(ways_of(1500, false), [(2048, false, false)]);
        // 1006 and a tagged Ethernet header are a KiB.
        assert_eq!(
            ways_of(1006, true),
            [(2048, true, false), (2048, false, false)]
        );
        assert_eq!(
            ways_of(1007, true),
            [(4096, true, false), (2048, false, false)]
        );
    }

    #[test]
    fn long_frames_come_in_pieces_where_the_kernel_has_them() {
        assert_eq!(
            ways_of(9000, true),
            [
                (4096, true, true),
                (4096, false, true),
                (4096, true, false),
                (4096, false, false)
            ]
        );
        assert_eq!(
            ways_of(9000, false),
            [(4096, false, true), (4096, false, false)]
        );
        assert_eq!(
            ways_of(3000, true),
            [(4096, true, false), (4096, false, false)]
        );
    }
}
