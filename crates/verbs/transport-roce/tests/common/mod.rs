//! Two transports in one process, with a cable in memory between them.
#![allow(dead_code, unused_imports)]

pub mod cable;

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use sluice_packet::{Path, Port};
use sluice_transport::fault::Faults;
use sluice_transport_roce::RoceTransport;
use sluice_verbs::{
    AhAttr, Channel, Context, Cq, Device, Gid, Pd, Qp, QpType, SendWr, Sge, WrOpcode,
};
pub use sluice_verbs_testing::{EVERYTHING, Memory, PATIENCE, QKEY, pattern, until};
use sluice_verbs_testing::{Remote, init};
use sluice_wire::bth::Bth;
use sluice_wire::opcode::{Operation, Service};
use sluice_wire::{Ecn, Headers, Opcode, Psn, Qpn};

use self::cable::{Frame, Inbox, Plug, Steer, cable};

/// Room for an MTU of 1024.
const IP_BYTES: u32 = 1500;
/// Of the path, in bytes.
pub const MTU: usize = 1024;

/// One host.
pub struct Side {
    pub transport: Arc<RoceTransport>,
    pub device: Arc<Device>,
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    /// What comes to it, or to its first shard.
    pub inbox: Arc<Inbox>,
    /// What comes to each shard.
    pub inboxes: Vec<Arc<Inbox>>,
    directory: PathBuf,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A directory that no other world has.
fn directory(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("slv-roce-{}-{number}-{name}", std::process::id());
    std::env::temp_dir().join(name)
}

fn side((plug, inbox): (Plug, Arc<Inbox>), name: &str, directory: PathBuf) -> Side {
    let transport = RoceTransport::with_ports(vec![Box::new(plug)], &directory, IP_BYTES).unwrap();
    of_transport(transport, vec![inbox], name, directory)
}

fn side_of_shards(plugs: Vec<(Plug, Arc<Inbox>)>, name: &str, directory: PathBuf) -> Side {
    let inboxes = plugs.iter().map(|(_, inbox)| inbox.clone()).collect();
    let shards = plugs
        .into_iter()
        .map(|(plug, _)| -> Vec<Box<dyn Port>> { vec![Box::new(plug)] });
    let transport = RoceTransport::with_shards(shards.collect(), &directory, IP_BYTES).unwrap();
    of_transport(transport, inboxes, name, directory)
}

fn of_transport(
    transport: Arc<RoceTransport>,
    inboxes: Vec<Arc<Inbox>>,
    name: &str,
    directory: PathBuf,
) -> Side {
    // The name makes the address.
    let device = Device::new(name, transport.clone());
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    Side {
        transport,
        device,
        context,
        pd,
        inbox: inboxes[0].clone(),
        inboxes,
        directory,
    }
}

/// Two hosts. `faults`: on the cable, in both directions.
pub fn world(faults: &str) -> (Side, Side) {
    let faults: Option<Faults> = (!faults.is_empty()).then(|| faults.parse().unwrap());
    let [left, right] = cable(faults.as_ref());
    (
        side(left, "left", directory("left")),
        side(right, "right", directory("right")),
    )
}

/// Two hosts with so many shards.
pub fn world_of_shards(faults: &str, counts: [usize; 2], steer: Steer) -> (Side, Side) {
    let faults: Option<Faults> = (!faults.is_empty()).then(|| faults.parse().unwrap());
    let [left, right] = cable::shards(faults.as_ref(), counts, steer);
    (
        side_of_shards(left, "left", directory("left")),
        side_of_shards(right, "right", directory("right")),
    )
}

/// The same, and another process on the right host, with so many shards too. All packets come to
/// the shards of the first.
pub fn world_of_three_with_shards(counts: [usize; 3], steer: Steer) -> [Side; 3] {
    let [left, right] = cable::shards(None, [counts[0], counts[1]], steer);
    let other = (0..counts[2]).map(|_| Plug::beside(&right[0].0)).collect();
    let shared = directory("right");
    [
        side_of_shards(left, "left", directory("left")),
        side_of_shards(right, "right", shared.clone()),
        side_of_shards(other, "right", shared),
    ]
}

/// Two hosts, and another process on the right one, whose packets all come to the first.
pub fn world_of_three() -> [Side; 3] {
    let [left, right] = cable(None);
    let other = Plug::beside(&right.0);
    let shared = directory("right");
    [
        side(left, "left", directory("left")),
        side(right, "right", shared.clone()),
        side(other, "right", shared),
    ]
}

/// A queue pair with memory, and its host's address.
pub struct End {
    end: sluice_verbs_testing::End,
    pub gid: Gid,
}

impl Deref for End {
    type Target = sluice_verbs_testing::End;

    fn deref(&self) -> &Self::Target {
        &self.end
    }
}

/// An IPv6 address of this host and its index, so that headers are what the tests expect. A cable
/// takes it for its side's, whichever it is, and all devices of a host have the same table.
static OWN: OnceLock<(u8, Gid)> = OnceLock::new();

fn own_address(device: &Device) -> (u8, Gid) {
    *OWN.get_or_init(|| {
        let table = device.gid_table();
        let is_v6 = |gid: &Gid| Ipv6Addr::from(gid.0).to_ipv4_mapped().is_none();
        let index = table
            .iter()
            .position(|entry| !entry.gid.is_zero() && is_v6(&entry.gid))
            .expect("the loopback has one");
        (index as u8, table[index].gid)
    })
}

impl Side {
    pub fn end(&self, kind: QpType, len: usize, channel: Option<&Arc<Channel>>) -> End {
        let cq = self.context.create_cq(1024, 0, channel, 0).unwrap();
        self.end_with(kind, len, &cq)
    }

    pub fn end_with(&self, kind: QpType, len: usize, cq: &Arc<Cq>) -> End {
        self.of(self.pd.create_qp(&init(kind, cq)).unwrap(), len, cq)
    }

    /// An end around a queue pair that is there.
    pub fn of(&self, qp: Arc<Qp>, len: usize, cq: &Arc<Cq>) -> End {
        End {
            end: sluice_verbs_testing::End::of(&self.pd, qp, cq, Memory::new(len)),
            gid: own_address(&self.device).1,
        }
    }
}

/// Two connected ends.
pub fn connected(left: &Side, right: &Side, kind: QpType, len: usize) -> (End, End) {
    let (a, b) = (left.end(kind, len, None), right.end(kind, len, None));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

impl End {
    /// How the peer is reached.
    pub fn ah_attr(peer: &Gid) -> AhAttr {
        let mut attr = AhAttr {
            is_global: 1,
            port_num: 1,
            ..AhAttr::default()
        };
        attr.grh.dgid = *peer;
        attr.grh.sgid_index = OWN.get().expect("there is an end").0;
        attr.grh.hop_limit = 7;
        attr
    }

    pub fn to_rtr(&self, peer: &End) {
        self.receive_from(&Remote {
            qpn: peer.qp.num(),
            psn: peer.psn,
            path_mtu: 3,
            ah: Self::ah_attr(&peer.gid),
        });
    }

    pub fn to_rts(&self, timeout: u8, rnr_retry: u8) {
        self.send_with(timeout, 7, rnr_retry);
    }

    /// From RESET to RTS. Repetitions end after a quarter of a minute and more: on a machine with much
    /// else to do a thread may be away for long. Losses are found long before, by what comes out of
    /// order and by probes.
    pub fn connect(&self, peer: &End) {
        self.connect_with(peer, 19);
    }

    /// The same for a peer that will not answer: repetitions end after four seconds.
    pub fn connect_in_vain(&self, peer: &End) {
        self.connect_with(peer, 17);
    }

    fn connect_with(&self, peer: &End, timeout: u8) {
        self.to_init();
        self.to_rtr(peer);
        self.to_rts(timeout, 7);
    }

    /// A signalled request for the peer's memory at `remote`.
    pub fn request<'a>(
        opcode: WrOpcode,
        id: u64,
        sges: &'a [Sge],
        peer: &End,
        remote: usize,
    ) -> SendWr<'a> {
        let address = peer.memory.start as u64 + remote as u64;
        sluice_verbs_testing::request(opcode, id, sges, address, peer.mr.rkey())
    }
}

/// A packet of a stranger's for a queue pair of `qpn`.
pub fn stray(from: &Gid, to: &Gid, qpn: u32) -> Frame {
    let address = |gid: &Gid| IpAddr::from(gid.0);
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
    let headers = Headers::new(Bth::new(opcode, Qpn::new(qpn), Psn::new(1)));
    let mut packet = vec![0; headers.bytes()];
    headers.emit(&[], &mut packet).unwrap();
    Frame {
        path: Path {
            source: address(from),
            destination: address(to),
            interface: 1,
            ethernet: None,
            source_port: 0xc000,
            dscp: 0,
            hop_limit: 64,
            flow_label: 0,
        },
        ecn: Ecn::NotCapable,
        packet,
    }
}
