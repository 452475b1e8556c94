//! nginx with two workers on one host; curl, wrk and ab on the other.

use std::fs;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::hosts::Way;
use crate::programs::WAYS;
use crate::tools::{Stage, check_file, make_file, text};

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
    vec![row(WAYS[0], true), row(WAYS[1], true), row(WAYS[0], false)]
}

pub fn is_usual(name: &str) -> bool {
    name == "nginx/both/roce/ipv6"
}

fn nginx(way: Way, is_accelerated: bool) -> Verdict {
    let stage = Stage::new(way)?;
    let (address, port) = (stage.address(), stage.port()?);
    let at = if way.family == 6 {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    };
    let dir = stage.two.dir().to_owned();
    let shown = text(&dir);
    let config = format!(
        "daemon off; user root; worker_processes 2; pid {shown}/nginx.pid; error_log {shown}/nginx.error;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;\n\
           client_body_temp_path {shown}/body; proxy_temp_path {shown}/proxy;\n\
           fastcgi_temp_path {shown}/f; uwsgi_temp_path {shown}/u; scgi_temp_path {shown}/s;\n\
           server {{ listen {at}; root {shown}/www; }} }}\n"
    );
    fs::create_dir_all(dir.join("www"))?;
    let small = make_file(&dir.join("www/small"), SMALL)?;
    let large = make_file(&dir.join("www/large"), LARGE)?;
    fs::write(dir.join("nginx.conf"), config)?;
    let config = text(dir.join("nginx.conf"));
    let server = stage.serve("nginx", &["-c", &config, "-p", &shown], port)?;

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
            let content = if to.ends_with("small") {
                &small
            } else {
                &large
            };
            check_file(&dir.join(to), content)?;
        }
        if round == 0 {
            load(&stage, is_accelerated, &url("small"))?;
        }
    }
    server.stop(LIMIT)?.success()?;
    if is_accelerated {
        stage.two.require_ring_bytes()?;
    }
    Ok(())
}

fn load(stage: &Stage, is_accelerated: bool, url: &str) -> Verdict {
    let words = ["-t", "2", "-c", "30", "-d", "2", url];
    let outcome = stage.run_as(is_accelerated, "wrk", &words)?;
    let said = outcome.text();
    // It counts reads that find nothing behind a report of epoll, too.
    let is_clean = !said.contains("Non-2xx") && !said.contains("Socket errors");
    ensure(is_clean && said.contains("requests in"), || {
        outcome.describe()
    })?;
    for more in [&["-k"][..], &[]] {
        let requests = REQUESTS.to_string();
        let words = [&["-q", "-n", &requests, "-c", "20"][..], more, &[url]].concat();
        let outcome = stage.run_as(is_accelerated, "ab", &words)?;
        let whole = format!("HTML transferred:       {} bytes", REQUESTS * SMALL);
        ensure(outcome.text().contains(&whole), || outcome.describe())?;
    }
    Ok(())
}
