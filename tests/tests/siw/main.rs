//! Our iWARP (`sluice_protocol::iwarp`) and Linux's software iWARP (siw), which runs in an emulated
//! machine: rdma-core's rping is the client and the server of ours, and checks every byte.
//!
//! `tests/guest/siw` builds the module for the guest's kernel; `scripts/setup test` calls it.

#[path = "../../../crates/verbs/protocol/tests/iwarp/socket.rs"]
mod socket;
mod transport;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_protocol::iwarp::Failure;
use sluice_protocol::{Operation, Remote};
use sluice_tests::guest::stranger::{self, Borrowed};
use sluice_tests::job::{Job, command, wait_until};
use sluice_tests::suite::{self, Problem, Verdict, ensure, fail, skip, trial};
use sluice_wire::iwarp::Cause;
use sluice_wire::iwarp::terminate::TaggedError;
use socket::{Driver, wishes};

/// For one program in an emulated machine.
const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 7174;
const ROUNDS: usize = 10;
/// Bytes: in one frame, and in several.
const SIZES: [usize; 2] = [64, 9000];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for family in [4, 6] {
        for crc in [false, true] {
            let how = format!("ipv{family}/crc-{}", if crc { "on" } else { "off" });
            let name = format!("siw-serves/{how}");
            trials.push(row(name, move || siw_serves(family, crc)));
            let name = format!("siw-asks/{how}");
            trials.push(row(name, move || siw_asks(family, crc)));
        }
    }
    trials.extend(transport::trials());
    trials.push(row("siw-refuses-a-wrong-key".into(), refusal));
    let trials = suite::usual(trials, |name| {
        !name.contains("/ib_") || transport::USUAL_TOOLS.contains(&name)
    });
    let conclusion = suite::run(trials, 1);
    stranger::dismiss();
    conclusion.exit_code()
}

/// What the guest's kernel says when siw tells it that a connection has ended before it has said that it
/// began (`cm_close_handler`), which can be a race of siw with its own reply. Its connection manager stands
/// still from then on.
const STOPPED: &str = "kernel BUG at drivers/infiniband/core/iwcm.c";

/// The guest has siw.
static LOADED: AtomicBool = AtomicBool::new(false);

/// Guests of a row whose kernel stops.
const GUESTS_MAX: usize = 3;

/// A row that is run again with a new guest if, and only if, the guest's kernel itself says that it has stopped.
fn row(name: String, run: impl Fn() -> Verdict + Send + 'static) -> Trial {
    trial(name, move || {
        let mut guest = 1;
        loop {
            let verdict = run();
            let failed = matches!(verdict, Err(Problem::Failed(_)));
            if !failed || guest == GUESTS_MAX || !borrow()?.guest.console().contains(STOPPED) {
                return verdict;
            }
            println!("the guest's kernel has stopped by itself: {STOPPED}; with a new guest");
            stranger::dismiss();
            LOADED.store(false, Ordering::Relaxed);
            guest += 1;
        }
    })
}

/// The guest, with siw in the place of rxe.
fn borrow() -> Verdict<Borrowed> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/siw");
    let told = command(script).arg("--folder").output()?;
    let folder = PathBuf::from(String::from_utf8_lossy(&told.stdout).trim_end());
    if !folder.join("stamp").is_file() {
        return skip(format!(
            "no siw for the guest in {}; scripts/setup test",
            folder.display()
        ));
    }
    let lab = stranger::borrow()?;
    if !LOADED.load(Ordering::Relaxed) {
        let folder = folder.display();
        lab.guest.shell(
            &lab.host,
            &format!(
                "for module in {folder}/*.ko; do insmod $module; done
                 rdma link del rxe0
                 rdma link add siw0 type siw netdev eth0"
            ),
        )?;
        LOADED.store(true, Ordering::Relaxed);
    }
    Ok(lab)
}

fn in_guest(lab: &Borrowed, program: &str, arguments: &[&str]) -> Verdict<Job> {
    let mut command = lab.guest.command(&lab.host, program);
    command.args(arguments);
    Job::start(command, lab.path(), &format!("{program} in the guest"))
}

/// rping's server in the guest, and a connection to it.
fn server(lab: &Borrowed, family: u8, size: usize) -> Verdict<(Job, TcpStream)> {
    let any = if family == 6 { "::" } else { "0.0.0.0" };
    let port = PORT.to_string();
    let size = size.to_string();
    let arguments = ["-s", "-V", "-a", any, "-p", &port, "-S", &size];
    let mut server = in_guest(lab, "rping", &arguments)?;
    lab.guest
        .await_rdma_listener(&lab.host, &mut server, PORT, LIMIT)?;
    let address = SocketAddr::new(lab.guest.address(family), PORT);
    let tcp = lab.host.inside(|| TcpStream::connect(address))?;
    Ok((server, tcp))
}

fn siw_serves(family: u8, crc: bool) -> Verdict {
    let lab = borrow()?;
    for size in SIZES {
        let (server, tcp) = server(&lab, family, size)?;
        let mut driver = Driver::connect(tcp, &wishes(crc), 2 * size)?;
        if let Err(error) = socket::ping(&mut driver, ROUNDS, size) {
            return fail(format!(
                "{size} bytes: {error}\n{}\n{}",
                server.describe(),
                lab.guest.console()
            ));
        }
        drop(driver);
        // It ends with an error of its own when the client has gone.
        server.finish(LIMIT)?;
    }
    Ok(())
}

fn siw_asks(family: u8, crc: bool) -> Verdict {
    let lab = borrow()?;
    for size in SIZES {
        let here: IpAddr = match family {
            6 => lab.host.v6().into(),
            _ => lab.host.v4().into(),
        };
        let listener = lab.host.inside(|| TcpListener::bind((here, PORT)))?;
        let rounds = ROUNDS.to_string();
        let (port, size, here) = (PORT.to_string(), size.to_string(), here.to_string());
        let mut client = in_guest(
            &lab,
            "rping",
            &[
                "-c", "-V", "-a", &here, "-p", &port, "-S", &size, "-C", &rounds,
            ],
        )?;
        let served = accept(&listener, &mut client)
            .and_then(|tcp| Driver::accept(tcp, &wishes(crc), 0))
            .and_then(socket::serve);
        let outcome = client.finish(LIMIT)?;
        match served {
            Ok(times) => ensure(times == ROUNDS, || format!("{times} times"))?,
            Err(error) => {
                return fail(format!(
                    "{size} bytes: {error}\n{}\n{}",
                    outcome.describe(),
                    lab.guest.console()
                ));
            }
        }
        outcome.success()?;
    }
    Ok(())
}

/// The client's connection, unless it has ended without one: it is an emulated machine's, and may never come.
fn accept(listener: &TcpListener, client: &mut Job) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let mut came = None;
    wait_until(LIMIT, || {
        match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => came = Some(other),
        }
        Ok(came.is_some() || client.poll()?.is_some())
    })?;
    let nobody = || Err(io::Error::other("no connection came"));
    let (tcp, _) = came.unwrap_or_else(nobody)?;
    tcp.set_nonblocking(false)?;
    Ok(tcp)
}

/// siw gives the stream up, and says why.
fn refusal() -> Verdict {
    let lab = borrow()?;
    let (server, tcp) = server(&lab, 4, 64)?;
    let mut driver = Driver::connect(tcp, &wishes(true), 0)?;
    let nowhere = Remote {
        address: 0x1000,
        rkey: 0x0bad_0bad,
    };
    // A READ of nothing, for which no key is looked at. Without an answer siw may find what is wrong before it has told
    // the connection manager of the connection, for whose end that is not ready then (STOPPED).
    let read = driver.post(Operation::Read(nowhere), vec![])?;
    driver.wait(read)?;
    driver.post(Operation::Write(nowhere), vec![7; 100])?;
    let orderly = driver.finish(false);
    let told = match driver.connection.failure() {
        Some(Failure::Peer(message)) => Some(message.cause),
        _ => None,
    };
    drop(driver);
    let wanted = Cause::Tagged(TaggedError::InvalidStag);
    ensure(told == Some(wanted) && matches!(orderly, Ok(false)), || {
        format!("{told:?}, {orderly:?}\n{}", lab.guest.console())
    })?;
    // It ends by itself most times; siw does not always tell it.
    server.stop(LIMIT)?;
    Ok(())
}
