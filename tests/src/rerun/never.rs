//! Failures that a second run cannot excuse: a crash of our code, a complaint of a kernel, a wrong byte.
//!
//! The words of the failed test decide. A test that finds wrong bytes says so with one of [`WRONG_BYTES`], and a
//! test whose program crashed shows how the program ended (`sluice_lab::job` does).

use std::fs;
use std::path::Path;

/// Ends of a program by a fault of its own, as `ExitStatus`, `sluice_lab::job` and shells write them.
const CRASHES: &[&str] = &[
    "SIGSEGV",
    "SIGABRT",
    "SIGBUS",
    "SIGILL",
    "SIGFPE",
    "killed by signal 4\n",
    "killed by signal 6\n",
    "killed by signal 7\n",
    "killed by signal 8\n",
    "killed by signal 11\n",
    "core dumped",
    "Segmentation fault",
    "Bus error",
    "Illegal instruction",
    // The C library's complaints before abort(3).
    "malloc_consolidate",
    "malloc():",
    "free():",
    "realloc():",
    "double free",
    "corrupted size",
    "corrupted double-linked",
    "stack smashing detected",
    "AddressSanitizer",
    "Fatal Python error",
];

/// A kernel's complaints that are no matter of time.
const KERNEL: &[&str] = &[
    "Oops: ",
    "kernel BUG at",
    "unreferenced object",
    "general protection fault",
    "Kernel panic",
];

/// A kernel says these of a machine that gets no processor; a stack follows.
const KERNEL_WAITED: &[&str] = &[
    "soft lockup",
    "workqueue lockup",
    "detected stall",
    "self-detected stall",
    "blocked for more than",
];

/// How tests and their programs say that bytes came wrong.
pub const WRONG_BYTES: &[&str] = &[
    "wrong byte",
    "wrong sum",
    "bytes differ",
    "sums differ",
    "corrupt after",
    "answer differs",
    "the echo differs",
    "the copy is different",
    "range of the file differs",
    "loaded data differ",
];

/// Why this failure counts at once; none for one that may be run again. `root` is the workspace's folder, which
/// panics name files in.
pub fn reason(words: &str, root: &Path) -> Option<String> {
    // The last line may have no end.
    let words = format!("{words}\n");
    let found = |list: &[&'static str]| list.iter().copied().find(|known| words.contains(known));
    if let Some(known) = found(CRASHES) {
        return Some(format!("a crash ({})", known.trim_end()));
    }
    if let Some(panic) = words.lines().find(|line| is_ours(line, root)) {
        return Some(format!("a panic of our code ({})", panic.trim()));
    }
    if let Some(known) = complaint(before_emulators_end(&words)) {
        return Some(format!("a complaint of a kernel ({})", known.trim()));
    }
    if let Some(known) = found(WRONG_BYTES) {
        return Some(format!("wrong bytes ({known})"));
    }
    None
}

/// What a kernel complained of.
fn complaint(words: &str) -> Option<&str> {
    let waited = |line: &str| KERNEL_WAITED.iter().any(|known| line.contains(known));
    let known = KERNEL.iter().copied().find(|known| words.contains(known));
    let warning = words.lines().find(|line| {
        let warns =
            line.contains("WARNING: ") && (line.contains(" PID: ") || line.contains(" CPU#"));
        (warns || line.contains("BUG: ")) && !waited(line)
    });
    let stack = words.contains("Call Trace:") && !waited(words);
    known.or(warning).or(stack.then_some("Call Trace:"))
}

/// What was said before the emulator ended a guest's kernel by a fault of its own; all of it where that did not happen.
/// The fault is a breakpoint that the guest's memory does not have: the emulator ran code that it had translated before
/// the kernel took the breakpoint away. QEMU before 8.1 translates without the page's lock (its commit deba78709a).
/// In a dump of the code, `<>` marks the byte behind the breakpoint; the byte in front of it is what memory has.
fn before_emulators_end(words: &str) -> &str {
    let Some((before, dump)) = words.split_once("Oops: int3: 0000 [#1]") else {
        return words;
    };
    let code = dump.lines().find_map(|line| line.split_once(" Code: "));
    let bytes = code.and_then(|(_, code)| code.split_once(" <"));
    match bytes.and_then(|(bytes, _)| bytes.split(' ').next_back()) {
        None | Some("cc") => words,
        Some(_) => before,
    }
}

/// Whether the line tells of a panic in the code of the product: `thread 'main' (7) panicked at FILE:LINE:COLUMN:`.
/// An assertion of a test panics too, but in a test's file, or behind the line of its file at which the tests begin.
fn is_ours(line: &str, root: &Path) -> bool {
    let Some((_, place)) = line.split_once(" panicked at ") else {
        return false;
    };
    let mut parts = place.split(':');
    let (Some(file), Some(number)) = (parts.next(), parts.next()) else {
        return false;
    };
    // Packages are built with other names for the workspace's folder.
    let Some(start) = file.find("crates/") else {
        return false;
    };
    let (file, Ok(number)) = (&file[start..], number.parse::<usize>()) else {
        return false;
    };
    let is_test = file.split('/').any(|part| {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        stem.split('_')
            .any(|word| matches!(word, "test" | "tests" | "testing" | "trial" | "trials"))
    });
    if is_test || file.starts_with("crates/lab/") || !file.contains("/src/") {
        return false;
    }
    // What cannot be read is taken for the product's.
    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
    let tests_begin = text
        .lines()
        .position(|line| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test"));
    tests_begin.is_none_or(|begin| number <= begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(words: &str) -> bool {
        reason(words, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))).is_some()
    }

    #[test]
    fn crashes_are_never_excused() {
        assert!(never("server: killed by signal 11\n--- stdout"));
        assert!(never("client ended with signal: 6 (SIGABRT) (core dumped)"));
        assert!(never("free(): invalid pointer"));
        assert!(never("server: killed by signal 11"));
        assert!(!never("server: killed by signal 9\n--- stdout"));
        assert!(!never("server: killed by signal 15"));
        assert!(!never("server: did not end within 60s"));
    }

    #[test]
    fn panics_of_the_product_are_never_excused_and_assertions_of_tests_are() {
        let at = |place: &str| format!("--- stderr\nthread 'main' (7) panicked at {place}:\nno");
        assert!(never(&at("crates/hosts/daemon/src/server.rs:1:9")));
        assert!(never(&at("/src/crates/hosts/gone/src/gone.rs:99999:9")));
        assert!(!never(&at("crates/sockets/lane/tests/reclaim.rs:12:5")));
        assert!(!never(&at("crates/lab/lab/src/job.rs:12:5")));
        assert!(!never(&at("tests/tests/test_logs.rs:12:5")));
        // Both in one file: the product's part is above.
        let here = "tests/src/rerun/never.rs";
        assert!(!never(&at(here)));
        let file = "crates/base/waiting/src/lib.rs";
        assert!(never(&at(&format!("{file}:1:1"))));
    }

    #[test]
    fn tests_at_the_end_of_a_file_are_tests() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("crates/a/src");
        fs::create_dir_all(&folder).expect("created");
        fs::write(
            folder.join("lib.rs"),
            "fn product() {}\n\n#[cfg(test)]\nmod tests {\n}\n",
        )
        .expect("written");
        let at = |line: u32| format!("thread 'x' panicked at crates/a/src/lib.rs:{line}:1:");
        assert!(reason(&at(1), root.path()).is_some());
        assert!(reason(&at(4), root.path()).is_none());
    }

    #[test]
    fn complaints_of_a_kernel_are_never_excused_unless_it_only_waited() {
        assert!(never("[ 9.1] Oops: 0002 [#1] PREEMPT SMP"));
        assert!(never(
            "[ 9.1] WARNING: CPU: 0 PID: 7 at net/core/dev.c:1 f+0x1"
        ));
        assert!(never(
            "[ 9.1] WARNING: net/core/dev.c:1 at f+0x1, CPU#1: sh/7"
        ));
        assert!(never("[ 9.1] BUG: KASAN: use-after-free"));
        assert!(never("[ 9.1] Call Trace:\n <TASK>"));
        assert!(!never(
            "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\nCall Trace:\n <TASK>"
        ));
        assert!(!never(
            "Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on"
        ));
    }

    #[test]
    fn a_breakpoint_counts_if_memory_has_it() {
        let dump = |code: &str| {
            format!(
                "[    2.8] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[    2.8] RIP: 0010:sched_clock_cpu+0x9/0x190\n\
                 [    2.8] Code: {code}\n[    2.8] Call Trace:\n[    2.8] Kernel panic - not syncing"
            )
        };
        assert!(!never(&dump("f3 0f 1e fa 41 54 55 53 eb <1b> e8 21")));
        assert!(never(&dump("f3 0f 1e fa 41 54 55 53 cc <1b> e8 21")));
        assert!(never(&dump("cc cc cc cc cc cc")));
        assert!(never(&format!(
            "Oops: 0002 [#1]\n{}",
            dump("53 eb <1b> e8")
        )));
        assert!(never(&dump("53 eb <1b>").replace("int3: 0000", "0002")));
        assert!(never(&format!(
            "{}\nserver: killed by signal 11",
            dump("53 eb <1b>")
        )));
        assert!(never(&format!("bytes differ\n{}", dump("53 eb <1b>"))));
    }

    #[test]
    fn wrong_bytes_are_never_excused() {
        assert!(never("round 7: bytes differ"));
        assert!(never("connection 3: corrupt after 9 records: ab"));
        assert!(!never("netem corrupt 5%: 7 packets came"));
    }
}
