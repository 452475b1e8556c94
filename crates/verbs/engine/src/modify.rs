//! `ibv_modify_qp`: from checked attributes to a new state, and what a QP does when it breaks.

use crate::Device;
use crate::aftermath::settled;
use crate::device::check_port;
use crate::error::{Error, Result};
use crate::qp::{Control, Qp};
use crate::states;
use crate::transport::{QpChange, TransportCaps};
use crate::types::{AhAttr, EventType, QpAttr, QpState, QpType, access};
use crate::types::{qp_mask as m, qp_mask};

/// Numbers of packets and queue pairs have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

/// Looks at an address vector. An Ethernet port needs a global route (IBTA annex A17.4.2) where
/// peers are on a network. Within a host the number alone finds them, so there it is not insisted
/// on: programs that send by LID work.
pub(crate) fn check_address(device: &Device, attr: &AhAttr) -> Result<()> {
    check_port(attr.port_num).map_err(|_| Error::BadValue)?;
    if attr.is_global == 0 && device.transport().caps().by_address {
        return Err(Error::BadValue);
    }
    if attr.is_global != 0 {
        let own = device.gid(1, u32::from(attr.grh.sgid_index))?;
        if own.gid.is_zero() || attr.grh.dgid.is_zero() {
            return Err(Error::NotFound);
        }
    }
    Ok(())
}

/// Looks at the values of the attributes that the mask names.
fn check_values(device: &Device, caps: &TransportCaps, attr: &QpAttr, mask: u32) -> Result<()> {
    let bad = |bit: u32, is_bad: bool| mask & bit != 0 && is_bad;
    // A peer may be allowed to flush where nobody can: a device says by its capabilities whether
    // the operation exists.
    let known = access::REMOTE_ANY
        | access::LOCAL_WRITE
        | access::MW_BIND
        | access::FLUSH
        | access::OPTIONAL;
    let wrong = bad(m::PKEY_INDEX, attr.pkey_index != 0)
        || bad(m::PATH_MTU, !(1..=caps.mtu).contains(&attr.path_mtu))
        || bad(m::DEST_QPN, attr.dest_qp_num > NUMBER_MASK)
        || bad(m::TIMEOUT, attr.timeout > 31)
        || bad(m::RETRY_CNT, attr.retry_cnt > 7)
        || bad(m::RNR_RETRY, attr.rnr_retry > 7)
        || bad(m::MIN_RNR_TIMER, attr.min_rnr_timer > 31)
        || bad(m::MAX_QP_RD_ATOMIC, attr.max_rd_atomic > caps.max_rd_atomic)
        || bad(
            m::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic > caps.max_rd_atomic,
        )
        || bad(m::ACCESS_FLAGS, attr.qp_access_flags & !known != 0)
        // Automatic path migration does not exist; a QP is always MIGRATED, which is 0.
        || bad(m::PATH_MIG_STATE, attr.path_mig_state != 0);
    if wrong {
        return Err(Error::BadValue);
    }
    if mask & m::PORT != 0 {
        check_port(attr.port_num).map_err(|_| Error::BadValue)?;
    }
    if mask & m::AV != 0 {
        check_address(device, &attr.ah_attr)?;
    }
    if mask & (m::ALT_PATH | m::RATE_LIMIT) != 0 {
        return Err(Error::NotSupported);
    }
    Ok(())
}

/// The attributes after the change.
fn merge(old: &QpAttr, new: &QpAttr, mask: u32) -> QpAttr {
    let mut attr = *old;
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => {
            $(if mask & qp_mask::$bit != 0 { $(attr.$field = new.$field;)+ })+
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        DEST_QPN: dest_qp_num;
    }
    // Programs draw 32 random bits for these.
    if mask & m::RQ_PSN != 0 {
        attr.rq_psn = new.rq_psn & NUMBER_MASK;
    }
    if mask & m::SQ_PSN != 0 {
        attr.sq_psn = new.sq_psn & NUMBER_MASK;
    }
    attr
}

impl Qp {
    /// `ibv_modify_qp`; `mask` of [`crate::types::qp_mask`].
    pub fn modify(&self, attr: &QpAttr, mask: u32) -> Result<()> {
        if mask & m::CAP != 0 {
            // Queues keep their length.
            return Err(Error::NotSupported);
        }
        let control = self.begin_transition();
        let result = self.modify_now(&control, attr, mask);
        self.end_transition(result.as_ref().ok().copied());
        result.map(|_| ())
    }

    fn modify_now(&self, control: &Control, attr: &QpAttr, mask: u32) -> Result<QpAttr> {
        let from = self.state();
        if control.destroyed {
            return Err(Error::WrongState);
        }
        if mask & m::CUR_STATE != 0 && attr.cur_qp_state != from as u32 {
            return Err(Error::WrongState);
        }
        let to = match mask & m::STATE {
            0 => from,
            _ => QpState::try_from(attr.qp_state).map_err(|_| Error::BadValue)?,
        };
        states::check(self.qp_type(), from, to, mask)?;
        let device = self.context().device();
        check_values(device, &device.transport().caps(), attr, mask)?;
        let merged = match to {
            QpState::Reset => QpAttr {
                cap: control.attr.cap,
                ..QpAttr::default()
            },
            _ => merge(&control.attr, attr, mask),
        };
        let change = QpChange {
            from,
            to,
            mask,
            attr: &merged,
        };
        match to {
            QpState::Err => self.stop(&change),
            QpState::Reset => self.reset(&change),
            _ => {
                settled(|after| self.transport().modify(self, &change, after))?;
                self.adopt(&change);
            }
        }
        Ok(merged)
    }

    /// Takes over attributes and a state in which the QP works.
    fn adopt(&self, change: &QpChange<'_>) {
        self.mirror(change.attr);
        {
            // Both halves, so that no request sees one of them in the old state.
            let mut send = self.lock_send();
            let mut receive = self.lock_receive();
            send.state = change.to;
            receive.state = change.to;
            self.store_state(change.to);
            if change.from == QpState::Sqe {
                send.recover();
            }
            if change.to == QpState::Sqd {
                send.drain_event = change.attr.en_sqd_async_notify != 0;
            }
        }
        if matches!(change.to, QpState::Rts | QpState::Sqd) {
            // SQD ended: what was held goes out. SQD began: it may be drained already.
            self.pump();
        }
        if change.to == QpState::Rtr {
            settled(|after| self.transport().receives_posted(after));
        }
    }

    /// Moves to ERR, or SQE: state first, then the transport lets go, then the flush.
    fn stop(&self, change: &QpChange<'_>) {
        let already = change.from == QpState::Err;
        {
            let mut send = self.lock_send();
            let mut receive = self.lock_receive();
            send.state = change.to;
            if change.to == QpState::Err {
                receive.state = change.to;
            } else {
                receive.state = QpState::Sqe;
            }
            self.store_state(change.to);
        }
        let _ = settled(|after| self.transport().modify(self, change, after));
        self.flush_sends();
        if change.to == QpState::Err {
            self.flush_receives();
            if !already && self.srq().is_some() {
                // IBTA 11.6.3.1.4: nothing of the SRQ will be taken by this QP any more.
                self.raise(EventType::QpLastWqeReached);
            }
        }
    }

    /// Back to the beginning: queues empty, completions that were not polled gone.
    pub(crate) fn reset(&self, change: &QpChange<'_>) {
        {
            let mut send = self.lock_send();
            let mut receive = self.lock_receive();
            send.state = QpState::Reset;
            receive.state = QpState::Reset;
            self.store_state(QpState::Reset);
        }
        let _ = settled(|after| self.transport().modify(self, change, after));
        crate::mw::invalidate_all_of(self.context().device(), self.num());
        let mut send = self.lock_send();
        let mut receive = self.lock_receive();
        self.purge_completions();
        send.clear();
        receive.clear();
        self.mirror(change.attr);
    }

    /// The QP breaks by itself, unless it has been in RESET since `incarnation`. Never waits for
    /// another transition: one that is under way does this when it is done.
    pub(crate) fn break_down(&self, to: QpState, incarnation: u32) {
        if self.incarnation() != incarnation {
            return;
        }
        let Some(control) = self.try_begin_transition(to) else {
            return;
        };
        if self.incarnation() == incarnation {
            self.break_down_now(&control, to);
        }
        self.end_transition(None);
    }

    pub(crate) fn break_down_now(&self, control: &Control, to: QpState) {
        let from = self.state();
        let useless = match to {
            QpState::Sqe => !matches!(from, QpState::Rts | QpState::Sqd),
            _ => matches!(from, QpState::Err | QpState::Reset),
        };
        if useless || control.destroyed {
            return;
        }
        self.stop(&QpChange {
            from,
            to,
            mask: m::STATE,
            attr: &control.attr,
        });
    }

    /// Where a failed send leads (IBTA 10.3.1.6).
    pub(crate) fn after_failed_send(&self) -> QpState {
        match self.qp_type() {
            QpType::Uc | QpType::Ud => QpState::Sqe,
            _ => QpState::Err,
        }
    }
}
