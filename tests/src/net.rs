//! Ports chosen by the kernel, and waiting for a server to listen.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::hosts::ports::{Protocol, listens};
use crate::job::Job;
use crate::suite::Verdict;

/// A TCP port that was free a moment ago. Programs that cannot choose one
/// themselves and report it need it; the kernel hands out ephemeral ports in
/// random order, so that two tests getting the same one is unlikely.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

/// Waits until something accepts connections on the address; fails at once when
/// the server that should do so has ended.
pub fn await_listener(server: &mut Job, port: u16, limit: Duration) -> Verdict {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    server.await_ready(limit, "listener", || {
        TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
    })
}

/// Whether somebody listens on the port. A connection would be taken for the client's.
pub fn is_listening(port: u16) -> bool {
    Protocol::Tcp.tables().iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/net/{table}"));
        text.is_ok_and(|text| listens(&text, Protocol::Tcp, port))
    })
}
