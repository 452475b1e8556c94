//! `sluice window show` and `sluice window list`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sluice_peering::config::Config;

use super::seen::{self, Seen};
use crate::args::WindowListArgs;
use crate::daemon;
use crate::error::{Failure, Outcome};
use crate::terminal::{complain, print};

/// Goes up when a field changes its meaning or goes away.
const FORMAT: u32 = 1;
/// Looked at if it is there and no other file is named.
const USUAL_CONFIG: &str = "/etc/sluice/sluiced.toml";

#[derive(Debug, Serialize)]
struct One<'a> {
    format: u32,
    #[serde(flatten)]
    seen: &'a Seen,
}

#[derive(Debug, Serialize)]
struct All<'a> {
    format: u32,
    windows: &'a [Seen],
}

pub fn run(path: &Path, json: bool) -> Outcome {
    let seen = seen::look(path)?;
    let one = One {
        format: FORMAT,
        seen: &seen,
    };
    print(&if json { document(&one)? } else { seen.text() })?;
    Ok(0)
}

/// The windows of a configuration and of the sluiced that runs. Status 1 if one cannot be looked at.
pub fn list(args: &WindowListArgs) -> Outcome {
    let mut paths = configured(args.config.as_deref())?;
    paths.extend(used(args.socket.as_deref())?);
    let mut windows = Vec::new();
    let mut status = 0;
    for path in &paths {
        match seen::look(path) {
            Ok(seen) => windows.push(seen),
            Err(failure) => {
                complain(&failure.to_string());
                status = 1;
            }
        }
    }
    let all = All {
        format: FORMAT,
        windows: &windows,
    };
    print(&if args.json {
        document(&all)?
    } else if paths.is_empty() {
        "no windows: no sluiced here has one, and no configuration names one\n".to_owned()
    } else {
        windows.iter().map(Seen::text).collect()
    })?;
    Ok(status)
}

fn document(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Failure::new(
            format!("cannot write the window as JSON: {error}"),
            "please report this",
        )
    })?;
    Ok(text + "\n")
}

fn configured(named: Option<&Path>) -> Result<BTreeSet<PathBuf>, Failure> {
    let usual = Path::new(USUAL_CONFIG);
    let Some(path) = named.or_else(|| usual.exists().then_some(usual)) else {
        return Ok(BTreeSet::new());
    };
    let config = Config::load(path).map_err(|error| {
        Failure::new(
            error.to_string(),
            "correct it; 'sluice up --config FILE --check' says what else is wrong",
        )
    })?;
    Ok(config.windows.into_iter().map(|it| it.path).collect())
}

/// What a sluiced says that it has; without one that runs, none.
fn used(socket: Option<&Path>) -> Result<BTreeSet<PathBuf>, Failure> {
    let path = daemon::socket_path(socket)?;
    let status = match daemon::fetch_status(&path) {
        Ok((_, status)) => status,
        Err(state) if socket.is_some() => return Err(state.failure(&path)),
        Err(_) => return Ok(BTreeSet::new()),
    };
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
    let windows = status["fabric"]["windows"].as_array();
    let paths = windows.into_iter().flatten();
    Ok(paths
        .filter_map(|window| window["path"].as_str().map(PathBuf::from))
        .collect())
}
