//! Names of numbers, for people. Static strings; a number without a name gets `unknown`.

use std::ffi::{CStr, c_char, c_int};

fn name(names: &[&'static CStr], number: c_int) -> *const c_char {
    usize::try_from(number)
        .ok()
        .and_then(|index| names.get(index))
        .unwrap_or(&c"unknown")
        .as_ptr()
}

pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    name(
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ],
        node_type,
    )
}

pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    name(
        &[
            c"PORT_NOP",
            c"PORT_DOWN",
            c"PORT_INIT",
            c"PORT_ARMED",
            c"PORT_ACTIVE",
            c"PORT_ACTIVE_DEFER",
        ],
        state,
    )
}

pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    name(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
        ],
        event,
    )
}

pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    name(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"TM error",
            c"TM software rendezvous",
        ],
        status,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: the functions return static strings.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn first_last_and_unknown_numbers() {
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_port_state_str(4)), "PORT_ACTIVE");
        assert_eq!(text(ibv_event_type_str(19)), "WQ fatal");
        assert_eq!(text(ibv_event_type_str(20)), "unknown");
        assert_eq!(
            text(ibv_wc_status_str(12)),
            "transport retry counter exceeded"
        );
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
    }
}
