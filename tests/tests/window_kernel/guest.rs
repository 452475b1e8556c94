//! A guest with devices of one window, and the server of that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sluice_tests::guest::machine::Machine;
use sluice_tests::guest::module::{self, Kernel, guest_folder, kernel_folder};
pub use sluice_tests::guest::window::Server;
use sluice_tests::job::{command, find_program};
use sluice_tests::suite::{Verdict, fail, skip};

use crate::build;
use crate::sure;

/// From switching it on to its own end.
const GUEST_LIMIT: Duration = Duration::from_secs(400);
pub const HOSTS: u32 = 3;
/// What the guest loads for its file system.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// A server of the window that all trials have.
pub fn serve(place: &Path) -> Verdict<Server> {
    Server::start(place, "4M", HOSTS)
}

/// What scripts are written in.
const PRELUDE: &str = r#"
DEVICE=/dev/sluice_window0
echo 1 >/proc/sys/kernel/printk
load() { insmod $DRIVER; $USER up $DEVICE; }
# A command that must fail; `!` alone would not end the script.
fails() { if "$@"; then echo "did not fail: $*"; exit 1; fi; }
# The client of the module, which is in the kernel as well: with two devices, which greet each other.
client() {
    local at=/sys/module/sluice_window_test/parameters card
    reaches() {
        for try in $(seq 300); do
            [ "$(cat $at/$1)" -lt "$2" ] || return 0
            sleep 0.1
        done
        echo "$1 does not reach $2"; grep . $at/*; return 1
    }
    insmod $CLIENT
    for round in 1 2; do
        reaches exchanges $((2 * round))
        reaches rings $((2 * round))
        # The host outside lies to it, which ends its links again and again.
        reaches downs $((3 * round))
        fails rmmod sluice_window
        $USER taken $DEVICE
        [ $round = 2 ] || for card in /sys/bus/pci/drivers/sluice_window/0000*; do
            card=${card##*/}
            echo $card >/sys/bus/pci/drivers/sluice_window/unbind
            [ "$(cat $at/windows)" = 1 ]
            echo $card >/sys/bus/pci/drivers/sluice_window/bind
            [ "$(cat $at/windows)" = 2 ]
            $USER up $DEVICE
        done
    done
    grep -H . $at/*
    [ "$(cat $at/wrongs)" = 0 ]
    rmmod sluice_window_test
    # What it had it has given back.
    $USER unlent $DEVICE
    echo client=ok
}
# What a module leaves nothing of.
nothing_left() {
    fails grep sluice /proc/iomem /proc/interrupts /proc/misc /proc/vmallocinfo /proc/modules
    fails ls -d /dev/sluice* 2>/dev/null
    fails ls -d /sys/bus/pci/drivers/sluice* 2>/dev/null
    ps -eo comm >/run/threads
    # Workers are of all queues, and named after the last that they served; a rescuer is of one.
    fails grep R-sluice_window /run/threads
}
"#;

/// What a guest has besides.
#[derive(Default)]
pub struct Extra {
    /// Of its kernel, which it loads.
    pub modules: Vec<&'static str>,
    /// `sluice_window`, made together with others.
    pub driver: Option<PathBuf>,
    /// For its script.
    pub prelude: String,
    pub outside: Option<Outside>,
    pub cable: Option<Cable>,
}

/// A cable between two guests: sockets of the machines at its ends, whichever comes first.
pub struct Cable {
    pub own: PathBuf,
    pub others: PathBuf,
    /// The last byte of the card's address.
    pub number: u8,
}

impl Cable {
    fn plug(&self, machine: &mut Command) {
        let (own, others) = (self.own.display(), self.others.display());
        machine.arg("-netdev").arg(format!(
            "dgram,id=cable,local.type=unix,local.path={own},remote.type=unix,remote.path={others}"
        ));
        machine.arg("-device").arg(format!(
            "virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:46:00:{:02x}",
            self.number
        ));
    }
}

/// What a guest has instead of devices of a server: one without doorbells over a file, and a network
/// in which it reaches what runs beside it at 10.0.2.2.
pub struct Outside {
    pub window: PathBuf,
    /// A script, in a network namespace that it has with the emulated machine alone.
    pub script: String,
}

/// One that runs.
pub struct Guest {
    machine: Machine,
    started: Instant,
    limit: Duration,
    /// Its image.
    _place: tempfile::TempDir,
}

impl Guest {
    pub fn boot(
        kernel: &Kernel,
        server: Option<(&Server, u32)>,
        extra: Extra,
        script: &str,
    ) -> Verdict<Guest> {
        let Some(qemu) = find_program("qemu-system-x86_64") else {
            return skip("qemu-system-x86_64 is not installed; run scripts/setup test");
        };
        let place = tempfile::tempdir()?;
        let options = ["-O1", "-static"];
        let agent = guest_folder().join("agent.c");
        let agent = module::program(place.path(), "agent", &[agent], &options)?;
        let include = format!("-I{}", kernel_folder().join("include").display());
        let options = ["-O2", "-static", include.as_str()];
        let user = kernel_folder().join("window/test/user.c");
        let user = module::program(place.path(), "user", &[user], &options)?;
        let made = build::modules(kernel)?;
        let prelude = format!(
            "DRIVER={}\nCLIENT={}\nUSER={}\n{PRELUDE}\n{}",
            extra.driver.as_ref().unwrap_or(&made.driver).display(),
            made.client.display(),
            user.display(),
            extra.prelude
        );
        let modules = kernel.modules(&[&MODULES[..], &extra.modules].concat())?;
        let script = format!("set -e\n{script}");
        let image = place.path().join("image");
        fs::write(&image, module::image(&modules, &agent, &prelude, &script)?)?;
        let mut machine = machine(&qemu, kernel, &image, server);
        if let Some(cable) = &extra.cable {
            cable.plug(&mut machine);
        }
        Ok(Guest {
            machine: Machine::start(match &extra.outside {
                Some(outside) => beside(machine, outside)?,
                None => machine,
            })?,
            started: Instant::now(),
            limit: GUEST_LIMIT,
            _place: place,
        })
    }

    /// It has so much more than others.
    pub fn more_time(&mut self, more: Duration) {
        self.limit += more;
    }

    /// Calls `step` until the guest is over or `step` says that it is enough.
    pub fn run(&mut self, mut step: impl FnMut(&Machine) -> Verdict<bool>) -> Verdict {
        while self.machine.poll()?.is_none() {
            let enough = step(&self.machine).map_err(|problem| problem.with(|| self.console()))?;
            if enough {
                return Ok(());
            }
            if self.started.elapsed() > self.limit {
                return fail(format!("the guest did not end\n{}", self.console()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Runs it to its end beside `server`, which is switched off when this one says "under=way". What this one has said.
    pub fn outlive(mut self, server: Guest) -> Verdict<String> {
        let mut server = Some(server);
        let ran = self.run(|machine| {
            if machine.console().contains("under=way") {
                server = None;
            }
            if let Some(server) = &mut server {
                server.ensure_runs()?;
            }
            Ok(false)
        });
        ran.map_err(|problem| {
            problem.with(|| server.as_ref().map_or_else(String::new, Guest::console))
        })?;
        self.finish()
    }

    /// Fails where it has ended by itself.
    pub fn ensure_runs(&mut self) -> Verdict {
        let ended = self.machine.poll()?;
        sure(
            ended.is_none(),
            format!("a guest ended\n{}", self.console()),
        )
    }

    pub fn console(&self) -> String {
        self.machine.console()
    }

    /// What it said, when all was well.
    pub fn finish(mut self) -> Verdict<String> {
        let console = self.machine.last_words().replace('\r', "");
        let well = console.contains("script_ended=1")
            && !console.contains("script_failed")
            && !console.contains("Call Trace");
        sure(well, format!("the script failed\n{console}"))?;
        for line in console.lines().filter(|line| line.contains("dmesg: ")) {
            // That nobody signed the module, what the host outside did, and SMC of its devices.
            let known = [
                "smc: ",
                "taint",
                "signature",
                "said what cannot be",
                "has taken slot",
            ];
            let known = known.iter().any(|known| line.contains(known)) || !line.contains("sluice");
            let warned = line.contains("WARNING") || line.contains("BUG") || line.contains("leak");
            sure(
                known && !warned,
                format!("the kernel complained: {line}\n{console}"),
            )?;
        }
        Ok(console)
    }
}

fn machine(qemu: &Path, kernel: &Kernel, image: &Path, server: Option<(&Server, u32)>) -> Command {
    let mut command = module::machine(qemu, kernel, image);
    command
        .args(["-M", "q35", "-accel", "tcg,thread=multi,tb-size=256"])
        .args(["-m", "512", "-smp", "2"]);
    let (socket, devices) = match server {
        Some((server, devices)) => (server.socket.display().to_string(), devices),
        None => (String::new(), 0),
    };
    for device in 0..devices {
        command
            .arg("-chardev")
            .arg(format!("socket,path={socket},id=window{device}"))
            .arg("-device")
            .arg(format!("ivshmem-doorbell,vectors=4,chardev=window{device}"));
    }
    command
}

fn beside(mut machine: Command, outside: &Outside) -> Verdict<Command> {
    let (window, bytes) = (&outside.window, fs::metadata(&outside.window)?.len());
    machine
        .arg("-object")
        .arg(format!(
            "memory-backend-file,id=window,size={bytes},share=on,mem-path={}",
            window.display()
        ))
        .args(["-device", "ivshmem-plain,memdev=window"])
        .args(["-netdev", "user,id=net,restrict=off"])
        .args(["-device", "virtio-net-pci,netdev=net"]);
    let mut command = command("unshare");
    command.args(["--net", "sh", "-c"]).arg(format!(
        "ip link set lo up; ( {} ) >&2 & exec \"$@\"",
        outside.script
    ));
    command.arg("sh").arg(machine.get_program());
    command.args(machine.get_args());
    Ok(command)
}
