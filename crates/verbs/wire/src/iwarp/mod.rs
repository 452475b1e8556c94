//! Formats of RDMA over TCP (iWARP), as bytes and as values.
//!
//! ```text
//! TCP stream:  MPA request | reply, then FPDUs
//! FPDU:        length  ULPDU  pad  CRC
//! ULPDU:       DDP and RDMAP header (tagged or untagged)  payload
//! ```
//!
//! | module | formats | source |
//! |---|---|---|
//! | [`startup`] | the frames that begin a connection | RFC 5044 §7.1.1, RFC 6581 |
//! | [`fpdu`] | framing, padding, CRC32C | RFC 5044 §4 |
//! | [`segment`] | the headers of DDP and RDMAP, which are one | RFC 5041 §4, RFC 5040 §4 |
//! | [`message`] | what READ requests, atomics and immediate data carry | RFC 5040 §4.4, RFC 7306 |
//! | [`terminate`] | why a stream is given up | RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8 |
//!
//! As with RoCEv2's formats ([`crate`]) there are views and values, reserved bits are sent as zero
//! and not looked at, and nothing panics, allocates or keeps state. There are no markers: an end
//! that wants them is refused, as Linux's siw does.

mod error;
pub mod fpdu;
pub mod fuzz;
pub mod message;
pub mod segment;
pub mod startup;
pub mod terminate;

pub use error::{Error, Result};
pub use segment::{Header, Kind, Segment, Tagged, Untagged};
pub use startup::{Enhanced, Revision, Role, Startup};
pub use terminate::{Cause, Terminate};
