//! nginx with two workers on one host; curl, wrk and ab on the other.

use std::net::SocketAddr;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::programs::files;
use sluice_tests::programs::load::{check_ab, check_wrk};
use sluice_tests::programs::nginx::Nginx;
use sluice_tests::suite::{Verdict, trial};

use crate::hosts::Way;
use crate::programs::WAYS;
use crate::tools::Stage;

const SMALL: usize = 1000;
const LARGE: usize = 30_000_000;
const REQUESTS: usize = 2000;

pub fn trials() -> Vec<Trial> {
    let row = |way: Way, is_accelerated: bool| {
        let who = if is_accelerated {
            "both"
        } else {
            "server-only"
        };
        let name = format!("nginx/{who}/{}/ipv{}", way.device, way.family);
        trial(name, move || nginx(way, is_accelerated))
    };
    vec![
        row(WAYS[0], true),
        row(WAYS[1], true),
        row(WAYS[2], true),
        row(WAYS[0], false),
    ]
}

pub fn is_usual(name: &str) -> bool {
    name == "nginx/both/roce/ipv6"
}

fn nginx(way: Way, is_accelerated: bool) -> Verdict {
    let stage = Stage::new(way)?;
    let port = stage.port()?;
    let at = SocketAddr::new(stage.two.address(Side::Right), port).to_string();
    let dir = stage.two.dir();
    let config = Nginx {
        workers: 2,
        listen: vec![at.clone()],
        requests_per_connection: 100_000,
        has_log: false,
    };
    let arguments = config.prepare(dir)?;
    files::make(&dir.join("www/small"), SMALL)?;
    files::make(&dir.join("www/large"), LARGE)?;
    let arguments = arguments.each_ref().map(String::as_str);
    let server = stage.serve("nginx", &arguments, port)?;

    let url = |file: &str| format!("http://{at}/{file}");
    for round in 0..2 {
        // Several over one connection, small and large by turns.
        let mut words = vec!["-sSfg".to_owned()];
        for file in ["small", "large", "small", "large"] {
            let to = format!("got-{round}-{}-{file}", words.len());
            words.extend(["-o".to_owned(), to, url(file)]);
        }
        stage.run_as(is_accelerated, "curl", &words)?;
        for to in words.iter().filter(|word| word.starts_with("got-")) {
            let file = if to.ends_with("small") {
                "www/small"
            } else {
                "www/large"
            };
            files::check_same(&dir.join(file), &dir.join(to))?;
        }
        if round == 0 {
            let run = || load(&stage, is_accelerated, &url("small"));
            if is_accelerated {
                stage.two.run_until_ring_bytes(run)?;
            } else {
                run()?;
            }
        }
    }
    server.stop(LIMIT)?.success()?;
    if is_accelerated {
        stage.two.require_ring_bytes()?;
    }
    Ok(())
}

fn load(stage: &Stage, is_accelerated: bool, url: &str) -> Verdict {
    // Answers of a server without a processor are late; wrk's own limit is two seconds.
    let words = ["-t", "2", "-c", "30", "-d", "2", "--timeout", "60s", url];
    let outcome = stage.run_as(is_accelerated, "wrk", &words)?;
    // It counts reads that find nothing behind a report of epoll, too.
    check_wrk(&outcome)?;
    for more in [&["-k"][..], &[]] {
        let requests = REQUESTS.to_string();
        let words = [&["-q", "-n", &requests, "-c", "20"][..], more, &[url]].concat();
        let outcome = stage.run_as(is_accelerated, "ab", &words)?;
        check_ab(&outcome, REQUESTS, SMALL)?;
    }
    Ok(())
}
