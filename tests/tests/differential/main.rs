//! Every program of `tests/apps`, run plainly and under `sluice run`: what it
//! prints, its standard error and its exit status must be the same.

mod hooks;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::apps::{self, App, Build};
use sluice_tests::diff::first_difference;
use sluice_tests::job::{Outcome, run};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::suite::{self, Verdict, fail, skip, trial};

/// The status with which a program says that it cannot run here.
const EXIT_SKIP: i32 = 77;

/// Pauses for the two ends to be matched, one try each: on a busy machine the
/// first may be too short, and a run without a lane would have tested nothing.
const PAUSES_MS: [u32; 8] = [50, 400, 400, 400, 2000, 2000, 2000, 2000];

/// One program, compiled one way, in one setting.
#[derive(Clone)]
struct Case {
    app: App,
    build: Build,
    family: String,
    ends: Option<String>,
    machine: Arc<RwLock<()>>,
}

fn main() -> ExitCode {
    let apps = match apps::all() {
        Ok(apps) => apps,
        Err(problem) => {
            eprintln!("cannot list the programs: {problem:?}");
            return ExitCode::FAILURE;
        }
    };
    let machine = Arc::new(RwLock::new(()));
    let trials = apps
        .iter()
        .flat_map(|app| trials_of(app, &machine))
        .chain(hooks::trials())
        .collect();
    suite::run(trials, 2).exit_code()
}

/// Every build with IPv4, and the other settings with the first build only: a
/// fortified name does not behave differently over IPv6.
fn trials_of(app: &App, machine: &Arc<RwLock<()>>) -> Vec<Trial> {
    let ends: Vec<Option<String>> = match app.ends.as_slice() {
        [] => vec![None],
        ends => ends.iter().cloned().map(Some).collect(),
    };
    let mut trials = Vec::new();
    for (which_build, build) in app.builds.iter().enumerate() {
        for (which_family, family) in app.families.iter().enumerate() {
            for (which_end, end) in ends.iter().enumerate() {
                if which_build > 0 && (which_family > 0 || which_end > 0) {
                    continue;
                }
                let case = Case {
                    app: app.clone(),
                    build: *build,
                    family: family.clone(),
                    ends: end.clone(),
                    machine: Arc::clone(machine),
                };
                trials.push(trial(case.name(), move || case.check()));
            }
        }
    }
    trials
}

impl Case {
    fn name(&self) -> String {
        let ends = self.ends.as_deref().unwrap_or("one");
        format!(
            "{}/{}/ipv{}/{ends}",
            self.app.name, self.build.name, self.family
        )
    }

    fn check(&self) -> Verdict {
        if self.app.needs_root && !rustix::process::geteuid().is_root() {
            return skip("needs root");
        }
        let lab = Lab::new()?;
        let binary = apps::compile(&self.app.source, self.build, lab.path())?;
        if self.app.has_plugin {
            apps::compile_plugin(&self.app.source, self.build, lab.path())?;
        }

        // A program that needs the machine for itself waits for all others and keeps them out.
        let _shared = (!self.app.alone).then(|| self.machine.read());
        let _alone = self.app.alone.then(|| self.machine.write());

        let plain = self.run(&lab, Mode::Plain, &binary, "plain", PAUSES_MS[0])?;
        if plain.status.code() == Some(EXIT_SKIP) {
            return skip(String::from_utf8_lossy(&plain.stderr).trim().to_string());
        }
        if plain.stdout.is_empty() {
            return fail(format!(
                "the plain run printed nothing\n{}",
                plain.describe()
            ));
        }

        let mut lane_problem = String::new();
        for pause in PAUSES_MS {
            lab.reset_totals()?;
            let label = format!("sluice-{pause}");
            let accelerated = self.run(&lab, Mode::Accelerated, &binary, &label, pause)?;
            if let (Some(why), false) = (&self.app.known_fault, lab.is_standin()) {
                if compare(&plain, &accelerated).is_err() {
                    println!("{}: known fault: {why}", self.name());
                    return Ok(());
                }
                return fail("the known fault is gone: remove the directive".to_string());
            }
            compare(&plain, &accelerated)?;
            if !self.app.lane_required || lab.is_standin() {
                return Ok(());
            }
            let totals = lab.totals()?;
            if totals.lane_bytes() > 0 {
                return Ok(());
            }
            lane_problem = format!("{totals:?}");
        }
        fail(format!(
            "equal outputs, but no byte went by lane: {lane_problem}"
        ))
    }

    fn run(
        &self,
        lab: &Lab,
        mode: Mode,
        binary: &Path,
        label: &str,
        pause_ms: u32,
    ) -> Verdict<Outcome> {
        let mut command: Command = lab.command(mode, binary);
        command
            .env("APP_FAMILY", &self.family)
            .env("APP_PAUSE_MS", pause_ms.to_string())
            .current_dir(lab.path());
        if let Some(ends) = &self.ends {
            command.env("APP_ENDS", ends);
        }
        run(
            command,
            lab.path(),
            label,
            self.app.limit + Duration::from_millis(pause_ms.into()),
        )
    }
}

fn compare(plain: &Outcome, accelerated: &Outcome) -> Verdict {
    if let Some(text) = first_difference(&plain.stdout, &accelerated.stdout) {
        return fail(format!("{text}\n{}", accelerated.describe()));
    }
    if let Some(text) = first_difference(&plain.stderr, &accelerated.stderr) {
        return fail(format!("standard error: {text}"));
    }
    if plain.status != accelerated.status {
        return fail(format!(
            "exit status: plain {}, sluice {}\n{}",
            plain.status,
            accelerated.status,
            accelerated.describe()
        ));
    }
    Ok(())
}
