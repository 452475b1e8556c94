//! sshd and its clients, with keys of a test's own. sshd executes itself for every connection and
//! confines a child: a connection crosses both.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::job::{command, run};
use crate::programs::{require, text};
use crate::suite::{Verdict, skip};

/// A server that is not started yet, and how clients get in.
pub struct Ssh {
    /// sshd wants to be started by its path.
    pub server: PathBuf,
    pub server_arguments: [String; 4],
    /// For ssh and scp.
    pub client_options: Vec<String>,
}

impl Ssh {
    /// Makes the keys and the configuration of a server at that address.
    ///
    /// Skips without OpenSSH, and for other users than root.
    pub fn prepare(dir: &Path, at: SocketAddr) -> Verdict<Ssh> {
        if !rustix::process::geteuid().is_root() {
            return skip("sshd needs root");
        }
        let (server, keygen) = (require("sshd")?, require("ssh-keygen")?);
        // sshd insists on this directory, which its service makes at boot.
        fs::create_dir_all("/run/sshd")?;
        for name in ["host", "user"] {
            let mut make = command(&keygen);
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            make.arg(dir.join(name));
            run(make, dir, "ssh-keygen", Duration::from_secs(60))?.success()?;
        }
        fs::copy(dir.join("user.pub"), dir.join("authorized"))?;
        fs::set_permissions(dir.join("user"), fs::Permissions::from_mode(0o600))?;
        let (shown, address, port) = (text(dir), at.ip(), at.port());
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {shown}/host\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             LogLevel ERROR\nAuthorizedKeysFile {shown}/authorized\nSubsystem sftp internal-sftp\n"
        );
        let file = dir.join("sshd_config");
        fs::write(&file, config)?;
        let [foreground, errors, config] = ["-D", "-e", "-f"].map(ToOwned::to_owned);
        let options = format!(
            "-q -F none -i {shown}/user -o UserKnownHostsFile={shown}/known \
             -o StrictHostKeyChecking=no -o IdentitiesOnly=yes -o BatchMode=yes -o Port={port}"
        );
        Ok(Ssh {
            server,
            server_arguments: [foreground, errors, config, text(file)],
            client_options: options.split_whitespace().map(ToOwned::to_owned).collect(),
        })
    }
}
