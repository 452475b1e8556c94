//! One end: a queue pair with memory, from RESET to RTS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_verbs::{
    AhAttr, Cq, Mr, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendWr, Sge, Wc, WcStatus,
    WrOpcode, access, qp_mask, send_flags,
};

use crate::memory::Memory;

/// Nothing in these tests takes longer; a test that does has hung.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The rights that regions are registered with.
pub const EVERYTHING: u32 = access::LOCAL_WRITE | access::REMOTE_ANY | access::MW_BIND;
/// Of all datagram queue pairs.
pub const QKEY: u32 = 0x1111_1111;

/// One end: a queue pair with memory.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
    pub memory: Memory,
    /// Its first PSN: a few packets before they start again at 0.
    pub psn: u32,
}

/// The other end, as a queue pair must know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remote {
    pub qpn: u32,
    pub psn: u32,
    /// The path MTU's code (IBTA: 1 is 256 bytes, 5 is 4096).
    pub path_mtu: u32,
    pub ah: AhAttr,
}

/// Of a queue pair of `kind`, with room for what the tests do.
pub fn init(kind: QpType, cq: &Arc<Cq>) -> QpInit {
    QpInit {
        send_cq: Some(cq.clone()),
        recv_cq: Some(cq.clone()),
        cap: QpCap {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        },
        ..QpInit::new(kind)
    }
}

impl End {
    /// An end with a new queue pair.
    pub fn new(pd: &Arc<Pd>, kind: QpType, cq: &Arc<Cq>, memory: Memory) -> Self {
        Self::of(pd, pd.create_qp(&init(kind, cq)).unwrap(), cq, memory)
    }

    /// An end around a queue pair that is there.
    pub fn of(pd: &Arc<Pd>, qp: Arc<Qp>, cq: &Arc<Cq>, memory: Memory) -> Self {
        let start = memory.start as u64;
        let mr = pd
            .reg_mr(start, memory.len as u64, start, EVERYTHING)
            .unwrap();
        let psn = 0xff_fff0 + (qp.num() & 0xf);
        Self {
            qp,
            cq: cq.clone(),
            mr,
            memory,
            psn,
        }
    }

    pub fn to_init(&self) {
        let attr = QpAttr {
            qp_state: QpState::Init as u32,
            port_num: 1,
            qp_access_flags: access::REMOTE_ANY,
            qkey: QKEY,
            ..QpAttr::default()
        };
        let own = match self.qp.qp_type() {
            QpType::Ud => qp_mask::QKEY,
            _ => qp_mask::ACCESS_FLAGS,
        };
        let mask = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | own;
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn receive_from(&self, remote: &Remote) {
        let attr = QpAttr {
            qp_state: QpState::Rtr as u32,
            path_mtu: remote.path_mtu,
            dest_qp_num: remote.qpn,
            rq_psn: remote.psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ah_attr: remote.ah,
            ..QpAttr::default()
        };
        let connected =
            qp_mask::STATE | qp_mask::AV | qp_mask::PATH_MTU | qp_mask::DEST_QPN | qp_mask::RQ_PSN;
        let mask = match self.qp.qp_type() {
            QpType::Ud => qp_mask::STATE,
            QpType::Uc | QpType::XrcSend => connected,
            _ => connected | qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER,
        };
        self.qp.modify(&attr, mask).unwrap();
    }

    /// `timeout`, `retry_cnt`, `rnr_retry`: as in `ibv_modify_qp`.
    pub fn send_with(&self, timeout: u8, retry_cnt: u8, rnr_retry: u8) {
        let attr = QpAttr {
            qp_state: QpState::Rts as u32,
            sq_psn: self.psn,
            timeout,
            retry_cnt,
            rnr_retry,
            max_rd_atomic: 16,
            ..QpAttr::default()
        };
        let mask = match self.qp.qp_type() {
            QpType::Ud | QpType::Uc => qp_mask::STATE | qp_mask::SQ_PSN,
            _ => {
                qp_mask::STATE
                    | qp_mask::SQ_PSN
                    | qp_mask::TIMEOUT
                    | qp_mask::RETRY_CNT
                    | qp_mask::RNR_RETRY
                    | qp_mask::MAX_QP_RD_ATOMIC
            }
        };
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn to_state(&self, state: QpState) {
        let attr = QpAttr {
            qp_state: state as u32,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, qp_mask::STATE).unwrap();
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.memory.len);
        Sge {
            addr: self.memory.start as u64 + at as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub fn post_recv(&self, id: u64, at: usize, len: usize) {
        self.qp.post_recv(id, &[self.sge(at, len)]).unwrap();
    }

    /// The next completion.
    pub fn completion(&self) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
            rest(start);
        }
    }

    /// The next completion, which is good.
    pub fn good(&self) -> Wc {
        let wc = self.completion();
        assert_eq!(wc.status, WcStatus::Success as u32, "{wc:?}");
        wc
    }

    /// The next completion's request and status.
    pub fn outcome(&self) -> (u64, u32) {
        let wc = self.completion();
        (wc.wr_id, wc.status)
    }

    /// Posts, and waits for the completion of exactly this.
    pub fn run(&self, wr: &SendWr<'_>) -> Wc {
        self.qp.post_send(wr).unwrap();
        let wc = self.completion();
        assert_eq!(wc.wr_id, wr.wr_id, "{wc:?}");
        wc
    }
}

/// A signalled request for a peer's memory at `remote_addr`, which `rkey` opens.
pub fn request(opcode: WrOpcode, id: u64, sges: &[Sge], remote_addr: u64, rkey: u32) -> SendWr<'_> {
    SendWr {
        flags: send_flags::SIGNALED,
        sges,
        remote_addr,
        rkey,
        ..SendWr::new(opcode, id)
    }
}

/// One who has waited since `start` leaves the processors to those who have work.
fn rest(start: Instant) {
    const AWAKE: Duration = Duration::from_millis(1);
    const ASLEEP: Duration = Duration::from_micros(200);
    if start.elapsed() < AWAKE {
        std::thread::yield_now();
    } else {
        std::thread::sleep(ASLEEP);
    }
}

/// Waits for something that another thread or process does.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        rest(start);
    }
}
