//! The rows of the suite: several rounds each, on one stage.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_tests::suite::{Verdict, ensure, fail};

use crate::plan::{Faults, Plan, Program};
use crate::report::Report;
use crate::round;
use crate::stages::{Stage, is_standin};

/// What is the same in all rounds of a row.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    /// A round has those at the place of its seed.
    pub faults: &'static [Faults],
    /// Operations that its rounds do not have.
    pub without: &'static [&'static str],
    /// A direction has less than twice this many bytes.
    pub bytes_max: u64,
    /// Rounds that each run has.
    pub seeds: Range<u64>,
    /// Rounds whose seeds are of the day.
    pub of_the_day: u64,
}

/// How a soak says that it goes on.
const SAY_EVERY: Duration = Duration::from_secs(30);
/// After so many bad rounds a soak ends.
const BAD_MAX: usize = 10;
const DAY: Duration = Duration::from_secs(86_400);
/// Of its report, in the message of a failed test.
const SHOWN_LINES: usize = 40;

/// What the environment says of seeds.
enum Choice {
    /// Those of the row.
    Usual,
    /// This one, so often.
    One(u64, u64),
    /// New ones for so long.
    Soak(Duration),
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

impl Choice {
    fn of_environment() -> Choice {
        match (number("SLUICE_SEED"), number("SLUICE_SOAK")) {
            (Some(seed), _) => Choice::One(seed, number("SLUICE_CHAOS_TIMES").unwrap_or(1)),
            (None, Some(seconds)) => Choice::Soak(Duration::from_secs(seconds)),
            (None, None) => Choice::Usual,
        }
    }
}

/// The first seed of the day in a row; it is printed with what fails.
fn seed_of_the_day(row: &Row) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let day = now.map_or(0, |now| now.as_secs() / DAY.as_secs());
    let name = row.name.bytes().fold(0, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    (day * 1_000_000 + name % 1000 * 1000) % (1 << 40)
}

impl Row {
    pub fn check(&self, stage: &mut dyn Stage, program: &Program) -> Verdict {
        let mut run = Run {
            row: self,
            program,
            rounds: 0,
            bad: Vec::new(),
            counts: BTreeMap::new(),
        };
        match Choice::of_environment() {
            Choice::One(seed, times) => {
                for _ in 0..times {
                    run.round(stage, seed)?;
                }
            }
            Choice::Soak(limit) => run.soak(stage, limit)?,
            Choice::Usual => {
                let first = seed_of_the_day(self);
                let of_the_day = first..first + self.of_the_day;
                for seed in self.seeds.clone().chain(of_the_day) {
                    run.round(stage, seed)?;
                }
                run.require_lanes(stage, self.seeds.start)?;
            }
        }
        let counts: Vec<String> = run
            .counts
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!(
            "{}: {} rounds: {}",
            self.name,
            run.rounds,
            counts.join(", ")
        );
        if !run.bad.is_empty() {
            return fail(run.bad.join("\n\n"));
        }
        println!("{}: {:?}", self.name, stage.totals()?);
        Ok(())
    }
}

struct Run<'a> {
    row: &'a Row,
    program: &'a Program,
    rounds: u32,
    bad: Vec<String>,
    counts: BTreeMap<String, u64>,
}

impl Run<'_> {
    fn soak(&mut self, stage: &mut dyn Stage, limit: Duration) -> Verdict {
        let begin = Instant::now();
        let mut said = begin;
        // Another soak of the same day has other seeds.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let first = now.map_or(0, |now| now.as_secs()) << 16;
        while begin.elapsed() < limit && self.bad.len() < BAD_MAX {
            self.round(stage, first + u64::from(self.rounds))?;
            if said.elapsed() > SAY_EVERY {
                said = Instant::now();
                println!(
                    "{}: {} rounds, {} bad, {} of {} s",
                    self.row.name,
                    self.rounds,
                    self.bad.len(),
                    begin.elapsed().as_secs(),
                    limit.as_secs()
                );
            }
        }
        Ok(())
    }

    /// On a busy machine all of a round may be over before there is a lane: then there are more rounds.
    fn require_lanes(&mut self, stage: &mut dyn Stage, seed: u64) -> Verdict {
        const MORE_MAX: u32 = 12;
        let has_lanes = |stage: &dyn Stage| -> Verdict<bool> {
            Ok(is_standin() || stage.totals()?.lane_bytes() > 0)
        };
        for _ in 0..MORE_MAX {
            if !stage.has_totals() || has_lanes(stage)? {
                return Ok(());
            }
            self.round(stage, seed)?;
        }
        let text = format!("no lane was used: {:?}", stage.totals()?);
        ensure(has_lanes(stage)?, || text)
    }

    fn round(&mut self, stage: &mut dyn Stage, seed: u64) -> Verdict {
        let all = self.row.faults;
        let asked = std::env::var("SLUICE_CHAOS_FAULTS").ok();
        let asked = asked.and_then(|text| Faults::parse(&text));
        let faults = asked.unwrap_or(all[seed as usize % all.len()]);
        let without = self.row.without.iter();
        let without = without.map(|name| 1 << self.program.number(name));
        let plan = Plan {
            without: without.sum(),
            ..Plan::new(seed, faults, self.row.bytes_max)
        };
        self.rounds += 1;
        let report = round::run(stage, self.program, &plan, self.rounds)
            .map_err(|problem| problem.with(|| self.again(faults, seed)))?;
        report.add_counts(self.program, &mut self.counts);
        println!("{}: {}", self.row.name, report.summary);
        if !report.is_good() {
            let text = self.describe(&report, plan.faults, seed);
            println!("{text}");
            self.bad.push(text);
        }
        Ok(())
    }

    /// One command that runs that very round again.
    fn again(&self, faults: Faults, seed: u64) -> String {
        format!(
            "again: SLUICE_SEED={seed} SLUICE_CHAOS_FAULTS={faults} SLUICE_CHAOS_TIMES=20 SLUICE_BIN={} \
             cargo test -p sluice-tests --test chaos -- --exact {}",
            std::env::var("SLUICE_BIN").unwrap_or_else(|_| "target/checked/sluice".to_owned()),
            self.row.name
        )
    }

    /// The report is kept in a file, and its first lines are the message.
    fn describe(&self, report: &Report, faults: Faults, seed: u64) -> String {
        let again = self.again(faults, seed);
        let text = format!("{again}\n{}", report.text());
        let file = format!("chaos-{}-{seed}.txt", self.row.name.replace('/', "-"));
        let path = logs().join(file);
        let kept = fs::create_dir_all(logs()).and_then(|()| fs::write(&path, &text));
        let shown: Vec<&str> = text.lines().take(SHOWN_LINES).collect();
        let place = match kept {
            Ok(()) => format!("all of it: {}", path.display()),
            Err(error) => format!("{}: {error}", path.display()),
        };
        format!("{}\n{place}", shown.join("\n"))
    }
}

/// Where `scripts/test` keeps logs.
fn logs() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"))
        .join("test-logs")
}
