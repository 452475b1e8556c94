//! What a round is: it follows from its seed, its faults and its size.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use sluice_tests::apps::apps_dir;
use sluice_tests::job::{command, find_program, run};
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, ensure, skip};
use tempfile::TempDir;

use crate::state::Head;

/// What a round's processes suffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub kills: bool,
    pub stops: bool,
    pub signals: bool,
    /// The daemon, or one of them, is killed and started again.
    pub daemon: bool,
}

impl Faults {
    pub const NONE: Faults = Faults::of(false, false, false, false);
    pub const ALL: Faults = Faults::of(true, true, true, true);

    pub const fn of(kills: bool, stops: bool, signals: bool, daemon: bool) -> Faults {
        Faults {
            kills,
            stops,
            signals,
            daemon,
        }
    }
}

impl Faults {
    /// As they are written, or none of that name.
    pub fn parse(text: &str) -> Option<Faults> {
        let bits = 0..1 << 4;
        let all = bits.map(|bits: u8| {
            let is_in = |place: u8| bits >> place & 1 == 1;
            Faults::of(is_in(0), is_in(1), is_in(2), is_in(3))
        });
        all.into_iter().find(|it| it.to_string() == text)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Faults::ALL {
            return f.write_str("everything");
        }
        let all = [
            (self.kills, "kills"),
            (self.stops, "stops"),
            (self.signals, "signals"),
            (self.daemon, "daemon"),
        ];
        let names: Vec<&str> = all
            .into_iter()
            .filter(|(is_in, _)| *is_in)
            .map(|(_, name)| name)
            .collect();
        if names.is_empty() {
            return f.write_str("calm");
        }
        f.write_str(&names.join("+"))
    }
}

/// Faults that the programs make themselves, as `enum mutation` of `chaos.h` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    LoseByte,
    DoubleByte,
    SwapBytes,
    FlipBit,
    LoseTail,
    EarlyEnd,
    HangReader,
    ResetOne,
    Crash,
}

/// One round.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub faults: Faults,
    /// A direction has less than twice this many bytes.
    pub bytes_max: u64,
    pub mutation: Mutation,
    /// One bit for each operation that it does not have.
    pub without: u64,
    /// How long nothing at all may happen while something is unfinished.
    pub patience: Duration,
}

/// On a machine that is busy with others, a process waits for a processor for seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same, or what `SLUICE_CHAOS_PATIENCE` says, in seconds.
fn patience() -> Duration {
    let seconds = std::env::var("SLUICE_CHAOS_PATIENCE").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.map_or(PATIENCE, Duration::from_secs)
}

const CLIENTS_MAX: u64 = 3;
const MORE_CONNECTIONS_MAX: u64 = 12;
/// A connection whose ends wait for each other has no more bytes than that.
const TALK_BYTES_MAX: u64 = 400_000;

impl Plan {
    pub fn new(seed: u64, faults: Faults, bytes_max: u64) -> Plan {
        Plan {
            seed,
            faults,
            bytes_max,
            mutation: Mutation::None,
            without: 0,
            patience: patience(),
        }
    }

    /// What the programs are told. The moments of faults are the same numbers' later ones.
    pub fn head(&self, random: &mut Random, allowed: u64) -> Head {
        let clients = 1 + random.below(CLIENTS_MAX);
        let connections = clients + random.below(MORE_CONNECTIONS_MAX);
        let bits = u64::from(self.bytes_max.ilog2()).saturating_sub(7);
        let mut total = |number: u64| {
            let top = 1 << (8 + random.below(bits));
            let total = top / 2 + random.below(top);
            match (self.mutation, number) {
                // There has to be something to hurt.
                (Mutation::None, _) if random.below(20) == 0 => 0,
                (Mutation::None, _) | (_, 1..) => total,
                (_, 0) => total.max(200_000),
            }
        };
        let mut totals: Vec<[u64; 2]> = (0..connections)
            .map(|number| [total(number), total(number)])
            .collect();
        // Those of every second connection wait for each other (`flow.c`).
        for (number, both) in totals.iter_mut().enumerate() {
            if number % 2 == 1 {
                *both = both.map(|total| total.min(TALK_BYTES_MAX));
            }
        }
        let Faults {
            kills,
            stops,
            signals,
            daemon,
        } = self.faults;
        Head {
            seed: self.seed,
            clients: clients as usize,
            totals,
            may_be_cut: kills || stops || signals || daemon,
            mutation: self.mutation as u64,
            allowed: allowed & !self.without,
        }
    }
}

/// The program, linked both ways, once for all rows.
pub struct Programs {
    dir: TempDir,
    linked: [OnceLock<Program>; 2],
}

impl Programs {
    pub fn new() -> io::Result<Programs> {
        Ok(Programs {
            dir: tempfile::Builder::new().prefix("sluice-chaos-").tempdir()?,
            linked: Default::default(),
        })
    }

    pub fn get(&self, is_static: bool) -> Verdict<&Program> {
        let place = &self.linked[usize::from(is_static)];
        if let Some(program) = place.get() {
            return Ok(program);
        }
        let program = Program::compile(self.dir.path(), is_static)?;
        Ok(place.get_or_init(|| program))
    }
}

/// The programs of a round, compiled, and the names of what they do.
pub struct Program {
    pub path: PathBuf,
    pub names: Vec<String>,
    /// One bit for each operation that rounds may have.
    pub allowed: u64,
}

/// The operations that a plan chooses between; what is behind them in the list of names is only noted.
const CHOSEN: usize = 36;

impl Program {
    /// Compiles all files of `tests/apps/chaos` in the directory.
    fn compile(dir: &Path, is_static: bool) -> Verdict<Program> {
        const LIMIT: Duration = Duration::from_secs(180);
        let Some(gcc) = find_program("gcc") else {
            return skip("gcc is not installed; run scripts/setup test");
        };
        let name = if is_static { "chaos-static" } else { "chaos" };
        let path = dir.join(name);
        let mut sources = Vec::new();
        for entry in std::fs::read_dir(apps_dir().join("chaos"))? {
            let source = entry?.path();
            if source.extension().is_some_and(|end| end == "c") {
                sources.push(source);
            }
        }
        sources.sort();
        let mut gcc = command(gcc);
        gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull"]);
        gcc.args(["-O1", "-g", "-pthread"]);
        if is_static {
            gcc.arg("-static");
        }
        gcc.arg("-o").arg(&path).args(sources);
        run(gcc, dir, &format!("gcc-{name}"), LIMIT)?.success()?;
        let mut ask = command(&path);
        ask.arg("names");
        let names = run(ask, dir, &format!("{name}-names"), LIMIT)?
            .success()?
            .text();
        let names: Vec<String> = names.lines().map(str::to_owned).collect();
        let allowed = allowed(&names)?;
        Ok(Program {
            path,
            names,
            allowed,
        })
    }

    pub fn name(&self, operation: u64) -> &str {
        self.names
            .get(operation as usize)
            .map_or("nothing", String::as_str)
    }

    /// The number of an operation.
    pub fn number(&self, name: &str) -> u64 {
        let place = self.names.iter().position(|it| it == name);
        place.unwrap_or(0) as u64
    }
}

/// All operations, or those that `SLUICE_CHAOS_ONLY=send,recv,poll` names: to make a failure smaller.
fn allowed(names: &[String]) -> Verdict<u64> {
    let Ok(only) = std::env::var("SLUICE_CHAOS_ONLY") else {
        return Ok((1 << CHOSEN) - 1);
    };
    let mut bits = 0;
    for word in only.split(',') {
        let place = names.iter().take(CHOSEN).position(|name| name == word);
        ensure(place.is_some(), || {
            let known = names.get(..CHOSEN).unwrap_or_default();
            format!("SLUICE_CHAOS_ONLY: no operation {word}, but {known:?}")
        })?;
        bits |= 1 << place.unwrap_or(0);
    }
    Ok(bits)
}
