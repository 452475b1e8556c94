//! Programs that wait for their connections, or reach the C library, in ways of their own: Bun enters the kernel to wait,
//! PHP's extensions bind to the C library past what is preloaded, gevent waits by libev, Perl selects from sets of any size.
//! Each is a server and a client; what the client prints says that every byte was right, and how many there were.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::apps::apps_dir;
use sluice_tests::job::command;
use sluice_tests::lab::Mode;
use sluice_tests::programs::text;
use sluice_tests::stream::await_port;
use sluice_tests::suite::{Verdict, ensure, eventually, fail, skip, trial, until};

use crate::tools::{LIMIT, Stage};

const PYTHON: &str = "/usr/bin/python3";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("bun/both", || until(bun)),
        trial("php/streams-and-sockets", || until(php)),
        trial("gevent/libev-epoll", || until(|| gevent("epoll", None))),
        // A socket that is used through io_uring stays with the kernel.
        trial("gevent/libev-io_uring", || {
            until(|| gevent("linux_iouring", Some("used through io_uring")))
        }),
        trial("perl/select", || until(|| perl("0"))),
        // As many descriptors are open before that its sockets are beyond a set of 1,024.
        trial("perl/select-above-1024", || until(|| perl("1100"))),
    ]
}

fn script(name: &str) -> String {
    text(apps_dir().join("scripts").join(name))
}

/// Runs a program of `tests/apps/scripts` as a server, which ends with its connections, and as a client: what the
/// client prints.
fn talk(stage: &mut Stage, mode: Mode, words: &[&str], more: &[&str]) -> Verdict<String> {
    let (program, first) = match words {
        [program, first @ ..] => (program, first),
        [] => return fail("no program"),
    };
    let server_words = [first, &["server"], more].concat();
    let mut server = stage.start(mode, program, &server_words)?;
    let port = await_port(&mut server, LIMIT)?.to_string();
    let client_words = [first, &["client"], more, &[&port]].concat();
    let client = stage.run(mode, program, &client_words)?;
    server.finish(LIMIT)?.success()?;
    Ok(client.text())
}

/// Plain, then with both ends under Sluice: the same.
fn compare(stage: &mut Stage, words: &[&str], more: &[&str], first_line: &str) -> Verdict {
    let plain = talk(stage, Mode::Plain, words, more)?;
    ensure(plain.starts_with(first_line), || plain.clone())?;
    let accelerated = talk(stage, Mode::Accelerated, words, more)?;
    ensure(accelerated == plain, || {
        format!("plain: {plain}under Sluice: {accelerated}")
    })
}

/// Both ends have given this as the reason for so many connections, and nothing went by a lane.
fn require_reason(stage: &Stage, reason: &str, connections: u64) -> Verdict {
    if stage.lab.is_standin() {
        return Ok(());
    }
    let totals = stage.lab.totals()?;
    let is_tcp = totals.lane_bytes() == 0 && totals.laned == 0;
    let counted = totals.reasons.get(reason).copied();
    ensure(is_tcp && counted == Some(2 * connections), || {
        format!("expected {reason:?}: {totals:?}")
    })
}

fn php() -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let modules = stage.run(Mode::Plain, "php", &["-m"])?.text();
    if !modules.lines().any(|module| module == "sockets") {
        return skip("PHP has no extension sockets; run scripts/setup test");
    }
    let words = ["php", &script("two_ways.php")];
    compare(&mut stage, &words, &[], "2000 rounds ")?;
    Ok(stage.lab.require_lanes())
}

fn perl(above: &str) -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let words = ["prlimit", "--nofile=4096", "perl", &script("select.pl")];
    compare(&mut stage, &words, &[above], "2000 rounds, ")?;
    Ok(stage.lab.require_lanes())
}

/// `reason`: why its connections are on TCP, if they are.
fn gevent(backend: &str, reason: Option<&str>) -> Verdict<Verdict> {
    /// Of the client, at once.
    const CONNECTIONS: u64 = 2;
    let mut stage = Stage::new()?;
    let by = format!("GEVENT_BACKEND={backend}");
    let words = ["env", "GEVENT_LOOP=libev-cext", &by, PYTHON];
    // Some kernels and containers refuse an io_uring.
    let try_it = [&words[1..], &["-c", "import gevent; gevent.sleep(0)"]].concat();
    let tried = stage.start(Mode::Plain, words[0], &try_it)?.finish(LIMIT)?;
    if !tried.status.success() {
        return skip(format!("no gevent with libev and {backend}"));
    }
    let script = script("gevent_echo.py");
    let words = [&words[..], &[&script]].concat();
    let says = format!("gevent.libev.corecext {backend}\n2000 rounds, ");
    compare(&mut stage, &words, &[], &says)?;
    Ok(match reason {
        Some(reason) => require_reason(&stage, reason, CONNECTIONS),
        None => stage.lab.require_lanes(),
    })
}

/// Where `tests/programs/bun` has put it.
fn find_bun() -> Verdict<String> {
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/bun");
    let told = command(fetch).arg("--path").output()?;
    let path = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    if Path::new(&path).is_file() {
        Ok(path)
    } else {
        skip("Bun is not there; run scripts/setup test")
    }
}

fn bun() -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let bun = find_bun()?;
    let plain = bun_pair(&mut stage, Mode::Plain, &bun)?;
    plain?;
    bun_pair(&mut stage, Mode::Accelerated, &bun)
}

/// Bun's server with Bun's client and with curl, each with one connection that is kept alive. Bun's own connections are
/// on TCP: it waits by instructions that enter the kernel, which Sluice does not see.
fn bun_pair(stage: &mut Stage, mode: Mode, bun: &str) -> Verdict<Verdict> {
    const REASON: &str = "program waits by calls that sluice does not see";
    const REQUESTS: usize = 2000;
    let script = script("http.bun.js");
    let mut server = stage.start(mode, bun, &[&script, "server"])?;
    let port = await_port(&mut server, LIMIT)?.to_string();
    let mut client = stage.start(mode, bun, &[&script, "client", &port])?;
    client.await_text(&format!("{REQUESTS} answers\n"), LIMIT)?;
    // Bun ends without what the C library does then, so that it leaves no statistics: `sluice status` says it.
    let has_reason = if mode == Mode::Plain || stage.lab.is_standin() {
        Ok(())
    } else {
        eventually(LIMIT, || {
            let said = stage.lab.status(&["--json"]);
            let ends = said.matches(REASON).count();
            ensure(ends == 2, || format!("{ends} ends say {REASON:?}: {said}"))
        })
    };
    client.stop(LIMIT)?.success()?;
    let urls = format!("http://127.0.0.1:{port}/[1-{REQUESTS}]");
    let curl = stage.run(mode, "curl", &["-sSf", &urls])?;
    let wanted: String = (1..=REQUESTS)
        .map(|number| format!("/{number}\n"))
        .collect();
    ensure(curl.text() == wanted, || curl.describe())?;
    server.stop(LIMIT)?.success()?;
    Ok(has_reason)
}
