//! pgbouncer between pgbench and PostgreSQL, all of them run by an ordinary user. `pgbouncer -R` replaces a running
//! pgbouncer: it gets the sockets of all clients and servers from it, while requests and answers are on the way.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::job::{Job, postgresql_folder};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::programs::text;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial, until};

use crate::tools::{LIMIT, Stage, port, write};

const CLIENTS: u64 = 4;
const TRANSACTIONS: u64 = 1000;
const RESTARTS: u64 = 2;

/// A value that the server makes crosses both ways, and the server says what has come back.
const TRANSACTION: &str = r"\set n :n + 1
SELECT repeat(md5(:client_id || ' ' || :n), 1 + :n % 50) AS long \gset
INSERT INTO done VALUES (:client_id, :n, md5(':long'), pg_backend_pid());
";

/// For each client: how many transactions, what came back, and how many connections of pgbouncer's it had.
const SUMMARY: &str = "SELECT client, count(*), md5(string_agg(sum, '' ORDER BY n)), count(DISTINCT pid) \
     FROM done GROUP BY client ORDER BY client";

pub fn trials() -> Vec<Trial> {
    vec![trial("pgbouncer/restarts-unprivileged", || until(restarts))]
}

/// A stage with a database's files in it.
struct Database {
    stage: Stage,
    /// Where PostgreSQL's programs are.
    programs: PathBuf,
    port: u16,
}

/// The results are those of the plain run. Connections have lanes before the first restart. A connection whose socket
/// pgbouncer passes to the next pgbouncer is on TCP from then on.
fn restarts() -> Verdict<Verdict> {
    let mut database = Database::new()?;
    let (plain, _) = database.run(Mode::Plain)?;
    let lines: Vec<&str> = plain.lines().collect();
    let is_whole = lines.len() as u64 == CLIENTS
        && lines.iter().enumerate().all(|(client, line)| {
            line.starts_with(&format!("{client}|{TRANSACTIONS}|")) && line.ends_with("|1")
        });
    ensure(is_whole, || plain.clone())?;
    let (accelerated, was_beside) = database.run(Mode::Accelerated)?;
    ensure(plain == accelerated, || {
        format!("plain:\n{plain}under Sluice:\n{accelerated}")
    })?;
    let lab = &database.stage.lab;
    Ok(was_beside
        .and_then(|()| lab.require_lanes())
        .and_then(|()| require_passed(lab)))
}

/// The statistics have the reasons for connections that a pgbouncer has passed on, and for those that it has got.
fn require_passed(lab: &Lab) -> Verdict {
    if lab.is_standin() {
        return Ok(());
    }
    let totals = lab.totals()?;
    let reasons = [
        "descriptor shared with another program",
        "inherited from an unfollowed program",
    ];
    let all = reasons
        .iter()
        .all(|reason| totals.reasons.get(*reason).is_some_and(|&count| count > 0));
    ensure(all, || format!("expected {reasons:?}: {totals:?}"))
}

impl Database {
    fn new() -> Verdict<Database> {
        let mut database = Database {
            stage: Stage::of(Lab::unprivileged()?),
            programs: find_programs()?,
            port: port()?,
        };
        let data = text(database.stage.path("data"));
        let trusting = ["-A", "trust", "-U", "tester", "--no-sync", "--no-locale"];
        let words = [&["-D", &data, "-E", "UTF8"], &trusting[..]].concat();
        database.program(Mode::Plain, "initdb", &words)?;
        write(&database.stage.path("transaction.sql"), TRANSACTION)?;
        write(&database.stage.path("users"), "\"tester\" \"\"\n")?;
        Ok(database)
    }

    fn path_of(&self, name: &str) -> String {
        text(self.programs.join(name))
    }

    fn program(&mut self, mode: Mode, name: &str, words: &[&str]) -> Verdict {
        let path = self.path_of(name);
        self.stage.run(mode, &path, words)?;
        Ok(())
    }

    /// Starts the server; it answers when this returns.
    fn start_server(&mut self, mode: Mode) -> Verdict<Job> {
        let (data, sockets) = (text(self.stage.path("data")), text(self.stage.lab.path()));
        let (program, port) = (self.path_of("postgres"), self.port.to_string());
        let words = [
            "-D",
            &data,
            "-k",
            &sockets,
            "-p",
            &port,
            "-h",
            "127.0.0.1",
            "-c",
            "fsync=off",
        ];
        let mut server = self.stage.start(mode, &program, &words)?;
        let state = self.stage.path("data/postmaster.pid");
        server.await_ready(LIMIT, "state \"ready\"", || {
            fs::read_to_string(&state).is_ok_and(|text| text.contains("ready"))
        })?;
        Ok(server)
    }

    /// Asks the server itself, without Sluice.
    fn ask(&mut self, question: &str) -> Verdict<String> {
        let (program, at) = (self.path_of("psql"), text(self.stage.lab.path()));
        let port = self.port.to_string();
        let words = [
            "-XqAt", "-h", &at, "-p", &port, "-U", "tester", "-c", question, "postgres",
        ];
        Ok(self.stage.run(Mode::Plain, &program, &words)?.text())
    }

    fn transactions_done(&mut self) -> Verdict<u64> {
        let said = self.ask("SELECT count(*) FROM done")?;
        said.trim().parse().or_else(|_| fail(said))
    }

    /// Runs everything in the mode: the summary, and whether the clients were there until the last restart.
    fn run(&mut self, mode: Mode) -> Verdict<(String, Verdict)> {
        let server = self.start_server(mode)?;
        self.ask(
            "DROP TABLE IF EXISTS done; \
             CREATE UNLOGGED TABLE done (client int, n int, sum text, pid int)",
        )?;
        let between = port()?;
        let config = self.write_config(between)?;
        let mut pooler = self.stage.serve(mode, "pgbouncer", &[&config], between)?;
        let (script, port) = (
            text(self.stage.path("transaction.sql")),
            between.to_string(),
        );
        let (clients, transactions) = (CLIENTS.to_string(), TRANSACTIONS.to_string());
        let at = ["-h", "127.0.0.1", "-p", &port, "-U", "tester"];
        let load = ["-n", "-c", &clients, "-j", "2", "-t", &transactions];
        let what = ["-D", "n=0", "-f", &script, "postgres"];
        let bench = self.path_of("pgbench");
        let mut bench = self
            .stage
            .start(mode, &bench, &[&at[..], &load, &what].concat())?;
        for restart in 1..=RESTARTS {
            let wanted = CLIENTS * TRANSACTIONS * restart / (RESTARTS + 2);
            while self.transactions_done()? < wanted {
                if bench.poll()?.is_some() {
                    return fail(bench.finish(LIMIT)?.describe());
                }
            }
            let mut next = self.stage.start(mode, "pgbouncer", &["-R", &config])?;
            next.await_ready(LIMIT, "end of the pgbouncer that it replaces", || {
                pooler.poll().is_ok_and(|status| status.is_some())
            })?;
            pooler.finish(LIMIT)?.success()?;
            pooler = next;
        }
        let done = self.transactions_done()?;
        let was_beside = ensure(done < CLIENTS * TRANSACTIONS, || {
            "the clients had ended before the last restart".to_owned()
        });
        bench.finish(LIMIT)?.success()?;
        pooler.signal(Signal::INT)?;
        pooler.finish(LIMIT)?.success()?;
        let summary = self.ask(SUMMARY)?;
        // PostgreSQL's "fast" way: it does not wait for clients.
        server.signal(Signal::INT)?;
        server.finish(LIMIT)?.success()?;
        Ok((summary, was_beside))
    }

    fn write_config(&self, port: u16) -> Verdict<String> {
        let dir = text(self.stage.lab.path());
        let path = self.stage.path("pgbouncer.ini");
        write(
            &path,
            format!(
                "[databases]\n* = host=127.0.0.1 port={}\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
                 unix_socket_dir = {dir}\nauth_type = trust\nauth_file = {dir}/users\n\
                 admin_users = tester\npool_mode = session\n",
                self.port
            ),
        )?;
        Ok(text(path))
    }
}

/// Debian keeps them apart for each version; the newest.
fn find_programs() -> Verdict<PathBuf> {
    postgresql_folder().map_or_else(
        || skip("PostgreSQL is not installed; run scripts/setup test"),
        Ok,
    )
}
