//! sshd on one host, scp of a checked file both ways.

use std::net::SocketAddr;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::programs::ssh::Ssh;
use sluice_tests::programs::{files, text};
use sluice_tests::suite::{Verdict, trial};

use crate::programs::WAYS;
use crate::tools::Stage;

const BYTES: usize = 40_000_000;

pub fn trials() -> Vec<Trial> {
    vec![trial("ssh/scp", scp)]
}

fn scp() -> Verdict {
    let stage = Stage::new(WAYS[0])?;
    let at = SocketAddr::new(stage.two.address(Side::Right), stage.port()?);
    let (dir, address) = (stage.two.dir(), at.ip());
    let ssh = Ssh::prepare(dir, at)?;
    let mut command = stage.two.program(Side::Right, true, &ssh.server);
    command.args(&ssh.server_arguments);
    let mut server = stage.two.start_program(command, "sshd")?;
    let host = stage.two.host(Side::Right);
    host.await_listener(&mut server, Protocol::Tcp, at.port(), LIMIT)?;

    files::make(&dir.join("file"), BYTES)?;
    let shown = text(dir);
    let remote = |name: &str| format!("root@{address}:{shown}/{name}");
    for (from, to, got) in [
        (format!("{shown}/file"), remote("there"), "there"),
        (remote("there"), format!("{shown}/back"), "back"),
    ] {
        let arguments = [&ssh.client_options[..], &[from, to]].concat();
        stage.run("scp", &arguments)?;
        files::check_same(&dir.join("file"), &dir.join(got))?;
    }
    server.stop(LIMIT)?;
    Ok(())
}
