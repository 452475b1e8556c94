//! What there is to tell.

use crate::link::LinkId;
use crate::status::Status;

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The peer's device has acknowledged the request with this id: the bytes of a write are in its
    /// memory. Those of one link come in the order in which they were posted.
    Done { link: LinkId, id: u64 },
    /// The request with this id did not happen, or nobody knows whether it did. All later ones of
    /// the link fail as well.
    Failed {
        link: LinkId,
        id: u64,
        status: Status,
    },
    /// The peer has written so many bytes into this node's memory, and gave this number.
    Arrived {
        link: LinkId,
        number: u32,
        bytes: u32,
    },
    /// The peer has sent a message. The bytes are gone after the call.
    Message { link: LinkId, bytes: &'a [u8] },
    /// The link has failed, and every request of it has come back. The last event of a link; it can
    /// only be destroyed.
    Broken { link: LinkId, status: Status },
    /// Something about the device has changed.
    Device(DeviceEvents),
}

/// What has happened to the device since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceEvents {
    /// It is gone or broken. The node can only be dropped.
    pub gone: bool,
    /// A port went down; links fail when their peers do not answer for long enough.
    pub port_down: bool,
    /// A port came up.
    pub port_up: bool,
    /// A port has other addresses than before.
    pub addresses: bool,
}
