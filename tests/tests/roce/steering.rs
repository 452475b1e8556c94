//! The program that steers packets is on the device while many come, and only then: in the kernel's
//! generic code it makes other traffic of the device dearer.

use std::io;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::job::wait_until;
use sluice_tests::suite::{Verdict, fail, trial};
use sluice_tests::verbs::Own;

use sluice_tests::verbs::link::{End, LIMIT, Link, Way};

const SETTLE_LIMIT: Duration = Duration::from_secs(20);

pub fn trials() -> Vec<Trial> {
    let way = Way::corner("roce", 0);
    let name = format!("steering/on-demand/{}", way.name());
    vec![trial(name, move || on_demand(way))]
}

/// A stream that is stopped for a while; acknowledgements may take 4 s and longer.
const STREAM: [&str; 4] = ["-T", "20", "-R", "7"];

fn is_attached(link: &Link) -> io::Result<bool> {
    Ok(link.host(End::Right).describe_link()?.contains("xdp"))
}

/// Waits until the program is, or is not, on the server's device.
fn settles(link: &Link, attached: bool) -> Verdict {
    if wait_until(SETTLE_LIMIT, || Ok(is_attached(link)? == attached))? {
        return Ok(());
    }
    fail(format!(
        "attached: {}, wanted: {attached}\n{}",
        !attached,
        link.host(End::Right).describe_link()?
    ))
}

fn on_demand(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let mut running = link.start_own(Own::Stream, &STREAM)?;
    running.client.await_text("flowing", LIMIT)?;
    let client = &running.client;
    for _ in 0..3 {
        settles(&link, true)?;
        client.signal(Signal::STOP)?;
        settles(&link, false)?;
        client.signal(Signal::CONT)?;
    }
    settles(&link, true)
}
