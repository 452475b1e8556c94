//! `sluice status`: live connections, the path of each, and why; and verbs processes.

pub mod layout;
pub mod peers;
pub mod table;
pub mod verbs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::args::StatusArgs;
use crate::daemon::{self, Target};
use crate::error::Failure;
use crate::error::Outcome;
use crate::service::{self, Enabled};
use crate::terminal::print;
use crate::terminal::{self, Style, complain, harmless};

use crate::document::Document;
use verbs::Verbs;

const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Directories with faults that are named.
const FAILURES_SHOWN: usize = 3;
/// Back to the top left corner, and everything below it erased.
const CLEAR: &str = "\x1b[H\x1b[J";

/// One daemon's answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub socket: PathBuf,
    /// The user whose daemon it is, where the socket's place or the daemon says so.
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<serde_json::Value>,
    #[serde(skip)]
    pub document: Option<Document>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// There is none, which is no fault where nobody needs one.
    #[serde(skip)]
    pub absent: bool,
}

/// Which daemons a command asks.
pub struct Source {
    targets: Vec<Target>,
    socket: PathBuf,
    all: bool,
    /// The caller has said which daemon.
    named: bool,
}

impl Source {
    /// `flag`: one socket by name. Otherwise this user's daemon or, with `all` and for root, all.
    pub fn new(flag: Option<&Path>, all: bool) -> Result<Self, Failure> {
        let socket = daemon::socket_path(flag)?;
        let named = flag.is_some() || std::env::var_os("SLUICE_SOCKET").is_some();
        let mut source = Self {
            targets: Vec::new(),
            socket,
            all: all || (rustix::process::geteuid().is_root() && !named),
            named,
        };
        source.look_again();
        Ok(source)
    }

    /// Whether all users' verbs processes are asked, too: others' are closed to anybody but root.
    pub fn sees_all_verbs(&self) -> bool {
        self.all && rustix::process::geteuid().is_root()
    }

    /// Finds daemons that have come and gone.
    pub fn look_again(&mut self) {
        self.targets = if self.all {
            daemon::everywhere(self.socket.clone())
        } else {
            vec![Target {
                socket: self.socket.clone(),
                uid: None,
            }]
        };
    }

    /// Asks each daemon. A place without a daemon gives no answer, unless it is the only one.
    pub fn ask(&self) -> Vec<Answer> {
        let mut answers: Vec<Answer> = self.targets.iter().filter_map(ask_one).collect();
        if answers.is_empty() {
            let state = daemon::probe(&self.socket);
            answers.push(Answer {
                socket: self.socket.clone(),
                uid: None,
                status: None,
                document: None,
                error: Some(state.failure(&self.socket).to_string()),
                absent: matches!(state, daemon::State::Absent | daemon::State::Stale),
            });
        }
        answers
    }
}

/// `None` if no daemon is there.
fn ask_one(target: &Target) -> Option<Answer> {
    let mut answer = Answer {
        socket: target.socket.clone(),
        uid: target.uid,
        status: None,
        document: None,
        error: None,
        absent: false,
    };
    if let Err(what) = target.check_owner() {
        answer.error = Some(what);
        return Some(answer);
    }
    match daemon::fetch_status(&target.socket) {
        Ok((uid, text)) => {
            answer.uid = Some(uid);
            if target.uid.is_some_and(|expected| expected != uid) {
                answer.error = Some(format!("a daemon of uid {uid} answers there"));
                return Some(answer);
            }
            match serde_json::from_slice::<serde_json::Value>(&text) {
                Ok(value) => match Document::deserialize(&value) {
                    Ok(document) => {
                        answer.document = Some(document);
                        answer.status = Some(value);
                    }
                    Err(error) => answer.error = Some(unexpected(&error)),
                },
                Err(error) => answer.error = Some(unexpected(&error)),
            }
        }
        Err(daemon::State::Absent | daemon::State::Stale) => return None,
        Err(state) => answer.error = Some(state.failure(&target.socket).to_string()),
    }
    Some(answer)
}

fn unexpected(error: &serde_json::Error) -> String {
    format!("the daemon's answer is not understood ({error}); is it of this version?")
}

/// Of the whole output; docs/json.md.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Output<'a> {
    format: u32,
    daemons: &'a [Answer],
    verbs: &'a Verbs,
    services: &'a [Enabled],
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Outcome {
    let mut source = Source::new(args.socket.as_deref(), args.all)?;
    let own = rustix::process::getuid().as_raw();
    let all_verbs = source.sees_all_verbs();
    let style = Style::for_stream(&std::io::stdout());
    let screen = std::io::IsTerminal::is_terminal(&std::io::stdout());
    loop {
        let answers = source.ask();
        let verbs = verbs::ask(all_verbs);
        let services = service::enabled(Path::new("/"));
        let any_daemon = answers.iter().any(|answer| answer.document.is_some());
        // Verbs needs no daemon. Who has named one wants to hear of that.
        let any = any_daemon || !source.named && !verbs.processes.is_empty();
        let mut text = if args.json {
            json(&answers, &verbs, &services)?
        } else {
            let limit = (!args.wide).then(terminal::columns);
            let mut text = human(&answers, own, style, limit);
            let table = verbs::table::render(&verbs, own, style, limit);
            if !text.is_empty() && !table.is_empty() {
                text.push('\n');
            }
            text.push_str(&table);
            let services = service::describe(&services);
            if !text.is_empty() && !services.is_empty() {
                text.push('\n');
            }
            text + &services
        };
        if args.watch && screen && !args.json {
            text = format!("{CLEAR}{text}");
        }
        if !print(&text)? {
            return Ok(0);
        }
        if !args.json {
            let faults = answers.iter().filter(|answer| answer.document.is_none());
            for answer in faults.filter(|answer| !(any && answer.absent)) {
                let error = answer.error.as_deref().unwrap_or("no answer");
                complain(&harmless(error));
            }
            for failed in verbs.failures.iter().take(FAILURES_SHOWN) {
                let directory = harmless(&failed.directory);
                complain(&format!("{directory}: {}", harmless(&failed.why)));
            }
        }
        if !args.watch {
            return Ok(u8::from(!any));
        }
        std::thread::sleep(WATCH_INTERVAL);
        source.look_again();
    }
}

fn json(answers: &[Answer], verbs: &Verbs, services: &[Enabled]) -> Result<String, Failure> {
    let output = Output {
        format: FORMAT,
        daemons: answers,
        verbs,
        services,
    };
    serde_json::to_string_pretty(&output)
        .map(|text| text + "\n")
        .map_err(|error| {
            Failure::new(
                format!("cannot write the status as JSON: {error}"),
                "please report this",
            )
        })
}

fn human(answers: &[Answer], own: u32, style: Style, limit: Option<usize>) -> String {
    let mut text = String::new();
    for answer in answers {
        let Some(document) = &answer.document else {
            continue;
        };
        if !text.is_empty() {
            text.push('\n');
        }
        let others = answer.uid.filter(|uid| *uid != own);
        if answers.len() > 1 || others.is_some() {
            let socket = harmless(&answer.socket.display().to_string());
            let whose = others.map_or(String::new(), |uid| format!(", of uid {uid}"));
            text.push_str(&format!("{}\n", style.dim(&format!("{socket}{whose}"))));
        }
        text.push_str(&table::render(document, style, limit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(document: Option<&str>) -> Answer {
        let status: Option<serde_json::Value> = document.map(|d| serde_json::from_str(d).unwrap());
        Answer {
            socket: PathBuf::from("/s/control.sock"),
            uid: Some(1000),
            document: status.clone().map(|v| serde_json::from_value(v).unwrap()),
            error: status.is_none().then(|| "no".to_owned()),
            absent: false,
            status,
        }
    }

    #[test]
    fn json_passes_on_what_the_daemon_says_unchanged() {
        let answers = [answer(Some(r#"{"pid":3,"unknown":[1]}"#)), answer(None)];
        let text = json(&answers, &Verbs::default(), &[]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["daemons"][0]["status"]["unknown"][0], 1);
        assert_eq!(value["daemons"][0]["uid"], 1000);
        assert_eq!(value["daemons"][1]["error"], "no");
        assert!(value["daemons"][1].get("status").is_none());
    }

    #[test]
    fn several_daemons_are_told_apart_by_their_sockets() {
        let one = human(&[answer(Some("{}"))], 1000, Style::PLAIN, Some(100));
        assert!(!one.contains("/s/control.sock"), "{one}");
        let two = human(
            &[answer(Some("{}")), answer(Some("{}"))],
            1000,
            Style::PLAIN,
            Some(100),
        );
        assert_eq!(two.matches("/s/control.sock").count(), 2, "{two}");
        let others = human(&[answer(Some("{}"))], 0, Style::PLAIN, Some(100));
        assert!(
            others.starts_with("/s/control.sock, of uid 1000\n"),
            "{others}"
        );
    }
}
