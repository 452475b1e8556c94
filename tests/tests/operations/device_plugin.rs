//! `sluice device-plugin` and a kubelet that is a stranger: Kubernetes' own messages and Google's own gRPC
//! (`tests/apps/go/kubelet`). What it gives is mounted by a container's runtime, as a kubelet would have it done,
//! with what the level "restricted" of Pod Security leaves a container.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_tests::apps::apps_dir;
use sluice_tests::job::{Job, command, find_program, run, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

/// The plugin looks once a second, and gives up on who says nothing after ten.
const LIMIT: Duration = Duration::from_secs(120);
/// Google's gRPC is compiled once.
const BUILD_LIMIT: Duration = Duration::from_secs(500);
const OWN_SOCKET: &str = "sluice.dev_lane.sock";
const COUNT: u64 = 5;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("device-plugin/kubelet", life),
        trial("device-plugin/lying-kubelet", lies),
        trial("device-plugin/lying-registration", no_registration),
        trial("device-plugin/second", second),
        trial("device-plugin/restricted-container", restricted),
        trial("device-plugin/pod-security", pod_security),
    ]
}

/// A folder for each of what a node has.
struct Node {
    dir: tempfile::TempDir,
    sluice: PathBuf,
}

impl Node {
    fn new() -> Verdict<Node> {
        let node = Node {
            dir: tempfile::Builder::new().prefix("dp-").tempdir()?,
            sluice: find_sluice()?,
        };
        for folder in ["plugins", "run", "library"] {
            fs::create_dir(node.path(folder))?;
            fs::set_permissions(node.path(folder), fs::Permissions::from_mode(0o755))?;
        }
        Ok(node)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, program: &str, label: &str, more: &[&str]) -> Verdict<Job> {
        let socket = self.path("run/control.sock");
        let mut command = command(self.sluice.with_file_name(program));
        command.args(more).arg("--socket").arg(&socket);
        Job::start(command, self.dir.path(), label)
    }

    fn daemon(&self, label: &str) -> Verdict<Job> {
        let mut daemon = self.start("sluiced", label, &["--foreground", "--allow-all-users"])?;
        let socket = self.path("run/control.sock");
        daemon.await_ready(LIMIT, "the control socket", || socket.exists())?;
        Ok(daemon)
    }

    fn plugin(&self, label: &str) -> Verdict<Job> {
        let [plugins, run, library] = ["plugins", "run", "library"].map(|it| self.path(it));
        // Root without a right of root's, as the DaemonSet has it.
        let mut command = command(require("setpriv")?);
        command
            .args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"])
            .arg(&self.sluice)
            .args(["device-plugin", "--log", "debug", "--count"])
            .arg(COUNT.to_string())
            .arg("--plugins")
            .arg(plugins)
            .arg("--run")
            .arg(&run)
            .arg("--library")
            .arg(library)
            .arg("--socket")
            .arg(run.join("control.sock"));
        Job::start(command, self.dir.path(), label)
    }

    fn kubelet(&self) -> Verdict<Kubelet> {
        let binary = build_go("kubelet", self.dir.path())?;
        let mut command = command(binary);
        command.arg(self.path("plugins")).stdin(Stdio::piped());
        let mut job = Job::start(command, self.dir.path(), "kubelet-log")?;
        let Some(input) = job.take_input() else {
            return fail("the kubelet has no input");
        };
        let mut kubelet = Kubelet {
            job,
            input,
            heard: 0,
        };
        kubelet.hear("started", |_| true)?;
        Ok(kubelet)
    }
}

/// A module of `tests/apps/go`, which has check sums of what it is made of.
fn build_go(name: &str, dir: &Path) -> Verdict<PathBuf> {
    let binary = dir.join(name);
    let mut build = command(require("go")?);
    build
        .args(["build", "-mod=readonly", "-o"])
        .arg(&binary)
        .arg(".")
        .current_dir(apps_dir().join("go").join(name))
        .env("CGO_ENABLED", "0");
    run(build, dir, &format!("go-build-{name}"), BUILD_LIMIT)?.success()?;
    Ok(binary)
}

struct Kubelet {
    job: Job,
    input: ChildStdin,
    /// How many of its lines have been looked at.
    heard: usize,
}

impl Kubelet {
    fn tell(&mut self, words: &str) -> Verdict {
        writeln!(self.input, "{words}")?;
        Ok(())
    }

    /// The next event of that kind that is `right`. What came before it has been heard, too.
    fn hear(&mut self, event: &str, right: impl Fn(&Value) -> bool) -> Verdict<Value> {
        let mut found = None;
        let heard = wait_until(LIMIT, || {
            let text = self.job.stdout_so_far();
            // A line that is not whole yet is left for the next look.
            let whole = text.matches('\n').count();
            for line in text.lines().take(whole).skip(self.heard) {
                self.heard += 1;
                let said: Value = serde_json::from_str(line).unwrap_or_default();
                if said["event"] == event && right(&said) {
                    found = Some(said);
                    break;
                }
            }
            Ok(found.is_some())
        })?;
        match found {
            Some(said) if heard => Ok(said),
            _ => fail(format!("no {event} of that kind: {}", self.job.describe())),
        }
    }

    fn ask(&mut self, words: &str) -> Verdict<Value> {
        self.tell(words)?;
        self.hear("allocated", |_| true)
    }
}

/// All lanes can be had.
fn all(said: &Value) -> bool {
    said["healthy"] == COUNT
}

fn none(said: &Value) -> bool {
    said["healthy"] == 0
}

fn life() -> Verdict {
    let node = Node::new()?;
    let mut kubelet = node.kubelet()?;
    let mut plugin = node.plugin("plugin")?;
    let said = kubelet.hear("registered", |_| true)?;
    let expected = json!({"event": "registered", "resource": "sluice.dev/lane", "version": "v1beta1",
        "endpoint": OWN_SOCKET});
    ensure(said == expected, || said.to_string())?;
    let said = kubelet.hear("options", |_| true)?;
    ensure(
        said["pre_start"] == false && said["preferred"] == false,
        || said.to_string(),
    )?;
    // Nobody but the kubelet's user asks.
    let own = fs::symlink_metadata(node.path("plugins").join(OWN_SOCKET))?;
    let is_closed = own.permissions().mode() & 0o077 == 0;
    ensure(own.file_type().is_socket() && is_closed, || {
        format!("{own:?}")
    })?;

    // What the daemon is, the lanes are.
    let said = kubelet.hear("devices", none)?;
    ensure(said["ids"].as_array().map(Vec::len) == Some(5), || {
        said.to_string()
    })?;
    let daemon = node.daemon("daemon")?;
    kubelet.hear("devices", all)?;
    daemon.stop(LIMIT)?;
    kubelet.hear("devices", none)?;
    let daemon = node.daemon("daemon-again")?;
    kubelet.hear("devices", all)?;

    let said = kubelet.ask("allocate lane-0 / lane-1 lane-2")?;
    let [run, library] = ["run", "library"].map(|it| node.path(it));
    let container = json!({
        "envs": {"SLUICE_SOCKET": "/run/sluice/control.sock"},
        "mounts": [
            {"container_path": "/opt/sluice", "host_path": library, "read_only": true},
            {"container_path": "/run/sluice", "host_path": run, "read_only": true},
        ],
    });
    let expected = json!([container, container]);
    ensure(said["containers"] == expected, || said.to_string())?;

    // It removes every socket when it starts.
    kubelet.tell("restart")?;
    kubelet.hear("restarted", |_| true)?;
    kubelet.hear("registered", |_| true)?;
    kubelet.hear("devices", all)?;
    let said = kubelet.ask("allocate lane-4")?;
    ensure(said["containers"] == json!([container]), || {
        said.to_string()
    })?;

    // And may forget who registered without removing anything.
    kubelet.tell("reopen")?;
    kubelet.hear("reopened", |_| true)?;
    kubelet.hear("registered", |_| true)?;
    kubelet.hear("devices", all)?;

    ensure(plugin.poll()?.is_none(), || plugin.describe())?;
    plugin.signal(Signal::TERM)?;
    let outcome = plugin.finish(LIMIT)?;
    ensure(outcome.status.success(), || outcome.describe())?;
    kubelet.hear("watched", |_| true)?;
    ensure(!node.path("plugins").join(OWN_SOCKET).exists(), || {
        "its socket is still there".to_owned()
    })?;
    daemon.stop(LIMIT)?;
    Ok(())
}

/// What no kubelet says has an answer of its own, and the next who asks has his.
fn lies() -> Verdict {
    let node = Node::new()?;
    let _daemon = node.daemon("daemon")?;
    let mut kubelet = node.kubelet()?;
    let mut plugin = node.plugin("plugin")?;
    kubelet.hear("devices", all)?;
    for (words, code) in [
        ("allocate lane-5", "InvalidArgument"),
        ("allocate lane-0 / lane-00", "InvalidArgument"),
        ("allocate lane-1 lane-1", "InvalidArgument"),
        ("allocate ../../../etc", "InvalidArgument"),
        ("allocate lane-18446744073709551616", "InvalidArgument"),
        ("allocate", "InvalidArgument"),
        ("flood 6", "InvalidArgument"),
        ("flood 100000", "ResourceExhausted"),
    ] {
        let said = kubelet.ask(words)?;
        ensure(said["error"] == code, || format!("{words}: {said}"))?;
    }
    kubelet.tell("lie")?;
    let said = kubelet.hear("lied", |_| true)?;
    let expected = json!({
        "garbage": "closed", "frame-of-16-M": "closed", "window-of-0": "closed", "reset": "closed",
        "4-GiB": "status 8", "shorter": "status 3", "longer": "status 3", "no-protobuf": "status 3",
        "no-message": "status 3", "compressed": "status 12", "no-method": "status 12",
        "no-service": "status 12", "no-grpc": "status 12",
    });
    ensure(said["answers"] == expected, || said.to_string())?;
    let said = kubelet.ask("allocate lane-0")?;
    ensure(said["containers"].is_array(), || said.to_string())?;
    ensure(plugin.poll()?.is_none(), || plugin.describe())
}

/// Who answers in the kubelet's place, and how: another one is waited for.
fn no_registration() -> Verdict {
    let node = Node::new()?;
    let _daemon = node.daemon("daemon")?;
    let place = node.path("plugins/kubelet.sock");
    let mut plugin = node.plugin("plugin")?;
    for answer in [
        &b""[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        // Settings of a length that they cannot have, and a frame of 16 MiB.
        &[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5],
        &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
    ] {
        let listener = UnixListener::bind(&place)?;
        listener.set_nonblocking(true)?;
        let mut tried = 0;
        // It comes again after it was told nonsense.
        let came = wait_until(LIMIT, || {
            if let Ok((mut socket, _)) = listener.accept() {
                // What it does not wait for it need not take.
                let _ = socket.write_all(answer);
                tried += 1;
            }
            Ok(tried == 2)
        })?;
        ensure(came && plugin.poll()?.is_none(), || plugin.describe())?;
        drop(listener);
        fs::remove_file(&place)?;
    }
    // One that says nothing is left after a while.
    let listener = UnixListener::bind(&place)?;
    let (silent, _) = listener.accept()?;
    fs::remove_file(&place)?;
    let mut kubelet = node.kubelet()?;
    kubelet.hear("devices", all)?;
    drop(silent);
    ensure(plugin.poll()?.is_none(), || plugin.describe())
}

/// A second one does not take the place of the first, and leaves it alone; a socket that nobody serves is replaced.
fn second() -> Verdict {
    let node = Node::new()?;
    let own = node.path("plugins").join(OWN_SOCKET);
    drop(UnixListener::bind(&own)?);
    let _daemon = node.daemon("daemon")?;
    let mut kubelet = node.kubelet()?;
    let _plugin = node.plugin("plugin")?;
    kubelet.hear("devices", all)?;
    let outcome = node.plugin("second")?.finish(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stderr);
    ensure(
        outcome.status.code() == Some(1) && said.contains("another program serves"),
        || outcome.describe(),
    )?;
    ensure(own.exists(), || "its socket is gone".to_owned())?;
    let said = kubelet.ask("allocate lane-0")?;
    ensure(said["containers"].is_array(), || said.to_string())
}

/// Kubernetes' own judge of pods: those that ask by the resource may run at the level "restricted", and those with
/// volumes of the node may not.
fn pod_security() -> Verdict {
    let dir = tempfile::tempdir()?;
    let judge = build_go("podsecurity", dir.path())?;
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kubernetes");
    for (file, allowed) in [("restricted.yaml", true), ("example.yaml", false)] {
        let mut command = command(&judge);
        command.arg("restricted").arg(manifests.join(file));
        let outcome = run(command, dir.path(), file, LIMIT)?;
        let said = outcome.text();
        let verdicts = said.matches(&format!(": {allowed} ")).count();
        let is_right = outcome.status.code() == Some(if allowed { 0 } else { 1 });
        ensure(
            is_right && verdicts == 2 && said.lines().count() == 2,
            || outcome.describe(),
        )?;
    }
    Ok(())
}

/// What RuntimeDefault refuses whoever has no capability, as containerd and CRI-O have it.
const REFUSED: [&str; 14] = [
    "add_key",
    "bpf",
    "keyctl",
    "kexec_load",
    "mount",
    "open_by_handle_at",
    "perf_event_open",
    "pivot_root",
    "ptrace",
    "request_key",
    "setns",
    "umount2",
    "unshare",
    "userfaultfd",
];
/// And what containerd 1.6 refuses besides.
const REFUSED_BY_OLD: [&str; 2] = ["process_vm_readv", "process_vm_writev"];

/// A container as a kubelet orders it from a runtime: what the plugin said, and what "restricted" asks for.
fn container(given: &Value, refused: &[&str]) -> Value {
    let bind = |from: &str, to: &str| {
        json!({"destination": to, "type": "bind", "source": from,
            "options": ["rbind", "ro", "nosuid", "nodev"]})
    };
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "nodev", "noexec", "mode=1777"]}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}),
    ];
    // Its image is this machine's programs.
    for folder in ["/usr", "/bin", "/lib", "/lib64", "/etc"] {
        if Path::new(folder).exists() {
            mounts.push(bind(folder, folder));
        }
    }
    let talk = apps_dir().join("scripts/live_talk.py");
    mounts.push(bind(&talk.to_string_lossy(), "/talk.py"));
    for mount in given["mounts"].as_array().into_iter().flatten() {
        let text = |name: &str| mount[name].as_str().unwrap_or_default();
        let mut bind = bind(text("host_path"), text("container_path"));
        if mount["read_only"] != true {
            bind["options"] = json!(["rbind"]);
        }
        mounts.push(bind);
    }
    let mut variables = vec!["PATH=/usr/bin:/bin".to_owned(), "HOME=/tmp".to_owned()];
    for (name, value) in given["envs"].as_object().into_iter().flatten() {
        variables.push(format!("{name}={}", value.as_str().unwrap_or_default()));
    }
    json!({
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 1000, "gid": 1000},
            "args": ["sh", "-c", "touch /tmp/go; exec /opt/sluice/sluice run --stats --log info -- \
                python3 /talk.py /tmp/half /tmp/go"],
            "env": variables,
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "mount"}, {"type": "uts"},
                {"type": "network"}],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64"],
                "syscalls": [{"names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
            },
        },
    })
}

fn restricted() -> Verdict {
    const TRIES: usize = 20;
    if !rustix::process::geteuid().is_root() {
        return skip("a container's runtime takes root");
    }
    let Some(runtime) = find_program("crun") else {
        return skip("no crun; run scripts/setup test");
    };
    let node = Node::new()?;
    for file in ["sluice", "libsluice_preload.so"] {
        let to = node.path("library").join(file);
        fs::copy(node.sluice.with_file_name(file), &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    let _daemon = node.daemon("daemon")?;
    let mut kubelet = node.kubelet()?;
    let _plugin = node.plugin("plugin")?;
    kubelet.hear("devices", all)?;
    let given = kubelet.ask("allocate lane-0")?["containers"][0].clone();
    fs::create_dir_all(node.path("bundle/rootfs"))?;

    let run_in_it = |refused: &[&str], number: usize| {
        let text = container(&given, refused).to_string();
        fs::write(node.path("bundle/config.json"), text)?;
        let name = format!("sluice-{}-{}-{number}", std::process::id(), refused.len());
        // The runtime knows no machine that has both versions of cgroups.
        const SCRIPT: &str = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$@\"";
        let mut command = command(require("unshare")?);
        command
            .args(["--mount", "sh", "-c", SCRIPT, "sh"])
            .arg(&runtime)
            .arg("--root")
            .arg(node.path("runtime"))
            .args(["--cgroup-manager=disabled", "run", "--bundle"])
            .arg(node.path("bundle"))
            .arg(&name);
        let outcome = run(command, node.dir.path(), &name, LIMIT)?.success()?;
        ensure(outcome.text().contains("all 400 messages arrived"), || {
            outcome.describe()
        })?;
        Ok::<_, sluice_tests::suite::Problem>(String::from_utf8_lossy(&outcome.stderr).into_owned())
    };
    // On a busy machine a talk may be over before there is a lane.
    let mut said = String::new();
    for number in 0..TRIES {
        said = run_in_it(&REFUSED, number)?;
        if said.contains("2 connections, 2 on a lane") {
            break;
        }
    }
    ensure(said.contains("2 connections, 2 on a lane"), || said.clone())?;
    let said = run_in_it(&[&REFUSED[..], &REFUSED_BY_OLD].concat(), 0)?;
    ensure(
        said.contains("refuses process_vm_readv") && said.contains("2 connections, 0 on a lane"),
        || said.clone(),
    )
}
