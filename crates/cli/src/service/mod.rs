//! `sluice enable` and `sluice disable`: services that systemd starts under Sluice.

mod place;
mod root;
mod unit;
mod wrap;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::args::{DisableArgs, EnableArgs};
use crate::error::{Failure, Outcome};
use crate::terminal::{complain, harmless, print};

use place::{DROP_IN, Place, cannot};
use unit::{CONFIGURATION, Unit, full_name, template_of};

/// Drop-in folders that are looked at.
const UNITS_MAX: usize = 10_000;

/// A service that is enabled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Enabled {
    pub unit: String,
    /// What it takes to enable it anew; absent where it is as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outdated: Option<String>,
}

pub fn enable(args: &EnableArgs) -> Outcome {
    let root = root_of(args.root.as_deref())?;
    let sluice = program(&root, args.root.is_some())?;
    let names = match args.refresh {
        true => enabled(&root).into_iter().map(|found| found.unit).collect(),
        false => args.units.clone(),
    };
    let (mut changed, mut failure) = (Vec::new(), None);
    for name in &names {
        match enable_one(&root, name, &sluice, args.dry_run) {
            Ok(Some(unit)) => changed.push(unit),
            Ok(None) => {}
            // With --refresh one unit that is gone must not keep the others from it.
            Err(error) if args.refresh => {
                complain(&error.to_string());
                failure = Some(error.status);
            }
            Err(error) => return Err(error),
        }
    }
    if !args.dry_run {
        tell_systemd(args.root.is_some(), &changed)?;
    }
    Ok(failure.unwrap_or(0))
}

/// The unit's name if something was written.
fn enable_one(root: &Path, name: &str, sluice: &str, dry: bool) -> Result<Option<String>, Failure> {
    let (unit, text) = wanted(root, name, sluice)?;
    let place = Place::of(root, &unit.name)?;
    let path = place.path().display();
    if dry {
        print(&format!("# {path}\n{text}"))?;
        return Ok(None);
    }
    if let Some(note) = wrap::filter_note(&unit) {
        complain(&format!("note: {}: {note}", unit.name));
    }
    note_instances(root, &unit.name);
    match place.ours()? {
        Some(present) if present == text => {
            print(&format!("{} is enabled already\n", unit.name))?;
            return Ok(None);
        }
        _ => place.write(&text)?,
    }
    print(&format!("{} is enabled: {path}\n", unit.name))?;
    Ok(Some(unit.name))
}

fn wanted(root: &Path, name: &str, sluice: &str) -> Result<(Unit, String), Failure> {
    let failed = |error: String| Failure::new(error, "");
    let name = full_name(name).map_err(|error| failed(error.to_string()))?;
    let unit = Unit::load(root, &name, DROP_IN).map_err(|error| failed(error.to_string()))?;
    if let Some(later) = unit.overrides(DROP_IN) {
        return Err(Failure::new(
            format!("{later} says what {name} runs, and comes behind {DROP_IN}"),
            "give that drop-in a name that comes earlier",
        ));
    }
    let text = wrap::drop_in(&unit, sluice);
    let text = text.map_err(|error| Failure::new(format!("{}: {error}", unit.name), ""))?;
    Ok((unit, text))
}

/// What is ours for a template counts for instances that run something else, too.
fn note_instances(root: &Path, template: &str) {
    let Some(stem) = template.strip_suffix("@.service") else {
        return;
    };
    for folder in folders(root) {
        let name = folder.strip_suffix(".d").unwrap_or(&folder);
        let is_instance = template_of(name).as_deref() == Some(template) && name.starts_with(stem);
        let own = Place::of(root, name).is_ok_and(|place| place.exists());
        if is_instance && !own {
            complain(&format!(
                "note: {name} has drop-ins of its own: if they say what it runs, enable it by itself, too"
            ));
        }
    }
}

pub fn disable(args: &DisableArgs) -> Outcome {
    let root = root_of(args.root.as_deref())?;
    let names = match args.all {
        true => enabled(&root).into_iter().map(|found| found.unit).collect(),
        false => args.units.clone(),
    };
    let mut changed = Vec::new();
    for name in &names {
        let mut name = full_name(name).map_err(|error| Failure::new(error.to_string(), ""))?;
        // By another of its names; a unit that is gone may have left a drop-in all the same.
        if !Place::of(&root, &name)?.exists()
            && let Ok(unit) = Unit::load(&root, &name, DROP_IN)
        {
            name = unit.name;
        }
        let place = Place::of(&root, &name)?;
        let path = place.path().display();
        if place.ours()?.is_none() {
            print(&format!("{name} is not enabled\n"))?;
        } else if args.dry_run {
            print(&format!("would remove {path}\n"))?;
        } else {
            place.remove()?;
            print(&format!("{name} is disabled\n"))?;
            changed.push(name);
        }
    }
    tell_systemd(args.root.is_some(), &changed)?;
    Ok(0)
}

/// What is enabled, by name.
pub fn enabled(root: &Path) -> Vec<Enabled> {
    let mut found = Vec::new();
    for folder in folders(root) {
        let Some(unit) = folder.strip_suffix(".d") else {
            continue;
        };
        let place = Place::of(root, unit);
        if let Ok(Some(text)) = place.and_then(|place| place.ours()) {
            found.push(Enabled {
                unit: unit.to_owned(),
                outdated: outdated(root, unit, &text),
            });
        }
    }
    found.sort_by(|a, b| a.unit.cmp(&b.unit));
    found
}

fn outdated(root: &Path, unit: &str, text: &str) -> Option<String> {
    let program = text
        .lines()
        .find_map(|line| line.strip_prefix("# Program: "));
    let Some(program) = program else {
        return Some("the drop-in was changed".to_owned());
    };
    match wanted(root, unit, program) {
        Err(failure) => Some(failure.to_string()),
        Ok((_, wanted)) if wanted != text => Some(format!(
            "what the unit says has changed: 'sluice enable {unit}'"
        )),
        Ok(_) if !root.join(program.trim_start_matches('/')).exists() => Some(format!(
            "{program} is gone, and the service will not start: 'sluice disable {unit}'"
        )),
        Ok(_) => None,
    }
}

/// Lines for `sluice status`.
pub fn describe(enabled: &[Enabled]) -> String {
    let lines = enabled.iter().map(|found| {
        let unit = harmless(&found.unit);
        match &found.outdated {
            Some(why) => format!("service {unit}: {}\n", harmless(why)),
            None => format!("service {unit}: starts under Sluice\n"),
        }
    });
    lines.collect()
}

/// Folders of drop-ins of the administrator.
fn folders(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join(CONFIGURATION)).into_iter().flatten();
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| name.ends_with(".service.d"));
    names.take(UNITS_MAX).collect()
}

fn root_of(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let root = named.unwrap_or(Path::new("/"));
    fs::canonicalize(root).map_err(|error| cannot("read", root, &error))
}

/// The path of `sluice` as services of that system see it.
fn program(root: &Path, is_other: bool) -> Result<String, Failure> {
    if !is_other {
        let own = std::env::current_exe();
        let own = own.map_err(|error| cannot("find", Path::new("sluice"), &error))?;
        crate::locate::library()?;
        if !["/usr", "/opt", "/bin"]
            .iter()
            .any(|folder| own.starts_with(folder))
        {
            complain(&format!(
                "note: services to which systemd does not show {} cannot start from there: install Sluice in /usr",
                own.display()
            ));
        }
        return Ok(own.display().to_string());
    }
    for path in ["usr/bin/sluice", "usr/local/bin/sluice"] {
        if root.join(path).is_file() {
            return Ok(format!("/{path}"));
        }
    }
    Err(Failure::new(
        format!("there is no sluice in {}", root.display()),
        "install it there first, as /usr/bin/sluice",
    ))
}

/// Lets the systemd of this system read its units again, and says what is left to do.
fn tell_systemd(is_other: bool, changed: &[String]) -> Result<(), Failure> {
    if changed.is_empty() || is_other {
        return Ok(());
    }
    let units = changed.join(" ");
    // sd_booted(3)
    if Path::new("/run/systemd/system").is_dir() {
        let reloaded = Command::new("systemctl").arg("daemon-reload").status();
        if !reloaded.is_ok_and(|status| status.success()) {
            return Err(Failure::new(
                "systemd could not be told",
                "run 'systemctl daemon-reload', and see why it fails",
            ));
        }
        print(&format!(
            "From its next start on: systemctl restart {units}\n"
        ))?;
    } else {
        print("No systemd runs here: it counts when one does\n")?;
    }
    Ok(())
}
