//! Asynchronous events as the program gets them.

use crate::types::EventType;

/// What an event is about; the number is the object's cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    Cq(u64),
    Qp(u64),
    Srq(u64),
    Port(u8),
    Device,
}

/// `ibv_async_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    pub event: EventType,
    pub element: Element,
}
