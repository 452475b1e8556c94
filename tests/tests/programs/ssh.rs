//! sshd with scp of a large file both ways. sshd executes itself for every
//! connection and changes its user: the connection crosses both.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use libtest_mimic::Trial;
use sluice_tests::lab::Mode;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::tools::{LIMIT, Stage, make_file, port, require, same_file, text, write};

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
    if !rustix::process::geteuid().is_root() {
        return skip("sshd needs root");
    }
    let mut stage = Stage::new()?;
    if laned_at_once {
        stage.lab.announce_at_once();
    }
    let port = port()?;
    let sshd = text(&require("sshd")?);
    // sshd insists on this directory, which its service makes at boot.
    fs::create_dir_all("/run/sshd")?;
    for name in ["host", "user"] {
        let file = text(&stage.path(name));
        stage.run(
            Mode::Plain,
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", &file],
        )?;
    }
    fs::copy(stage.path("user.pub"), stage.path("authorized"))?;
    fs::set_permissions(stage.path("user"), fs::Permissions::from_mode(0o600))?;
    let dir = text(stage.lab.path());
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host\nPidFile none\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n\
         AuthorizedKeysFile {dir}/authorized\nSubsystem sftp internal-sftp\n"
    );
    write(&stage.path("sshd_config"), config)?;
    let config = text(&stage.path("sshd_config"));
    let server = stage.serve(server_mode, &sshd, &["-D", "-e", "-f", &config], port)?;

    make_file(&stage.path("file"), BYTES)?;
    let (port_text, key) = (port.to_string(), text(&stage.path("user")));
    let known = format!("UserKnownHostsFile={dir}/known");
    let options = [
        "-i",
        &key,
        "-o",
        &known,
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        "BatchMode=yes",
        "-o",
        "LogLevel=ERROR",
        "-F",
        "none",
    ];
    let scp = |stage: &mut Stage, from: &str, to: &str| {
        let mut args = options.to_vec();
        args.extend(["-P", &port_text, from, to]);
        stage.run(client_mode, "scp", &args)
    };
    scp(
        &mut stage,
        &format!("{dir}/file"),
        &format!("root@127.0.0.1:{dir}/there"),
    )?;
    same_file(&stage.path("file"), &stage.path("there"))?;
    scp(
        &mut stage,
        &format!("root@127.0.0.1:{dir}/there"),
        &format!("{dir}/back"),
    )?;
    same_file(&stage.path("file"), &stage.path("back"))?;

    let mut args = options.to_vec();
    args.extend(["-p", &port_text, "root@127.0.0.1", "wc -c <"]);
    let file = format!("{dir}/file; exit 7");
    args.push(&file);
    let outcome = stage.start(client_mode, "ssh", &args)?.finish(LIMIT)?;
    let good = outcome.status.code() == Some(7) && outcome.text().trim() == BYTES.to_string();
    ensure(good, || outcome.describe())?;
    server.stop(LIMIT)?;
    Ok(())
}
