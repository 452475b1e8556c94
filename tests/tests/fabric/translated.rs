//! Connections between two hosts whose addresses one of them translates, or whose devices differ, beside old sockets
//! with the same addresses (the attack N4 of issue 46). Both ends are this process, which tells the daemons of them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::net::{AddressFamily, SocketType, sockopt};
use sluice_control::client::Client;
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_sys::unix;
use sluice_tests::hosts::Side::{self, Left, Right};
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

use crate::common::{Program, next};
use crate::hosts::Two;
use crate::programs::WAYS;

/// The server's host sends what comes to the first one to the second one.
const PORT: u16 = 6400;
const BEHIND: u16 = 6401;
/// The client's.
const FROM: u16 = 40_000;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("translated/redirected", || stolen(How::Redirected)),
        trial("translated/other-device", || stolen(How::OtherDevice)),
    ]
}

/// How the client's connection comes to another socket than the thief's, although that has its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// By a rule that is made after the thief's.
    Redirected,
    /// The thief's is bound to another device than the server's.
    OtherDevice,
}

/// The thief has a connection from the server's port, whose other end he has removed without a word; then the client
/// connects from where that was.
fn stolen(how: How) -> Verdict {
    if how == How::Redirected && Command::new("nft").arg("--version").output().is_err() {
        return skip("nft is missing (nftables)");
    }
    let two = WAYS[0].set_up()?;
    two.await_links()?;
    let program = |side, name| Program::introduce_as(connect_to(&two, side), name);
    let (thief, server, client) = (
        program(Left, "thief"),
        program(Left, "server"),
        program(Right, "client"),
    );
    let at = |side, port| SocketAddr::new(two.address(side), port);
    let (served, from) = (at(Left, PORT), at(Right, FROM));

    let listener = two.host(Right).inside(|| TcpListener::bind(from))?;
    let old = two.host(Left).inside(|| connect(served, from))?;
    let (far, _) = listener.accept()?;
    drop(listener);
    if how == How::OtherDevice {
        bind_to(&old, "lo")?;
    }
    thief.announce(1, &old);
    thief.settle();
    bind_to(&far, "lo")?;
    sockopt::set_socket_linger(&far, Some(Duration::ZERO)).map_err(io::Error::from)?;
    drop(far);

    let behind = match how {
        How::Redirected => {
            redirect(&two)?;
            at(Left, BEHIND)
        }
        How::OtherDevice => served,
    };
    let listener = two.host(Left).inside(|| TcpListener::bind(behind))?;
    if how == How::OtherDevice {
        bind_to(&listener, two.host(Left).device())?;
    }
    let connected = two.host(Right).inside(|| connect(from, served))?;
    let (accepted, _) = listener.accept()?;
    client.announce(1, &connected);
    // The answer comes when both daemons have heard everything.
    let ask = ToDaemon::AskPeer {
        end: 1,
        generation: 1,
    };
    client.client.send(&ask, &[]).map_err(io::Error::other)?;
    let (answer, _) = next(&client.client);
    let FromDaemon::NoPeer { end: 1, .. } = answer else {
        return fail(format!(
            "the client was told {answer:?}\n{}",
            two.describe()
        ));
    };
    thief.settle();
    if how == How::OtherDevice {
        // Its own other end may come late.
        client.announce(1, &connected);
        server.announce(1, &accepted);
        client.lane();
        server.lane();
        thief.settle();
    }

    // A connection without a rule beside it has its lane.
    let connected = two
        .host(Right)
        .inside(|| connect(at(Right, FROM + 1), behind))?;
    let (accepted, _) = listener.accept()?;
    client.announce(2, &connected);
    server.announce(2, &accepted);
    let ends = [client.lane().0.end, server.lane().0.end];
    ensure(ends == [2, 2], || format!("lanes of {ends:?}"))?;
    thief.settle();
    Ok(())
}

fn connect_to(two: &Two, side: Side) -> Client {
    Client::connect(two.socket(side).as_os_str().as_bytes()).expect("the daemon answers")
}

fn redirect(two: &Two) -> Verdict {
    let rule = format!(
        "add table ip n; add chain ip n p {{ type nat hook prerouting priority -100; }};
         add rule ip n p tcp dport {PORT} redirect to :{BEHIND}"
    );
    let nft = || Command::new("nft").arg(&rule).output();
    let output = two.host(Left).inside(nft)?;
    ensure(output.status.success(), || {
        format!("nft: {}", String::from_utf8_lossy(&output.stderr))
    })
}

fn connect(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &from)?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

fn bind_to(socket: &impl AsRawFd, device: &str) -> Verdict {
    let mut name = [0_u8; libc::IFNAMSIZ];
    name[..device.len()].copy_from_slice(device.as_bytes());
    let fd = socket.as_raw_fd();
    unix::set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &name)
        .map_err(io::Error::from)?;
    Ok(())
}
