//! The state rules of queue pairs: which transitions exist, and which attributes each needs and
//! takes, per type (IBTA 10.3.1 and table 92; ibv_modify_qp(3)).

use crate::error::{Error, Result};
use crate::types::QpState::{self, Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use crate::types::QpType;
use crate::types::qp_mask as m;

/// What a type's transition needs and takes beyond that, as masks of [`crate::types::qp_mask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub required: u32,
    pub optional: u32,
}

/// One transition. Index of `per_type`: RC, UC, UD, XRC_SEND, XRC_RECV; None: not for it.
pub struct Transition {
    pub from: QpState,
    pub to: QpState,
    pub per_type: [Option<Attributes>; 5],
}

const fn a(required: u32, optional: u32) -> Option<Attributes> {
    Some(Attributes { required, optional })
}

const fn same(attributes: Option<Attributes>) -> [Option<Attributes>; 5] {
    [attributes; 5]
}

const CONNECTED_INIT: u32 = m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS;
const DATAGRAM_INIT: u32 = m::PKEY_INDEX | m::PORT | m::QKEY;
const TO_PEER: u32 = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
const RESPONDER: u32 = m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER;
const REQUESTER: u32 = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC;
const PATHS: u32 = m::ALT_PATH | m::PATH_MIG_STATE;
const RUNNING: u32 = m::CUR_STATE | m::ACCESS_FLAGS | PATHS;
const READY_OPTIONAL: u32 = m::ALT_PATH | m::ACCESS_FLAGS | m::PKEY_INDEX;

/// All transitions but those to RESET and ERR, which exist from everywhere and need nothing.
pub const TABLE: [Transition; 9] = [
    Transition {
        from: Reset,
        to: Init,
        per_type: [
            a(CONNECTED_INIT, 0),
            a(CONNECTED_INIT, 0),
            a(DATAGRAM_INIT, 0),
            a(CONNECTED_INIT, 0),
            a(CONNECTED_INIT, 0),
        ],
    },
    Transition {
        from: Init,
        to: Init,
        per_type: [
            a(0, CONNECTED_INIT),
            a(0, CONNECTED_INIT),
            a(0, DATAGRAM_INIT),
            a(0, CONNECTED_INIT),
            a(0, CONNECTED_INIT),
        ],
    },
    Transition {
        from: Init,
        to: Rtr,
        per_type: [
            a(TO_PEER | RESPONDER, READY_OPTIONAL),
            a(TO_PEER, READY_OPTIONAL),
            a(0, m::PKEY_INDEX | m::QKEY),
            a(TO_PEER, READY_OPTIONAL),
            a(TO_PEER | RESPONDER, READY_OPTIONAL),
        ],
    },
    Transition {
        from: Rtr,
        to: Rts,
        per_type: [
            a(REQUESTER, RUNNING | m::MIN_RNR_TIMER | m::RATE_LIMIT),
            a(m::SQ_PSN, RUNNING),
            a(m::SQ_PSN, m::CUR_STATE | m::QKEY | m::RATE_LIMIT),
            a(REQUESTER, RUNNING),
            a(m::TIMEOUT | m::SQ_PSN, RUNNING | m::MIN_RNR_TIMER),
        ],
    },
    Transition {
        from: Rts,
        to: Rts,
        per_type: [
            a(0, RUNNING | m::MIN_RNR_TIMER | m::RATE_LIMIT),
            a(0, RUNNING),
            a(0, m::CUR_STATE | m::QKEY | m::RATE_LIMIT),
            a(0, RUNNING),
            a(0, RUNNING | m::MIN_RNR_TIMER),
        ],
    },
    Transition {
        from: Rts,
        to: Sqd,
        per_type: same(a(0, m::EN_SQD_ASYNC_NOTIFY)),
    },
    Transition {
        from: Sqd,
        to: Rts,
        per_type: [
            a(0, RUNNING | m::MIN_RNR_TIMER),
            a(0, RUNNING),
            a(0, m::CUR_STATE | m::QKEY),
            a(0, RUNNING),
            a(0, RUNNING | m::MIN_RNR_TIMER),
        ],
    },
    Transition {
        from: Sqd,
        to: Sqd,
        per_type: [
            a(
                0,
                (READY_OPTIONAL | RESPONDER | REQUESTER | m::PORT | m::AV | m::PATH_MIG_STATE)
                    & !m::SQ_PSN,
            ),
            a(0, READY_OPTIONAL | m::AV | m::PATH_MIG_STATE),
            a(0, m::PKEY_INDEX | m::QKEY),
            a(
                0,
                (READY_OPTIONAL | REQUESTER | m::PORT | m::AV | m::PATH_MIG_STATE) & !m::SQ_PSN,
            ),
            a(
                0,
                READY_OPTIONAL | RESPONDER | m::PORT | m::AV | m::TIMEOUT | m::PATH_MIG_STATE,
            ),
        ],
    },
    Transition {
        from: Sqe,
        to: Rts,
        per_type: [
            None,
            a(0, m::CUR_STATE | m::ACCESS_FLAGS),
            a(0, m::CUR_STATE | m::QKEY),
            None,
            None,
        ],
    },
];

/// Place of a type in [`Transition::per_type`].
#[inline]
pub const fn column(qp_type: QpType) -> usize {
    match qp_type {
        QpType::Rc => 0,
        QpType::Uc => 1,
        QpType::Ud => 2,
        QpType::XrcSend => 3,
        QpType::XrcRecv => 4,
    }
}

/// Whether the transition exists and the mask fits it. `CUR_STATE` is looked at by the caller.
pub fn check(qp_type: QpType, from: QpState, to: QpState, mask: u32) -> Result<()> {
    if matches!(to, Reset | Err) {
        return match mask & !(m::STATE | m::CUR_STATE) {
            0 => Ok(()),
            _ => Result::Err(Error::BadMask),
        };
    }
    let line = TABLE.iter().find(|line| line.from == from && line.to == to);
    let Some(attributes) = line.and_then(|line| line.per_type[column(qp_type)]) else {
        return Result::Err(Error::BadTransition);
    };
    let known = attributes.required | attributes.optional | m::STATE | m::CUR_STATE;
    if attributes.required & !mask != 0 || mask & !known != 0 {
        return Result::Err(Error::BadMask);
    }
    Ok(())
}

/// May requests be posted, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// EINVAL.
    Refused,
    /// Carried out.
    Works,
    /// Kept until the state changes.
    Waits,
    /// Completed with WR_FLUSH_ERR.
    Flushes,
}

/// Of sends (IBTA 10.3.1.2 to 10.3.1.7).
#[inline]
pub const fn sending(state: QpState) -> Posting {
    match state {
        Reset | Init | Rtr => Posting::Refused,
        Rts => Posting::Works,
        Sqd => Posting::Waits,
        Sqe | Err => Posting::Flushes,
    }
}

/// Of receives.
#[inline]
pub const fn receiving(state: QpState) -> Posting {
    match state {
        Reset => Posting::Refused,
        Init => Posting::Waits,
        Rtr | Rts | Sqd | Sqe => Posting::Works,
        Err => Posting::Flushes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    const NAMES: [(u32, &str); 22] = [
        (m::STATE, "state"),
        (m::CUR_STATE, "cur_state"),
        (m::EN_SQD_ASYNC_NOTIFY, "en_sqd_async_notify"),
        (m::ACCESS_FLAGS, "access_flags"),
        (m::PKEY_INDEX, "pkey_index"),
        (m::PORT, "port"),
        (m::QKEY, "qkey"),
        (m::AV, "av"),
        (m::PATH_MTU, "path_mtu"),
        (m::TIMEOUT, "timeout"),
        (m::RETRY_CNT, "retry_cnt"),
        (m::RNR_RETRY, "rnr_retry"),
        (m::RQ_PSN, "rq_psn"),
        (m::MAX_QP_RD_ATOMIC, "max_qp_rd_atomic"),
        (m::ALT_PATH, "alt_path"),
        (m::MIN_RNR_TIMER, "min_rnr_timer"),
        (m::SQ_PSN, "sq_psn"),
        (m::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
        (m::PATH_MIG_STATE, "path_mig_state"),
        (m::CAP, "cap"),
        (m::DEST_QPN, "dest_qpn"),
        (m::RATE_LIMIT, "rate_limit"),
    ];

    fn words(mask: u32) -> String {
        let mut text = String::new();
        for (_, name) in NAMES.iter().filter(|(bit, _)| mask & bit != 0) {
            write!(text, " {name}").unwrap();
        }
        text
    }

    #[test]
    fn the_table_is_as_reviewed() {
        let mut text = String::new();
        for line in &TABLE {
            writeln!(text, "{:?} -> {:?}", line.from, line.to).unwrap();
            for (attributes, qp_type) in line.per_type.iter().zip(QpType::ALL) {
                match attributes {
                    None => writeln!(text, "  {qp_type:?}: -").unwrap(),
                    Some(attributes) => writeln!(
                        text,
                        "  {qp_type:?}:{} |{}",
                        words(attributes.required),
                        words(attributes.optional)
                    )
                    .unwrap(),
                }
            }
        }
        assert_eq!(text, include_str!("snapshots/states.txt"), "{text}");
    }

    #[test]
    fn columns_are_in_the_order_of_types() {
        for (at, qp_type) in QpType::ALL.iter().enumerate() {
            assert_eq!(column(*qp_type), at);
        }
    }

    #[test]
    fn each_missing_attribute_and_each_strange_one_is_refused() {
        for line in &TABLE {
            for qp_type in QpType::ALL {
                let Some(attributes) = line.per_type[column(*qp_type)] else {
                    let refused = check(*qp_type, line.from, line.to, m::STATE);
                    assert_eq!(refused, Result::Err(Error::BadTransition));
                    continue;
                };
                let full = m::STATE | attributes.required | attributes.optional;
                assert_eq!(check(*qp_type, line.from, line.to, full), Ok(()));
                for (bit, name) in NAMES {
                    let without = check(*qp_type, line.from, line.to, full & !bit);
                    let missing = attributes.required & bit != 0;
                    assert_eq!(without.is_err(), missing, "{qp_type:?} without {name}");
                    let with = check(*qp_type, line.from, line.to, full | bit);
                    let strange = full & bit == 0 && bit != m::CUR_STATE;
                    assert_eq!(with.is_err(), strange, "{qp_type:?} with {name}");
                }
            }
        }
    }

    #[test]
    fn transitions_that_are_not_in_the_table_do_not_exist() {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let exists = TABLE
                    .iter()
                    .any(|line| (line.from, line.to) == (*from, *to));
                let any = QpType::ALL.iter().any(|qp_type| {
                    check(*qp_type, *from, *to, m::STATE) != Result::Err(Error::BadTransition)
                });
                let always = matches!(to, Reset | Err);
                assert_eq!(any, exists || always, "{from:?} -> {to:?}");
            }
        }
    }
}
