//! Scripts that have a root, and a network, of their own (`own_root.sh` beside this).

use std::path::Path;
use std::process::Command;

/// The script as the first process of namespaces of its own; what is mounted there is gone with it.
pub fn script(path: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--net"])
        .arg("bash")
        .arg(path);
    command
}
