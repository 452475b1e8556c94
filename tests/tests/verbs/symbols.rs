//! What the shared object exports: every public symbol under its version.

use std::collections::BTreeSet;
use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::job::{command, find_program, run};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

use crate::stage::LIMIT;

/// `name@@NODE` for what a program linked today gets, `name@NODE` for older versions.
const GOLDEN: &str = include_str!("symbols.txt");

pub fn trials() -> Vec<Trial> {
    vec![
        trial("symbols/the-golden-list-is-exported", golden),
        trial(
            "symbols/all-of-the-distributions-are-exported",
            distributions,
        ),
        trial("symbols/nothing-without-a-version", no_others),
        trial("symbols/two-names-one-file", one_file),
    ]
}

/// The exported symbols of a library, as the list has them; without a version the name alone.
fn exported(library: &Path) -> Verdict<BTreeSet<String>> {
    let Some(objdump) = find_program("objdump") else {
        return skip("objdump is not installed; scripts/setup test");
    };
    let dir = tempfile::tempdir()?;
    let mut dump = command(objdump);
    dump.arg("-T").arg(library);
    let text = run(dump, dir.path(), "objdump", LIMIT)?.success()?.text();
    Ok(text.lines().filter_map(symbol).collect())
}

/// A line is: address, seven flags, section, a tab, size, version if any, name. A version in
/// brackets is not the default one.
fn symbol(line: &str) -> Option<String> {
    let (front, back) = line.split_once('\t')?;
    let section = front.split_whitespace().last()?;
    if section == "*UND*" || section == "*ABS*" {
        return None;
    }
    let words: Vec<&str> = back.split_whitespace().skip(1).collect();
    match words[..] {
        [name] => Some(name.to_owned()),
        [version, name] => Some(match version.strip_prefix('(') {
            Some(old) => format!("{name}@{}", old.trim_end_matches(')')),
            None => format!("{name}@@{version}"),
        }),
        _ => None,
    }
}

fn ours() -> Verdict<BTreeSet<String>> {
    exported(&library("libibverbs.so.1")?)
}

fn library(name: &str) -> Verdict<std::path::PathBuf> {
    let sluice = find_sluice()?;
    let beside = sluice.parent().unwrap_or(Path::new("."));
    let path = beside.join("verbs").join(name);
    ensure(path.is_file(), || {
        format!("{} does not exist; build the workspace", path.display())
    })?;
    Ok(path)
}

fn all_in<'a>(wanted: impl Iterator<Item = &'a str>, ours: &BTreeSet<String>) -> Verdict {
    let missing: Vec<&str> = wanted.filter(|symbol| !ours.contains(*symbol)).collect();
    ensure(missing.is_empty(), || {
        format!("not exported:\n{}", missing.join("\n"))
    })
}

fn golden() -> Verdict {
    let wanted: Vec<&str> = GOLDEN.lines().filter(|l| !l.starts_with('#')).collect();
    ensure(wanted.len() > 250, || "the list is cut off".to_owned())?;
    all_in(wanted.into_iter(), &ours()?)
}

fn distributions() -> Verdict {
    let ours = ours()?;
    let mut seen = 0;
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"] {
            let path = Path::new(folder).join(name);
            if path.is_file() {
                let theirs = exported(&path)?;
                all_in(theirs.iter().map(String::as_str), &ours)?;
                seen += 1;
                break;
            }
        }
    }
    if seen == 2 {
        Ok(())
    } else {
        skip("libibverbs1 and librdmacm1 are not installed; scripts/setup test")
    }
}

/// Except for the allocation functions that stand in for the C library's.
fn no_others() -> Verdict {
    // Memory (crates/verbs/ibverbs/src/allocation.rs), and files of a device (device_files.rs).
    const INTERPOSED: &str = "aligned_alloc free malloc_usable_size memalign mmap mmap64 posix_memalign pvalloc realloc \
        reallocarray valloc \
        __fxstatat __fxstatat64 __lxstat __lxstat64 __open64_2 __open_2 __openat64_2 __openat_2 __realpath_chk __xstat \
        __xstat64 access canonicalize_file_name eaccess euidaccess faccessat fopen fopen64 fstatat fstatat64 lstat \
        lstat64 open open64 openat openat64 realpath stat stat64 statx";
    let interposed: Vec<&str> = INTERPOSED.split_whitespace().collect();
    let ours = ours()?;
    let others: Vec<&String> = ours
        .iter()
        .filter(|symbol| !symbol.contains('@') && !interposed.contains(&symbol.as_str()))
        .collect();
    if others.is_empty() {
        Ok(())
    } else {
        fail(format!("exported without a version: {others:?}"))
    }
}

fn one_file() -> Verdict {
    let (verbs, cm) = (library("libibverbs.so.1")?, library("librdmacm.so.1")?);
    ensure(verbs.canonicalize()? == cm.canonicalize()?, || {
        "libibverbs and librdmacm are two files: a program that loads both gets two engines"
            .to_owned()
    })
}
