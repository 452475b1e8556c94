//! sshd with scp of a large file both ways. sshd executes itself for every
//! connection and changes its user: the connection crosses both.

use std::net::{Ipv4Addr, SocketAddr};

use libtest_mimic::Trial;
use sluice_tests::lab::Mode;
use sluice_tests::programs::ssh::Ssh;
use sluice_tests::programs::{files, text};
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::tools::{LIMIT, Stage, port};

const BYTES: usize = 200_000_000;

pub fn trials() -> Vec<Trial> {
    use Mode::{Accelerated, Plain};
    vec![
        trial("ssh/both", || copy(Accelerated, Accelerated, false)),
        // The lane is there before sshd forks the child that it confines.
        trial("ssh/both-laned-at-once", || {
            copy(Accelerated, Accelerated, true)
        }),
        trial("ssh/server-only", || copy(Accelerated, Plain, false)),
    ]
}

fn copy(server_mode: Mode, client_mode: Mode, laned_at_once: bool) -> Verdict {
    let mut stage = Stage::new()?;
    if laned_at_once {
        stage.lab.announce_at_once();
    }
    let port = port()?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let ssh = Ssh::prepare(stage.lab.path(), at)?;
    let arguments = ssh.server_arguments.each_ref().map(String::as_str);
    let server = stage.serve(server_mode, &text(&ssh.server), &arguments, port)?;

    files::make(&stage.path("file"), BYTES)?;
    let dir = text(stage.lab.path());
    let remote = |name: &str| format!("root@127.0.0.1:{dir}/{name}");
    let options: Vec<&str> = ssh.client_options.iter().map(String::as_str).collect();
    for (from, to, got) in [
        (format!("{dir}/file"), remote("there"), "there"),
        (remote("there"), format!("{dir}/back"), "back"),
    ] {
        let arguments = [&options[..], &[&from, &to]].concat();
        stage.run(client_mode, "scp", &arguments)?;
        files::check_same(&stage.path("file"), &stage.path(got))?;
    }

    let count = format!("wc -c < {dir}/file; exit 7");
    let arguments = [&options[..], &["root@127.0.0.1", &count]].concat();
    let outcome = stage.start(client_mode, "ssh", &arguments)?.finish(LIMIT)?;
    let good = outcome.status.code() == Some(7) && outcome.text().trim() == BYTES.to_string();
    ensure(good, || outcome.describe())?;
    server.stop(LIMIT)?;
    Ok(())
}
