//! Boots the tests' guest, runs one program in it, and switches it off: for what is not a test.
//!
//! ```text
//! guest [--processors N] [--memory MIB] [--kvm] [--save FOLDER] -- PROGRAM [ARGUMENT]...
//! ```
//!
//! The program sees this machine's files, and what it writes is gone with the guest. `--save` names
//! a folder that the program makes in the directory where this one was started: what is in it at the
//! end is copied to the same place here. The exit status is the program's, 125 if it could not be run.
//!
//! Whatever ends this process ends the guest.

use std::env;
use std::fs;
use std::path::{Component, Path};
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use sluice_tests::guest::Settings;
use sluice_tests::guest::stranger::Stranger;
use sluice_tests::job::command;
use sluice_tests::suite::{Problem, Verdict, ensure, fail};

const USAGE: &str =
    "usage: guest [--processors N] [--memory MIB] [--kvm] [--save FOLDER] -- PROGRAM [ARGUMENT]...";

/// How long an end may go unnoticed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the command line asks for.
struct Order {
    settings: Settings,
    save: Option<String>,
    words: Vec<String>,
}

fn main() -> ExitCode {
    let said = match order(env::args().skip(1)).and_then(|order| run(&order)) {
        Ok(status) => return ExitCode::from(status),
        Err(Problem::Failed(text)) => text,
        Err(Problem::Skipped(reason)) => format!("no guest can be booted here: {reason}"),
    };
    eprintln!("guest: {said}");
    ExitCode::from(125)
}

fn order(mut words: impl Iterator<Item = String>) -> Verdict<Order> {
    let mut order = Order {
        settings: Settings::default(),
        save: None,
        words: Vec::new(),
    };
    while let Some(word) = words.next() {
        let mut number = || match words.next().and_then(|word| word.parse().ok()) {
            Some(number @ 1..) => Ok(number),
            _ => fail(USAGE),
        };
        match &*word {
            "--processors" => order.settings.processors = number()?,
            "--memory" => order.settings.memory_mib = number()?,
            "--kvm" => order.settings.kvm = true,
            "--save" => order.save = Some(saved(words.next())?),
            "--" => {
                order.words = words.by_ref().collect();
                break;
            }
            _ => return fail(USAGE),
        }
    }
    ensure(!order.words.is_empty(), || USAGE.to_owned())?;
    Ok(order)
}

/// A folder below this one: elsewhere might be files that the guest has from here.
fn saved(word: Option<String>) -> Verdict<String> {
    let Some(folder) = word else {
        return fail(USAGE);
    };
    let mut components = Path::new(&folder).components();
    if folder.is_empty() || !components.all(|part| matches!(part, Component::Normal(_))) {
        return fail("--save takes a folder below the current one");
    }
    Ok(folder)
}

fn run(order: &Order) -> Verdict<u8> {
    let lab = Stranger::new(order.settings)?;
    eprintln!(
        "guest: {}, {} processors, up after {:.0} s",
        if order.settings.kvm {
            "KVM"
        } else {
            "emulated"
        },
        order.settings.processors,
        lab.guest.boot_time().as_secs_f64()
    );
    let [program, arguments @ ..] = &order.words[..] else {
        return fail(USAGE);
    };
    let mut command = lab.guest.command(&lab.host, program);
    let mut child = command.args(arguments).spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // A connection to a machine that is gone would wait for ever.
        if let Some(status) = lab.guest.ended()? {
            child.kill()?;
            child.wait()?;
            return fail(format!(
                "the guest ended: {status}\n{}",
                lab.guest.console()
            ));
        }
        thread::sleep(LOOK_AGAIN);
    };
    if let Some(folder) = &order.save {
        save(&lab, folder)?;
    }
    // A program that a signal ended is given the status that shells give it.
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let code = status.code().or(by_signal.map(|number| 128 + number));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(125))
}

/// Copies the folder's files from the guest to here, if the program made it.
fn save(lab: &Stranger, folder: &str) -> Verdict {
    let archive = tempfile::tempfile()?;
    let mut pack = lab.guest.command(&lab.host, "sh");
    pack.args([
        "-c",
        r#"! [ -d "$1" ] || exec tar -C "$1" -c ."#,
        "sh",
        folder,
    ]);
    let status = pack.stdout(archive.try_clone()?).status()?;
    ensure(status.success(), || {
        format!("{folder} cannot be read in the guest: {status}")
    })?;
    if archive.metadata()?.len() == 0 {
        return Ok(());
    }
    std::io::Seek::rewind(&mut &archive)?;
    fs::create_dir_all(folder)?;
    let mut unpack = command("tar");
    unpack.args(["--no-same-owner", "-C", folder, "-x"]);
    let status = unpack.stdin(Stdio::from(archive)).status()?;
    ensure(status.success(), || {
        format!("{folder} cannot be written: {status}")
    })
}
