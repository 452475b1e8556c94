//! sshd on one host, scp of a checked file both ways. sshd executes itself for every connection and
//! confines a child: the connection crosses both.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::find_program;
use sluice_tests::suite::{Verdict, skip, trial};

use crate::programs::WAYS;
use crate::tools::{Stage, check_file, make_file, text};

const BYTES: usize = 40_000_000;

pub fn trials() -> Vec<Trial> {
    vec![trial("ssh/scp", scp)]
}

fn scp() -> Verdict {
    let Some(sshd) = find_program("sshd") else {
        return skip("sshd is not installed; scripts/setup test");
    };
    let stage = Stage::new(WAYS[0])?;
    let (address, port) = (stage.address(), stage.port()?.to_string());
    // sshd insists on this directory, which its service makes at boot.
    fs::create_dir_all("/run/sshd")?;
    let dir = stage.two.dir().to_owned();
    let shown = text(&dir);
    for name in ["host", "user"] {
        let file = text(dir.join(name));
        let words = ["-q", "-t", "ed25519", "-N", "", "-f", &file];
        stage.run_as(false, "ssh-keygen", &words)?;
    }
    fs::copy(dir.join("user.pub"), dir.join("authorized"))?;
    fs::set_permissions(dir.join("user"), fs::Permissions::from_mode(0o600))?;
    let config = format!(
        "Port {port}\nListenAddress {address}\nHostKey {shown}/host\nPidFile none\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n\
         AuthorizedKeysFile {shown}/authorized\nSubsystem sftp internal-sftp\n"
    );
    fs::write(dir.join("sshd_config"), config)?;
    let config = text(dir.join("sshd_config"));
    let number = port.parse().unwrap_or_default();
    // By its path, as it wants to be started.
    let mut command = stage.two.program(Side::Right, true, &sshd);
    command.args(["-D", "-e", "-f", &config]);
    let mut server = stage.two.start_program(command, "sshd")?;
    let host = stage.two.host(Side::Right);
    host.await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;

    let content = make_file(&dir.join("file"), BYTES)?;
    let options = format!(
        "-q -i {shown}/user -o UserKnownHostsFile={shown}/known -o StrictHostKeyChecking=no \
         -o IdentitiesOnly=yes -o BatchMode=yes -F none -P {port}"
    );
    for (from, to, file) in [
        (
            format!("{shown}/file"),
            format!("root@{address}:{shown}/there"),
            "there",
        ),
        (
            format!("root@{address}:{shown}/there"),
            format!("{shown}/back"),
            "back",
        ),
    ] {
        let mut words: Vec<&str> = options.split_whitespace().collect();
        words.extend([from.as_str(), to.as_str()]);
        stage.run("scp", &words)?;
        check_file(&dir.join(file), &content)?;
    }
    server.stop(LIMIT)?;
    Ok(())
}
