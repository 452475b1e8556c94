//! What a test program printed, as libtest and libtest-mimic write it.
//!
//! ```text
//! test NAME ... ok
//! failures:
//! ---- NAME stdout ----        (libtest-mimic: ---- NAME ----)
//! what the test said
//! failures:
//!     NAME
//! test result: FAILED. 1 passed; 1 failed; …
//! ```

/// A test that failed, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub name: String,
    pub words: String,
}

/// The tests that failed, in the order of the list at the log's end. A program that did not come to its end has
/// written no such list.
pub fn failed(log: &str) -> Vec<Failed> {
    let lines: Vec<&str> = log.lines().collect();
    let names = failed_names(&lines);
    let first = lines.iter().position(|line| *line == "failures:");
    let said = first.map_or(&[][..], |first| &lines[first..]);
    names
        .iter()
        .map(|name| Failed {
            name: (*name).to_string(),
            words: words_of(name, &names, said),
        })
        .collect()
}

/// The last list of names: a test may itself have printed what looks like one.
fn failed_names<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let Some(end) = lines
        .iter()
        .rposition(|line| line.starts_with("test result: FAILED."))
    else {
        return Vec::new();
    };
    let Some(start) = lines[..end].iter().rposition(|line| *line == "failures:") else {
        return Vec::new();
    };
    lines[start + 1..end]
        .iter()
        .filter_map(|line| line.strip_prefix("    "))
        .collect()
}

fn words_of(name: &str, names: &[&str], said: &[&str]) -> String {
    let is_heading = |line: &str, name: &str| {
        line == format!("---- {name} stdout ----") || line == format!("---- {name} ----")
    };
    let mut words = String::new();
    let own = said.iter().skip_while(|line| !is_heading(line, name));
    for line in own.skip(1) {
        if *line == "failures:" || names.iter().any(|other| is_heading(line, other)) {
            break;
        }
        words.push_str(line);
        words.push('\n');
    }
    words.trim_end().to_string()
}

/// Those of `listed` (the output of `PROGRAM --list`) that the log gives no good result for.
pub fn not_passed(listed: &str, log: &str) -> Vec<String> {
    listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| {
            let start = format!("test {name} ");
            !log.lines().any(|line| {
                line.starts_with(&start)
                    && (line.ends_with("... ok") || line.contains("... ignored"))
            })
        })
        .map(str::to_string)
        .collect()
}

/// Whether this is the log of one test that ran and passed, and neither failed nor skipped itself.
pub fn one_passed(log: &str) -> bool {
    log.lines()
        .any(|line| line.starts_with("test result: ok. 1 passed; 0 failed;"))
        && !log
            .lines()
            .any(|line| line.trim_start().starts_with("SKIP "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBTEST: &str = "\
running 4 tests
test good ... ok

successes:

---- good stdout ----
good said this
failures:
    which is no name


successes:
    good
    quiet

failures:

---- bad stdout ----
thread 'bad' panicked at src/lib.rs:1:1:
    nor is this
---- worse stdout ----
worse said that


failures:
    bad
    worse

test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    const MIMIC: &str = "\
running 3 tests
test ipv4/stream ... ok
test ipv6/stream ... FAILED

failures:

---- ipv6/stream ----
the sums differ


failures:
    ipv6/stream

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

    fn pair(name: &str, words: &str) -> Failed {
        Failed {
            name: name.into(),
            words: words.into(),
        }
    }

    #[test]
    fn failed_tests_come_with_their_words() {
        let bad = "thread 'bad' panicked at src/lib.rs:1:1:\n    nor is this";
        assert_eq!(
            failed(LIBTEST),
            [pair("bad", bad), pair("worse", "worse said that")]
        );
        assert_eq!(failed(MIMIC), [pair("ipv6/stream", "the sums differ")]);
        assert_eq!(failed("running 1 test\ntest a ... ok\n"), []);
    }

    #[test]
    fn a_log_that_ends_early_tells_which_tests_have_not_passed() {
        let listed = "good: test\nslow: test\nbad: test\nignored: test\nslow/er: test\n\n5 tests\n";
        let log = "running 5 tests\ntest good ... ok\ntest bad ... FAILED\ntest ignored ... ignored\n\
                   test slow has been running for over 60 seconds\n";
        assert_eq!(not_passed(listed, log), ["slow", "bad", "slow/er"]);
    }

    #[test]
    fn no_test_and_a_skipped_test_have_not_passed() {
        let result = |n: u32| {
            format!(
                "test result: ok. {n} passed; 0 failed; 0 ignored; 0 measured; 9 filtered out;\n"
            )
        };
        assert!(one_passed(&result(1)));
        assert!(!one_passed(&result(0)));
        assert!(!one_passed(&format!("SKIP x: no card\n{}", result(1))));
        assert!(!one_passed(MIMIC));
    }
}
