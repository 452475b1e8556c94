//! `sluice enable` and `sluice disable`: services that systemd starts under Sluice.

mod unit;
mod wrap;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::args::{DisableArgs, EnableArgs};
use crate::error::{Failure, Outcome, reason};
use crate::terminal::{complain, harmless, print};

use unit::{CONFIGURATION, Unit, full_name, template_of};
use wrap::MARK;

/// Behind `override.conf`, which 'systemctl edit' makes: what a service runs is what the last one says.
const DROP_IN: &str = "zz-sluice.conf";
/// Drop-in folders that are looked at.
const UNITS_MAX: usize = 10_000;
/// Bytes of a drop-in of ours at most.
const TEXT_BYTES_MAX: u64 = 1 << 20;

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
    let path = place(root, &unit.name)?;
    if dry {
        print(&format!("# {}\n{text}", path.display()))?;
        return Ok(None);
    }
    if let Some(note) = wrap::filter_note(&unit) {
        complain(&format!("note: {}: {note}", unit.name));
    }
    note_instances(root, &unit.name);
    match ours(&path)? {
        Some(present) if present == text => {
            print(&format!("{} is enabled already\n", unit.name))?;
            return Ok(None);
        }
        _ => write(&path, &text)?,
    }
    print(&format!("{} is enabled: {}\n", unit.name, path.display()))?;
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
        let own = place(root, name).is_ok_and(|path| path.exists());
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
        if !place(&root, &name)?.exists()
            && let Ok(unit) = Unit::load(&root, &name, DROP_IN)
        {
            name = unit.name;
        }
        let path = place(&root, &name)?;
        if ours(&path)?.is_none() {
            print(&format!("{name} is not enabled\n"))?;
        } else if args.dry_run {
            print(&format!("would remove {}\n", path.display()))?;
        } else {
            fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
            // Others' drop-ins may be beside it.
            let _ = path.parent().map(fs::remove_dir);
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
        let path = root.join(CONFIGURATION).join(&folder).join(DROP_IN);
        if let Ok(Some(text)) = ours(&path) {
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

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied => "this takes root",
        _ => "",
    };
    Failure::new(
        format!("cannot {what} {}: {}", path.display(), reason(error)),
        hint,
    )
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

/// Where the drop-in of a unit is, within the root.
fn place(root: &Path, unit: &str) -> Result<PathBuf, Failure> {
    let folder = root.join(CONFIGURATION);
    let path = folder.join(format!("{unit}.d"));
    for existing in path.ancestors() {
        match fs::canonicalize(existing) {
            Ok(real) if real.starts_with(root) => break,
            Ok(_) => {
                return Err(Failure::new(
                    format!("{} leads out of {}", existing.display(), root.display()),
                    "write into that system from inside of it",
                ));
            }
            Err(_) => {}
        }
    }
    Ok(path.join(DROP_IN))
}

/// The text of a drop-in of ours; `None` where there is none.
///
/// # Errors
/// There is one that is not ours.
fn ours(path: &Path) -> Result<Option<String>, Failure> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("read", path, &error)),
    };
    let text = match meta.is_file() && meta.len() <= TEXT_BYTES_MAX {
        true => fs::read(path).map_err(|error| cannot("read", path, &error))?,
        false => Vec::new(),
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    if !text.starts_with(MARK) {
        return Err(Failure::new(
            format!("{} was not made by 'sluice enable'", path.display()),
            "move it away first",
        ));
    }
    Ok(Some(text))
}

/// Whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| cannot("write", path, &error);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut builder = fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(failed)?;
    let new = folder.join(format!(".{DROP_IN}.{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o644).open(&new);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        failed(error)
    })
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
