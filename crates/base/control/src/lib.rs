//! The protocol between programs, sluiced and the command line.
//!
//! Messages travel over a Unix `SOCK_SEQPACKET` socket, one message a packet, with descriptors
//! beside them. [`message`] has the format, [`client`] the program's end of it, [`paths`] the
//! place of the socket, [`files`] of the installation's other files, [`ports`] how users name
//! ports, and [`preface`] what a gateway says first on a connection that it makes for a client.
//! Codec and [`client::Client`] neither allocate nor block: they run inside the hooks of the
//! preload library.
#![forbid(unsafe_code)]

pub mod client;
pub mod files;
pub mod message;
pub mod paths;
pub mod ports;
pub mod preface;
