//! The command line: every subcommand and flag, with the help that the man pages repeat.

mod ca;
mod device_plugin;
mod service;
mod window;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use sluice_bench_args::BenchArgs;
use sluice_control::ports::Ports;
use sluice_transport::fault::Faults;

pub use ca::{CaArgs, CaCommand, CaHostArgs};
pub use device_plugin::DevicePluginArgs;
pub use service::{DisableArgs, EnableArgs};
pub use window::{WindowArgs, WindowCommand, WindowCreateArgs, WindowListArgs, WindowServeArgs};

/// Runs unmodified socket programs over the fastest path between their two ends.
///
/// A TCP connection between two programs on one host that were both started under 'sluice run'
/// exchanges its bytes through shared memory. Every other connection stays on kernel TCP, and
/// 'sluice status' says why.
#[derive(Debug, Parser)]
#[command(
    name = "sluice",
    version,
    long_version = env!("SLUICE_LONG_VERSION"),
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // There is one value of it in the whole run.
pub enum Command {
    Run(RunArgs),
    Verbs(VerbsArgs),
    Status(StatusArgs),
    Top(TopArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    Up(UpArgs),
    Down(DownArgs),
    Gateway(GatewayArgs),
    Window(WindowArgs),
    Ca(CaArgs),
    DevicePlugin(DevicePluginArgs),
    Enable(EnableArgs),
    Disable(DisableArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
}

/// How much the library and the daemon say on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The word that `SLUICE_LOG` and `sluiced --log` take.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How the daemon logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines of text
    Text,
    /// A JSON object on each line, with a field for each fact
    Json,
}

impl LogFormat {
    /// The word that `sluiced --log-format` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Runs a program with its TCP connections accelerated.
///
/// The program is executed in place of sluice (it keeps the process id), so signals and the exit
/// status are its own. Programs that it starts are accelerated too. If no daemon runs for this
/// user, one is started; it ends by itself when nothing has used it for a minute. Whatever cannot
/// be accelerated runs on TCP as it would have without sluice.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Print a summary on standard error when the program ends. Sluice then stays as the
    /// program's parent, passes signals on, and ends as the program ended.
    #[arg(long)]
    pub stats: bool,

    /// Let the library and sluice say on standard error what they do [default: off]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<LogLevel>,

    /// Poll for at most this many microseconds before sleeping, 0 to 10000; 0 never polls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub spin_us: Option<u32>,

    /// Ask for a lane after this many turnarounds (requests and answers) on a connection
    #[arg(long, value_name = "N")]
    pub min_ops: Option<u32>,

    /// Only connections with one of these ports, at either end, may get a lane: 443,8000-8080
    #[arg(long, value_name = "PORTS", value_parser = Ports::parse)]
    pub only_ports: Option<Ports>,

    /// Connections with one of these ports, at either end, stay on TCP
    #[arg(long, value_name = "PORTS", value_parser = Ports::parse)]
    pub not_ports: Option<Ports>,

    /// Publish the ports at which the program listens at this gateway: a peer that [node] in
    /// the daemon's configuration names. The program sees the addresses of the gateway's clients.
    /// It connects by the gateway where that lets it
    #[arg(long, value_name = "NAME", conflicts_with = "no_daemon")]
    pub gateway: Option<String>,

    /// Do not start a daemon; use one if it runs
    #[arg(long)]
    pub no_daemon: bool,

    /// Give lanes to Go's programs, too, static ones and those with cgo (experimental)
    ///
    /// See PROGRAMS OF GO in the man page for which ones, and what they see of it. A program that is not
    /// recognised runs as without this.
    #[arg(long = "static")]
    pub includes_static: bool,

    /// Tell the program that it is called so, as '@' does in a unit's ExecStart=
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub argv0: Option<OsString>,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARGS"],
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// Runs a verbs program on a machine without RDMA hardware.
///
/// The program finds our libibverbs and librdmacm in place of the system's, and in them the
/// device sluice0. It needs no kernel module and no rights. It is executed in place of sluice (it
/// keeps the process id), so signals and the exit status are its own. Programs that it starts
/// find the libraries too.
#[derive(Debug, Args)]
pub struct VerbsArgs {
    /// What the device sends its messages through
    #[arg(long, value_name = "DEVICE", default_value = "shm", value_parser = VerbsDeviceParser)]
    pub device: VerbsDevice,

    /// Threads that receive and send for the program when it does not poll, 1 to 64; each serves
    /// its share of the queue pairs. For --device roce, roce-udp and iwarp [default: 1]
    ///
    /// See ENGINE THREADS in the man page for when more than one is of use.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub engines: Option<u8>,

    /// Write what goes between queue pairs to a file, as packets that Wireshark reads: RoCEv2's, and with
    /// --device iwarp TCP's
    ///
    /// The file is in pcapng format, or in the classic one if its name ends in .pcap; what was in
    /// it is lost. The first process that makes a queue pair or a connection writes to it, each other one
    /// to a file of its own, with its process id before the extension. A packet that comes faster than
    /// it can be written is left out, and the end of the program says how many were. Not with --device
    /// window.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub trace: Option<PathBuf>,

    /// Let packets be lost, come twice, come late or damaged, below whatever makes a transport
    /// reliable
    ///
    /// A list with commas between: loss=, dup=, reorder= and corrupt= with a probability (0.01 or
    /// 1%), of which at most one happens to a packet; delay= with the time that a late packet waits
    /// for another to overtake it (1ms); seed= with a number that decides which packets it are.
    /// Without one a seed is chosen and printed. See FAULTS in the man page for what this does to
    /// which device.
    #[arg(long, value_name = "FAULTS", value_hint = clap::ValueHint::Other)]
    pub fault: Option<Faults>,

    /// Print what each queue pair did on standard error when the program ends. Sluice then stays
    /// as the program's parent, passes signals on, and ends as the program ended.
    #[arg(long)]
    pub stats: bool,

    /// Do not preload the library into the program and what it starts
    ///
    /// The dynamic linker then finds it by LD_LIBRARY_PATH only: a program that brings a libibverbs of its own
    /// uses that, and one that looks for the files of a device (UCX, Open MPI, MPICH, Mooncake) sees none.
    #[arg(long)]
    pub no_preload: bool,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARGS"],
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// What a verbs device sends its messages through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerbsDevice {
    Shm,
    Roce,
    RoceUdp,
    Iwarp,
    /// The window in this file, by an absolute path.
    Window(PathBuf),
}

impl VerbsDevice {
    /// The word that `SLUICE_VERBS_DEVICES` takes.
    pub fn name(&self) -> OsString {
        match self {
            Self::Shm => "shm".into(),
            Self::Roce => "roce".into(),
            Self::RoceUdp => "roce-udp".into(),
            Self::Iwarp => "iwarp".into(),
            Self::Window(path) => {
                let mut name = OsString::from("window:");
                name.push(path);
                name
            }
        }
    }
}

/// Reads a [`VerbsDevice`].
#[derive(Clone)]
struct VerbsDeviceParser;

impl TypedValueParser for VerbsDeviceParser {
    type Value = VerbsDevice;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<VerbsDevice, clap::Error> {
        let refused = |text: String| {
            clap::Error::raw(clap::error::ErrorKind::InvalidValue, text + "\n").with_cmd(command)
        };
        match value.to_str() {
            Some("shm") => Ok(VerbsDevice::Shm),
            Some("roce") => Ok(VerbsDevice::Roce),
            Some("roce-udp") => Ok(VerbsDevice::RoceUdp),
            Some("iwarp") => Ok(VerbsDevice::Iwarp),
            Some(name) if name.len() > "window:".len() && name.starts_with("window:") => {
                let path = &name["window:".len()..];
                // The library reads a list, and the program may change its folder.
                if path.contains(',') {
                    return Err(refused(format!(
                        "a window's path cannot have a comma: {path}"
                    )));
                }
                let path = std::path::absolute(path)
                    .map_err(|error| refused(format!("the window's path {path}: {error}")))?;
                Ok(VerbsDevice::Window(path))
            }
            _ => Err(refused(format!(
                "there is no device {}: devices are shm, roce, roce-udp, iwarp and window:PATH",
                value.display()
            ))),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = [
            ("shm", "Shared memory, between processes of one host"),
            (
                "roce",
                "RoCEv2 past the kernel's stack by AF_XDP, or over UDP where that is not allowed",
            ),
            (
                "roce-udp",
                "RoCEv2 over UDP sockets, which needs no privileges",
            ),
            (
                "iwarp",
                "RDMA over TCP (iWARP), wherever TCP goes; queue pairs are connected by rdma_cm",
            ),
            (
                "window:PATH",
                "Memory that hosts share, which `sluice window create` made in the file PATH",
            ),
        ];
        let values = values.map(|(name, help)| PossibleValue::new(name).help(help));
        Some(Box::new(values.into_iter()))
    }
}

/// Lists live connections and the path that each takes, and verbs programs.
///
/// Bytes are counted from the program's side: IN is what it read, OUT what it wrote. A
/// connection's bytes may go both ways in its life; SWITCH counts how often it changed between
/// lane and TCP. Verbs programs are asked by themselves and need no daemon.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Ask every daemon on this machine, not only this user's, and as root everybody's verbs
    /// programs (the default for root)
    #[arg(long, conflicts_with = "socket")]
    pub all: bool,

    /// Print again every second until interrupted
    #[arg(long)]
    pub watch: bool,

    /// Show every column at its full width
    #[arg(long)]
    pub wide: bool,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Shows live connections and verbs processes with their rates, in the terminal.
///
/// Keys: q quit, s next sort column, r reverse, / filter (Enter keeps it, Esc drops it), p pause,
/// arrows and PageUp/PageDown scroll.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two looks, 0.1 to 60
    #[arg(long, short = 'd', value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: std::time::Duration,

    /// Ask every daemon on this machine, not only this user's (the default for root)
    #[arg(long, conflicts_with = "socket")]
    pub all: bool,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

fn parse_interval(text: &str) -> Result<std::time::Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => {
            Ok(std::time::Duration::from_secs_f64(seconds))
        }
        _ => Err("give a number of seconds from 0.1 to 60".to_owned()),
    }
}

/// Says what this machine offers and what would be used.
///
/// Each line is ok, a note, or missing, with what to do about it. The exit status is 0 if two
/// programs started now, on this host or with --peer on two, would get lanes, with --window if the
/// window works, and 1 otherwise.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Try AF_XDP on an interface, for a moment; may be given several times
    ///
    /// Says whether its driver helps (native, zero-copy), or why verbs programs go by UDP there.
    /// A program that takes no packet is attached, and a socket bound to the first queue. Another
    /// XDP program or AF_XDP socket is left alone. Some drivers take their link down for a moment.
    #[arg(long, value_name = "NAME")]
    pub interface: Vec<String>,

    /// Look at what lies between this host and another one instead: an address, with the port of
    /// its sluiced if it is not 4797, or the name of a [[peer]] of --config
    ///
    /// Says whether there is a sluiced that believes this host, its version, the round trip, the
    /// MTU of the path, and whether the fabric gets through.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "interface")]
    pub peer: Option<String>,

    /// Try a window instead: a file, a device, or the socket of 'sluice window serve'
    ///
    /// Says what it is, takes a slot, and measures round trips and bandwidth both ways: with
    /// another doctor that tries the same window at the same time, on another host, or else
    /// between two slots of this one. Every byte is checked. Others in the window are left alone.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["interface", "peer"])]
    pub window: Option<PathBuf>,

    /// How long to wait for the doctor on the other host
    #[arg(long, value_name = "SECONDS", requires = "window", default_value_t = 2)]
    pub wait: u64,

    /// The configuration of this host's daemon, to talk to the other one as it would
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub config: Option<PathBuf>,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Starts the daemon and leaves it running.
///
/// 'sluice run' starts a daemon by itself. One that was started here does not end when it is
/// idle, and takes the limits given here.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Serve all users of this machine on /run/sluice/control.sock (root only)
    #[arg(long, conflicts_with = "socket")]
    pub system: bool,

    /// Stay in the foreground, for a service manager
    #[arg(long)]
    pub foreground: bool,

    /// Bytes of each ring, a power of two
    #[arg(long, value_name = "N")]
    pub ring_bytes: Option<u32>,

    /// Lanes that exist at most, over all programs
    #[arg(long, value_name = "N")]
    pub max_lanes: Option<u32>,

    /// With --system, percent of the programs, lanes and memory that one user other than root
    /// may have [default: 25]
    #[arg(long, value_name = "PERCENT", requires = "system", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub user_share: Option<u32>,

    /// What the daemon logs [default: warn]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<LogLevel>,

    /// How the daemon logs: lines of text, or a JSON object on each line [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Let Prometheus get figures at http://ADDRESS:PORT/metrics; a PORT alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = sluice_peering::config::metrics_address)]
    pub metrics: Option<std::net::SocketAddr>,

    /// Where it logs to instead of standard error, which it closes unless it stays in the
    /// foreground
    #[arg(long, value_name = "PATH")]
    pub log_file: Option<PathBuf>,

    /// Peers on other hosts, and which connections get a lane to them: see sluiced.toml(5)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Only say what is wrong with the configuration; the exit status is 1 if the daemon would not
    /// start with it
    #[arg(long, requires = "config")]
    pub check: bool,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Stops the daemon.
///
/// Connections that have a lane keep it until they end: the daemon is not on their data path. No
/// connection gets a new one.
#[derive(Debug, Args)]
pub struct DownArgs {
    /// The daemon of all users (root only)
    #[arg(long, conflicts_with = "socket")]
    pub system: bool,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Serves outside clients for programs on other hosts.
///
/// Runs in the foreground on the host that has the outside addresses, beside a daemon whose
/// configuration has [gateway]. Programs on other hosts that were started with 'sluice run
/// --gateway' listen at this host's addresses; clients are accepted here and their bytes go to
/// the programs by the fabric. On SIGTERM it takes no more clients and ends when the connections
/// have, after ten seconds at the latest.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GatewayArgs {
    #[command(subcommand)]
    pub command: Option<GatewayCommand>,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,

    /// What it says on standard error [default: warn]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<LogLevel>,

    /// The library is loaded; set by this program for itself
    #[arg(long, hide = true)]
    pub serve: bool,
}

/// What is done with a gateway that runs.
#[derive(Debug, Subcommand)]
pub enum GatewayCommand {
    /// Give a node no new connections; those that it has go on
    Drain {
        /// Its name, as [[gateway.node]] has it
        node: String,
    },
    /// Give a node connections again
    Resume {
        /// Its name
        node: String,
    },
}

/// Writes the man pages into a directory.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where to write sluice.1, sluice-run.1 and the others, sluiced.8 and sluiced.toml.5
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Writes a completion script for a shell to standard output.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn run(arguments: &[&str]) -> Result<RunArgs, clap::Error> {
        let all = ["sluice", "run"].iter().chain(arguments);
        match Cli::try_parse_from(all)?.command {
            Command::Run(run) => Ok(run),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn the_programs_own_flags_are_left_alone() {
        let parsed = run(&["--stats", "--", "prog", "--stats", "--", "-x"]).unwrap();
        assert!(parsed.stats);
        assert_eq!(parsed.command, ["prog", "--stats", "--", "-x"]);
        let parsed = run(&["prog", "--stats", "--socket"]).unwrap();
        assert!(!parsed.stats);
        assert_eq!(parsed.command, ["prog", "--stats", "--socket"]);
    }

    #[test]
    fn a_misspelt_flag_is_not_taken_for_a_program() {
        assert!(run(&["--stat", "prog"]).is_err());
        assert!(run(&[]).is_err());
        assert!(run(&["--spin-us", "2000000", "prog"]).is_err());
    }

    #[test]
    fn intervals_are_bounded() {
        assert!(parse_interval("0").is_err());
        assert!(parse_interval("nan").is_err());
        assert!(parse_interval("1e9").is_err());
        assert_eq!(parse_interval("0.5").unwrap().as_millis(), 500);
    }
}
