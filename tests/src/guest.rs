//! A Linux guest with the kernel's own software RDMA device (rxe): the stranger that Sluice must
//! be able to talk to.
//!
//! QEMU emulates the machine, so it needs no virtualization. The kernel is Debian's
//! (`tests/guest/kernel` unpacks it), the file system is this machine's, with what the guest writes
//! kept in its memory: every program that is installed here runs there too. A cable (a tap device)
//! joins the guest to a [`Host`]. The guest remembers files of this machine that it has seen: what
//! a test changes here after that may not be seen there.
//!
//! [`Guest::command`] makes an ordinary command of a program in the guest: [`crate::job::Job`]
//! runs it, its output and exit status come back, signals reach it, and killing the command kills
//! the program.

pub mod initramfs;
pub mod machine;
pub mod module;
pub mod stranger;
pub mod window;

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::guest::initramfs::Archive;
use crate::guest::machine::Machine;
use crate::hosts::injector::Injector;
use crate::hosts::namespace::Namespace;
use crate::hosts::ports::{Protocol, group_word, has_word, listens};
use crate::hosts::{self, Host};
use crate::job::{Job, command, find_program, run, wait_until};
use crate::suite::{Verdict, fail, skip};
use crate::verbs::without_clock;

/// The device that is the guest's cable, at this machine's end.
const CABLE: &str = "tap0";
/// The guest's RDMA device on its end of the cable.
pub const RXE: &str = "rxe0";
/// The two that [`Guest::twins`] makes.
pub const TWINS: [&str; 2] = ["rxe1", "rxe2"];
/// The network devices of the twins.
pub const TWIN_LINKS: [&str; 2] = ["twin1", "twin2"];

/// Where the agent listens, in the guest.
const AGENT_PORT: u16 = 791;

/// From switching it on to an answer. It takes seconds, unless the machine is loaded.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// What the cable can carry, in bytes (IP packet).
const MTU_MAX: u32 = 9000;

/// For what this module itself runs in the guest.
const COMMAND_LIMIT: Duration = Duration::from_secs(150);

/// How the guest is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of the cable, in bytes; see [`Guest::set_mtu`].
    pub mtu: u32,
    pub processors: u32,
    /// Mebibytes; it holds what the guest writes too.
    pub memory_mib: u32,
    /// Whether a fault injector lies between the host (left) and the guest (right).
    pub faults: bool,
    /// Whether the processors are this machine's own (KVM) and not emulated. Tests do without: that
    /// a machine has /dev/kvm does not say that this kernel boots there.
    pub kvm: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mtu: 1500,
            processors: 2,
            memory_mib: 768,
            faults: false,
            kvm: false,
        }
    }
}

/// A booted guest. Dropping it switches it off; if the test run is killed, the kernel does.
pub struct Guest {
    machine: Mutex<Machine>,
    cable: Cable,
    agent: PathBuf,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    boot_time: Duration,
}

impl Guest {
    /// Joins a host without a device to a new guest. The host gets a device and its addresses (a
    /// tap, or with an injector a veth that leads there); the guest's addresses are the host's plus
    /// one.
    ///
    /// Skips where QEMU, the kernel or root are missing.
    pub fn boot(host: &mut Host, settings: Settings) -> Verdict<Guest> {
        Guest::boot_with(host, settings, &[])
    }

    /// The same with more of QEMU's arguments.
    pub fn boot_with(host: &mut Host, settings: Settings, more: &[String]) -> Verdict<Guest> {
        let started = Instant::now();
        let files = Files::find()?;
        let v4 = Ipv4Addr::from(u32::from(host.v4()).wrapping_add(1));
        let v6 = Ipv6Addr::from(u128::from(host.v6()).wrapping_add(1));
        let cable = Cable::lay(host, settings)?;

        let image = tempfile::NamedTempFile::new()?;
        fs::write(image.path(), files.image(&setup(v4, v6, settings.mtu))?)?;
        let mut machine = files.machine(&cable.end, image.path(), settings);
        machine.args(more);
        let mut guest = Guest {
            machine: Mutex::new(Machine::start(machine)?),
            cable,
            agent: files.agent,
            v4,
            v6,
            boot_time: Duration::ZERO,
        };
        guest.await_agent(host)?;
        if let Some(injector) = &guest.cable.injector {
            // What was said to a cable with nobody at its end.
            injector.forget_counts();
        }
        guest.boot_time = started.elapsed();
        Ok(guest)
    }

    fn await_agent(&self, host: &Host) -> Verdict {
        let address = (self.v4, AGENT_PORT).into();
        let mut ended = None;
        let up = wait_until(BOOT_LIMIT, || {
            ended = self.ended()?;
            let second = Duration::from_secs(1);
            let answer = host.inside(|| std::net::TcpStream::connect_timeout(&address, second));
            Ok(ended.is_some() || answer.is_ok())
        })?;
        let what = match ended {
            Some(status) => format!("the guest ended: {status}"),
            None if !up => format!("the guest did not come up within {BOOT_LIMIT:?}"),
            None => return Ok(()),
        };
        fail(format!("{what}\n--- console\n{}", self.console()))
    }

    /// A command that runs the program in the guest, started from the host at the other end of the
    /// cable, with the command's environment and directory.
    pub fn command(&self, host: &Host, program: impl AsRef<OsStr>) -> Command {
        let mut command = host.command(&self.agent);
        command
            .arg("run")
            .args([self.v4.to_string(), AGENT_PORT.to_string()])
            .arg(program.as_ref())
            .args(without_clock(program.as_ref().as_ref()))
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs a shell script in the guest and returns what it printed; fails unless it succeeds
    /// within [`COMMAND_LIMIT`].
    pub fn shell(&self, host: &Host, script: &str) -> Verdict<String> {
        let mut command = self.command(host, "sh");
        command.args(["-ec", script]);
        self.output(command)
    }

    fn output(&self, command: Command) -> Verdict<String> {
        let dir = tempfile::tempdir()?;
        let outcome = run(command, dir.path(), "in the guest", COMMAND_LIMIT)?;
        Ok(outcome.success()?.text())
    }

    /// Whether somebody in the guest listens; see [`Host::is_listening`].
    pub fn is_listening(&self, host: &Host, protocol: Protocol, port: u16) -> Verdict<bool> {
        let mut command = self.command(host, "cat");
        command.args(protocol.tables().map(|table| format!("/proc/net/{table}")));
        Ok(listens(&self.output(command)?, protocol, port))
    }

    /// Whether the guest's RDMA device takes what is sent to the multicast group. The kernel joins
    /// groups of IPv4 for it, and takes those of IPv6 by their Ethernet address alone
    /// (`cma_iboe_join_multicast`, `rxe_mcast_add`).
    pub fn is_member(&self, host: &Host, group: IpAddr) -> Verdict<bool> {
        let (table, wanted) = match group {
            IpAddr::V4(_) => ("igmp", group_word(group)),
            IpAddr::V6(group) => ("dev_mcast", format!("3333{:08x}", u128::from(group) as u32)),
        };
        let mut command = self.command(host, "cat");
        command.arg(format!("/proc/net/{table}"));
        Ok(has_word(&self.output(command)?, &wanted))
    }

    /// Waits until somebody in the guest listens; fails at once when the server that should do so
    /// has ended.
    pub fn await_listener(
        &self,
        host: &Host,
        server: &mut Job,
        protocol: Protocol,
        port: u16,
        limit: Duration,
    ) -> Verdict {
        server.await_ready(limit, "listener in the guest", || {
            self.is_listening(host, protocol, port).unwrap_or(false)
        })
    }

    /// The same for a program that listens with rdma_cm, of which the tables of ports know nothing.
    pub fn await_rdma_listener(
        &self,
        host: &Host,
        server: &mut Job,
        port: u16,
        limit: Duration,
    ) -> Verdict {
        let port = format!(":{port}");
        server.await_ready(limit, "RDMA listener in the guest", || {
            let listeners = self.shell(host, "rdma resource show cm_id");
            listeners.is_ok_and(|text| {
                text.lines().any(|line| {
                    line.contains(" LISTEN ")
                        && line.split_whitespace().any(|word| word.ends_with(&port))
                })
            })
        })
    }

    /// Changes the MTU of both ends of the cable, and with it that of the RDMA device. At most
    /// 9000 bytes.
    pub fn set_mtu(&self, host: &Host, mtu: u32) -> Verdict {
        host.ip(&format!("link set {} mtu {mtu}", host.device()))?;
        self.cable.set_mtu(mtu)?;
        self.shell(host, &format!("ip link set eth0 mtu {mtu}"))?;
        Ok(())
    }

    /// Two RDMA devices in the guest that a veth pair joins: for the kernel talking to itself over
    /// a network. Both are in one namespace, because the kernel's rxe receives nothing in others;
    /// rules see to it that packets between their addresses cross the pair all the same.
    ///
    /// Asked again, it changes the MTU.
    pub fn twins(&self, host: &Host, mtu: u32) -> Verdict<[Twin; 2]> {
        self.shell(host, &twins_script(mtu))?;
        Ok([0, 1].map(|index| Twin {
            device: TWINS[index],
            link: TWIN_LINKS[index],
            v4: Ipv4Addr::new(10, 46, 0, 1 + index as u8),
            v6: Ipv6Addr::new(0xfd46, 0, 0, 0, 0, 0, 0, 1 + index as u16),
        }))
    }

    /// Fails when the guest was booted without [`Settings::faults`].
    pub fn injector(&self) -> Verdict<&Injector> {
        match &self.cable.injector {
            Some(injector) => Ok(injector),
            None => fail("the test booted its guest without Settings::faults"),
        }
    }

    pub fn v4(&self) -> Ipv4Addr {
        self.v4
    }

    pub fn v6(&self) -> Ipv6Addr {
        self.v6
    }

    /// The address of the family, 4 or 6.
    pub fn address(&self, family: u8) -> IpAddr {
        if family == 6 {
            self.v6.into()
        } else {
            self.v4.into()
        }
    }

    /// From the first step to the first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// The process that emulates the machine.
    pub fn process(&self) -> u32 {
        self.lock().id()
    }

    /// How the machine ended, if it did.
    pub fn ended(&self) -> std::io::Result<Option<ExitStatus>> {
        self.lock().poll()
    }

    /// The last of what the guest's kernel said.
    pub fn console(&self) -> String {
        self.lock().console()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Machine> {
        let machine = self.machine.lock();
        machine.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// One of two RDMA devices in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    pub device: &'static str,
    pub link: &'static str,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Twin {
    /// The address of the family, 4 or 6.
    pub fn address(&self, family: u8) -> IpAddr {
        if family == 6 {
            self.v6.into()
        } else {
            self.v4.into()
        }
    }
}

/// What leads to the guest.
struct Cable {
    /// Where the tap is, and QEMU runs.
    end: Namespace,
    injector: Option<Injector>,
}

impl Cable {
    fn lay(host: &mut Host, settings: Settings) -> Verdict<Cable> {
        let mtu = settings.mtu;
        let end = if settings.faults {
            Namespace::new()?
        } else {
            host.namespace().clone()
        };
        hosts::ip(&end, &format!("tuntap add dev {CABLE} mode tap"))?;
        if !settings.faults {
            host.configure(CABLE, mtu)?;
            let injector = None;
            return Ok(Cable { end, injector });
        }
        let link = hosts::Settings {
            mtu,
            faults: true,
            ..hosts::Settings::default()
        };
        hosts::wire(host.namespace(), "eth0", &end, "left", link)?;
        let longest = MTU_MAX as usize + hosts::FRAME_OVERHEAD;
        let mut cable = Cable {
            end,
            injector: None,
        };
        cable.injector = Some(Injector::start(&cable.end, "left", CABLE, longest)?);
        cable.set_mtu(mtu)?;
        host.configure("eth0", mtu)?;
        Ok(cable)
    }

    /// Of the devices that are neither the host's nor the guest's.
    fn set_mtu(&self, mtu: u32) -> Verdict {
        hosts::ip(&self.end, &format!("link set {CABLE} mtu {mtu} up"))?;
        if self.injector.is_some() {
            hosts::ip(&self.end, &format!("link set left mtu {mtu} up"))?;
        }
        Ok(())
    }
}

/// What the guest is made of.
struct Files {
    qemu: PathBuf,
    kernel: PathBuf,
    modules: Vec<PathBuf>,
    agent: PathBuf,
}

impl Files {
    fn find() -> Verdict<Files> {
        let Some(qemu) = find_program("qemu-system-x86_64") else {
            return skip("qemu-system-x86_64 is not installed; scripts/setup test");
        };
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let told = command(sources.join("kernel")).arg("--folder").output()?;
        let cache = PathBuf::from(String::from_utf8_lossy(&told.stdout).trim_end());
        let kernel = cache.join("vmlinuz");
        if !cache.join("stamp").is_file() {
            return skip(format!(
                "no kernel for the guest in {}; scripts/setup test",
                cache.display()
            ));
        }
        let modules = fs::read_dir(cache.join("modules"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        Ok(Files {
            qemu,
            kernel,
            modules,
            agent: agent(&sources.join("agent.c"), &cache)?,
        })
    }

    /// What the kernel starts with.
    fn image(&self, setup: &str) -> Verdict<Vec<u8>> {
        let mut archive = Archive::default();
        for folder in ["dev", "modules"] {
            archive.folder(folder);
        }
        for module in &self.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            archive.file(&format!("modules/{name}"), 0o644, &fs::read(module)?);
        }
        archive.file("init", 0o755, &fs::read(&self.agent)?);
        archive.file("setup", 0o644, setup.as_bytes());
        Ok(archive.finish())
    }

    fn machine(&self, place: &Namespace, image: &Path, settings: Settings) -> Command {
        let mut command = command(&self.qemu);
        place.enter(&mut command);
        let (accelerator, processor) = match settings.kvm {
            true => ("kvm", "host"),
            false => ("tcg,thread=multi,tb-size=256", "max"),
        };
        command
            .args(["-M", "q35", "-accel", accelerator])
            .args(["-cpu", processor, "-nodefaults", "-no-user-config"])
            .args(["-display", "none", "-no-reboot"])
            .args(["-smp", &settings.processors.to_string()])
            .args(["-m", &settings.memory_mib.to_string()])
            .args(["-chardev", "stdio,id=console,signal=off"])
            .args(["-serial", "chardev:console"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(image)
            .arg("-append")
            .arg(format!(
                "{} net.ifnames=0 agent_port={AGENT_PORT}",
                module::PATIENT
            ))
            .args([
                "-fsdev",
                "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            ])
            .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=host"])
            .args(["-device", "virtio-rng-pci"])
            .arg("-netdev")
            .arg(format!(
                "tap,id=cable,ifname={CABLE},script=no,downscript=no"
            ))
            // Frames as they are on a wire: whole, and with their checksums.
            .args([
                "-device",
                "virtio-net-pci,netdev=cable,mac=52:54:00:44:00:02,romfile=,csum=off,gso=off,\
                 guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off",
            ]);
        command
    }
}

/// The agent's program, compiled beside the kernel once for each version of its source.
fn agent(source: &Path, cache: &Path) -> Verdict<PathBuf> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    fs::read(source)?.hash(&mut hasher);
    let program = cache.join(format!("agent-{:016x}", hasher.finish()));
    if program.is_file() {
        return Ok(program);
    }
    let Some(gcc) = find_program("gcc") else {
        return skip("gcc is not installed; run scripts/setup test");
    };
    // Under another name first: two runs of the tests may both compile it.
    let unfinished = tempfile::Builder::new()
        .prefix("agent-")
        .tempdir_in(cache)?;
    let made = unfinished.path().join("agent");
    let output = command(gcc)
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-static",
            "-o",
        ])
        .args([&made, source])
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return fail(format!("gcc {}: {said}", source.display()));
    }
    fs::rename(made, &program)?;
    Ok(program)
}

/// What the guest does before it answers. Its device was there before it: a default for devices to
/// come does not hold for it, and while it asks whether its address of the link is taken it can ask
/// for no neighbour.
fn setup(v4: Ipv4Addr, v6: Ipv6Addr, mtu: u32) -> String {
    format!(
        "echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
         echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
         echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
         ip link set lo up
         ip link set eth0 mtu {mtu} up
         ip addr add {v4}/24 dev eth0
         ip addr add {v6}/64 dev eth0 nodad
         rdma link add {RXE} type rxe netdev eth0"
    )
}

/// A packet to an address of one's own never leaves the host, because the table of local addresses
/// is asked first. Here it is asked first only for what came in through the pair, and a table for
/// the way through the pair comes before it for the rest. The kernel's connection manager asks for
/// the way back as if the answer came in (`validate_ipv4_net_dev`): the rule before both.
fn twins_script(mtu: u32) -> String {
    format!(
        r#"
        if ! [ -e /sys/class/net/twin1 ]; then
            ip link add twin1 type veth peer name twin2
            for one in 1 2; do
                other=$((3 - one))
                set=/proc/sys/net/ipv4/conf/twin$one
                echo 1 >$set/accept_local
                echo 0 >$set/rp_filter
                echo 1 >$set/arp_ignore
                echo 2 >$set/arp_announce
                ip link set twin$one mtu {mtu} up
                ip addr add 10.46.0.$one/32 dev twin$one
                ip addr add fd46::$one/128 dev twin$one nodad
                ip route add 10.46.0.$other dev twin$one src 10.46.0.$one table $((100 + one))
                ip -6 route add fd46::$other dev twin$one src fd46::$one table $((100 + one))
                mac=$(cat /sys/class/net/twin$other/address)
                ip neigh replace 10.46.0.$other lladdr $mac dev twin$one nud permanent
                ip neigh replace fd46::$other lladdr $mac dev twin$one nud permanent
            done
            echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
            for version in -4 -6; do
                for one in 1 2; do
                    ip $version rule add pref 10 iif twin$one lookup local
                done
                ip $version rule add pref 100 lookup local
                ip $version rule del pref 0
            done
            for one in 1 2; do
                ip rule add pref 5 iif twin$one from 10.46.0.$one to 10.46.0.$((3 - one)) \
                    lookup $((100 + one))
                ip rule add pref 20 from 10.46.0.$one to 10.46.0.$((3 - one)) lookup $((100 + one))
                ip -6 rule add pref 20 from fd46::$one to fd46::$((3 - one)) lookup $((100 + one))
                rdma link add rxe$one type rxe netdev twin$one
            done
        fi
        for one in 1 2; do ip link set twin$one mtu {mtu} up; done
        "#
    )
}
