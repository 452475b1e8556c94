//! The connection manager's way to other hosts: messages of IBTA chapter 12 with the IP header of
//! annex A11, as management datagrams between queue pairs 1.
//!
//! [`machine`] is the protocol, without I/O and with the time as an argument: datagrams and the
//! agent's messages go in, datagrams and messages come out. `connection` is one connection of it,
//! `resend` what is sent again until it is answered, `format` the fields, `times` how long all of it
//! may take. [`port`] joins a machine with a device's queue pair 1, and [`connector`] is the way that
//! the agent takes. It sees none of the wire: a connection takes and gives the messages that
//! processes of one host exchange.

mod connection;
pub mod connector;
pub mod format;
#[cfg(any(test, feature = "testing"))]
pub mod loopback;
pub mod machine;
pub mod port;
mod resend;
#[cfg(test)]
mod tests;
mod times;

use sluice_verbs::transport::MadPath;

/// The way back of a datagram that came.
fn reversed(path: &MadPath) -> MadPath {
    MadPath {
        source: path.destination,
        destination: path.source,
        interface: path.interface,
    }
}
