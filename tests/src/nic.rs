//! A guest with the card of `opennic-model` and the driver of `kernel/opennic`, which runs one
//! script and is switched off.
//!
//! QEMU is one that knows vfio-user (`tests/guest/qemu`), the kernel one of Debian's
//! (`tests/guest/nic-kernel`), the file system this machine's with what is written kept in memory,
//! as [`crate::guest`] has it. The script's output is the guest's console: [`Report::value`] finds
//! lines of the form `NAME=VALUE`.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::asked::Asked;
use crate::guest::machine::Machine;
use crate::guest::module::{self, guest_folder, kernel_folder};
use crate::job::command;
use crate::suite::{Verdict, fail, skip};

/// From switching it on to its own end.
const GUEST_LIMIT: Duration = Duration::from_secs(240);
/// Modules that the guest loads before its script, besides what these need.
const MODULES: [&str; 7] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "virtio_net",
    "af_packet",
];

/// A Debian kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Of bookworm, 6.1.
    Old,
    /// Of its backports, 6.12.
    Usual,
    /// Of trixie's backports, 7.3.
    New,
}

impl Kernel {
    fn suite(self) -> &'static str {
        match self {
            Kernel::Old => "bookworm",
            Kernel::Usual => "bookworm-backports",
            Kernel::New => "trixie-backports",
        }
    }
}

/// How card and guest are made.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub kernel: Kernel,
    pub processors: u32,
    /// Whether the guest's processors take turns. For what makes the kernel patch its code while it
    /// runs, as each change of an XDP program does: an emulated processor that translates a page's
    /// code for the first time may read a byte that another is about to replace, and keep it, so
    /// that the breakpoint by which code is patched is hit after the kernel has forgotten it.
    pub in_turn: bool,
    /// What the functions are plugged into, as `opennic-model --port` has it.
    pub ports: &'a [&'a str],
    /// More arguments of `opennic-model`.
    pub faults: &'a [&'a str],
    /// What the module is built with, as `make` has it.
    pub build: &'a [&'a str],
    /// More of QEMU's arguments.
    pub devices: &'a [&'a str],
    /// More modules of the guest's kernel.
    pub modules: &'a [&'a str],
    /// Whether guest time is counted in instructions, one for each nanosecond.
    pub count_instructions: bool,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Settings {
            kernel: Kernel::Usual,
            processors: 2,
            in_turn: false,
            ports: &["other", "other"],
            faults: &[],
            build: &[],
            devices: &[],
            modules: &[],
            count_instructions: false,
        }
    }
}

/// What a guest said.
#[derive(Debug)]
pub struct Report {
    pub console: String,
    /// What the model counted at the end.
    pub counts: String,
}

impl Report {
    /// The last value of a line or word `NAME=VALUE`.
    pub fn value(&self, name: &str) -> Option<&str> {
        let text = self.console.split_ascii_whitespace();
        let words = text.chain(self.counts.split_ascii_whitespace());
        words
            .filter_map(|word| word.split_once('='))
            .filter(|(known, _)| *known == name)
            .map(|(_, value)| value)
            .next_back()
    }

    pub fn number(&self, name: &str) -> Verdict<u64> {
        match self.value(name).and_then(|value| value.parse().ok()) {
            Some(number) => Ok(number),
            None => fail(format!("no number {name}\n--- console\n{}", self.console)),
        }
    }

    /// Fails with the console unless it is so.
    pub fn check(&self, right: bool, what: &str) -> Verdict {
        if right {
            return Ok(());
        }
        fail(format!(
            "{what}\n--- {}\n--- console\n{}",
            self.counts, self.console
        ))
    }
}

/// Starts the model, which is ready then.
fn model(settings: &Settings<'_>, sockets: &[PathBuf]) -> Verdict<Asked> {
    let Some(program) = model_program() else {
        return skip("opennic-model is not built; cargo build --release -p opennic-model");
    };
    let mut command = command(&program);
    for (socket, port) in sockets.iter().zip(settings.ports) {
        command.arg("--socket").arg(socket).arg("--port").arg(port);
    }
    command.args(settings.faults);
    let mut model = Asked::start(command)?;
    let ready = model.line()?;
    if ready != "ready" {
        return fail(format!("opennic-model did not start: {ready}"));
    }
    Ok(model)
}

fn model_program() -> Option<PathBuf> {
    let path = crate::lab::find_sluice()
        .ok()?
        .with_file_name("opennic-model");
    path.is_file().then_some(path)
}

/// What a guest is made from.
struct Files {
    qemu: PathBuf,
    kernel: module::Kernel,
    modules: Vec<PathBuf>,
    agent: PathBuf,
    driver: PathBuf,
    tool: PathBuf,
}

impl Files {
    fn find(settings: &Settings<'_>) -> Verdict<Files> {
        let guest = guest_folder();
        let kernel = module::Kernel::find(settings.kernel.suite())?;
        let output = command(guest.join("qemu")).arg("--path").output()?;
        let qemu = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
        let stamp = qemu.with_file_name("stamp");
        if !stamp.is_file() {
            return skip(format!("no {}; scripts/setup test", stamp.display()));
        }
        Ok(Files {
            qemu,
            modules: kernel.modules(&[&MODULES, settings.modules].concat())?,
            agent: compiled(&guest.join("agent.c"), kernel.folder())?,
            driver: driver(settings, &kernel)?,
            tool: compiled(&guest.join("nic/xdp.c"), kernel.folder())?,
            kernel,
        })
    }

    fn image(&self, script: &str) -> Verdict<Vec<u8>> {
        let prelude = format!(
            "DRIVER={}\nXDP={}\n{PRELUDE}",
            self.driver.display(),
            self.tool.display()
        );
        module::image(&self.modules, &self.agent, &prelude, script)
    }
}

/// What scripts are written in.
const PRELUDE: &str = r#"
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 1 >/proc/sys/kernel/printk
# The network devices of the driver, by the order of the functions, as nic0, nic1.
nics() {
    insmod $DRIVER
    local n=0 path
    for path in /sys/bus/pci/drivers/opennic/0000*/net/*; do
        ip link set "${path##*/}" name nic$n
        n=$((n + 1))
    done
}
# soon WORDS: waits until a command says so; the card may have no processor for seconds.
soon() {
    local tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "not so: $*"; return 1; }
        sleep 0.1
    done
}
has_link() { [ "$(cat /sys/class/net/$1/carrier 2>/dev/null)" = 1 ]; }
# up DEVICE: waits for the link.
up() {
    ip link set "$1" up
    soon has_link $1
}
has_more() { [ "$(stat $1 $2)" -gt $3 ]; }
# gets DEVICE NAME COUNT: waits until the sum of these counters is more.
gets() { soon has_more "$@"; }
has_server() { ip netns exec far cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':1451 '; }
# serves: waits for the iperf3 of the namespace far.
serves() { soon has_server; }
# stat DEVICE NAME: the sum of the counters of that name of all queues.
stat() { ethtool -S $1 | sed -n "s/^ *\(xdp_tx\|rx\|tx\)[0-9]*_$2: //p" | awk '{ s += $1 } END { print s + 0 }'; }
# both: nic0 here with 10.9.0.1, nic1 in the namespace far with 10.9.0.2.
both() {
    ip netns add far
    ip link set nic1 netns far
    ip addr add 10.9.0.1/24 dev nic0
    ip netns exec far ip addr add 10.9.0.2/24 dev nic1
    ip netns exec far ip link set lo up
    ip link set lo up
    ip link set nic0 up
    ip netns exec far ip link set nic1 up
    up nic0
}
"#;

/// A static program of one source, made once for each version of it.
fn compiled(source: &Path, cache: &Path) -> Verdict<PathBuf> {
    let mut hasher = DefaultHasher::new();
    fs::read(source)?.hash(&mut hasher);
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let program = cache.join(format!("{name}-{:016x}", hasher.finish()));
    if program.is_file() {
        return Ok(program);
    }
    // Under another name first: two runs of the tests may both compile it.
    let unfinished = tempfile::Builder::new().prefix("made-").tempdir_in(cache)?;
    let options = ["-static", "-O2"];
    let made = module::program(unfinished.path(), "program", &[source.into()], &options)?;
    fs::rename(made, &program)?;
    Ok(program)
}

/// Where the driver's source is.
pub fn driver_source() -> PathBuf {
    kernel_folder().join("opennic")
}

/// The driver, built once for each version of its source and of how it is built. Warnings are
/// errors.
fn driver(settings: &Settings<'_>, kernel: &module::Kernel) -> Verdict<PathBuf> {
    let files = module::sources(&driver_source())?;
    let arguments = [settings.build, &["modules"]].concat();
    let made = kernel.build("driver", &files, &arguments)?;
    Ok(made.join("opennic.ko"))
}

/// Builds the driver and nothing else.
pub fn build_driver(settings: &Settings<'_>) -> Verdict<PathBuf> {
    Ok(Files::find(settings)?.driver)
}

/// Runs a script in a new guest with a new card, until it has switched itself off.
pub fn run(settings: Settings<'_>, script: &str) -> Verdict<Report> {
    run_with(settings, script, |_| Ok(()))
}

/// As [`run`]; `meanwhile` can talk to the model while the guest runs.
pub fn run_with(
    settings: Settings<'_>,
    script: &str,
    mut meanwhile: impl FnMut(&mut dyn FnMut(&str) -> Verdict<String>) -> Verdict,
) -> Verdict<Report> {
    let files = Files::find(&settings)?;
    let place = tempfile::tempdir()?;
    let sockets: Vec<PathBuf> = (0..settings.ports.len())
        .map(|function| place.path().join(format!("function-{function}")))
        .collect();
    let image = place.path().join("image");
    fs::write(&image, files.image(script)?)?;
    let mut model = model(&settings, &sockets)?;
    let mut machine = Machine::start(qemu(&files, &settings, &image, &sockets))?;
    let started = Instant::now();
    loop {
        if machine.poll()?.is_some() {
            break;
        }
        if started.elapsed() > GUEST_LIMIT {
            let console = machine.console();
            return fail(format!("the guest did not end\n--- console\n{console}"));
        }
        meanwhile(&mut |text| model.ask(text))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let report = Report {
        console: machine.last_words().replace('\r', ""),
        counts: model.ask("counts")?,
    };
    report.check(
        // The kernel may say something before the line has ended.
        report
            .value("script_ended")
            .is_some_and(|value| value.starts_with('1')),
        "the guest did not get to its end",
    )?;
    report.check(report.value("script_failed").is_none(), "the script failed")?;
    report.check(
        !report.console.contains("Call Trace:"),
        "the kernel complained",
    )?;
    Ok(report)
}

fn qemu(files: &Files, settings: &Settings<'_>, image: &Path, sockets: &[PathBuf]) -> Command {
    let mut command = module::machine(&files.qemu, &files.kernel, image);
    let accelerator = match (settings.count_instructions, settings.in_turn) {
        (true, _) => "tcg",
        (false, true) => "tcg,thread=single",
        (false, false) => "tcg,thread=multi",
    };
    command
        .args(["-M", "q35,memory-backend=ram", "-accel", accelerator])
        .args(["-object", "memory-backend-memfd,id=ram,size=768M,share=on"])
        .args(["-m", "768", "-smp", &settings.processors.to_string()]);
    if settings.count_instructions {
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    command.args(settings.devices);
    for (function, socket) in sockets.iter().enumerate() {
        let many = if function == 0 && sockets.len() > 1 {
            r#","multifunction":true"#
        } else {
            ""
        };
        command.arg("-device").arg(format!(
            r#"{{"driver":"vfio-user-pci","addr":"5.{function}"{many},"socket":{{"type":"unix","path":"{}"}}}}"#,
            socket.display()
        ));
    }
    command
}
