//! The attributes of a queue pair: their ranges, and what a change makes of them.

use crate::error::{Error, Result};
use crate::transport::TransportCaps;
use crate::types::{QpAttr, access};
use crate::types::{qp_mask as m, qp_mask};

/// Numbers of packets and queue pairs have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

/// Looks at the values of the attributes that the mask names, as far as they are numbers of the QP
/// alone: ports and addresses are the device's.
pub fn check_ranges(caps: &TransportCaps, attr: &QpAttr, mask: u32) -> Result<()> {
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
    match wrong {
        true => Err(Error::BadValue),
        false => Ok(()),
    }
}

/// The attributes after the change.
pub fn merge(old: &QpAttr, new: &QpAttr, mask: u32) -> QpAttr {
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
