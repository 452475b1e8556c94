//! `sluice up` where a daemon runs already.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Settings, State, client, end, end_by_signal, probe};
use crate::document::Document;
use crate::error::Failure;
use crate::terminal::print;

/// Ends a daemon that `sluice run` has started and that would end by itself. The pid of one that
/// stays and is as `settings` want it; `None` if there is none (any more).
///
/// Errors: it stays and is otherwise, or the caller wants one in the foreground.
pub(super) fn make_way(
    socket: &Path,
    settings: &Settings,
    in_foreground: bool,
) -> Result<Option<u32>, Failure> {
    let pid = match probe(socket) {
        State::Running { pid, .. } => pid,
        State::Absent | State::Stale => return Ok(None),
        state @ State::OtherVersion { pid: Some(pid), .. } => {
            end_by_signal(socket, pid, &state)?;
            print(&format!(
                "the sluiced of another version, pid {pid}, has ended; programs keep the lanes that they \
                 have\n"
            ))?;
            return Ok(None);
        }
        state => return Err(state.failure(socket)),
    };
    let (_, text) = client::fetch_status(socket).map_err(|state| state.failure(socket))?;
    let document: Document = serde_json::from_slice(&text).unwrap_or_default();
    if let Some(options) = &document.options
        && options.contains_key("idle_exit")
    {
        end(socket, pid)?;
        print(&format!(
            "the sluiced of 'sluice run', pid {pid}, has ended; programs keep the lanes that they \
             have\n"
        ))?;
        return Ok(None);
    }
    let taken = |what: String| {
        Err(Failure::new(
            format!(
                "sluiced already runs, pid {pid}, on {}{what}",
                socket.display()
            ),
            "stop it first with 'sluice down'",
        ))
    };
    if in_foreground {
        return taken(String::new());
    }
    let wanted = wanted(settings);
    let Some(options) = &document.options else {
        return match wanted.first() {
            None => Ok(Some(pid)),
            Some((name, _)) => taken(format!(
                ", and what it was started with is not to be seen: {}",
                flag(name)
            )),
        };
    };
    let differences = differences(&wanted, options);
    if differences.is_empty() {
        return Ok(Some(pid));
    }
    taken(format!(", with other options: {}", differences.join(", ")))
}

/// What the caller has said, by the names in the document.
fn wanted(settings: &Settings) -> Vec<(&'static str, Value)> {
    let path = |path: &Option<std::path::PathBuf>| {
        let path = path.as_ref()?;
        Some(Value::from(path.display().to_string()))
    };
    let all = [
        ("ring_bytes", settings.ring_bytes.map(Value::from)),
        ("max_lanes", settings.max_lanes.map(Value::from)),
        ("user_share", settings.user_share.map(Value::from)),
        (
            "allow_all_users",
            settings.allow_all_users.then_some(Value::Bool(true)),
        ),
        ("config", path(&settings.config)),
        (
            "metrics",
            settings.metrics.map(|it| Value::from(it.to_string())),
        ),
        ("log", settings.log.map(|it| Value::from(it.name()))),
        (
            "log_format",
            settings.log_format.map(|it| Value::from(it.name())),
        ),
        ("log_file", path(&settings.log_file)),
    ];
    let given = all.into_iter();
    given
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

fn flag(name: &str) -> String {
    match name {
        "allow_all_users" => "--system".to_owned(),
        name => format!("--{}", name.replace('_', "-")),
    }
}

fn differences(wanted: &[(&'static str, Value)], options: &Map<String, Value>) -> Vec<String> {
    let differ = wanted.iter().filter(|(name, value)| {
        let there = options.get(*name);
        there != Some(value)
    });
    let words = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    differ
        .map(|(name, _)| match options.get(*name) {
            Some(Value::Bool(false)) | None => format!("it has no {}", flag(name)),
            Some(there) => format!("it has {} {}", flag(name), words(there)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_and_differs_is_named() {
        let settings = Settings {
            ring_bytes: Some(16_384),
            max_lanes: Some(7),
            allow_all_users: true,
            config: Some("/c".into()),
            ..Settings::default()
        };
        let options = serde_json::json!({
            "ring_bytes": 65_536, "max_lanes": 7, "user_share": 25, "allow_all_users": false,
            "log": "info"
        });
        let Value::Object(options) = options else {
            unreachable!()
        };
        assert_eq!(
            differences(&wanted(&settings), &options),
            [
                "it has --ring-bytes 65536",
                "it has no --system",
                "it has no --config"
            ]
        );
        assert!(differences(&wanted(&Settings::default()), &options).is_empty());
    }
}
