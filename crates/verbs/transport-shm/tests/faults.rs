//! Faults on purpose, between two transports of one process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sluice_transport::fault::{Fate, Faults};
use sluice_transport_shm::ShmTransport;
use sluice_verbs::wr::UdDestination;
use sluice_verbs::{
    AhAttr, Cq, Device, Gid, Mr, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendWr, Sge, Wc,
    WrOpcode, access, qp_mask, send_flags,
};

/// Nothing here takes longer; what does has hung.
const PATIENCE: Duration = Duration::from_secs(60);
const QKEY: u32 = 7;
const BYTES: usize = 4096;

/// A process's worth of verbs: a device, and one queue pair with memory.
struct Side {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
    memory: &'static mut [u8],
    _device: Arc<Device>,
}

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("slv-faults-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn side(&self, kind: QpType, faults: &str) -> Side {
        let faults = Some(faults).filter(|list| !list.is_empty());
        let faults = faults.map(|list| list.parse::<Faults>().unwrap());
        let transport = ShmTransport::with_faults(&self.0, faults).unwrap();
        let device = Device::new("sluice0", transport);
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(2048, 0, None, 0).unwrap();
        let memory: &'static mut [u8] = Box::leak(vec![0; BYTES].into_boxed_slice());
        let start = memory.as_mut_ptr() as u64;
        let rights = access::LOCAL_WRITE | access::REMOTE_ANY;
        let mr = pd.reg_mr(start, BYTES as u64, start, rights).unwrap();
        let cap = QpCap {
            max_send_wr: 1024,
            max_recv_wr: 1024,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit {
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            cap,
            ..QpInit::new(kind)
        };
        let qp = pd.create_qp(&init).unwrap();
        Side {
            qp,
            cq,
            mr,
            memory,
            _device: device,
        }
    }

    /// A sender with faults and a receiver without, ready, with a receive for each message.
    fn sides(&self, kind: QpType, faults: &str) -> (Side, Side) {
        let (sender, receiver) = (self.side(kind, faults), self.side(kind, ""));
        sender.ready(receiver.qp.num());
        receiver.ready(sender.qp.num());
        for id in 0..1000 {
            receiver.qp.post_recv(id, &[receiver.sge(600)]).unwrap();
        }
        (sender, receiver)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Side {
    fn ready(&self, peer: u32) {
        let kind = self.qp.qp_type();
        let mut attr = QpAttr {
            qp_state: QpState::Init as u32,
            port_num: 1,
            qkey: QKEY,
            qp_access_flags: access::REMOTE_ANY,
            path_mtu: 1,
            dest_qp_num: peer,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        attr.ah_attr.port_num = 1;
        let basic = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT;
        let address = qp_mask::AV | qp_mask::PATH_MTU | qp_mask::DEST_QPN | qp_mask::RQ_PSN;
        let reliable = kind == QpType::Rc;
        let masks = match kind {
            QpType::Ud => [basic | qp_mask::QKEY, qp_mask::STATE],
            _ => [basic | qp_mask::ACCESS_FLAGS, qp_mask::STATE | address],
        };
        let to_rtr = qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER;
        let to_rts =
            qp_mask::TIMEOUT | qp_mask::RETRY_CNT | qp_mask::RNR_RETRY | qp_mask::MAX_QP_RD_ATOMIC;
        let more = |mask| if reliable { mask } else { 0 };
        self.qp.modify(&attr, masks[0]).unwrap();
        attr.qp_state = QpState::Rtr as u32;
        self.qp.modify(&attr, masks[1] | more(to_rtr)).unwrap();
        attr.qp_state = QpState::Rts as u32;
        let mask = qp_mask::STATE | qp_mask::SQ_PSN | more(to_rts);
        self.qp.modify(&attr, mask).unwrap();
    }

    fn sge(&self, len: usize) -> Sge {
        Sge {
            addr: self.memory.as_ptr() as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    fn completion(&self) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.cq.poll_one() {
                assert_eq!(wc.status, 0, "{wc:?}");
                return wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }

    /// Sends messages 0 to `count`, all of which are said to be sent.
    fn send(&self, count: u32, len: usize, to: Option<(u32, &AhAttr)>) {
        for imm in 0..count {
            let sges = [self.sge(len)];
            let wr = SendWr {
                flags: send_flags::SIGNALED,
                sges: &sges,
                imm,
                ud: to.map(|(qpn, ah)| UdDestination {
                    ah,
                    qpn,
                    qkey: QKEY,
                }),
                ..SendWr::new(WrOpcode::SendWithImm, u64::from(imm))
            };
            self.qp.post_send(&wr).unwrap();
        }
        for imm in 0..count {
            assert_eq!(self.completion().wr_id, u64::from(imm));
        }
    }
}

/// Which of `count` datagrams arrive, and in which order, if none waits too long.
fn model(faults: &str, count: u32) -> Vec<u32> {
    let mut injector = faults.parse::<Faults>().unwrap().injector(0);
    let mut arrived = Vec::new();
    let mut held = None;
    for imm in 0..count {
        match injector.fate() {
            Fate::Drop | Fate::Corrupt => continue,
            Fate::Late if held.is_none() => {
                held = Some(imm);
                continue;
            }
            Fate::Duplicate => arrived.extend([imm, imm]),
            _ => arrived.push(imm),
        }
        arrived.extend(held.take());
    }
    arrived.extend(held);
    arrived
}

fn datagrams(to: impl Fn(&Side) -> (u32, AhAttr)) {
    const FAULTS: &str = "loss=10%,dup=10%,reorder=10%,corrupt=5%,delay=1s,seed=11";
    const COUNT: u32 = 400;
    let directory = Directory::new();
    let (sender, receiver) = directory.sides(QpType::Ud, FAULTS);
    let (qpn, ah) = to(&receiver);
    let start = Instant::now();
    sender.send(COUNT, 33, Some((qpn, &ah)));
    let in_time = start.elapsed() < Duration::from_secs(1);
    let mut expected = model(FAULTS, COUNT);
    let mut arrived: Vec<u32> = (0..expected.len())
        .map(|_| {
            let wc = receiver.completion();
            assert_eq!(wc.byte_len, 40 + 33);
            wc.imm
        })
        .collect();
    if !in_time {
        println!("a slow machine: what is late was not overtaken by what was expected");
        arrived.sort_unstable();
        expected.sort_unstable();
    }
    assert_eq!(arrived, expected);
    assert!(receiver.cq.poll_one().is_none());
}

#[test]
fn datagrams_are_lost_doubled_and_late() {
    datagrams(|receiver| {
        let ah = AhAttr {
            port_num: 1,
            ..AhAttr::default()
        };
        (receiver.qp.num(), ah)
    });
}

#[test]
fn datagrams_to_a_group_suffer_as_well() {
    let mut group = [0; 16];
    group[..2].copy_from_slice(&[0xff, 0x0e]);
    group[15] = 9;
    datagrams(|receiver| {
        receiver.qp.attach_multicast(&Gid(group), 0).unwrap();
        let mut ah = AhAttr {
            port_num: 1,
            is_global: 1,
            ..AhAttr::default()
        };
        ah.grh.dgid = Gid(group);
        (0xff_ffff, ah)
    });
}

#[test]
fn the_last_datagram_comes_late_and_not_never() {
    let directory = Directory::new();
    let (sender, receiver) = directory.sides(QpType::Ud, "reorder=1,delay=2ms,seed=1");
    let ah = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    sender.send(1, 8, Some((receiver.qp.num(), &ah)));
    assert_eq!(receiver.completion().imm, 0);
}

#[test]
fn a_datagram_on_its_way_outlives_its_queue_pair() {
    let directory = Directory::new();
    let (sender, receiver) = directory.sides(QpType::Ud, "reorder=1,delay=1s,seed=1");
    let ah = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    sender.send(1, 8, Some((receiver.qp.num(), &ah)));
    sender.qp.destroy().unwrap();
    assert_eq!(receiver.completion().imm, 0);
}

#[test]
fn messages_of_unreliable_connections_are_lost_and_nothing_else() {
    const FAULTS: &str = "loss=10%,reorder=5%,corrupt=5%,dup=10%,seed=5";
    // Three packets of the path MTU, 256 bytes.
    const LEN: usize = 600;
    let directory = Directory::new();
    let (sender, receiver) = directory.sides(QpType::Uc, FAULTS);
    sender.send(400, LEN, None);
    let mut injector = FAULTS.parse::<Faults>().unwrap().injector(0);
    let mut whole = || matches!(injector.fate(), Fate::Pass | Fate::Duplicate);
    let lens = LEN.div_ceil(256);
    let expected: Vec<u32> = (0..400)
        .filter(|_| (0..lens).fold(true, |all, _| whole() && all))
        .collect();
    assert!(expected.len() < 400);
    for imm in expected {
        assert_eq!(receiver.completion().imm, imm);
    }
    assert!(receiver.cq.poll_one().is_none());
}

#[test]
fn a_lost_write_of_an_unreliable_connection_writes_nothing() {
    let directory = Directory::new();
    let (sender, receiver) = directory.sides(QpType::Uc, "loss=1,seed=5");
    sender.memory.fill(1);
    let sges = [sender.sge(64)];
    let wr = SendWr {
        flags: send_flags::SIGNALED,
        sges: &sges,
        remote_addr: receiver.memory.as_ptr() as u64,
        rkey: receiver.mr.rkey(),
        ..SendWr::new(WrOpcode::RdmaWrite, 1)
    };
    sender.qp.post_send(&wr).unwrap();
    sender.completion();
    assert!(receiver.memory.iter().all(|byte| *byte == 0));
}

#[test]
fn reliable_connections_have_nothing_that_could_be_lost() {
    let directory = Directory::new();
    let (sender, receiver) = directory.sides(QpType::Rc, "loss=1,seed=5");
    sender.send(10, 64, None);
    for imm in 0..10 {
        assert_eq!(receiver.completion().imm, imm);
    }
}
