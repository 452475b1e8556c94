//! Socket programs on two hosts that share memory, with direct lanes in it and by their daemons over it, beside
//! kernel TCP between the same hosts, and Unix sockets where both programs can; and RDMA programs over it.

mod over_time;
pub mod verbs;

use super::fabric::{
    iperf as iperf_of_fabric, latency as latency_of_fabric, redis as redis_of_fabric,
};
use super::{Cell, Options, Workload};
use crate::figures::counted;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::{error::Result, workloads::redis as within_host};

/// Every workload of hosts that share memory.
pub const ALL: [Workload; 6] = [
    LATENCY,
    REDIS,
    COMMANDS,
    over_time::WORKLOAD,
    IPERF,
    verbs::WORKLOAD,
];

pub const LATENCY: Workload = Workload {
    name: "latency",
    title: "Round trip of 64 bytes and their answer between two hosts, programs that poll",
    about: "The median of sockperf's ping-pong with --nonblocked at both ends, there and back; 'TCP' are \
            programs that sleep in the kernel as they do by themselves. Where there are two processors, each \
            program is bound to one of them, in all variants. In \
            'window, delayed' a reader believes what is new in a ring only when the time that --window-delay \
            says is over, from the moment that it finds it.",
    programs: &["sockperf", "taskset"],
    compared_with: &[],
    obstacle: None,
    cells: latency_cells,
};

pub const REDIS: Workload = Workload {
    name: "redis",
    title: "redis-server and redis-benchmark on two hosts, SET with values of 2,048 bytes",
    about: "A new server without persistence and new daemons for every run, filled with all keys before \
            anything is measured. 'AF_UNIX' is a socket in a folder that both hosts see, without Sluice. In \
            'window, by daemons' a sluiced on each host moves the bytes, over memory that only the two share. The \
            delay is each ring's own: a server of many clients waits for one after the other, where a bridge would \
            have them wait together.",
    programs: &["redis-server", "redis-benchmark"],
    compared_with: &[],
    obstacle: None,
    cells: redis_cells,
};

pub const COMMANDS: Workload = Workload {
    name: "redis-commands",
    title: "redis-server and redis-benchmark on two hosts, six commands with values of 2,048 bytes",
    about: "As 'redis', and a hash whose fields are all there. HGET is asked for as a command, because \
            redis-benchmark has no test of it. LPOP takes what LPUSH has put; a list grows by the value of each \
            request, so that new memory is part of LPUSH in every variant.",
    programs: &["redis-server", "redis-benchmark"],
    compared_with: &[],
    obstacle: None,
    cells: command_cells,
};

pub const IPERF: Workload = Workload {
    name: "iperf3",
    title: "iperf3 on two hosts with 1 and 4 streams",
    about: "Bytes that the receiver counted. CPU time is that of client, server, both daemons and \
            the kernel's threads that carry frames; below it the same by part.",
    programs: &["iperf3"],
    compared_with: &[],
    obstacle: None,
    cells: iperf_cells,
};

pub const POLLING: &str = "programs poll";
pub const SET: &str = "SET";
const SET_TESTS: [&str; 1] = ["set"];
const CLIENTS: [u32; 4] = [1, 10, 50, 500];
const COMMAND_TESTS: [&str; 6] = ["set", "get", "hset", within_host::HGET, "lpush", "lpop"];
const COMMAND_CLIENTS: [u32; 7] = [10, 30, 40, 50, 100, 500, 1_000];
const COMMAND_CLIENTS_BRIEF: [u32; 3] = [10, 50, 500];
/// The detail with the floor of a round trip whose memory is delayed, µs.
pub const ROUND_TRIP_FLOOR_US: &str = "round_trip_floor_us";
/// What two programs may take beside the delay.
const ROUND_TRIP_BESIDE_US: f64 = 2.0;

/// TCP, what is compared with it besides, and direct lanes.
fn variants(options: &Options, more: &[Variant]) -> Vec<Variant> {
    let mut variants = vec![Variant::Tcp];
    variants.extend_from_slice(more);
    variants.push(Variant::Window);
    if options.window_delay_ns != 0 {
        variants.push(Variant::WindowDelayed);
    }
    variants
}

/// The same, and the daemons over the same kind of memory.
fn all_variants(options: &Options) -> Vec<Variant> {
    let mut variants = variants(options, &[]);
    variants.push(Variant::WindowDaemons);
    if options.window_delay_ns != 0 {
        variants.push(Variant::WindowDaemonsDelayed);
    }
    variants
}

fn are_two_processors() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() > 1)
}

fn latency_cells(options: &Options) -> Vec<Cell> {
    vec![Cell {
        title: format!("64 B, {POLLING}"),
        variants: variants(options, &[Variant::TcpPolling]),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: POLLING.to_owned(),
            label: "64 B and back, median".to_owned(),
            x: None,
            unit: "µs",
            better: Better::Lower,
            cost_unit: CostUnit::Operation,
            paired: false,
            baseline: Variant::Tcp,
        }],
        run: Box::new(round_trip),
    }]
}

fn round_trip(session: &Session, variant: Variant) -> Result<Vec<Sample>> {
    // Who polls on its peer's processor waits until the kernel takes that away from it.
    let processors = are_two_processors().then_some([1, 0]);
    let mut sample = latency_of_fabric::sockperf(session, variant, true, processors)?;
    if variant == Variant::WindowDelayed {
        let delay_us = f64::from(session.window_delay_ns) / 1e3;
        let floor = ROUND_TRIP_BESIDE_US + delay_us;
        sample.details.insert(ROUND_TRIP_FLOOR_US, floor);
    }
    Ok(vec![sample])
}

fn redis_cells(options: &Options) -> Vec<Cell> {
    let clients = match &*options.redis_clients {
        [] => &CLIENTS,
        chosen => chosen,
    };
    let cell = |&clients: &u32| Cell {
        title: format!("redis, {}", counted(clients, "client")),
        variants: {
            let mut variants = all_variants(options);
            variants.insert(1, Variant::Unix);
            variants
        },
        repetitions: options.repetitions,
        points: within_host::points(&SET_TESTS.map(str::to_owned), clients),
        run: Box::new(move |session, variant| {
            redis_of_fabric::measure_tests(session, variant, clients, &SET_TESTS)
        }),
    };
    clients.iter().map(cell).collect()
}

fn command_cells(options: &Options) -> Vec<Cell> {
    let clients: &[u32] = match &*options.redis_clients {
        [] if options.brief => &COMMAND_CLIENTS_BRIEF,
        [] => &COMMAND_CLIENTS,
        chosen => chosen,
    };
    let cell = |&clients: &u32| Cell {
        title: format!("redis commands, {}", counted(clients, "client")),
        variants: all_variants(options),
        repetitions: options.repetitions,
        points: within_host::points(&COMMAND_TESTS.map(str::to_owned), clients),
        run: Box::new(move |session, variant| {
            redis_of_fabric::measure_tests(session, variant, clients, &COMMAND_TESTS)
        }),
    };
    clients.iter().map(cell).collect()
}

fn iperf_cells(options: &Options) -> Vec<Cell> {
    let cell = |streams: u32| Cell {
        title: format!("iperf3, {}", counted(streams, "stream")),
        variants: all_variants(options),
        repetitions: options.repetitions,
        points: iperf_of_fabric::points(streams),
        run: Box::new(move |session, variant| iperf_of_fabric::measure(session, variant, streams)),
    };
    iperf_of_fabric::STREAMS.map(cell).into()
}
