//! The DaemonSet on two nodes, which are network namespaces: the command line, the configuration, the
//! capabilities and the files of packaging/, in a root of its own for each.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::{Job, wait_until};
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, eventually, fail, trial};

use crate::lab::{self, Two, ask, exchange_by, scrape};
use crate::service::bounding;

pub fn trials() -> Vec<Trial> {
    vec![trial("kubernetes/two-nodes", two_nodes)]
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// The lines of a block of YAML below the line that is `head`, without their indentation.
fn block(yaml: &str, head: &str) -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = yaml.lines();
    let Some(line) = lines.by_ref().find(|line| line.trim() == head) else {
        return Vec::new();
    };
    let outer = indent(line);
    let inside = lines.take_while(|line| line.trim().is_empty() || indent(line) > outer);
    inside.map(|line| line.trim().to_owned()).collect()
}

/// What the DaemonSet says that a test can do as well.
struct Manifest {
    arguments: Vec<String>,
    config: String,
    capabilities: Vec<String>,
}

impl Manifest {
    fn read() -> Verdict<Manifest> {
        let yaml = fs::read_to_string(packaging().join("kubernetes/daemonset.yaml"))?;
        let arguments = block(&yaml, "args:");
        let arguments = arguments.iter().filter_map(|line| line.strip_prefix("- "));
        let added = yaml
            .lines()
            .find_map(|line| line.trim().strip_prefix("add: "));
        let added = added.unwrap_or_default().trim_matches(['[', ']']);
        let manifest = Manifest {
            arguments: arguments.map(ToOwned::to_owned).collect(),
            config: block(&yaml, "sluiced.toml: |").join("\n"),
            capabilities: added
                .split(", ")
                .map(|name| name.trim_matches('"').to_owned())
                .collect(),
        };
        let is_whole = manifest.arguments.len() > 5
            && manifest.config.contains("[discovery]")
            && manifest.capabilities.len() > 3;
        ensure(is_whole, || "the manifest is not understood".to_owned())?;
        Ok(manifest)
    }
}

/// The root of a container: what the image has from the build, and the libraries that a base image
/// brings.
fn make_root(two: &Two, side: Side, manifest: &Manifest) -> Verdict<PathBuf> {
    let root = two.path(side, "root");
    let Some(release) = two.sluice.parent() else {
        return fail("where the release build is, is not known");
    };
    let staged = Command::new(packaging().join("container/stage"))
        .args([release, &root])
        .output()?;
    ensure(staged.status.success(), || format!("{staged:?}"))?;
    for file in ["sluice", "sluiced", "libsluice_ibverbs.so"] {
        let output = Command::new("ldd").arg(release.join(file)).output()?;
        for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let path = Path::new(word);
            if path.is_absolute() && path.is_file() {
                let to = root.join(word.trim_start_matches('/'));
                if let Some(folder) = to.parent() {
                    fs::create_dir_all(folder)?;
                }
                fs::copy(path, to)?;
            }
        }
    }
    for folder in [
        "proc",
        "sys",
        "dev",
        "tmp",
        "etc/sluice",
        "etc/sluice-key",
        "run/sluice",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    let [a, b, c, _] = two.host(side).v4().octets();
    let network = format!("{a}.{b}.{c}.0/24");
    // The nodes of the test have a network of their own.
    let config = manifest.config.replace("10.0.0.0/8", &network);
    fs::write(root.join("etc/sluice/sluiced.toml"), config)?;
    let key = root.join("etc/sluice-key/peering.key");
    fs::write(&key, "4b".repeat(32) + "\n")?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400))?;
    Ok(root)
}

/// `sluiced` as its container has it: what the DaemonSet gives it, in a root of its own.
struct Node {
    job: Job,
    socket: PathBuf,
}

impl Node {
    fn start(two: &Two, side: Side, manifest: &Manifest) -> Verdict<Node> {
        const SCRIPT: &str = "root=$1 name=$2 bounds=$3; shift 3; hostname \"$name\" && \
                for it in proc sys dev; do mount --rbind /$it \"$root/$it\" || exit 1; done; \
                exec setpriv \"$bounds\" --no-new-privs chroot \"$root\" /usr/bin/sluiced \"$@\"";
        let root = make_root(two, side, manifest)?;
        // To enter the root; a container's runtime needs none for that.
        let more = ["SYS_CHROOT"];
        let bounds = bounding(manifest.capabilities.iter().map(String::as_str).chain(more));
        let mut command = two.host(side).command(require("unshare")?);
        command
            .args(["--mount", "--uts", "sh", "-c", SCRIPT, "sh"])
            .arg(&root)
            .args([side.name(), &bounds])
            .args(&manifest.arguments);
        let mut job = two.start_program(command, &format!("node-{}", side.name()))?;
        let socket = root.join("run/sluice/control.sock");
        job.await_ready(LIMIT, "the control socket", || socket.exists())?;
        Ok(Node { job, socket })
    }
}

fn two_nodes() -> Verdict {
    for program in ["unshare", "setpriv", "chroot", "ldd"] {
        require(program)?;
    }
    let two = lab::set_up(&[])?;
    let manifest = Manifest::read()?;
    let nodes = [
        Node::start(&two, Side::Left, &manifest)?,
        Node::start(&two, Side::Right, &manifest)?,
    ];
    let status = |side: Side| two.status_by(side, &nodes[side as usize].socket);
    let given = |side: Side| {
        let status = status(side).unwrap_or_default();
        let count = status["counters"]["matches_across_hosts"].as_u64();
        count.unwrap_or(0)
    };
    let describe = || {
        let [left, right] = nodes.each_ref().map(|node| node.job.describe());
        let statuses = SIDES.map(status);
        format!("{statuses:?}\n{left}\n{right}")
    };
    // A program's connection makes the daemons find each other.
    let end = Instant::now() + LIMIT;
    while SIDES.iter().any(|side| given(*side) == 0) && Instant::now() < end {
        exchange_by([&nodes[0].socket, &nodes[1].socket], &two, 1000)?;
    }
    ensure(SIDES.iter().all(|side| given(*side) > 0), describe)?;
    for side in SIDES {
        let peers = || status(side).unwrap_or_default()["fabric"]["peers"].clone();
        let knows = wait_until(LIMIT, || Ok(peers()[0]["name"] == side.other().name()))?;
        ensure(knows, describe)?;
        eventually(LIMIT, || {
            let health = ask(&two, side, b"GET /healthz HTTP/1.1\r\n\r\n")?;
            ensure(health.starts_with("HTTP/1.1 200 "), || health.clone())
        })?;
        let figures = scrape(&two, side, "text/plain")?;
        ensure(figures.contains("sluice_peer_up"), || figures.clone())?;
    }
    Ok(())
}
