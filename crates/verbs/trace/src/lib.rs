//! Capture files of what goes between queue pairs.
//!
//! A transport says what it does in terms of messages ([`Kind`]) and hands over copies of their
//! bytes; a [`Recorder`] keeps them in a bounded buffer, and its one [`Writer`] makes RoCEv2
//! packets of them and writes a file that Wireshark reads. Segmentation, headers and checksums
//! are the writer's work, so that a queue pair pays for a copy and a short lock and never waits
//! for a disk: what finds the buffer full is dropped and counted.
//!
//! A transport that has packets of its own hands over those ([`Recorder::record_packet`]), and one on
//! the kernel's TCP what it gives to that and gets of it ([`Conversation`]).
#![warn(missing_docs)]

mod around;
mod file;
mod flow;
mod packets;
mod process;
mod recorder;
mod stream;

pub use around::Around;
pub use file::{OpenError, open};
pub use flow::{End, Flow, mac};
pub use packets::{Ending, Kind};
pub use process::{VARIABLE, of_process};
pub use recorder::{BUFFER_BYTES, Message, Recorder, Summary, Writer};
pub use stream::Conversation;

pub use sluice_wire::capture::Direction;
pub use sluice_wire::extended::{NakCode, RnrTimer, Syndrome};
pub use sluice_wire::opcode::Service;
pub use sluice_wire::{Mtu, Psn};
