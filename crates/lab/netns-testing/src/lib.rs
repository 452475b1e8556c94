//! For tests: network namespaces that stand for hosts. They take root and `ip` (iproute2).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Says that a test does not run here, and why. `SLUICE_NO_SKIP=1` makes it a failure.
pub fn skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("SLUICE_NO_SKIP").is_none_or(|value| value != "1"),
        "SKIP {test}: {reason}"
    );
    println!("SKIP {test}: {reason}");
}

/// Whether network namespaces can be made. If not, [`skip`]s the test.
pub fn can_run(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let can = is_root && Command::new("ip").arg("-V").output().is_ok();
    if !can {
        skip(
            test,
            "needs root and ip (iproute2) to make network namespaces",
        );
    }
    can
}

/// A name that no other test has.
pub fn unique(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("sluice-{what}{}-{number}", std::process::id())
}

/// Runs `ip`; what it prints.
///
/// # Panics
/// It fails.
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("ip runs");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// A network namespace with a name, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one, in which nothing is up.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn new(name: String) -> Self {
        ip(&format!("netns add {name}"));
        Self { name }
    }

    /// As `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For processes that are to enter it.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Runs `ip` there; what it prints.
    pub fn ip(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// Runs something there, on a thread of its own. What it opens stays there.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.path());
                run()
            });
            thread.join().expect("the thread ends well")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// Moves this thread into the network namespace at `path`.
///
/// # Panics
/// There is none, or the thread may not.
pub fn enter(path: &Path) {
    let file = File::open(path).expect("a network namespace");
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("may enter");
}
