//! What requests cost on `sluice_rdma` (docs/kernel.md), by system calls and by mapped queues, and on the
//! kernel's rxe, in a guest whose nanosecond is an instruction.
//!
//! ```text
//! cargo run -p sluice-tests --example kernel_figures -- FILE
//! ```
//!
//! `bench/kernel` runs it and makes tables of what it found.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_tests::guest::machine::Machine;
use sluice_tests::guest::module::{self, Kernel, guest_folder, kernel_folder};
use sluice_tests::guest::window::{self, Server};
use sluice_tests::job::find_program;
use sluice_tests::suite::{Problem, Verdict, fail, skip};

const GUEST_LIMIT: Duration = Duration::from_secs(1500);
/// What the guest loads of its kernel.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "rdma_ucm",
    "ib_uverbs",
    "dummy",
    "crc32_generic",
    "rdma_rxe",
];

#[derive(Serialize)]
struct Figure {
    /// `slow`, `fast` or `rxe`.
    path: String,
    operation: String,
    bytes: u64,
    what: String,
    value: f64,
}

/// Both modules, the provider, and a device of the kernel's rxe.
const SETUP: &str = r#"
insmod $FOLDER/window/sluice_window.ko
insmod $FOLDER/rdma/sluice_rdma.ko
echo "driver ${PROVIDER%-rdmav34.so}" >/etc/libibverbs.d/sluice.driver
until [ -e /sys/class/infiniband/sluice1 ]; do sleep 0.1; done
ip link set lo up
ip link add dummy7 type dummy
ip addr add 10.8.0.1/24 dev dummy7
ip link set dummy7 up
rdma link add rxe0 type rxe netdev dummy7
until grep -qs ffff:0a08:0001 /sys/class/infiniband/rxe0/ports/1/gids/*; do sleep 0.1; done
# The links between the two devices.
until grep -q ACTIVE /sys/class/infiniband/sluice1/ports/1/state; do sleep 0.1; done
sleep 1
"#;

const COUNTS: &str = r"
SLUICE_RDMA_FAST=0 $FIGURES slow sluice0 sluice1
$FIGURES fast sluice0 sluice1
$FIGURES rxe rxe0 rxe0
";

/// What one guest said.
fn guest(script: &str, options: &[&str]) -> Verdict<String> {
    let kernel = Kernel::find("bookworm-backports")?;
    let Some(qemu) = find_program("qemu-system-x86_64") else {
        return skip("qemu-system-x86_64 is not installed; run scripts/setup test");
    };
    let place = tempfile::tempdir()?;
    let path = place.path();
    let rdma = kernel_folder().join("rdma");
    let agent = module::program(
        path,
        "agent",
        &[guest_folder().join("agent.c")],
        &["-O1", "-static"],
    )?;
    let figures = module::program(
        path,
        "figures",
        &[rdma.join("test/figures.c")],
        &["-O2", "-Wl,--no-as-needed", "-libverbs"],
    )?;
    let provider = window::provider(path)?;
    let prelude = format!(
        "FOLDER={}\nFIGURES={}\nPROVIDER={}\n",
        window::modules(&kernel, "rdma-figures", &["modules"])?.display(),
        figures.display(),
        provider.display()
    );
    let script = format!("set -e\n{SETUP}{script}");
    let image = path.join("image");
    let modules = kernel.modules(&MODULES)?;
    fs::write(&image, module::image(&modules, &agent, &prelude, &script)?)?;
    let server = Server::start(path, "16M", 2)?;
    let mut machine = module::machine(&qemu, &kernel, &image);
    machine.args(["-M", "q35", "-m", "768"]).args(options);
    for device in 0..2 {
        machine
            .arg("-chardev")
            .arg(format!(
                "socket,path={},id=window{device}",
                server.socket.display()
            ))
            .arg("-device")
            .arg(format!("ivshmem-doorbell,vectors=4,chardev=window{device}"));
    }
    let mut machine = Machine::start(machine)?;
    let started = Instant::now();
    let mut said = 0;
    while machine.poll()?.is_none() {
        // Its last line may not be whole.
        let console = machine.console();
        let lines: Vec<_> = console.lines().collect();
        for line in lines.iter().take(lines.len().saturating_sub(1)).skip(said) {
            println!("{line}");
        }
        said = said.max(lines.len().saturating_sub(1));
        if started.elapsed() > GUEST_LIMIT {
            return fail(format!("the guest did not end\n{}", machine.console()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let console = machine.last_words().replace('\r', "");
    let well = console.contains("script_ended=1") && !console.contains("script_failed");
    if well && !console.contains("Call Trace") {
        Ok(console)
    } else {
        fail(format!("the script failed\n{console}"))
    }
}

fn figures(console: &str) -> Vec<Figure> {
    let figure = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let ["figure", path, operation, bytes, what, value] = words[..] else {
            return None;
        };
        Some(Figure {
            path: path.to_owned(),
            operation: operation.to_owned(),
            bytes: bytes.parse().ok()?,
            what: what.to_owned(),
            value: value.parse().ok()?,
        })
    };
    console.lines().filter_map(figure).collect()
}

fn all(file: &Path) -> Verdict {
    let counting = ["-accel", "tcg", "-icount", "shift=0,sleep=off", "-smp", "1"];
    let found = figures(&guest(COUNTS, &counting)?);
    let text = serde_json::to_string_pretty(&found);
    let text = text.or_else(|error| fail(error.to_string()))?;
    fs::write(file, text + "\n")?;
    Ok(())
}

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: kernel_figures FILE");
        return ExitCode::from(2);
    };
    match all(Path::new(&file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Problem::Skipped(reason)) => {
            eprintln!("not here: {reason}");
            ExitCode::FAILURE
        }
        Err(Problem::Failed(text)) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
