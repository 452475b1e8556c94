//! Figures for Prometheus: by the rules of the format, true, and there for who asks properly however
//! others ask.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use sluice_tests::fleet::{KEY, LIMIT};
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::find_program;
use sluice_tests::suite::{Verdict, ensure, eventually, trial};

use crate::exposition::{Values, parse};
use crate::lab::{self, DEVICE, METRICS_PORT, ask, exchange_until, scrape};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("figures/format", format),
        trial("figures/refusals", refusals),
        trial("figures/health", health),
    ]
}

const PLAIN: &str = "text/plain";
const OPEN: &str = "application/openmetrics-text";

fn format() -> Verdict {
    let port = METRICS_PORT.to_string();
    let two = lab::started(&["--eager", "--metrics", &port])?;
    let at = |values: &Values, name: &str| values.get(name).copied().unwrap_or(-1.0);
    eventually(LIMIT, || {
        let before = parse(&scrape(&two, Side::Left, PLAIN)?, false)?;
        let is_up = |name: &str| at(&before, &format!("{name}{{peer=\"right\"}}")) == 1.0;
        ensure(
            is_up("sluice_peer_up") && is_up("sluice_peer_link_up"),
            || format!("{before:?}"),
        )
    })?;
    // Which direction found its reader awake is a matter of luck.
    let figures = |side: Side| {
        let text = scrape(&two, side, PLAIN).unwrap_or_default();
        parse(&text, false).unwrap_or_default()
    };
    let has_moved = exchange_until(&two, |side| {
        let peer = side.other().name();
        let names = ["sent", "received"]
            .map(|way| format!("sluice_peer_{way}_bytes_total{{peer=\"{peer}\"}}"));
        let last = figures(side);
        names.iter().any(|name| at(&last, name) > 0.0)
    })?;
    ensure(has_moved, || format!("{:?}", SIDES.map(figures)))?;
    for side in SIDES {
        let last = figures(side);
        let given = at(&last, "sluice_lanes_given_total{kind=\"fabric\"}");
        ensure(given >= 1.0, || format!("{last:?}"))?;
    }
    let plain = scrape(&two, Side::Left, PLAIN)?;
    let open = scrape(&two, Side::Left, OPEN)?;
    let (plain_values, open_values) = (parse(&plain, false)?, parse(&open, true)?);
    let names = |values: &Values| values.keys().cloned().collect::<Vec<String>>();
    ensure(names(&plain_values) == names(&open_values), || {
        format!("{plain}\n{open}")
    })?;
    promtool(&plain)
}

/// Prometheus' own opinion, where it is installed.
fn promtool(text: &str) -> Verdict {
    let Some(promtool) = find_program("promtool") else {
        return Ok(());
    };
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    ensure(output.status.success(), || format!("{output:?}\n{text}"))
}

/// Who asks for something else, or does not ask, gets nothing and is in nobody's way.
fn refusals() -> Verdict {
    // A port alone is one of this host alone.
    let mut two = lab::set_up(&["--metrics", &METRICS_PORT.to_string()])?;
    two.write_config(Side::Left, &two.head(Side::Left, KEY, DEVICE)?)?;
    two.start(Side::Left)?;
    let reaches = two.host(Side::Right).inside(|| {
        let address = (two.address(Side::Left), METRICS_PORT);
        Ok(TcpStream::connect(address).is_ok())
    })?;
    ensure(!reaches, || "another host reaches the figures".to_owned())?;
    // More than are served at a time, all silent.
    let silent: Vec<TcpStream> = two.host(Side::Left).inside(|| {
        (0..100)
            .map(|_| TcpStream::connect(("127.0.0.1", METRICS_PORT)))
            .collect()
    })?;
    for (request, status) in [
        ("GET /other HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (
            "GET /metrics HTTP/1.1\r\nX: ".to_owned() + &"y".repeat(8300),
            "431",
        ),
    ] {
        let answer = ask(&two, Side::Left, request.as_bytes())?;
        let begins = answer.starts_with(&format!("HTTP/1.1 {status} "));
        ensure(begins, || format!("{request}: {answer}"))?;
    }
    let figures = parse(&scrape(&two, Side::Left, "*/*")?, false)?;
    let build = format!(
        "sluice_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    ensure(figures.contains_key(&build), || format!("{figures:?}"))?;
    let head = ask(&two, Side::Left, b"HEAD /metrics HTTP/1.1\r\n\r\n")?;
    ensure(
        head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
        || head.clone(),
    )?;
    drop(silent);
    let outcome = two.take_daemon(Side::Left)?.stop(LIMIT)?;
    ensure(outcome.status.success(), || outcome.describe())
}

/// `/healthz` is answered by the thread that serves programs, or not at all.
fn health() -> Verdict {
    let mut two = lab::set_up(&["--metrics", &METRICS_PORT.to_string()])?;
    two.write_config(Side::Left, &two.head(Side::Left, KEY, DEVICE)?)?;
    two.start(Side::Left)?;
    // That thread may get no processor for as long as an answer is waited for.
    for (request, end) in [
        ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\nok\n"),
        ("HEAD /healthz HTTP/1.1\r\n\r\n", "\r\n\r\n"),
    ] {
        eventually(LIMIT, || {
            let answer = ask(&two, Side::Left, request.as_bytes())?;
            let is_good = answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(end);
            ensure(is_good, || answer.clone())
        })?;
    }
    let posted = ask(&two, Side::Left, b"POST /healthz HTTP/1.1\r\n\r\n")?;
    ensure(posted.starts_with("HTTP/1.1 405 "), || posted.clone())?;
    Ok(())
}
