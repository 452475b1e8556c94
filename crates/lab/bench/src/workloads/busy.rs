//! Programs on a machine whose processors others want, and programs with less than a processor.
//!
//! A program that polls keeps a processor that it shares, and pays for that with its own turn: what a lane gains on
//! an idle machine it can lose a hundred times over there.

use super::beside::{Beside, Busy};
use super::{Cell, Options, Workload, nginx, postgres, redis};
use crate::error::{BenchError, Result};
use crate::figures::counted;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::process::Ready;
use crate::session::Session;

pub(super) const WORKLOAD: Workload = Workload {
    name: "busy",
    title: "Programs on a busy machine",
    about: "Endless loops run beside both programs, as many as named, at a nice level; or both programs together \
            have half of a processor's time (a cgroup's quota). 'ping-pong' is a small pair of our own: 100 bytes \
            there and back, with a thread that blocks for each connection. redis is asked to GET, nginx for 1 KiB \
            over kept connections by wrk, PostgreSQL by 'pgbench -S'. Each run is compared with the plain one of the same \
            repetition, and the ratio is the median of these; single runs differ much, as schedulers do. \
            With --full every number of loops, nice level and number of connections.",
    programs: &[
        "redis-server",
        "redis-benchmark",
        "nginx",
        "wrk",
        "postgres",
        "initdb",
        "pgbench",
        "setpriv",
    ],
    compared_with: &[],
    obstacle: None,
    cells,
};

#[derive(Debug, Clone, Copy)]
enum Program {
    PingPong,
    Redis,
    Nginx,
    Postgres,
}

const PROGRAMS: [Program; 4] = [
    Program::PingPong,
    Program::Redis,
    Program::Nginx,
    Program::Postgres,
];

/// What the floor is about, each for itself.
pub const GROUPS: [&str; 4] = ["ping-pong", "redis GET", "nginx", "PostgreSQL"];

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kinds = kinds(options, u32::try_from(cores).unwrap_or(u32::MAX));
    let connections: &[u32] = match (options.busy_connections.as_slice(), options.full) {
        ([], true) => &[1, 10, 50],
        ([], false) => &[1, 50],
        (given, _) => given,
    };
    // Odd, so that the median is a run, and many: the scheduler is no even coin.
    let repetitions = match options.brief {
        true => options.repetitions,
        false => 2 * options.repetitions + 1,
    };
    let mut cells = Vec::new();
    for program in PROGRAMS {
        for &busy in &kinds {
            for &connections in connections {
                cells.push(Cell {
                    title: format!("busy, {}, {}", program.title(), label(busy, connections)),
                    variants: variants.clone(),
                    repetitions,
                    points: vec![point(program, busy, connections)],
                    run: Box::new(move |session, variant| {
                        let beside = Beside::start(session, busy)?;
                        Ok(vec![measure(
                            session,
                            variant,
                            program,
                            connections,
                            &beside,
                        )?])
                    }),
                });
            }
        }
    }
    cells
}

/// The kinds of busy machines: some loops for each two processors, at a nice level.
fn kinds(options: &Options, cores: u32) -> Vec<Busy> {
    let counts = [cores.div_ceil(2), cores, cores.saturating_mul(2)];
    let loops = |count, nice| Busy::Loops { count, nice };
    let mut kinds: Vec<Busy> = match options.full {
        true => counts
            .into_iter()
            .flat_map(|count| [0, 5, 19].map(|nice| loops(count, nice)))
            .collect(),
        false => vec![loops(cores, 0)],
    };
    if !options.brief {
        kinds.push(Busy::HalfProcessor);
    }
    kinds
}

impl Program {
    fn title(self) -> &'static str {
        GROUPS[self as usize]
    }

    fn unit(self) -> &'static str {
        match self {
            Self::PingPong => "rounds/s",
            Self::Redis | Self::Nginx => "requests/s",
            Self::Postgres => "transactions/s",
        }
    }
}

fn label(busy: Busy, connections: u32) -> String {
    format!("{busy}, {}", counted(connections, "connection"))
}

fn point(program: Program, busy: Busy, connections: u32) -> PointSpec {
    PointSpec {
        group: program.title().to_owned(),
        label: label(busy, connections),
        x: None,
        unit: program.unit(),
        better: Better::Higher,
        // What the loops take is no cost of anybody's.
        cost_unit: CostUnit::None,
        paired: true,
        baseline: Variant::Tcp,
    }
}

fn measure(
    session: &Session,
    variant: Variant,
    program: Program,
    connections: u32,
    beside: &Beside,
) -> Result<Sample> {
    match program {
        Program::PingPong => ping_pong(session, variant, connections, beside),
        Program::Redis => {
            let tests = ["get".to_owned()];
            let samples = redis::measure(session, variant, connections, &tests, beside)?;
            let first = samples.into_iter().next();
            first.ok_or_else(|| BenchError::Failed("redis was not measured".to_owned()))
        }
        Program::Nginx => nginx::measure(session, variant, nginx::Shape::kept(connections), beside),
        Program::Postgres => postgres::measure(session, variant, connections, beside),
    }
}

fn ping_pong(
    session: &Session,
    variant: Variant,
    connections: u32,
    beside: &Beside,
) -> Result<Sample> {
    let port = session.free_port()?;
    let (port_word, connections) = (port.to_string(), connections.to_string());
    let server_words = beside.placed(session.helper(&["rounds-server", &port_word]));
    let server = session.server(variant, &server_words, &Ready::Tcp(port))?;
    let seconds = session.seconds.to_string();
    let words = session.helper(&["rounds-client", &port_word, &connections, &seconds]);
    let (output, mut sample) =
        session.measured(variant, &beside.with(&[&server]), &beside.placed(words))?;
    sample.value = output.read(rate)?;
    Ok(sample)
}

/// The client says `N rounds in S seconds`.
fn rate(text: &str) -> Result<f64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if let [rounds, "rounds", "in", seconds, "seconds"] = words[..]
        && let (Ok(rounds), Ok(seconds)) = (rounds.parse::<f64>(), seconds.parse::<f64>())
        && rounds > 0.0
        && seconds > 0.0
    {
        return Ok(rounds / seconds);
    }
    Err(BenchError::Failed(format!(
        "the client did not say how many rounds it made: {text}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_read_and_none_is_refused() {
        assert_eq!(rate("120 rounds in 2 seconds\n").ok(), Some(60.0));
        assert!(rate("0 rounds in 1 seconds").is_err());
        assert!(rate("").is_err());
    }
}
