//! PostgreSQL and pgbench: a process for each connection, and a client that waits in ppoll.

use std::path::Path;

use super::beside::Beside;
use crate::error::{BenchError, Result};
use crate::machine;
use crate::model::{Sample, Variant};
use crate::process::Ready;
use crate::session::Session;
use crate::words::{path_text, words};

/// How long making the database may take at each step, in seconds, beside what any program may.
const PATIENCE_S: u32 = 60;
/// The user that owns the database.
const USER: &str = "postgres";
/// The server keeps some connections for its owner.
const CONNECTIONS_MORE: u32 = 20;
/// Who runs the server where root may not.
const NOBODY: u32 = 65_534;

/// `pgbench -S`: each transaction is one SELECT by key.
pub(super) fn measure(
    session: &Session,
    variant: Variant,
    clients: u32,
    beside: &Beside,
) -> Result<Sample> {
    let session = &session.for_every_user(variant)?;
    let folder = session.folder("postgres")?;
    let data = folder.join("data");
    let port = session.free_port()?;
    let server_words = as_somebody(words![
        program("postgres"),
        "-D",
        path_text(&data),
        "-k",
        "",
        "-h",
        "127.0.0.1",
        "-p",
        port,
        "-N",
        clients.saturating_add(CONNECTIONS_MORE),
        "-F"
    ]);
    let client_words = |options: Vec<String>| {
        let mut words = words![
            program("pgbench"),
            "-h",
            "127.0.0.1",
            "-p",
            port,
            "-U",
            USER
        ];
        words.extend(options);
        words.push(USER.to_owned());
        words
    };
    if !data.exists() {
        create(session, &folder, &data, (&server_words, port), client_words)?;
    }
    let server = session.server(variant, &beside.placed(server_words), &Ready::Tcp(port))?;
    let words = client_words(words!["-S", "-n", "-c", clients, "-T", session.seconds]);
    let words = beside.placed(words);
    let (output, mut sample) = session.measured(variant, &beside.with(&[&server]), &words)?;
    sample.value = output.read(rate)?;
    // The processes of connections are gone when processor time is read: it would pass for others'.
    sample.cpu_others_share = 0.0;
    Ok(sample)
}

/// A command line of a program of PostgreSQL's server, which refuses to run as root: then somebody else does.
fn as_somebody(words: Vec<String>) -> Vec<String> {
    if !is_root() {
        return words;
    }
    let (user, group) = (NOBODY.to_string(), NOBODY.to_string());
    let mut argv = words![
        "setpriv",
        "--reuid",
        user,
        "--regid",
        group,
        "--clear-groups"
    ];
    argv.extend(words);
    argv
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The full path of a program of PostgreSQL, whose folder is in nobody's PATH.
fn program(name: &str) -> String {
    machine::find_program(name).map_or_else(|| name.to_owned(), |path| path_text(&path))
}

/// Makes the database with the tables of pgbench.
fn create(
    session: &Session,
    folder: &Path,
    data: &Path,
    (server_words, port): (&[String], u16),
    client_words: impl Fn(Vec<String>) -> Vec<String>,
) -> Result<()> {
    if is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY))
            .map_err(|error| BenchError::io("give the database's folder away", &error))?;
    }
    let (plain, seconds) = (Variant::Tcp, PATIENCE_S);
    let path = path_text(data);
    let words = words![
        program("initdb"),
        "-D",
        path,
        "-A",
        "trust",
        "-U",
        USER,
        "--no-sync",
        "--no-locale"
    ];
    session.client(plain, &as_somebody(words), seconds)?;
    let _server = session.server(plain, server_words, &Ready::Tcp(port))?;
    let words = client_words(words!["-i", "-q", "-s", 1]);
    session.client(plain, &words, seconds)?;
    Ok(())
}

/// pgbench says `tps = N (without initial connection time)`.
fn rate(text: &str) -> Result<f64> {
    let said = text.lines().find_map(|line| line.strip_prefix("tps = "));
    let number = said.and_then(|said| said.split_whitespace().next()?.parse::<f64>().ok());
    number
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| BenchError::Failed(format!("pgbench did not say its rate: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_read_and_none_is_refused() {
        let said = "latency average = 0.052 ms\ntps = 19226.5 (without initial connection time)\n";
        assert_eq!(rate(said).ok(), Some(19_226.5));
        assert!(rate("tps = 0.0 (without initial connection time)").is_err());
        assert!(rate("").is_err());
    }
}
