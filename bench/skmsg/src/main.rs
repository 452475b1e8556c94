//! A TCP proxy between two hosts that takes programs' bytes by SK_MSG, so that `sluice bench fabric`
//! can compare with it: no part of Sluice.
//!
//! ```text
//! program ─write─► SK_MSG ─► socket of proxy ─read, write─► TCP ─► proxy ─write─► SK_MSG ─► program
//! ```
//!
//! It is built as proxies of this kind are, with what the benchmark needs and nothing else: a pool of
//! sockets that the kernel's program gives to connections, and one TCP connection between the two
//! proxies for all of them. Sockets are not given back, and the end of a connection goes by the
//! connection itself, ahead of what is still in queues: programs have to agree on their last byte.

mod carry;
mod steering;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Carries the connections of the programs in a cgroup to another one of these
#[derive(Debug, Parser)]
struct Arguments {
    /// The programs' cgroup, of version 2
    #[arg(long)]
    cgroup: PathBuf,

    /// Waits for the other one here
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "connect")]
    listen: Option<SocketAddr>,

    /// Where the other one waits
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "listen")]
    connect: Option<SocketAddr>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sluice-skmsg: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns when the other proxy has ended.
fn run(arguments: &Arguments) -> io::Result<()> {
    let steering = steering::Steering::start(&arguments.cgroup)?;
    let link = match (arguments.listen, arguments.connect) {
        (Some(at), _) => {
            let listener = TcpListener::bind(at)?;
            say("listening")?;
            listener.accept()?.0
        }
        (None, Some(to)) => TcpStream::connect(to)?,
        (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    link.set_nodelay(true)?;
    say("up")?;
    carry::run(steering, link)
}

/// For whoever started it.
fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{line}")?;
    output.flush()
}
