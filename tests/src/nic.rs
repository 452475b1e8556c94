//! A guest with the card of `opennic-model` and the driver of `kernel/opennic`, which runs one
//! script and is switched off.
//!
//! QEMU is one that knows vfio-user (`tests/guest/qemu`), the kernel one of Debian's
//! (`tests/guest/nic-kernel`), the file system this machine's with what is written kept in memory,
//! as [`crate::guest`] has it. The script's output is the guest's console: [`Report::value`] finds
//! lines of the form `NAME=VALUE`.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::guest::initramfs::Archive;
use crate::guest::machine::Machine;
use crate::job::{command, find_program};
use crate::suite::{Verdict, fail, skip};

/// From switching it on to its own end.
const GUEST_LIMIT: Duration = Duration::from_secs(240);
/// Modules that the guest loads before its script, besides what these need.
const MODULES: [&str; 6] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
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
    /// What the functions are plugged into, as `opennic-model --port` has it.
    pub ports: &'a [&'a str],
    /// More arguments of `opennic-model`.
    pub faults: &'a [&'a str],
    /// What the module is built with, as `make` has it.
    pub build: &'a [&'a str],
    /// Whether guest time is counted in instructions, one for each nanosecond.
    pub count_instructions: bool,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Settings {
            kernel: Kernel::Usual,
            processors: 2,
            ports: &["other", "other"],
            faults: &[],
            build: &[],
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

/// The model's process.
struct Model {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Model {
    fn start(settings: &Settings<'_>, sockets: &[PathBuf]) -> Verdict<Model> {
        let Some(program) = model_program() else {
            return skip("opennic-model is not built; cargo build --release -p opennic-model");
        };
        let mut command = command(&program);
        for (socket, port) in sockets.iter().zip(settings.ports) {
            command.arg("--socket").arg(socket).arg("--port").arg(port);
        }
        command.args(settings.faults);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return fail("no pipes");
        };
        let mut model = Model {
            child,
            asks,
            answers: BufReader::new(answers),
        };
        let ready = model.line()?;
        if ready != "ready" {
            return fail(format!("opennic-model did not start: {ready}"));
        }
        Ok(model)
    }

    fn line(&mut self) -> Verdict<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }

    fn ask(&mut self, text: &str) -> Verdict<String> {
        writeln!(self.asks, "{text}")?;
        self.line()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Errors say that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn model_program() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    let path = target.join("release/opennic-model");
    path.is_file().then_some(path)
}

/// What a guest is made from.
struct Files {
    qemu: PathBuf,
    kernel: PathBuf,
    initramfs_modules: Vec<PathBuf>,
    agent: PathBuf,
    driver: PathBuf,
    tool: PathBuf,
}

fn guest_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

fn told(mut command: Command) -> Verdict<PathBuf> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_string();
    Ok(PathBuf::from(text))
}

impl Files {
    fn find(settings: &Settings<'_>) -> Verdict<Files> {
        if !rustix::process::geteuid().is_root() {
            return skip("needs root");
        }
        let guest = guest_folder();
        let mut ask = command(guest.join("qemu"));
        ask.arg("--path");
        let qemu = told(ask)?;
        let mut ask = command(guest.join("nic-kernel"));
        ask.args([settings.kernel.suite(), "--folder"]);
        let folder = told(ask)?;
        for made in [qemu.with_file_name("stamp"), folder.join("stamp")] {
            if !made.is_file() {
                return skip(format!("no {}; scripts/setup test", made.display()));
            }
        }
        let root = folder.join("root");
        let version = fs::read_to_string(folder.join("version"))?;
        Ok(Files {
            qemu,
            kernel: folder.join("vmlinuz"),
            initramfs_modules: modules(&root, version.trim())?,
            agent: compiled(&guest.join("agent.c"), &folder)?,
            driver: driver(settings, &folder)?,
            tool: compiled(&guest.join("nic/xdp.c"), &folder)?,
        })
    }

    fn image(&self, script: &str) -> Verdict<Vec<u8>> {
        let mut archive = Archive::default();
        for folder in ["dev", "modules"] {
            archive.folder(folder);
        }
        for (at, module) in self.initramfs_modules.iter().enumerate() {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            let bytes = fs::read(module)?;
            archive.file(&format!("modules/{at:02}-{name}"), 0o644, &bytes);
        }
        archive.file("init", 0o755, &fs::read(&self.agent)?);
        let setup = format!(
            "DRIVER={}\nXDP={}\n{PRELUDE}\n( {script}\n ) 2>&1 || echo script_failed=1\n\
             dmesg -l emerg,alert,crit,err,warn | sed 's/^/dmesg: /' || :\n\
             echo script_ended=1\necho o >/proc/sysrq-trigger\nsleep 100\n",
            self.driver.display(),
            self.tool.display()
        );
        archive.file("setup", 0o644, setup.as_bytes());
        Ok(archive.finish())
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
# up DEVICE: waits for the link.
up() {
    ip link set "$1" up
    local tries=0
    until [ "$(cat /sys/class/net/$1/carrier 2>/dev/null)" = 1 ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { echo "$1 has no link"; return 1; }
        sleep 0.1
    done
}
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

/// The modules that the guest loads, dependencies first.
fn modules(root: &Path, version: &str) -> Verdict<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in MODULES {
        let modprobe = find_program("modprobe").unwrap_or_else(|| "/usr/sbin/modprobe".into());
        let mut ask = command(modprobe);
        ask.arg("-d")
            .arg(root)
            .args(["-S", version, "--show-depends", name]);
        let output = ask.output()?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // "insmod PATH" or "builtin NAME"
            if let Some(path) = line.strip_prefix("insmod ") {
                let path = PathBuf::from(path.trim());
                if !found.contains(&path) {
                    found.push(path);
                }
            }
        }
    }
    Ok(found)
}

/// A static program of one source, made once for each version of it.
fn compiled(source: &Path, cache: &Path) -> Verdict<PathBuf> {
    let mut hasher = DefaultHasher::new();
    fs::read(source)?.hash(&mut hasher);
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let program = cache.join(format!("{name}-{:016x}", hasher.finish()));
    if program.is_file() {
        return Ok(program);
    }
    let Some(gcc) = find_program("gcc") else {
        return skip("gcc is not installed; run scripts/setup test");
    };
    // Under another name first: two runs of the tests may both compile it.
    let unfinished = tempfile::Builder::new().prefix("made-").tempdir_in(cache)?;
    let made = unfinished.path().join("program");
    let mut compile = command(gcc);
    compile.args(["-static", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    let output = compile.arg(&made).arg(source).output()?;
    if !output.status.success() {
        return fail(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::rename(made, &program)?;
    Ok(program)
}

/// Where the driver's source is.
pub fn driver_source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/opennic")
}

/// The driver, built once for each version of its source and of how it is built. Warnings are
/// errors.
fn driver(settings: &Settings<'_>, folder: &Path) -> Verdict<PathBuf> {
    let source = driver_source();
    let mut files: Vec<PathBuf> = fs::read_dir(&source)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    // Not what a build by hand left there.
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name == "Kbuild"
            || (!name.ends_with(".mod.c") && name.ends_with(['c', 'h']) && name.contains('.'))
    });
    files.sort();
    let mut hasher = DefaultHasher::new();
    settings.build.hash(&mut hasher);
    for file in &files {
        fs::read(file)?.hash(&mut hasher);
    }
    let made = folder.join(format!("driver-{:016x}/opennic.ko", hasher.finish()));
    if made.is_file() {
        return Ok(made);
    }
    let unfinished = tempfile::Builder::new()
        .prefix("driver-")
        .tempdir_in(folder)?;
    for file in &files {
        fs::copy(
            file,
            unfinished.path().join(file.file_name().unwrap_or_default()),
        )?;
    }
    let mut build = command(guest_folder().join("nic-kernel"));
    build
        .args([settings.kernel.suite(), "--build"])
        .arg(unfinished.path());
    let output = build
        .args(settings.build)
        .args(["-j2", "modules"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || text.contains("warning:") || text.contains("WARNING:") {
        return fail(format!("the driver does not build cleanly:\n{text}"));
    }
    let place = made.parent().unwrap_or(folder);
    if fs::rename(unfinished.path(), place).is_ok() {
        // What was a folder for now is there to stay.
        let _ = unfinished.keep();
    }
    Ok(made)
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
    let mut model = Model::start(&settings, &sockets)?;
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
        report.value("script_ended") == Some("1"),
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
    let mut command = command(&files.qemu);
    let accelerator = if settings.count_instructions {
        "tcg"
    } else {
        "tcg,thread=multi"
    };
    command
        .args(["-M", "q35,memory-backend=ram", "-accel", accelerator])
        .args(["-object", "memory-backend-memfd,id=ram,size=768M,share=on"])
        .args(["-cpu", "max", "-nodefaults", "-no-user-config", "-m", "768"])
        .args(["-display", "none", "-no-reboot"])
        .args(["-smp", &settings.processors.to_string()])
        .args(["-chardev", "stdio,id=console,signal=off"])
        .args(["-serial", "chardev:console"])
        .arg("-kernel")
        .arg(&files.kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
        .args([
            "-fsdev",
            "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        ])
        .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=host"]);
    if settings.count_instructions {
        command.args(["-icount", "shift=0,sleep=off"]);
    }
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
