//! One of two programs that talk to each other.

use std::net::Ipv6Addr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use sluice_verbs::transport::TransportCaps;
use sluice_verbs::{
    AhAttr, AsyncEvent, Channel, Context, Cq, Device, Gid, Pd, Qp, QpState, QpType, SendWr, Sge,
    UdDestination, WcStatus, WrOpcode, send_flags,
};

use crate::end::{End, PATIENCE, QKEY, Remote, init, request, until};
use crate::memory::Memory;

/// How long a thread waits for what the other one says: its own steps end earlier.
const PATIENCE_WITH_PEER: std::time::Duration = PATIENCE.saturating_mul(2);

/// The timeout of a queue pair, eight of which pass before a peer is given up, and more where the protocol stretches
/// them: nine seconds at least. On a machine with much else to do a thread may be away for long. Losses are found long
/// before.
const PATIENT: u8 = 18;
/// Where the peer will not answer in the end: two seconds, six of the protocol's own.
const IN_VAIN: u8 = 16;

/// Where a program of a row runs: what each transport's test gives it.
pub trait Site: Send {
    /// Gives the other program four words and takes its four. It waits for it.
    fn swap(&mut self, words: [u64; 4]) -> [u64; 4];

    /// Where queue pairs are connected by streams: makes one to the other program, which does so at
    /// the same time. Its number is what stands for the peer's queue pair.
    fn stream(&mut self, _device: &Device) -> Option<u32> {
        None
    }

    /// Memory for peers to reach.
    fn memory(&self, len: usize) -> Memory {
        Memory::new(len)
    }

    /// Which of the device's addresses peers reach it by, where they need one: an IPv6 address, if
    /// there is one.
    fn gid_index(&self, device: &Device) -> u8 {
        let table = device.gid_table();
        let is_v6 = |gid: &Gid| !gid.is_zero() && Ipv6Addr::from(gid.0).to_ipv4_mapped().is_none();
        table
            .iter()
            .position(|entry| is_v6(&entry.gid))
            .unwrap_or_default() as u8
    }
}

/// The site of a program that is a thread beside the other one.
pub struct Thread {
    to: Sender<[u64; 4]>,
    from: Receiver<[u64; 4]>,
}

impl Thread {
    pub fn two() -> [Thread; 2] {
        let ((to_right, from_left), (to_left, from_right)) = (channel(), channel());
        [
            Thread {
                to: to_right,
                from: from_right,
            },
            Thread {
                to: to_left,
                from: from_left,
            },
        ]
    }
}

impl Site for Thread {
    fn swap(&mut self, words: [u64; 4]) -> [u64; 4] {
        self.to.send(words).expect("the other program has ended");
        self.from
            .recv_timeout(PATIENCE_WITH_PEER)
            .expect("the other program says nothing more")
    }
}

/// One of the two programs: a device of its own, and the other one.
pub struct Side {
    pub device: Arc<Device>,
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    site: Box<dyn Site>,
}

/// What an end must know of its peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    pub qpn: u32,
    pub rkey: u32,
    pub addr: u64,
    pub psn: u32,
    pub path: AhAttr,
    pub path_mtu: u32,
}

/// An end, and where its peer is.
pub struct Joined {
    pub end: End,
    pub peer: Peer,
    /// Of the device: [`sluice_verbs::transport::Identity::completes_when_sent`].
    pub completes_when_sent: bool,
}

impl Deref for Joined {
    type Target = End;

    fn deref(&self) -> &End {
        &self.end
    }
}

impl Side {
    pub fn new(device: Arc<Device>, site: impl Site + 'static) -> Side {
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Side {
            device,
            context,
            pd,
            site: Box::new(site),
        }
    }

    pub fn caps(&self) -> TransportCaps {
        self.device.caps()
    }

    /// Bytes of a packet, and of the longest datagram.
    pub fn mtu(&self) -> usize {
        128 << self.caps().mtu
    }

    /// Gives the other program four words and takes its four.
    pub fn swap(&mut self, words: [u64; 4]) -> [u64; 4] {
        self.site.swap(words)
    }

    /// Waits until the other program is here too.
    pub fn meet(&mut self) {
        self.swap([0; 4]);
    }

    pub fn cq(&self, channel: Option<&Arc<Channel>>) -> Arc<Cq> {
        self.context.create_cq(1024, 0, channel, 0).unwrap()
    }

    /// An end of its own that is in RESET.
    pub fn end(&self, kind: QpType, len: usize, channel: Option<&Arc<Channel>>) -> Joined {
        self.end_with(kind, len, &self.cq(channel))
    }

    pub fn end_with(&self, kind: QpType, len: usize, cq: &Arc<Cq>) -> Joined {
        self.around(self.pd.create_qp(&init(kind, cq)).unwrap(), len, cq)
    }

    /// An end around a queue pair that is there.
    pub fn around(&self, qp: Arc<Qp>, len: usize, cq: &Arc<Cq>) -> Joined {
        Joined {
            end: End::of(&self.pd, qp, cq, self.site.memory(len)),
            peer: Peer {
                path: self.path(&Gid::default()),
                path_mtu: self.caps().mtu,
                ..Peer::default()
            },
            completes_when_sent: self.caps().identity.completes_when_sent(),
        }
    }

    /// Tells the other program where this end is, and learns where its is.
    pub fn introduce(&mut self, end: &mut Joined) {
        let index = self.site.gid_index(&self.device);
        let own = self.device.gid(1, u32::from(index)).unwrap_or_default().gid;
        let theirs = self.swap([
            u64::from(end.qp.num()),
            u64::from(end.mr.rkey()),
            end.memory.start as u64,
            u64::from(end.psn),
        ]);
        let words = own.0.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        let address = self.swap([word(words.0), word(words.1), 0, 0]);
        let mut gid = Gid::default();
        gid.0[..8].copy_from_slice(&address[0].to_ne_bytes());
        gid.0[8..].copy_from_slice(&address[1].to_ne_bytes());
        let stream = self.site.stream(&self.device);
        end.peer = Peer {
            qpn: stream.unwrap_or(theirs[0] as u32),
            rkey: theirs[1] as u32,
            addr: theirs[2],
            psn: theirs[3] as u32,
            path: self.path(&gid),
            path_mtu: self.caps().mtu,
        };
    }

    /// The way to an address; where a number alone finds a peer, only a group has one.
    pub fn path(&self, gid: &Gid) -> AhAttr {
        let mut path = AhAttr {
            port_num: 1,
            ..AhAttr::default()
        };
        if self.caps().by_address || gid.is_multicast() {
            path.is_global = 1;
            path.grh.dgid = *gid;
            path.grh.sgid_index = self.site.gid_index(&self.device);
            path.grh.hop_limit = 7;
        }
        path
    }

    /// A connected end, as the other program makes one at the same time.
    pub fn connected(&mut self, kind: QpType, len: usize) -> Joined {
        let end = self.end(kind, len, None);
        self.connect(end)
    }

    /// The same, of an end that is there.
    pub fn connect(&mut self, end: Joined) -> Joined {
        self.connect_with(end, PATIENT)
    }

    /// A connected end whose peer will not answer in the end.
    pub fn connected_in_vain(&mut self, len: usize) -> Joined {
        let end = self.end(QpType::Rc, len, None);
        self.connect_with(end, IN_VAIN)
    }

    fn connect_with(&mut self, mut end: Joined, timeout: u8) -> Joined {
        self.introduce(&mut end);
        end.to_ready_with(timeout);
        self.meet();
        end
    }

    /// The next asynchronous event.
    pub fn event(&self) -> AsyncEvent {
        until("an asynchronous event", || {
            is_readable(self.context.async_fd())
        });
        self.context.get_async_event().unwrap()
    }
}

/// Sleeps until there is an event, and takes it.
pub fn sleep(channel: &Channel) {
    let patience_ms = PATIENCE.as_millis() as i32;
    let woken = sluice_sys::unix::wait_readable(channel.fd(), patience_ms).unwrap();
    assert!(woken, "nobody woke the sleeper");
    channel.get_event().unwrap();
}

/// Whether there is an event behind this descriptor.
pub fn is_readable(fd: std::os::fd::RawFd) -> bool {
    sluice_sys::unix::wait_readable(fd, 0).unwrap()
}

impl Joined {
    pub fn to_rtr(&self) {
        self.receive_from(&Remote {
            qpn: self.peer.qpn,
            psn: self.peer.psn,
            path_mtu: self.peer.path_mtu,
            ah: self.peer.path,
        });
    }

    pub fn to_rts(&self, rnr_retry: u8) {
        self.send_with(PATIENT, 7, rnr_retry);
    }

    /// From RESET to where it talks to its peer.
    pub fn to_ready(&self) {
        self.to_ready_with(PATIENT);
    }

    fn to_ready_with(&self, timeout: u8) {
        self.to_init();
        self.to_rtr();
        match self.qp.qp_type() {
            QpType::XrcRecv => {}
            _ => self.send_with(timeout, 7, 7),
        }
    }

    /// A signalled request for the peer's memory at `remote`.
    pub fn request<'a>(
        &self,
        opcode: WrOpcode,
        id: u64,
        sges: &'a [Sge],
        remote: usize,
    ) -> SendWr<'a> {
        let address = self.peer.addr + remote as u64;
        request(opcode, id, sges, address, self.peer.rkey)
    }

    /// A signalled datagram for the peer.
    pub fn datagram<'a>(&'a self, id: u64, sges: &'a [Sge]) -> SendWr<'a> {
        SendWr {
            flags: send_flags::SIGNALED,
            sges,
            ud: Some(UdDestination {
                ah: &self.peer.path,
                qpn: self.peer.qpn,
                qkey: QKEY,
            }),
            ..SendWr::new(WrOpcode::Send, id)
        }
    }

    /// A request of `kind` that takes a receive of the peer's.
    pub fn message<'a>(&'a self, id: u64, sges: &'a [Sge]) -> SendWr<'a> {
        match self.qp.qp_type() {
            QpType::Ud => self.datagram(id, sges),
            _ => self.request(WrOpcode::Send, id, sges, 0),
        }
    }

    /// Posts; the call itself must not fail.
    pub fn post(&self, wr: &SendWr<'_>) {
        self.qp.post_send(wr).unwrap();
    }

    /// Posts, and waits for the completion of exactly this, which is good, and until the peer has it.
    pub fn done(&self, wr: &SendWr<'_>) {
        let wc = self.run(wr);
        assert_eq!(wc.status, 0, "{:?}: {wc:?}", wr.opcode);
        self.arrive();
    }

    /// Waits until the peer has what is complete: with devices that do not wait for that, until a
    /// READ of nothing that follows it is answered. Nothing else is to complete meanwhile.
    pub fn arrive(&self) {
        if self.completes_when_sent && self.qp.qp_type() == QpType::Rc {
            let wc = self.run(&self.request(WrOpcode::RdmaRead, u64::MAX, &[], 0));
            assert_eq!(wc.status, 0, "{wc:?}");
        }
    }

    /// Posts what the peer refuses, which ends the connection.
    pub fn is_refused(&self, wr: &SendWr<'_>, statuses: &[WcStatus]) {
        let wc = self.run(wr);
        let sent = self.completes_when_sent && wc.status == 0;
        let among = statuses.iter().any(|status| *status as u32 == wc.status);
        assert!(
            sent || among,
            "{:?}: {wc:?} instead of {statuses:?}",
            wr.opcode
        );
        until("the error state", || self.qp.state() == QpState::Err);
    }
}
