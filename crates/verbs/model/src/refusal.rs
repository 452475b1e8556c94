//! Why a request was refused, and the status that it completes with.

use crate::types::WcStatus;

/// Why a responder refuses a request (IBTA 9.9.3). The transport carries it to the requester,
/// whose completion status is [`NakReason::requester_status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakReason {
    /// Unknown key, other protection domain, out of bounds, missing permission.
    RemoteAccess,
    /// Unaligned atomic, an operation that this QP does not take, a message longer than the
    /// receive.
    InvalidRequest,
    /// The responder could not: its own receive was bad.
    RemoteOperation,
}

impl NakReason {
    pub const ALL: &'static [NakReason] = &[
        NakReason::RemoteAccess,
        NakReason::InvalidRequest,
        NakReason::RemoteOperation,
    ];

    #[inline]
    pub const fn requester_status(self) -> WcStatus {
        match self {
            NakReason::RemoteAccess => WcStatus::RemAccessErr,
            NakReason::InvalidRequest => WcStatus::RemInvReqErr,
            NakReason::RemoteOperation => WcStatus::RemOpErr,
        }
    }
}

/// Why a local scatter or gather list is bad. It becomes the status of the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalFault {
    /// Unknown key, other protection domain, out of bounds, missing permission.
    Protection,
    /// The length does not fit the operation (atomics: 8 bytes).
    Length,
}

impl LocalFault {
    pub const ALL: &'static [LocalFault] = &[LocalFault::Protection, LocalFault::Length];

    #[inline]
    pub const fn status(self) -> WcStatus {
        match self {
            LocalFault::Protection => WcStatus::LocProtErr,
            LocalFault::Length => WcStatus::LocLenErr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_status() {
        let remote = NakReason::ALL
            .iter()
            .map(|reason| reason.requester_status());
        let local = LocalFault::ALL.iter().map(|fault| fault.status());
        let statuses: Vec<WcStatus> = remote.chain(local).collect();
        assert_eq!(
            statuses,
            [
                WcStatus::RemAccessErr,
                WcStatus::RemInvReqErr,
                WcStatus::RemOpErr,
                WcStatus::LocProtErr,
                WcStatus::LocLenErr,
            ]
        );
    }
}
