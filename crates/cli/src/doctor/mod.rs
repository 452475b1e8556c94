//! `sluice doctor`: what this machine offers, what would be used, and how to get the rest.

mod installation;
mod machine;
mod network;
mod peer;
mod verbs;
mod window;

use std::time::Duration;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::error::Failure;
use crate::error::Outcome;
use crate::terminal::print;
use crate::terminal::{Style, columns, harmless, wrap};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Lanes work; something about it is worth knowing.
    Note,
    /// Lanes cannot work like this.
    Missing,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do, or what it means; may be empty.
    hint: String,
}

impl Check {
    fn new(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            name,
            verdict,
            found: found.into(),
            hint: hint.into(),
        }
    }
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, found, "")
    }
    fn note(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(name, Verdict::Note, found, hint)
    }
    fn missing(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(name, Verdict::Missing, found, hint)
    }
}

/// What a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// This machine.
    Host,
    /// Lanes to another host.
    Pair,
    /// Memory that hosts share.
    Window,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// Two programs started now would get lanes.
    lanes: bool,
    #[serde(skip)]
    subject: Subject,
    checks: Vec<Check>,
}

impl Report {
    fn new(checks: Vec<Check>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            subject: Subject::Host,
            lanes: checks.iter().all(|c| c.verdict != Verdict::Missing),
            checks,
        }
    }

    fn human(&self, style: Style, columns: usize) -> String {
        let width = self.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for check in &self.checks {
            // Padded before it is coloured: escape sequences have no width.
            let (word, paint): (&str, fn(Style, &str) -> String) = match check.verdict {
                Verdict::Ok => ("ok     ", Style::good),
                Verdict::Note => ("note   ", Style::note),
                Verdict::Missing => ("missing", Style::bad),
            };
            let margin = " ".repeat("missing".len() + 2 + width + 2);
            let room = columns.saturating_sub(margin.len()).max(20);
            let mut found = wrap(&harmless(&check.found), room).into_iter();
            text.push_str(&format!(
                "{}  {:width$}  {}\n",
                paint(style, word),
                check.name,
                found.next().unwrap_or_default()
            ));
            for line in found {
                text.push_str(&format!("{margin}{line}\n"));
            }
            for line in wrap(&harmless(&check.hint), room) {
                text.push_str(&format!("{margin}{}\n", style.dim(&line)));
            }
        }
        text.push_str(match (self.subject, self.lanes) {
            (Subject::Host, true) => {
                "\nPrograms started with 'sluice run' get lanes on this machine.\n"
            }
            (Subject::Host, false) => "\nLanes do not work here until what is missing is there.\n",
            (Subject::Pair, true) => "\nPrograms on these two hosts get lanes between them.\n",
            (Subject::Pair, false) => {
                "\nConnections between these hosts stay on TCP until what is missing is there.\n"
            }
            (Subject::Window, true) => "\nThis window works.\n",
            (Subject::Window, false) => {
                "\nThis window does not work until what is missing is there.\n"
            }
        });
        text
    }
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Outcome {
    let (subject, checks) = match (&args.peer, &args.window) {
        (Some(address), _) => {
            let (config, socket) = (args.config.as_deref(), args.socket.as_deref());
            (Subject::Pair, peer::checks(address, config, socket))
        }
        (None, Some(path)) => {
            let wait = Duration::from_secs(args.wait);
            (Subject::Window, window::checks(path, wait))
        }
        (None, None) => {
            let mut checks = machine::checks();
            let network = network::checks();
            let verbs = verbs::checks(&network);
            checks.extend(network);
            checks.extend(verbs);
            checks.extend(args.interface.iter().map(|name| network::trial(name)));
            checks.extend(installation::checks(args.socket.as_deref()));
            (Subject::Host, checks)
        }
    };
    let report = Report {
        subject,
        ..Report::new(checks)
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report)
            .map(|text| text + "\n")
            .map_err(|error| {
                Failure::new(
                    format!("cannot write the report as JSON: {error}"),
                    "please report this",
                )
            })?
    } else {
        report.human(Style::for_stream(&std::io::stdout()), columns())
    };
    print(&text)?;
    Ok(u8::from(!report.lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_thing_is_enough_to_fail() {
        let note = || Check::note("b", "odd", "look");
        assert!(Report::new(vec![Check::ok("a", "fine"), note()]).lanes);
        let report = Report::new(vec![note(), Check::missing("c", "none", "get it")]);
        assert!(!report.lanes);
        let text = report.human(Style::PLAIN, 100);
        assert!(text.contains("missing  c  none"), "{text}");
        assert!(
            text.contains("get it") && text.contains("do not work here"),
            "{text}"
        );
    }

    #[test]
    fn json_has_lower_case_verdicts() {
        let report = Report::new(vec![Check::missing("c", "none", "get it")]);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["lanes"], false);
        assert_eq!(value["checks"][0]["verdict"], "missing");
    }
}
