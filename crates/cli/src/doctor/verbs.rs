//! What `sluice verbs` would use here, and which verbs processes there are.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use sluice_rendezvous::default_path;

use super::{Check, Verdict};
use crate::error::reason;
use crate::locate;
use crate::status::verbs::table::{over, states};
use crate::status::verbs::{self, Device, Process, State, Verbs};
use crate::units;
use crate::verbs::can_be_preloaded;

/// Processes that are named.
const NAMED_MAX: usize = 8;

/// Every check of verbs, in the order of the report. `network`: what was found out about RoCEv2.
pub fn checks(network: &[Check]) -> Vec<Check> {
    let found = verbs::ask(rustix::process::geteuid().is_root());
    let mut checks = vec![
        device(network),
        meeting(&default_path()),
        memory(&memory_of_another()),
        programs(&found),
    ];
    if let Ok(library) = locate::find("verbs/libibverbs.so.1") {
        checks.insert(1, files(&library));
    }
    checks.extend(leftovers(&found));
    checks
}

/// Whether programs see the files of a device.
fn files(library: &Path) -> Check {
    const NAME: &str = "verbs files";
    if can_be_preloaded(library) {
        let found = "programs find /dev/infiniband/uverbs-sluice0 and /sys/class/infiniband/sluice0 \
                     (--no-preload hides them)";
        return Check::ok(NAME, found);
    }
    Check::note(
        NAME,
        format!(
            "{} has blanks in its path and cannot be preloaded",
            library.display()
        ),
        "programs that look for files of a device (UCX, Open MPI) pass it over; install elsewhere",
    )
}

/// Which device a program would get.
fn device(network: &[Check]) -> Check {
    const NAME: &str = "verbs device";
    if let Err(failure) = locate::find("verbs/libibverbs.so.1") {
        let text = failure.to_string();
        let (found, hint) = text.split_once("; ").unwrap_or((&text, ""));
        return Check::note(NAME, found, hint);
    }
    let is_ok = |name| {
        let mut checks = network.iter().filter(|check| check.name == name);
        checks.all(|check| check.verdict == Verdict::Ok)
    };
    let roce = match (is_ok("RoCEv2 port"), is_ok("AF_XDP")) {
        (true, true) => "goes by AF_XDP where an interface lets it, else by UDP",
        (true, false) => "goes by UDP, see AF_XDP above",
        (false, _) => "does not work, see RoCEv2 port above",
    };
    Check::ok(
        NAME,
        format!("'sluice verbs' has sluice0 over shared memory; with --device roce it {roce}"),
    )
}

/// The directory where processes meet. It need not be there yet.
fn meeting(path: &Path) -> Check {
    const NAME: &str = "verbs directory";
    let shown = path.display();
    let wrong = |what: String| {
        Check::note(
            NAME,
            format!("{shown} {what}: verbs programs do not start"),
            "remove it, or name another place in XDG_RUNTIME_DIR",
        )
    };
    let own = rustix::process::geteuid().as_raw();
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.is_dir() => wrong("is no directory".to_owned()),
        Ok(metadata) if metadata.uid() != own => {
            wrong(format!("belongs to uid {}", metadata.uid()))
        }
        Ok(metadata) if metadata.mode() & 0o077 != 0 => wrong("is open to other users".to_owned()),
        Ok(_) => Check::ok(NAME, format!("{shown}; those with the same one meet")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Check::ok(
            NAME,
            format!("{shown}, which the first verbs program makes; those with the same one meet"),
        ),
        Err(error) => wrong(format!("cannot be looked at ({})", reason(&error))),
    }
}

/// Whether a process may reach into the memory of one that is not its child: a child tries it with
/// this process. The kernel asks the same for `process_vm_readv(2)`.
fn memory_of_another() -> io::Result<bool> {
    let attempt = format!("exec 3< /proc/{}/mem", std::process::id());
    let status = Command::new("/bin/sh")
        .args(["-c", &attempt])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}

fn memory(allowed: &io::Result<bool>) -> Check {
    const NAME: &str = "verbs memory";
    let shared =
        "what programs allocate is shared, so one-sided operations need no peer's processor";
    match allowed {
        Ok(true) => Check::ok(
            NAME,
            format!("{shared}; other memory is reached by process_vm_readv and _writev"),
        ),
        Ok(false) => Check::note(
            NAME,
            format!("{shared}; process_vm_readv is refused, so other memory goes by its owner"),
            "slower, and right; kernel.yama.ptrace_scope 0, or a sandbox that lets it through, \
             allows it",
        ),
        Err(error) => Check::note(
            NAME,
            format!(
                "{shared}; process_vm_readv could not be tried: {}",
                reason(error)
            ),
            "a program tries it by itself, and goes on without",
        ),
    }
}

/// `ib_write_bw[12] sluice0 shared memory, 2 RTS`.
fn named(process: &Process) -> String {
    let pid = process.pid.map_or("?".to_owned(), |pid| pid.to_string());
    let mut text = format!("{}[{pid}]", process.program);
    let devices = process.report.iter().flat_map(|report| &report.devices);
    let each = devices.map(|device: &Device| {
        let pairs = match device.queue_pair_count() {
            0 => "no queue pair".to_owned(),
            _ => states(&device.queue_pairs),
        };
        format!(" {} by {}, {pairs}", device.name, over(device))
    });
    text.extend(each);
    text += match process.state {
        State::Answers => "",
        State::Stopped => " is stopped",
        State::Silent => " does not answer",
        State::Unknown => " is of another version",
    };
    text
}

fn programs(found: &Verbs) -> Check {
    const NAME: &str = "verbs programs";
    let whose = match rustix::process::geteuid().is_root() {
        true => "",
        false => " of this user",
    };
    let count = found.processes.len();
    if count == 0 {
        let text = format!("none{whose} runs now");
        return match found.failures.first() {
            None => Check::ok(NAME, text),
            Some(failed) => Check::note(
                NAME,
                format!(
                    "{text} that can be seen; {}: {}",
                    failed.directory, failed.why
                ),
                "",
            ),
        };
    }
    let mut each: Vec<String> = found.processes.iter().take(NAMED_MAX).map(named).collect();
    if count > NAMED_MAX {
        each.push(format!("and {} more", count - NAMED_MAX));
    }
    let text = format!(
        "{}{whose}: {}",
        units::plural(count as u64, "process"),
        each.join("; ")
    );
    let odd = |process: &Process| process.state != State::Answers;
    match found.processes.iter().any(odd) {
        false => Check::ok(NAME, text),
        true => Check::note(
            NAME,
            text,
            "peers of a process that is stopped wait for it, over a network until their retries \
             are used up",
        ),
    }
}

fn leftovers(found: &Verbs) -> Option<Check> {
    (found.leftovers > 0).then(|| {
        Check::ok(
            "verbs leftovers",
            format!(
                "{} of processes that were killed; the next verbs program sweeps them up",
                units::plural(found.leftovers as u64, "name")
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use sluice_rendezvous::survey::Answer;

    use super::*;
    use crate::status::verbs::tests::{ANSWER, verbs};

    #[test]
    fn processes_are_named_with_what_they_use() {
        let check = programs(&verbs(vec![Answer::Bytes(ANSWER.into())]));
        assert_eq!(check.verdict, Verdict::Ok);
        let wanted = "ib_write_bw[7] sluice0 by AF_XDP va, UDP, 2 RTS, 1 INIT";
        assert!(check.found.contains(wanted), "{check:?}");
        let many = (0..100).map(|_| Answer::Stopped).collect();
        let check = programs(&verbs(many));
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.found.contains("100 processes"), "{check:?}");
        assert!(check.found.ends_with("and 92 more"), "{check:?}");
        assert!(programs(&Verbs::default()).found.starts_with("none"));
    }

    #[test]
    fn what_is_left_is_said_with_who_clears_up() {
        let mut found = verbs(Vec::new());
        assert_eq!(leftovers(&found), None);
        found.leftovers = 3;
        assert!(leftovers(&found).unwrap().found.starts_with("3 names"));
    }

    #[test]
    fn the_device_depends_on_what_the_network_offers() {
        let ok = |name| Check::ok(name, "");
        let no = |name| Check::note(name, "", "");
        let said = |network: &[Check]| device(network).found;
        // Without an installation beside the test nothing else is said.
        if locate::find("verbs/libibverbs.so.1").is_err() {
            assert_eq!(device(&[]).verdict, Verdict::Note);
            return;
        }
        assert!(said(&[ok("RoCEv2 port"), ok("AF_XDP")]).contains("by AF_XDP"));
        assert!(said(&[ok("RoCEv2 port"), no("AF_XDP")]).contains("by UDP"));
        assert!(said(&[no("RoCEv2 port"), ok("AF_XDP")]).contains("does not work"));
    }

    #[test]
    fn a_library_that_cannot_be_preloaded_is_noted() {
        assert_eq!(files(Path::new("/a/verbs/x.so")).verdict, Verdict::Ok);
        let check = files(Path::new("/my programs/verbs/x.so"));
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.found.contains("blanks"));
    }

    #[test]
    fn a_directory_that_programs_refuse_is_noted() {
        let path = std::env::temp_dir().join(format!("sluice-meeting-{}", std::process::id()));
        assert!(meeting(&path).found.contains("makes"));
        std::fs::create_dir(&path).unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap();
        };
        mode(0o755);
        assert!(meeting(&path).found.contains("open to other users"));
        mode(0o700);
        assert_eq!(meeting(&path).verdict, Verdict::Ok);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, b"").unwrap();
        assert!(meeting(&path).found.contains("no directory"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn memory_that_cannot_be_reached_is_a_note() {
        assert_eq!(memory(&Ok(true)).verdict, Verdict::Ok);
        assert!(memory(&Ok(false)).found.contains("goes by its owner"));
        assert_eq!(
            memory(&Err(io::ErrorKind::NotFound.into())).verdict,
            Verdict::Note
        );
    }
}
