//! Making a queue pair.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::limits::{MAX_SGE, QUEUE_MAX};
use sluice_verbs_model::transport::{QpParams, TransportCaps};
use sluice_verbs_model::types::{QpAttr, QpCap, QpState, QpType};

use super::transport::NewQp;
use super::{Control, ControlState, Directory, Qp, Tally};
use crate::cq::{Cq, Credit};
use crate::domain::{Domain, Opened};
use crate::events::Acks;
use crate::front::Front;
use crate::pair::SendTally;
use crate::records::records;
use crate::rq::RecvQueue;
use crate::sq::{Making, SendQueue};
use crate::srq::Srq;
use crate::xrcd::Xrcd;

/// What [`crate::Pd::create_qp`] makes.
pub struct QpInit {
    pub qp_type: QpType,
    pub send_cq: Option<Arc<Cq>>,
    pub recv_cq: Option<Arc<Cq>>,
    pub srq: Option<Arc<Srq>>,
    /// The domain of an XRC target; needs no CQs and no PD.
    pub xrcd: Option<Arc<Xrcd>>,
    pub cap: QpCap,
    /// Every send is signalled, whatever its flags.
    pub sq_sig_all: bool,
    /// Multicast messages that this QP sends do not come back to it.
    pub block_multicast_loopback: bool,
    /// The program's own word (`qp_context`), kept and given back.
    pub cookie: u64,
}

impl QpInit {
    pub fn new(qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            cap: QpCap::default(),
            sq_sig_all: false,
            block_multicast_loopback: false,
            cookie: 0,
        }
    }
}

/// Looks at what is asked for, and says what it becomes.
fn check_cap(init: &QpInit, caps: &TransportCaps) -> Result<QpCap> {
    let cap = &init.cap;
    let sges = MAX_SGE as u32;
    if cap.max_send_wr > QUEUE_MAX
        || cap.max_recv_wr > QUEUE_MAX
        || cap.max_send_sge > sges
        || cap.max_recv_sge > sges
        || cap.max_inline_data > caps.max_inline
    {
        return Err(Error::BadCapability);
    }
    let target = init.qp_type == QpType::XrcRecv;
    let no_sends = target;
    let no_receives = target || init.srq.is_some() || init.qp_type == QpType::XrcSend;
    Ok(QpCap {
        max_send_wr: if no_sends { 0 } else { cap.max_send_wr },
        max_recv_wr: if no_receives { 0 } else { cap.max_recv_wr },
        max_send_sge: if no_sends { 0 } else { cap.max_send_sge.max(1) },
        max_recv_sge: if no_receives {
            0
        } else {
            cap.max_recv_sge.max(1)
        },
        max_inline_data: if no_sends { 0 } else { cap.max_inline_data },
    })
}

/// Which objects each type needs, and that they belong together.
fn check_objects(opened: &Arc<Opened>, init: &QpInit, caps: &TransportCaps) -> Result<()> {
    if !caps.has(init.qp_type) {
        return Err(Error::NotSupported);
    }
    let needs = matches!(init.qp_type, QpType::Rc | QpType::Uc | QpType::Ud);
    let target = init.qp_type == QpType::XrcRecv;
    let sends_without_cq = !target && init.send_cq.is_none();
    let receives_without_cq = needs && init.recv_cq.is_none();
    let strange_srq = !needs && init.srq.is_some();
    let xrc_srq = init.srq.as_ref().is_some_and(|srq| srq.xrcd().is_some());
    let strange_domain = target != init.xrcd.is_some();
    if sends_without_cq || receives_without_cq || strange_srq || xrc_srq || strange_domain {
        return Err(Error::WrongObject);
    }
    let cqs = [&init.send_cq, &init.recv_cq];
    let foreign_cq = |cq: &Arc<Cq>| !Arc::ptr_eq(cq.opened(), opened);
    if cqs.into_iter().flatten().any(foreign_cq) {
        return Err(Error::WrongObject);
    }
    let foreign_srq = |srq: &Arc<Srq>| !Arc::ptr_eq(&srq.domain().opened, opened);
    if init.srq.as_ref().is_some_and(foreign_srq) {
        return Err(Error::WrongObject);
    }
    Ok(())
}

const fn mtu_bytes(code: u32) -> u64 {
    128 << code
}

impl Qp {
    /// `make` asks the transport for its part.
    pub(crate) fn create(
        opened: &Arc<Opened>,
        directory: &Arc<Directory>,
        domain: Option<&Arc<Domain>>,
        init: &QpInit,
        make: impl FnOnce(&QpParams) -> Result<NewQp>,
    ) -> Result<Arc<Qp>> {
        let caps = opened.adapter.medium.caps();
        check_objects(opened, init, &caps)?;
        let cap = check_cap(init, &caps)?;
        let target = init.qp_type == QpType::XrcRecv;
        let (send_cq, recv_cq) = match target {
            true => (None, None),
            false => (init.send_cq.as_ref(), init.recv_cq.as_ref()),
        };
        let pd_id = domain.map_or(0, |domain| domain.id);
        let new = make(&QpParams {
            qp_type: init.qp_type,
            cap,
            pd: pd_id,
            send_cq: send_cq.map(|cq| cq.id()),
            recv_cq: recv_cq.map(|cq| cq.id()),
            has_srq: init.srq.is_some(),
        })?;
        let credit = Credit::new(init.srq.as_ref().map(|srq| srq.polled.clone()));
        let attach = |cq: Option<&Arc<Cq>>| cq.map(|cq| (cq.clone(), cq.attach(&credit)));
        let max_length = match init.qp_type {
            QpType::Ud => mtu_bytes(caps.mtu),
            _ => u64::from(caps.max_msg_sz),
        };
        let attr = QpAttr {
            cap,
            ..QpAttr::default()
        };
        if let Some(domain) = domain {
            domain.add_user();
        }
        for users in [
            init.srq.as_ref().map(|srq| &srq.users),
            init.xrcd.as_ref().map(|xrcd| &xrcd.users),
        ] {
            users.map(|users| users.fetch_add(1, Ordering::AcqRel));
        }
        let (records, lent) = records(&cap);
        let front = Arc::new(Front::new());
        let by_record = new.transport.is_by_record();
        let qp = Arc::new_cyclic(|me| Qp {
            me: me.clone(),
            opened: opened.clone(),
            directory: directory.clone(),
            domain: domain.cloned(),
            pd_id,
            qp_type: init.qp_type,
            num: new.qpn,
            cap,
            sq_sig_all: init.sq_sig_all,
            block_multicast_loopback: init.block_multicast_loopback,
            transport: new.transport,
            send_cq: attach(send_cq),
            recv_cq: attach(recv_cq),
            srq: init.srq.clone(),
            xrcd: init.xrcd.clone(),
            credit: credit.clone(),
            send: Mutex::new(SendQueue::new(
                &Making {
                    qp_type: init.qp_type,
                    opcodes: caps.opcodes_of(init.qp_type),
                    always: init.sq_sig_all,
                    max_length,
                    by_record,
                },
                &cap,
                records,
                front.clone(),
            )),
            front: front.clone(),
            lent: Mutex::new(Some(lent)),
            receive: Mutex::new(RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge)),
            state: AtomicU32::new(QpState::Reset as u32),
            remote_access: AtomicU32::new(0),
            qkey: AtomicU32::new(0),
            control: Mutex::new(ControlState {
                now: Control {
                    attr,
                    destroyed: false,
                },
                in_transition: false,
                wanted: None,
            }),
            transition_over: Condvar::new(),
            groups: Mutex::default(),
            acks: Acks::new(init.cookie),
            breaking: AtomicBool::new(false),
            incarnation: AtomicU32::new(0),
            communicating: AtomicBool::new(false),
            tally: Tally::default(),
            sent: SendTally::default(),
        });
        if qp.qp_type == QpType::Ud {
            let _ = credit.datagrams.set(qp.me.clone());
        }
        if target {
            directory.lock_targets().insert(qp.num, qp.me.clone());
        }
        qp.transport.bind(&qp);
        opened.adapter.census.add(qp.num, qp.me.clone());
        Ok(qp)
    }
}
