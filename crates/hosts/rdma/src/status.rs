//! How a request ended (`enum ibv_wc_status`).

use std::fmt;

use sluice_verbs_abi as abi;

/// Why a request or a link failed: a number of `enum ibv_wc_status`, see ibv_poll_cq(3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub(crate) u32);

impl Status {
    /// The peer did not answer, however often it was asked.
    pub const UNREACHABLE: Status = Status(abi::IBV_WC_RETRY_EXC_ERR);
    /// An earlier request failed, and this one was not made, or not to its end.
    pub const FLUSHED: Status = Status(abi::IBV_WC_WR_FLUSH_ERR);
    /// The peer's device refused key, address or length.
    pub const REMOTE_ACCESS: Status = Status(abi::IBV_WC_REM_ACCESS_ERR);
    /// The local slice is not in the region of its key any more.
    pub const LOCAL_PROTECTION: Status = Status(abi::IBV_WC_LOC_PROT_ERR);
    /// The library or the device gave no better reason.
    pub const GENERAL: Status = Status(abi::IBV_WC_GENERAL_ERR);

    /// What an event of a queue pair means for its link.
    pub(crate) fn of_event(event_type: u32) -> Self {
        match event_type {
            // The peer's request was refused here.
            abi::IBV_EVENT_QP_ACCESS_ERR => Status(abi::IBV_WC_LOC_ACCESS_ERR),
            abi::IBV_EVENT_QP_REQ_ERR => Status(abi::IBV_WC_LOC_QP_OP_ERR),
            _ => Status::GENERAL,
        }
    }

    /// The number in the header.
    pub fn code(self) -> u32 {
        self.0
    }

    fn words(self) -> &'static str {
        match self.0 {
            abi::IBV_WC_SUCCESS => "success",
            abi::IBV_WC_LOC_LEN_ERR => "the local length is wrong",
            abi::IBV_WC_LOC_QP_OP_ERR => "the local queue pair is in error",
            abi::IBV_WC_LOC_PROT_ERR => "local memory is not what its key is for",
            abi::IBV_WC_WR_FLUSH_ERR => "given up after an earlier error",
            abi::IBV_WC_BAD_RESP_ERR => "the peer's answer makes no sense",
            abi::IBV_WC_LOC_ACCESS_ERR => "local memory may not be written",
            abi::IBV_WC_REM_INV_REQ_ERR => "the peer refused the request as invalid",
            abi::IBV_WC_REM_ACCESS_ERR => "the peer refused the access to its memory",
            abi::IBV_WC_REM_OP_ERR => "the peer could not do what was asked",
            abi::IBV_WC_RETRY_EXC_ERR => "the peer does not answer",
            abi::IBV_WC_RNR_RETRY_EXC_ERR => "the peer has no receive buffers",
            abi::IBV_WC_FATAL_ERR => "the device failed",
            abi::IBV_WC_RESP_TIMEOUT_ERR => "the peer's answer took too long",
            _ => "an error of the device",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (status {})", self.words(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
