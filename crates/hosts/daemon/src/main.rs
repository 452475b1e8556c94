//! The sluiced command.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};
use sluice_control::{files, paths};
use sluice_daemon::Prover;
use sluice_daemon::capture::{self, Capture};
use sluice_daemon::config::{Config, LANES_MAX_DEFAULT, Limits};
use sluice_daemon::fabric::finding::Finding;
use sluice_daemon::fabric::{self, Fabric};
use sluice_daemon::listener::{ListenError, Listener};
use sluice_daemon::log_file::LogFile;
use sluice_daemon::log_share::LogShares;
use sluice_daemon::notify::Manager;
use sluice_daemon::options::Options;
use sluice_daemon::privileges::{self, Needs};
use sluice_daemon::receiver;
use sluice_daemon::server::Server;
use sluice_daemon::shares::SHARE_PERCENT_DEFAULT;
use sluice_shmem::geometry::{Geometry, RING_BYTES_DEFAULT};
use sluice_sys::capability::keep_only;
use sluice_sys::errno::Errno;
use sluice_sys::unix::close_all_from;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Matches the two ends of TCP connections between programs under sluice and gives them shared
/// memory.
#[derive(Debug, Parser)]
#[command(name = "sluiced", version)]
struct Arguments {
    /// Where to listen [default: as `sluice run` chooses it]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// End when no program has been connected for so long
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,

    /// Size of each of a connection's two rings, a power of two
    #[arg(long, value_name = "BYTES", env = "SLUICE_RING_BYTES", default_value_t = RING_BYTES_DEFAULT, value_parser = ring_bytes)]
    ring_bytes: u32,

    /// Most connections with a lane at a time
    #[arg(long, value_name = "COUNT", default_value_t = LANES_MAX_DEFAULT)]
    max_lanes: u32,

    /// Peers on other hosts, and which connections get a lane to them (sluiced.toml(5))
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics; a PORT alone is one of
    /// 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = sluice_peering::config::metrics_address)]
    metrics: Option<SocketAddr>,

    /// Serve all users of this machine (for a sluiced of root)
    #[arg(long)]
    allow_all_users: bool,

    /// Do not compare connections of several network namespaces (such stay on TCP), and give up the
    /// capabilities that this takes
    #[arg(long)]
    one_namespace: bool,

    /// Percent of the programs, lanes and memory that one user other than root may have, where
    /// all users are served
    #[arg(long, value_name = "PERCENT", default_value_t = SHARE_PERCENT_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=100))]
    user_share: u32,

    /// Stay in the foreground (the default)
    #[arg(long, conflicts_with = "daemonize")]
    foreground: bool,

    /// Return as soon as programs can connect, and go on in the background
    #[arg(long)]
    daemonize: bool,

    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: String,

    /// How to log: lines of text, or a JSON object on each line, with a field for each fact
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// Where to log to instead of standard error, which is closed with --daemonize. When the file is renamed, the next line goes
    /// to a new one
    #[arg(long, value_name = "PATH")]
    log_file: Option<PathBuf>,

    /// Put bytes on rings between hosts whether that pays or not, for tests
    #[arg(long, hide = true, requires = "config")]
    eager: bool,

    /// Be the process that captured connections go through, for the sluiced at standard input
    #[arg(long, hide = true, requires = "config")]
    capture_relay: bool,

    /// Print the source of the manual page, for `sluice man`
    #[arg(long, hide = true)]
    man_page: bool,

    /// Be a process that receives what programs send, for the sluiced at standard input
    #[arg(long, hide = true)]
    receive_for_sluiced: bool,

    /// Set by --daemonize for the process in the background
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn absolute(path: Option<PathBuf>) -> io::Result<Option<PathBuf>> {
    path.map(std::path::absolute).transpose()
}

fn ring_bytes(text: &str) -> Result<u32, String> {
    let bytes = text
        .parse()
        .map_err(|_| format!("{text} is not a number"))?;
    match Geometry::new(1, bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Our libibverbs, below the folder of the installation.
const VERBS_LIBRARY: &str = "verbs/libibverbs.so.1";

/// How long the library steers packets past the kernel after a burst (`demand.rs` of transport-roce).
const STEER_VARIABLE: &str = "SLUICE_VERBS_STEER_MS";
const STEER_MS: &str = "20";

/// What the process in the background prints when programs can connect.
const READY: &str = "ready";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A log that has reached its limit is an error of a write, and not the end.
    sluice_sys::process::ignore(libc::SIGXFSZ);
    let outcome = if arguments.man_page {
        man_page().map(|()| ExitCode::SUCCESS)
    } else if arguments.receive_for_sluiced {
        receive().map(|()| ExitCode::SUCCESS)
    } else if arguments.capture_relay {
        relay(arguments).map(|()| ExitCode::SUCCESS)
    } else if arguments.daemonize {
        daemonize()
    } else {
        serve(arguments).map(|()| ExitCode::SUCCESS)
    };
    match outcome {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sluiced: {error}");
            match error.downcast_ref() {
                Some(ListenError::Taken(_)) => ExitCode::from(files::DAEMON_EXIT_TAKEN),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn man_page() -> Outcome {
    let page = clap_mangen::Man::new(Arguments::command())
        .section("8")
        .manual("Sluice")
        .source(concat!("sluice ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    text.extend_from_slice(MAN_PAGE_REST.as_bytes());
    io::stdout().write_all(&text)?;
    Ok(())
}

/// What no option says.
const MAN_PAGE_REST: &str = "\
.SH SIGNALS
.TP
SIGTERM, SIGINT
End. Connections keep the lanes that they have on this host.
.TP
SIGHUP
Read the file of --config and the keys again.
.SH \"EXIT STATUS\"
0 after a signal, `sluice down` or --idle-exit; 75 if another sluiced serves the socket; 1 if it cannot start for another
reason. Standard error says why.
.SH \"SEE ALSO\"
sluiced.toml(5), sluice\\-up(1), sluice\\-status(1), sluice\\-doctor(1)
";

/// Starts this program again in the background and waits until it listens.
///
/// A second start instead of a fork: no state of this process can leak into the daemon.
fn daemonize() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments = std::env::args_os().skip(1);
    let mut daemon = Command::new(std::env::current_exe()?);
    daemon
        .args(arguments.filter(|argument| argument != "--daemonize"))
        .arg("--detached")
        // It may have been started by a program that runs under sluice.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // SAFETY: setsid may be called between fork and exec, and takes nothing. A forked child does not lead a process
    // group, so setsid cannot fail.
    unsafe {
        daemon.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
    }
    let mut child = daemon.spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    if let Some(code) = status.code() {
        // It has said why on standard error.
        return Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from));
    }
    Err(format!("could not start in the background ({status})").into())
}

fn serve(arguments: Arguments) -> Outcome {
    if arguments.detached {
        // Whoever waits for the end of a pipe of the starting program must not wait for us.
        close_all_from(3)?;
    }
    let peering = match &arguments.config {
        Some(path) => Some(sluice_peering::config::Config::load(path)?),
        None => None,
    };
    let manager = Manager::new(std::env::var_os("NOTIFY_SOCKET"));
    // SAFETY: no thread was started yet.
    unsafe {
        // Not for what sluiced starts.
        std::env::remove_var("NOTIFY_SOCKET");
        if let Some(config) = &peering {
            fabric::device_choice(config.device.as_ref()).set_environment();
            // Most bursts are A/B tests whether rings pay, and the programs that sluiced serves use the same
            // devices with TCP.
            if std::env::var_os(STEER_VARIABLE).is_none() {
                std::env::set_var(STEER_VARIABLE, STEER_MS);
            }
        }
    }
    start_log(&arguments)?;
    let socket = match arguments.socket {
        Some(socket) => std::path::absolute(socket)?,
        None => {
            let place = paths::control_socket()?;
            if let Some(warning) = place.warning() {
                tracing::warn!("{warning}");
            }
            place.socket
        }
    };
    let (stop, signalled) = UnixStream::pair()?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    let (reload, signalled) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(libc::SIGHUP, signalled)?;
    let config = Config {
        socket,
        idle_exit: arguments.idle_exit.map(Duration::from_secs),
        ring_bytes: arguments.ring_bytes,
        lanes_max: arguments.max_lanes,
        allow_all_users: arguments.allow_all_users,
        one_namespace: arguments.one_namespace,
        user_share: arguments.user_share,
    };
    let limits = Limits::of_this_process()?;
    let listener = Listener::bind(&config.socket, config.allow_all_users)?;
    // With capabilities that are needed for no more than this.
    let prover = Prover::new(config.one_namespace, !config.allow_all_users);
    let finding = match &peering {
        Some(peering) if peering.discovery.option => {
            let identity = sluice_peering::Identity::load(peering)?;
            Some(Finding::start(peering, &identity))
        }
        _ => None,
    };
    // Before there are threads, each of which would keep what it has.
    let keep = privileges::needed(&Needs {
        socket: Some(&config.socket),
        fabric: peering.as_ref().map(|peering| peering.device.as_ref()),
        namespaces: !config.one_namespace,
        capture: peering
            .as_ref()
            .is_some_and(sluice_peering::config::Config::captures),
    });
    match keep_only(keep) {
        Ok(left) => tracing::debug!("capabilities that are left: {left:#x}"),
        // A sandbox forbids to ask, and has its own limits.
        Err(Errno(code)) => {
            let error = io::Error::from_raw_os_error(code);
            tracing::warn!(reason = %error, "capabilities cannot be given up: {error}");
        }
    }
    let named = peering.as_ref().and_then(|peering| peering.metrics);
    let metrics = arguments.metrics.or(named);
    let fabric = match peering {
        Some(peering) => {
            let choice = peering.capture.clone();
            let mut fabric = start_fabric(peering, &config, arguments.eager)?;
            if let Some(finding) = finding {
                fabric.set_finding(finding);
            }
            if let Some(remark) = fabric.left_to_tcp() {
                tracing::warn!("{remark}");
            } else if let (Some(choice), Some(file)) = (choice, &arguments.config) {
                let start = capture::Start {
                    config: std::path::absolute(file)?,
                    socket: config.socket.clone(),
                    arguments: log_arguments(
                        &arguments.log,
                        arguments.log_format,
                        arguments.log_file.as_deref(),
                    )?,
                    is_detached: arguments.detached,
                };
                fabric.set_capture(Capture::new(start, choice)?);
            }
            Some(fabric)
        }
        None => None,
    };
    let serves = format!("serves {}", config.socket.display());
    let options = Options {
        idle_exit: arguments.idle_exit,
        ring_bytes: config.ring_bytes,
        max_lanes: config.lanes_max,
        user_share: config.user_share,
        allow_all_users: config.allow_all_users,
        one_namespace: config.one_namespace,
        config: absolute(arguments.config)?,
        metrics,
        log: arguments.log,
        log_format: arguments.log_format.name(),
        log_file: absolute(arguments.log_file)?,
    };
    let mut server = Server::on((listener, prover), config, limits, fabric)?;
    server.set_options(options);
    if let Some(address) = metrics {
        server.serve_metrics(address).map_err(|error| {
            format!("figures cannot be served at {address}: {error}; choose another --metrics")
        })?;
    }
    if arguments.detached {
        std::env::set_current_dir("/")?;
        let mut output = io::stdout();
        writeln!(output, "{READY}")?;
        output.flush()?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
    }
    manager.ready(&serves);
    server.reload_when(reload, manager.clone())?;
    server.run(stop)?;
    manager.stopping();
    Ok(())
}

/// Under the preload library, and as a child of sluiced.
fn relay(arguments: Arguments) -> Outcome {
    let Some(path) = &arguments.config else {
        return Err("a relay needs --config".into());
    };
    start_log(&arguments)?;
    let config = sluice_peering::config::Config::load(path)?;
    let sluiced = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    capture::relay::serve(config, sluiced)
}

/// As a child of sluiced.
fn receive() -> Outcome {
    let sluiced = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(receiver::process::serve(sluiced)?)
}

fn start_fabric(
    peering: sluice_peering::config::Config,
    config: &Config,
    is_eager: bool,
) -> Result<Fabric, Box<dyn std::error::Error>> {
    let library = files::find(VERBS_LIBRARY)
        .map_err(|missing| format!("{}: it carries lanes to other hosts", missing.what()))?;
    let fabric = Fabric::start(
        peering,
        &library,
        config.ring_bytes,
        config.lanes_max,
        is_eager,
    )?;
    Ok(fabric)
}

/// The same log for the relay.
fn log_arguments(level: &str, format: LogFormat, file: Option<&Path>) -> io::Result<Vec<OsString>> {
    let format = format.name();
    let mut arguments = ["--log", level, "--log-format", &format]
        .map(OsString::from)
        .to_vec();
    if let Some(file) = file {
        arguments.push("--log-file".into());
        arguments.push(std::path::absolute(file)?.into());
    }
    Ok(arguments)
}

fn start_log(arguments: &Arguments) -> Outcome {
    let filter = EnvFilter::try_new(&arguments.log)?;
    let writer = match &arguments.log_file {
        Some(path) => BoxMakeWriter::new(LogFile::open(path).map_err(|error| {
            let path = path.display();
            io::Error::new(
                error.kind(),
                format!("cannot write the log {path}: {error}"),
            )
        })?),
        None => BoxMakeWriter::new(io::stderr),
    };
    let shares = LogShares::default();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // It would be said by a macro that panics where standard error takes nothing either.
        .log_internal_errors(false)
        .with_writer(writer);
    match arguments.log_format {
        LogFormat::Text => log.finish().with(shares).init(),
        LogFormat::Json => log.json().flatten_event(true).finish().with(shares).init(),
    }
    Ok(())
}
