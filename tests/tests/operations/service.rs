//! sluiced under a service manager: when it is ready, what a reload changes, what it logs, and what it
//! may still do.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use sluice_tests::fleet::{KEY, LIMIT};
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::{find_program, wait_until};
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

use crate::lab::{self, DEVICE, Two, exchange};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("service/ready-reload-stop", ready_reload_stop),
        trial("service/log-json", log_json),
        trial("service/capabilities", || {
            capabilities("roce-udp", &[], FOR_NAMESPACES)
        }),
        trial("service/capabilities/one-namespace", || {
            capabilities("roce-udp", &["--one-namespace"], FOR_NUMBERS)
        }),
        trial("service/capabilities/af-xdp", || {
            capabilities("roce", &["--one-namespace"], FOR_AF_XDP)
        }),
        trial("service/ordinary-user", ordinary_user),
        trial("service/unit", unit),
    ]
}

/// The next message to a service manager.
fn hear(manager: &UnixDatagram) -> Verdict<String> {
    let mut buffer = [0; 512];
    let bytes = manager.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..bytes]).into_owned())
}

fn ready_reload_stop() -> Verdict {
    let mut two = lab::set_up(&[])?;
    let notify = two.dir().join("notify");
    let manager = UnixDatagram::bind(&notify)?;
    manager.set_read_timeout(Some(LIMIT))?;
    // Without a peer at first.
    let head = two.head(Side::Left, KEY, DEVICE)?;
    two.write_config(Side::Left, &head)?;
    let mut command = two.daemon_command(Side::Left);
    command.env("NOTIFY_SOCKET", &notify);
    two.start_by(Side::Left, command)?;
    let said = hear(&manager)?;
    ensure(said.starts_with("READY=1\n"), || said.clone())?;
    let text = two.head(Side::Right, KEY, DEVICE)? + &two.peer(Side::Left);
    two.write_config(Side::Right, &text)?;
    two.start(Side::Right)?;

    let reload = |text: &str| -> Verdict {
        two.write_config(Side::Left, text)?;
        two.daemon(Side::Left)?.signal(Signal::HUP)?;
        for expected in ["RELOADING=1\nMONOTONIC_USEC=", "READY=1\n"] {
            let said = hear(&manager)?;
            ensure(said.starts_with(expected), || said.clone())?;
        }
        Ok(())
    };
    // One that cannot be used changes nothing.
    reload("[daemon]\nnonsense = 1\n")?;
    ensure(two.log(Side::Left).contains("stays as it was"), || {
        two.log(Side::Left)
    })?;
    ensure(two.peer_status(Side::Left).is_null(), || {
        "a peer out of nothing".to_owned()
    })?;
    reload(&(head.clone() + &two.peer(Side::Right)))?;
    two.await_links()?;
    // What takes a new start is said.
    let other = head.replace("roce-udp", "roce") + &two.peer(Side::Right);
    reload(&other)?;
    ensure(two.log(Side::Left).contains("`device` has changed"), || {
        two.log(Side::Left)
    })?;
    // Not for good is it down, as it may be where a daemon got no processor.
    let is_up = || Ok(two.peer_status(Side::Left)["link"] == "up");
    ensure(wait_until(LIMIT, is_up)?, || two.log(Side::Left))?;
    // A peer that is not in the configuration any more is talked to no more.
    reload(&head)?;
    let is_gone = || Ok(two.peer_status(Side::Left)["is_up"] != true);
    ensure(wait_until(LIMIT, is_gone)?, || two.log(Side::Left))?;
    let left = two.take_daemon(Side::Left)?;
    left.signal(Signal::TERM)?;
    let said = hear(&manager)?;
    ensure(said == "STOPPING=1", || said.clone())?;
    let outcome = left.finish(LIMIT)?;
    ensure(outcome.status.success(), || outcome.describe())
}

/// One object for each event, with its facts as fields, and no key in any.
fn log_json() -> Verdict {
    let two = lab::started(&["--log-format", "json"])?;
    for side in SIDES {
        let text = two.log(side);
        ensure(!text.contains(&format!("{KEY:02x}").repeat(16)), || {
            format!("the key is in the log: {text}")
        })?;
        let mut about = Vec::new();
        // It may be in the middle of the next line.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let Ok(event) = serde_json::from_str::<Value>(line) else {
                return fail(format!("no JSON: {line}"));
            };
            for field in ["timestamp", "level", "message", "target"] {
                ensure(event[field].is_string(), || format!("{field}: {line}"))?;
            }
            about.extend(event["peer"].as_str().map(ToOwned::to_owned));
        }
        let name = side.other().name();
        ensure(about.iter().any(|peer| peer == name), || text.clone())?;
    }
    Ok(())
}

/// What `/proc` says of a thread.
#[derive(Debug)]
struct Thread {
    /// The capabilities that it has.
    has: u64,
    /// Those that it could get by executing something.
    may_get: u64,
    /// Unless it can gain none.
    gains_none: bool,
}

fn threads(pid: u32) -> Verdict<Vec<Thread>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // It may have ended since.
        let Ok(status) = fs::read_to_string(entry?.path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let set = |name| u64::from_str_radix(&field(name), 16).unwrap_or(u64::MAX);
        let sets = ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"].map(set);
        all.push(Thread {
            has: sets.into_iter().fold(0, |any, set| any | set),
            may_get: set("CapBnd:"),
            gains_none: field("NoNewPrivs:") == "1",
        });
    }
    Ok(all)
}

/// capability.h: CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_BPF.
const FOR_NAMESPACES: u64 = 1 << 12 | 1 << 21 | 1 << 39;

/// CAP_BPF.
const FOR_NUMBERS: u64 = 1 << 39;

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_PERFMON, CAP_BPF.
const FOR_AF_XDP: u64 = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 38 | 1 << 39;

/// Every thread has what its device and options take, and no more, and has used it.
fn capabilities(device: &str, options: &[&str], needed: u64) -> Verdict {
    let own = threads(std::process::id())?;
    let Some(own) = own.first().filter(|own| own.has & needed == needed) else {
        return skip(format!("this process has less than {needed:x}"));
    };
    ensure(own.has | own.may_get != needed, || {
        "there is nothing to give up".to_owned()
    })?;
    let mut two = lab::set_up(&[&["--metrics", "0"], options].concat())?;
    two.start_both(device)?;
    let daemon = two.daemon(Side::Left)?;
    let said = daemon.describe();
    ensure(!said.contains("no AF_XDP"), || said.clone())?;
    let threads = threads(daemon.id())?;
    ensure(threads.len() >= 3, || format!("{threads:x?}"))?;
    for it in &threads {
        let is_all = it.has | it.may_get == needed && it.gains_none;
        ensure(is_all, || format!("{threads:x?}"))?;
    }
    Ok(())
}

/// Without any privilege: everything but capture, AF_XDP and lanes across network namespaces.
fn ordinary_user() -> Verdict {
    const UID: u32 = 64_321;
    let mut two = lab::set_up(&[])?;
    // Another user may not get to where they were built.
    let installed = two.dir().join("installed");
    fs::create_dir_all(installed.join("verbs"))?;
    for file in [
        "sluice",
        "sluiced",
        "libsluice_preload.so",
        "verbs/libibverbs.so.1",
    ] {
        fs::copy(two.sluice.with_file_name(file), installed.join(file))?;
    }
    two.sluice = installed.join("sluice");
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(UID), Some(UID));
    own(two.dir())?;
    for side in SIDES {
        let text = two.head(side, KEY, DEVICE)? + &two.peer(side.other());
        let config = two.write_config(side, &text)?;
        own(&config)?;
        own(&two.path(side, "key"))?;
        own(two.host(side).runtime())?;
        let user = [format!("--reuid={UID}"), format!("--regid={UID}")];
        let options = [&user[0], &user[1], "--clear-groups", "--inh-caps=-all"];
        start_confined(&mut two, side, &options)?;
    }
    two.await_links()?;
    for side in SIDES {
        let all = threads(two.daemon(side)?.id())?;
        // Only root could narrow what it may get.
        let has_none = |it: &Thread| it.has == 0 && it.gains_none;
        ensure(all.iter().all(has_none), || format!("{all:x?}"))?;
    }
    Ok(())
}

fn unit_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd/sluiced.service")
}

/// The unit is one by systemd's own check, and its capabilities are enough for what sluiced does.
fn unit() -> Verdict {
    let text = fs::read_to_string(unit_file())?;
    let mut two = lab::set_up(&[])?;
    if let Some(analyze) = find_program("systemd-analyze") {
        check_unit(&analyze, &two, &text)?;
    }
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let Some(line) = line else {
        return fail("the unit says nothing of capabilities");
    };
    let bounds = bounding(line.split_whitespace());
    for side in SIDES {
        let text = two.head(side, KEY, "roce")? + &two.peer(side.other());
        two.write_config(side, &text)?;
        start_confined(&mut two, side, &[&bounds, "--no-new-privs"])?;
    }
    two.await_links()?;
    // Not even the limit of locked memory stands in the way of AF_XDP.
    for side in SIDES {
        let job = two.daemon(side)?;
        ensure(!job.describe().contains("locked memory"), || job.describe())?;
    }
    exchange(&two, 500)
}

/// What systemd-analyze(1) thinks of a unit.
fn check_unit(analyze: &Path, two: &Two, text: &str) -> Verdict {
    // The check wants to find the program, and no manual.
    let daemon = two.sluice.with_file_name("sluiced");
    let here = text.replace("/usr/bin/sluiced", &daemon.display().to_string());
    let here: Vec<&str> = here
        .lines()
        .filter(|line| !line.starts_with("Documentation="))
        .collect();
    let copy = two.dir().join("sluiced.service");
    fs::write(&copy, here.join("\n"))?;
    let output = Command::new(analyze).arg("verify").arg(&copy).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success() && said.trim().is_empty(), || {
        said.clone()
    })?;
    let output = Command::new(analyze)
        .args(["security", "--offline=true", "--threshold=40"])
        .arg(&copy)
        .output()?;
    ensure(output.status.success(), || {
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}

/// Starts the daemon of a host by setpriv(1) with these options.
pub fn start_confined(two: &mut Two, side: Side, options: &[&str]) -> Verdict {
    let daemon = two.daemon_command(side);
    let mut command = two.host(side).command(require("setpriv")?);
    command
        .args(options)
        .arg(daemon.get_program())
        .args(daemon.get_args());
    two.start_by(side, command)
}

/// For setpriv(1): these and no others.
pub fn bounding<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut text = "--bounding-set=-all".to_owned();
    for name in names {
        let name = name.trim_start_matches("CAP_").to_ascii_lowercase();
        text.push_str(&format!(",+{name}"));
    }
    text
}
