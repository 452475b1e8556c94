//! `ibv_modify_qp`: from checked attributes to a new state, and what a QP does when it breaks.

use crate::aftermath::with_aftermath;
use sluice_verbs_model::attributes::{check_ranges, merge};
use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::states;
use sluice_verbs_model::transport::{QpChange, TransportCaps};
use sluice_verbs_model::types::{EventType, QpAttr, QpState, QpType, qp_mask as m};

use super::{Control, Qp};
use crate::adapter::{Adapter, check_port};

/// Looks at the values of the attributes that the mask names.
fn check_values(adapter: &Adapter, caps: &TransportCaps, attr: &QpAttr, mask: u32) -> Result<()> {
    check_ranges(caps, attr, mask)?;
    if mask & m::PORT != 0 {
        check_port(attr.port_num).map_err(|_| Error::BadValue)?;
    }
    if mask & m::AV != 0 {
        adapter.check_address(&attr.ah_attr)?;
    }
    if mask & (m::ALT_PATH | m::RATE_LIMIT) != 0 {
        return Err(Error::NotSupported);
    }
    Ok(())
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
        let adapter = self.adapter();
        check_values(adapter, &adapter.medium.caps(), attr, mask)?;
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
            by_itself: false,
        };
        match to {
            QpState::Err => self.stop(&change),
            QpState::Reset => self.reset(&change),
            _ => {
                with_aftermath(|after| self.transport().modify(self, &change, after))?;
                self.apply(&change);
            }
        }
        Ok(merged)
    }

    /// Takes over attributes and a state in which the QP works.
    fn apply(&self, change: &QpChange<'_>) {
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
            with_aftermath(|after| self.transport().receives_posted(after));
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
        let _ = with_aftermath(|after| self.transport().modify(self, change, after));
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
        let _ = with_aftermath(|after| self.transport().modify(self, change, after));
        self.adapter().windows.invalidate_all_of(self.num());
        let mut send = self.lock_send();
        let mut receive = self.lock_receive();
        self.purge_completions();
        send.clear();
        receive.clear();
        self.mirror(change.attr);
    }

    /// The QP breaks by itself, unless it has been in RESET since `incarnation`. Never waits for
    /// another transition: one that is under way does this when it is done.
    pub(crate) fn break_down_if(&self, to: QpState, incarnation: u32) {
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
            by_itself: true,
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
