//! Netlink (netlink(7)): sockets, and what every protocol over them has in common.

mod message;
mod socket;

pub use message::{
    HEADER, Message, Request, attributes, failure, messages, next_message, u16_at, u32_at,
};
pub use socket::{open, receive, send};
