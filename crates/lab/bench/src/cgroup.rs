//! Programs in groups (cgroups(7), version 2), for what takes connections of programs in a group.

use sluice_lab::cgroup::Cgroup;

use super::words::{path_text, words};

/// A command line for the program to run in the group.
pub fn within(group: &Cgroup, words: &[String]) -> Vec<String> {
    let script = "echo 0 > \"$0\" && shift && exec \"$@\"";
    let mut argv = words!["sh", "-c", script, path_text(&group.processes()), "--"];
    argv.extend_from_slice(words);
    argv
}
