//! The command line of `sluice bench`, as `sluice` documents it and `sluice-bench` obeys it: the
//! program that measures need not be installed for its help, its man page and its completions.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// The requests that the redis workload can be asked for.
pub const REDIS_TESTS: [&str; 5] = ["set", "get", "lpush", "lpop", "hset"];

/// Compares TCP, Unix sockets and Sluice with real programs on this machine.
///
/// Runs each workload over every variant in turn, several times, prints medians, ratios, CPU
/// costs and whether every promised floor was reached, and writes a JSON file and an HTML report.
/// A repetition that other programs disturbed is measured again. Everything that it starts runs
/// on ports of its own and is gone when it ends.
///
/// 'sluice bench verbs' does the same for RDMA programs within one host, 'sluice bench roce' for
/// RDMA programs on two hosts, 'sluice bench rxe' beside the kernel's software RDMA, 'sluice bench
/// fabric' for socket programs on two hosts, 'sluice bench windows' for such that share memory.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct BenchArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Only these variants
    #[arg(
        long,
        value_name = "V",
        value_delimiter = ',',
        default_values = ["tcp", "unix", "sluice"]
    )]
    pub variants: Vec<VariantArg>,

    /// Numbers of clients for the redis workload, and of connections for 'busy'
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=9_000))]
    pub clients: Vec<u32>,

    /// Requests for the redis workload
    #[arg(long, value_name = "T", value_delimiter = ',', value_parser = REDIS_TESTS)]
    pub tests: Vec<String>,

    #[command(subcommand)]
    pub command: Option<BenchCommand>,
}

/// What all kinds of `sluice bench` take.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// Only these workloads (see --list)
    #[arg(long, value_name = "W", value_delimiter = ',')]
    pub only: Vec<String>,

    /// List the workloads and the programs that they need, then end
    #[arg(long)]
    pub list: bool,

    /// Fewer points and three short repetitions: for a first look
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,

    /// Five repetitions of three seconds: for numbers to quote
    #[arg(long)]
    pub full: bool,

    /// How often each variant is measured [default: 3, with --full 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub reps: Option<u16>,

    /// How long one measurement takes, in seconds [default: 1, with --full 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60))]
    pub seconds: Option<u32>,

    /// How many repetitions of a point are measured again when other programs disturbed them
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=100))]
    pub repeats: u16,

    /// The folder for report.json and report.html [default: sluice-bench, for verbs
    /// sluice-bench-verbs, and so on]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Write the JSON file here instead
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write the HTML report here instead
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Compares verbs programs under 'sluice verbs' with UCX, libfabric and memcpy
    ///
    /// Runs perftest over the shared-memory transport beside ucx_perftest (posix and cma),
    /// fi_pingpong (shm) and a plain copy, and reports as 'sluice bench' does. What is not
    /// installed is said and left out.
    Verbs(CommonArgs),
    /// Compares verbs programs between two hosts, over AF_XDP and UDP, with kernel TCP
    ///
    /// The hosts are two network namespaces joined by a veth pair, which this command makes and
    /// which end with it: it needs root. Runs perftest under 'sluice verbs --device roce' and
    /// '--device roce-udp' beside sockperf and iperf3 through the same veth pair, and reports as
    /// 'sluice bench' does.
    Roce(CommonArgs),
    /// Compares verbs programs between two hosts over TCP (iWARP) with kernel TCP and RoCEv2
    ///
    /// The hosts are two network namespaces joined by a veth pair, which this command makes and
    /// which end with it: it needs root. Runs perftest under 'sluice verbs' with --device iwarp, roce
    /// and roce-udp, beside iperf3 and sockperf through the same veth pair, over sizes of messages,
    /// requests in flight and connections, and reports as 'sluice bench' does.
    Iwarp(CommonArgs),
    /// Compares socket programs between two hosts with a sluiced each with kernel TCP
    ///
    /// The hosts are two network namespaces joined by a veth pair, which this command makes and
    /// which end with it: it needs root. Runs sockperf, redis and iperf3 over TCP and under 'sluice
    /// run', with CPU time that includes both daemons, and reports as 'sluice bench' does. Without
    /// --quick also with daemons that put bytes on rings whether that pays or not. 'stall' has a writer
    /// push to a reader that sleeps, and shows what both hosts hold meanwhile over TCP, under 'sluice
    /// run', captured, and by a proxy of SK_MSG; that writer stops by itself before it harms the
    /// machine.
    Fabric {
        #[command(flatten)]
        common: CommonArgs,

        /// Numbers of clients for the redis workload
        #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=9_000))]
        clients: Vec<u32>,
    },
    /// Compares programs between two hosts that share memory with kernel TCP and Unix sockets
    ///
    /// The hosts are two network namespaces joined by a veth pair and by the memory of 'sluice window
    /// serve', which this command makes and which end with it: it needs root. Runs sockperf, redis and
    /// iperf3 over TCP, redis over a Unix socket, all of them under 'sluice run' with direct lanes, and redis
    /// and iperf3 with such memory between the daemons, as it is and where a reader sees what is new later; and
    /// perftest under 'sluice verbs' over a window of its own. Reports as 'sluice bench' does.
    Windows {
        #[command(flatten)]
        common: CommonArgs,

        /// Numbers of clients for the redis workloads [default: 1, 10, 50 and 500; for
        /// redis-commands 10 to 1000]
        #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=9_000))]
        clients: Vec<u32>,

        /// How much later a reader sees what is new in the memory, as behind a bridge: 1us, 500ns; 0
        /// leaves that out
        #[arg(long, value_name = "TIME", default_value = "1us", value_parser = delay_ns)]
        window_delay: u32,
    },
    /// Compares verbs programs over the kernel's own RoCEv2 (rdma_rxe) and over Sluice
    ///
    /// Runs perftest over two rxe devices joined by a veth pair, which this command makes in the
    /// network namespace that it is started in and removes at its end, beside 'sluice verbs
    /// --device roce' and '--device roce-udp' over such a pair, and reports as 'sluice bench' does.
    /// It needs root, rdma_rxe in the kernel, and, with most kernels, the first network namespace:
    /// bench/rxe in the source tree boots a guest that has all that, and runs it there.
    Rxe(CommonArgs),
}

/// Nanoseconds, up to 1 ms, of a time as a person writes it.
fn delay_ns(text: &str) -> Result<u32, String> {
    const NS_MAX: u32 = 1_000_000;
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "" if digits == "0" => 1,
        _ => return Err("give a time such as 1us or 500ns".to_owned()),
    };
    let number: Option<u32> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(factor))
        .filter(|ns| *ns <= NS_MAX)
        .ok_or_else(|| "give a time of at most 1000us".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VariantArg {
    Tcp,
    Unix,
    Sluice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_has_a_unit_and_a_bound() {
        assert_eq!(delay_ns("1us"), Ok(1_000));
        assert_eq!(delay_ns("500ns"), Ok(500));
        assert_eq!(delay_ns("0"), Ok(0));
        assert_eq!(delay_ns("1000us"), Ok(1_000_000));
        for wrong in [
            "",
            "5",
            "us",
            "-1us",
            "1ms",
            "1001us",
            "99999999999us",
            "1µs",
        ] {
            assert!(delay_ns(wrong).is_err(), "{wrong}");
        }
    }
}
