//! Which attributes take a QP of a connection from state to state: the masks that the kernel's
//! connection manager gives (rdma_init_qp_attr(3)).

use std::ffi::c_int;

use crate::ffi::*;

// `enum ibv_qp_attr_mask`.
pub const QP_STATE: c_int = 1;
const QP_ACCESS_FLAGS: c_int = 1 << 3;
const QP_PKEY_INDEX: c_int = 1 << 4;
const QP_PORT: c_int = 1 << 5;
const QP_QKEY: c_int = 1 << 6;
const QP_AV: c_int = 1 << 7;
const QP_PATH_MTU: c_int = 1 << 8;
const QP_TIMEOUT: c_int = 1 << 9;
const QP_RETRY_CNT: c_int = 1 << 10;
const QP_RNR_RETRY: c_int = 1 << 11;
const QP_RQ_PSN: c_int = 1 << 12;
const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
const QP_MIN_RNR_TIMER: c_int = 1 << 15;
const QP_SQ_PSN: c_int = 1 << 16;
const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
const QP_DEST_QPN: c_int = 1 << 20;

// `enum ibv_qp_state`.
pub const QPS_INIT: u32 = 1;
pub const QPS_RTR: u32 = 2;
pub const QPS_RTS: u32 = 3;
pub const QPS_ERR: u32 = 6;

/// Whether it takes requests of a peer that are answered: READ, atomics.
pub fn is_responder(qp_type: u32) -> bool {
    matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV)
}

/// Whether it makes requests that are answered, and makes them again.
pub fn is_requester(qp_type: u32) -> bool {
    matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND)
}

/// The attributes on the way to a state; `None` for states that a connection has none for.
pub fn mask(qp_type: u32, state: u32) -> Option<c_int> {
    let datagram = qp_type == IBV_QPT_UD;
    let of = |is: bool, bits: c_int| if is { bits } else { 0 };
    let attributes = match state {
        QPS_INIT if datagram => QP_PKEY_INDEX | QP_PORT | QP_QKEY,
        QPS_INIT => QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS,
        QPS_RTR if datagram => 0,
        QPS_RTR => {
            QP_AV
                | QP_PATH_MTU
                | QP_DEST_QPN
                | QP_RQ_PSN
                | of(
                    is_responder(qp_type),
                    QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER,
                )
        }
        QPS_RTS => {
            // A responder of XRC has the timeout too.
            QP_SQ_PSN
                | of(is_responder(qp_type) || is_requester(qp_type), QP_TIMEOUT)
                | of(
                    is_requester(qp_type),
                    QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC,
                )
        }
        _ => return None,
    };
    Some(QP_STATE | attributes)
}

#[cfg(test)]
mod tests {
    use sluice_verbs::states;
    use sluice_verbs::types::{QpState, QpType};

    use super::*;

    const TYPES: [(u32, QpType); 5] = [
        (IBV_QPT_RC, QpType::Rc),
        (IBV_QPT_UC, QpType::Uc),
        (IBV_QPT_UD, QpType::Ud),
        (IBV_QPT_XRC_SEND, QpType::XrcSend),
        (IBV_QPT_XRC_RECV, QpType::XrcRecv),
    ];

    /// What `connect_qp` and `rdma_create_qp` do: INIT, INIT once more, RTR, RTS.
    const WAY: [(QpState, QpState, u32); 4] = [
        (QpState::Reset, QpState::Init, QPS_INIT),
        (QpState::Init, QpState::Init, QPS_INIT),
        (QpState::Init, QpState::Rtr, QPS_RTR),
        (QpState::Rtr, QpState::Rts, QPS_RTS),
    ];

    #[test]
    fn every_type_gets_from_state_to_state_with_these_attributes() {
        for (number, qp_type) in TYPES {
            for (from, to, state) in WAY {
                let mask = mask(number, state).expect("a state of connections");
                let mask = u32::try_from(mask).expect("bits");
                states::check(qp_type, from, to, mask)
                    .unwrap_or_else(|error| panic!("{qp_type:?} {from:?} {to:?}: {error:?}"));
            }
        }
    }

    /// Nothing is given that could be left out: a mask of a type is not another one's by chance.
    #[test]
    fn every_attribute_is_needed() {
        for (number, qp_type) in TYPES {
            for (from, to, state) in WAY {
                let mask = mask(number, state)
                    .expect("a state of connections")
                    .cast_unsigned();
                let bits = (1..u32::BITS)
                    .map(|bit| 1 << bit)
                    .filter(|bit| mask & bit != 0);
                for bit in bits.filter(|_| from != to) {
                    assert!(
                        states::check(qp_type, from, to, mask & !bit).is_err(),
                        "{qp_type:?} {from:?} {to:?} without {bit:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn other_states_have_none() {
        for state in [0, 4, 5, QPS_ERR, 7] {
            assert_eq!(mask(IBV_QPT_RC, state), None, "{state}");
        }
    }
}
