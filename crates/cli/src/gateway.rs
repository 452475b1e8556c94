//! `sluice gateway`: serves as one, and takes nodes out of service.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_control::client::Client;
use sluice_control::message::gateway::{Ask, Name, Tell};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_gateway::{Options, Server};
use sluice_sys::capability::{Capability, keep_only};

use crate::args::{GatewayArgs, GatewayCommand, LogLevel};
use crate::error::Outcome;
use crate::error::{Failure, reason};
use crate::exec::Image;
use crate::launch::{Environment, set_variable, variable};
use crate::terminal::print;
use crate::{daemon, locate, log};

/// Serves until it is told to end, or asks the daemon for something.
pub fn run(args: &GatewayArgs) -> Outcome {
    let socket = daemon::socket_path(args.socket.as_deref())?;
    match &args.command {
        Some(GatewayCommand::Drain { node }) => drain(&socket, node, true),
        Some(GatewayCommand::Resume { node }) => drain(&socket, node, false),
        None if args.serve => serve(args, &socket),
        None => Err(become_accelerated(args, &socket)),
    }
}

/// The gateway's connections to nodes are to get lanes as those of any program: it becomes itself
/// with the library loaded.
fn become_accelerated(args: &GatewayArgs, socket: &Path) -> Failure {
    let library = match locate::library() {
        Ok(library) => library,
        Err(failure) => return failure,
    };
    let cannot = |error: &io::Error| {
        Failure::new(
            format!("cannot start the gateway: {}", reason(error)),
            "check the permissions of the sluice program",
        )
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return cannot(&error),
    };
    let mut environment: Environment = std::env::vars_os().collect();
    let present = variable(&environment, "LD_PRELOAD");
    let preload = locate::preload_value(&library, present.as_deref());
    set_variable(&mut environment, "LD_PRELOAD", preload);
    set_variable(&mut environment, "SLUICE_SOCKET", socket.into());
    // It is not served by a gateway itself.
    environment.retain(|(name, _)| name != "SLUICE_GATEWAY");
    let mut command: Vec<OsString> = vec![program.into(), "gateway".into(), "--serve".into()];
    command.extend(["--socket".into(), socket.into()]);
    if let Some(level) = args.log {
        command.extend(["--log".into(), level.name().into()]);
    }
    match Image::new(&command, &environment) {
        Ok(image) => cannot(&image.exec()),
        Err(error) => cannot(&error),
    }
}

fn serve(args: &GatewayArgs, socket: &Path) -> Outcome {
    let system = |error: io::Error| {
        Failure::new(
            format!("the gateway cannot serve: {}", reason(&error)),
            "check the limits of this process",
        )
    };
    crate::exec::ignore_broken_pipes();
    log::start(args.log.unwrap_or(LogLevel::Warn));
    // Two descriptors for each client.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Where a sandbox refuses, the soft limit is what there is.
    let _ = setrlimit(Resource::Nofile, raised);
    let (stop, signalled) = UnixStream::pair().map_err(system)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let copy = signalled.try_clone().map_err(system)?;
        signal_hook::low_level::pipe::register(signal, copy).map_err(system)?;
    }
    give_up_privileges(socket).map_err(system)?;
    // Who starts it may not read what it says.
    let ready = || drop(print("the gateway is ready\n"));
    let outcome = Server::new(Options::new(socket.to_owned()))
        .and_then(|server| server.run(stop.as_fd(), ready));
    match outcome {
        Ok(()) => Ok(0),
        Err(error) => Err(Failure::new(
            format!("the gateway cannot serve: {error}"),
            "see 'sluice up --config FILE --check' and the log of sluiced",
        )),
    }
}

/// This process talks to strangers: of root's rights it keeps that to open ports below 1024, and where the
/// daemon is another user's that to reach its socket, as often as it is started again.
fn give_up_privileges(socket: &Path) -> io::Result<()> {
    let mut keep = Capability::NetBindService.bit();
    // Root's own files and what everybody may use needs no right.
    let is_ours = |path: &Path, everybody: u32| {
        let own = rustix::process::geteuid().as_raw();
        fs::metadata(path).is_ok_and(|it| it.uid() == own || it.mode() & everybody == everybody)
    };
    let directories = socket.ancestors().skip(1);
    let mut directories = directories.filter(|it| !it.as_os_str().is_empty());
    if !is_ours(socket, 0o002) || !directories.all(|it| is_ours(it, 0o001)) {
        keep |= Capability::DacOverride.bit();
    }
    keep_only(keep).map_err(|error| io::Error::from_raw_os_error(error.0))?;
    Ok(())
}

fn drain(socket: &Path, node: &str, is_drained: bool) -> Outcome {
    let unknown = || {
        Failure::new(
            format!("there is no node {node:?}"),
            "write its name as [[gateway.node]] in the daemon's configuration has it",
        )
    };
    let name = Name::new(node.as_bytes()).ok_or_else(unknown)?;
    let failed = |text: String| Failure::new(text, "see whether the gateway's daemon runs");
    let client = Client::connect(socket.as_os_str().as_bytes());
    let client = client.map_err(|error| {
        failed(format!(
            "no daemon answers on {}: {error}",
            socket.display()
        ))
    })?;
    let ask = ToDaemon::Gateway(Ask::Drain {
        node: name,
        is_drained,
    });
    let sent = client.send(&ask, &[]);
    sent.map_err(|error| failed(format!("the daemon cannot be asked: {error}")))?;
    let answer = client.receive_until(Instant::now() + daemon::ANSWER_TIMEOUT);
    let (answer, _) = answer.map_err(|error| failed(error.to_string()))?;
    match answer {
        FromDaemon::Gateway(Tell::Done { errno: 0 }) => {
            let state = if is_drained {
                "gets no new connections"
            } else {
                "gets connections"
            };
            print(&format!("{node} {state}\n"))?;
            Ok(0)
        }
        FromDaemon::Gateway(Tell::Done { errno }) => Err(match i32::from(errno) {
            libc::ENOENT => unknown(),
            libc::EPERM => Failure::new(
                "only root and the daemon's own user may do that",
                "use sudo",
            ),
            _ => Failure::new(
                "this host is no gateway",
                "write [gateway] in its daemon's configuration",
            ),
        }),
        _ => Err(failed(
            "the daemon gave an answer that makes no sense".to_owned(),
        )),
    }
}
