//! Programs under seccomp filters: which of them get lanes, and what is said of the others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sluice_tests::apps::apps_dir;
use sluice_tests::job::{Outcome, command, find_program, run};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::stats::Totals;
use sluice_tests::suite::{Verdict, check, ensure, fail, skip};

const LIMIT: Duration = Duration::from_secs(60);
/// What `memfd_create` is called by number; no program here needs it but the library.
const MEMFD_CREATE: &str = "319";
const CONFINED: &str = "program confined by seccomp";

struct Stage {
    lab: Lab,
    filter: PathBuf,
}

impl Stage {
    fn new() -> Verdict<Stage> {
        if cfg!(not(target_arch = "x86_64")) {
            return skip("the number of memfd_create is that of x86-64");
        }
        let mut lab = Lab::with_library()?;
        lab.announce_at_once();
        let Some(compiler) = find_program("cc") else {
            return skip("no C compiler");
        };
        let filter = lab.path().join("filtered_exec");
        let mut compile = command(compiler);
        compile
            .args(["-O1", "-o"])
            .arg(&filter)
            .arg(apps_dir().join("filtered_exec.c"));
        run(compile, lab.path(), "cc", LIMIT)?.success()?;
        Ok(Stage { lab, filter })
    }

    fn script(&self) -> PathBuf {
        apps_dir().join("scripts/self_talk.py")
    }

    /// `sluice run -- python3 self_talk.py` under the filter that `words` describe.
    fn around(&self, words: &[&str]) -> Command {
        let inner = self.lab.command(Mode::Accelerated, "python3");
        let mut command = command(&self.filter);
        command
            .args(words)
            .arg(inner.get_program())
            .args(inner.get_args());
        command.arg(self.script());
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
    }

    /// `sluice run -- filtered_exec … python3 self_talk.py`.
    fn inside(&self, words: &[&str]) -> Command {
        let mut command = self.lab.command(Mode::Accelerated, &self.filter);
        command.args(words).arg("python3").arg(self.script());
        command
    }

    /// Runs to a good end; what it said and what the library counted.
    fn finish(&self, mut command: Command, label: &str) -> Verdict<(Outcome, Totals)> {
        self.lab.reset_totals()?;
        command.env("SLUICE_LOG", "warn");
        let outcome = run(command, self.lab.path(), label, LIMIT)?.success()?;
        ensure(outcome.text().contains("all 200 messages"), || {
            outcome.describe()
        })?;
        Ok((outcome, self.lab.totals()?))
    }
}

fn no_lane(outcome: &Outcome, totals: &Totals) -> Verdict {
    ensure(totals.lane_bytes() == 0, || {
        format!("lanes were used: {totals:?}\n{}", outcome.describe())
    })
}

fn says(outcome: &Outcome, what: &str) -> Verdict {
    let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    if text.contains(what) {
        Ok(())
    } else {
        fail(format!("nothing about {what:?}\n{}", outcome.describe()))
    }
}

#[test]
fn a_filter_that_was_there_before_sluice_run_keeps_nobody_from_lanes() {
    check("a_filter_that_was_there_before", || {
        let stage = Stage::new()?;
        let (outcome, totals) = stage.finish(stage.around(&["allow"]), "around")?;
        ensure(totals.lane_bytes() > 10_000, || {
            format!("{totals:?}\n{}", outcome.describe())
        })?;
        // Closed descriptors do not change that: what tries the filters needs some.
        let inner = stage.around(&["allow"]);
        let mut shell = command("sh");
        shell.args(["-c", "exec \"$@\" <&- 2>&-", "sh"]);
        shell.arg(inner.get_program()).args(inner.get_args());
        shell.envs(
            inner
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let (outcome, totals) = stage.finish(shell, "closed")?;
        // Sockets with such numbers stay on TCP for another reason.
        ensure(!totals.reasons.contains_key(CONFINED), || {
            format!("{totals:?}\n{}", outcome.describe())
        })
    });
}

#[test]
fn a_filter_that_came_after_sluice_run_does() {
    check("a_filter_that_came_after", || {
        let stage = Stage::new()?;
        let (outcome, totals) = stage.finish(stage.inside(&["allow"]), "inside")?;
        no_lane(&outcome, &totals)?;
        ensure(totals.reasons.get(CONFINED) == Some(&2), || {
            format!("{totals:?}")
        })?;
        says(&outcome, "seccomp")?;
        // What the variable says does not matter if it is no number.
        let mut command = stage.around(&["allow"]);
        command.arg("200");
        let mut garbage = stage.lab.command(Mode::Accelerated, "env");
        garbage
            .arg("SLUICE_SECCOMP_FILTERS=many")
            .arg(&stage.filter)
            .args(["allow", "python3"])
            .arg(stage.script());
        let (outcome, totals) = stage.finish(garbage, "garbage")?;
        no_lane(&outcome, &totals)
    });
}

#[test]
fn a_filter_that_refuses_what_the_library_needs_is_named() {
    check("a_filter_that_refuses", || {
        let stage = Stage::new()?;
        let command = stage.around(&["errno", MEMFD_CREATE]);
        let (outcome, totals) = stage.finish(command, "errno")?;
        no_lane(&outcome, &totals)?;
        ensure(totals.reasons.get(CONFINED) == Some(&2), || {
            format!("{totals:?}")
        })?;
        says(&outcome, "memfd_create")
    });
}

#[test]
fn a_filter_that_kills_for_it_kills_no_program() {
    check("a_filter_that_kills", || {
        let stage = Stage::new()?;
        let command = stage.around(&["kill", MEMFD_CREATE]);
        let (outcome, totals) = stage.finish(command, "kill")?;
        no_lane(&outcome, &totals)?;
        says(&outcome, "seccomp")
    });
}

/// The library asks by prctl how the process is confined, before anything else.
#[test]
fn a_filter_that_kills_who_loads_the_library_keeps_the_library_out() {
    const PRCTL: &str = "157";
    check("a_filter_that_kills_who_loads", || {
        let stage = Stage::new()?;
        let (outcome, totals) = stage.finish(stage.around(&["kill", PRCTL]), "kill-all")?;
        no_lane(&outcome, &totals)?;
        says(&outcome, "runs without it, on plain TCP")
    });
}

fn doctor(stage: &Stage, words: &[&str], label: &str) -> Verdict<(Outcome, String)> {
    let inner = stage.lab.command(Mode::Accelerated, "true");
    let mut command = if words.is_empty() {
        command(inner.get_program())
    } else {
        let mut command = command(&stage.filter);
        command.args(words).arg(inner.get_program());
        command
    };
    command.args(["doctor", "--json", "--socket"]);
    command.arg(Path::new(stage.lab.path()).join("control.sock"));
    let outcome = run(command, stage.lab.path(), label, LIMIT)?;
    let report: serde_json::Value = serde_json::from_slice(&outcome.stdout)
        .or_else(|error| fail(format!("{error}\n{}", outcome.describe())))?;
    let found = report["checks"].as_array().and_then(|checks| {
        let check = checks.iter().find(|check| check["name"] == "seccomp")?;
        Some(format!("{} {}", check["verdict"], check["found"]))
    });
    match found {
        Some(found) => Ok((outcome, found)),
        None => fail(outcome.describe()),
    }
}

#[test]
fn doctor_says_what_will_happen() {
    check("doctor_says_what_will_happen", || {
        let stage = Stage::new()?;
        let (outcome, found) = doctor(&stage, &["allow"], "doctor-allow")?;
        ensure(
            outcome.status.success() && found.contains("filter") && !found.contains("missing"),
            || outcome.describe(),
        )?;
        let (outcome, found) = doctor(&stage, &["errno", MEMFD_CREATE], "doctor-errno")?;
        ensure(
            outcome.status.code() == Some(1)
                && found.contains("missing")
                && found.contains("memfd_create"),
            || outcome.describe(),
        )?;
        // sched_yield, which nobody makes but the library.
        let (outcome, found) = doctor(&stage, &["kill", "24"], "doctor-kill")?;
        ensure(
            outcome.status.code() == Some(1) && found.contains("missing") && found.contains("kill"),
            || outcome.describe(),
        )
    });
}
