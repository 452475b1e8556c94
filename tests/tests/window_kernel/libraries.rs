//! The provider of `kernel/rdma` with newer libraries than Debian 12's: what it knows of them, as a program, and
//! programs in a guest on those that `tests/guest/rdma-core` builds.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use sluice_tests::guest::module::{guest_folder, kernel_folder, program};
use sluice_tests::job::command;
use sluice_tests::suite::{Verdict, fail, skip, trial};

use crate::rdma;
use crate::sure;

/// Numbers of the private interface.
const NUMBERS: [u32; 5] = [34, 57, 59, 64, 65];
/// Versions that are built for tests.
const BUILT: [&str; 2] = ["57.0", "59.0"];
/// Folders of others that were built in place, with a space between two.
const OTHERS: &str = "SLUICE_RDMA_CORES";

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = NUMBERS
        .into_iter()
        .map(|number| trial(format!("library/{number}"), move || knows(number)))
        .collect();
    trials.push(trial("rdma_libraries_6_12", libraries));
    trials
}

fn source(name: &str) -> PathBuf {
    kernel_folder().join("rdma").join(name)
}

fn include() -> String {
    format!("-I{}", kernel_folder().join("include").display())
}

fn number_is(number: u32) -> String {
    format!("-DPRIVATE_ABI={number}")
}

/// Compiles without a warning, and knows the tables of its number.
fn knows(number: u32) -> Verdict {
    let place = tempfile::tempdir()?;
    let options = [&number_is(number), &include()];
    let with = |more: &[&'static str]| -> Vec<String> {
        let own = options.iter().map(ToString::to_string);
        own.chain(more.iter().map(ToString::to_string)).collect()
    };
    let compile = |name: &str, from: &str, options: Vec<String>| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        program(place.path(), name, &[source(from)], &options)
    };
    compile(
        "sluice.o",
        "provider/sluice.c",
        with(&["-O2", "-fPIC", "-c"]),
    )?;
    let made = compile("library", "test/library.c", with(&["-O1"]))?;
    let output = command(made).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    sure(output.status.success() && said.contains("library=ok"), said)
}

/// The number in the names of a library's symbols.
fn number_of(library: &Path) -> Verdict<u32> {
    const NAME: &[u8] = b"IBVERBS_PRIVATE_";
    let bytes = fs::read(library.join("lib/libibverbs.so.1"))?;
    let digits = |at: usize| {
        let text = bytes[at + NAME.len()..].iter();
        text.take_while(|byte| byte.is_ascii_digit())
            .fold(0, |number, byte| 10 * number + u32::from(byte - b'0'))
    };
    match bytes.windows(NAME.len()).position(|name| name == NAME) {
        Some(at) => Ok(digits(at)),
        None => fail(format!("{} has no private interface", library.display())),
    }
}

fn found() -> Verdict<Vec<PathBuf>> {
    let mut found = Vec::new();
    for version in BUILT {
        let script = guest_folder().join("rdma-core");
        let output = command(script).args([version, "--folder"]).output()?;
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
        if !folder.join("stamp").is_file() {
            return skip(format!("no {}; scripts/setup test", folder.display()));
        }
        found.push(folder);
    }
    let others = std::env::var(OTHERS).unwrap_or_default();
    found.extend(others.split_whitespace().map(PathBuf::from));
    Ok(found)
}

/// One provider for each number, which is made beside the first library that has it.
fn providers(place: &Path, libraries: &[PathBuf]) -> Verdict<BTreeMap<u32, PathBuf>> {
    let mut made = BTreeMap::new();
    for library in libraries {
        let number = number_of(library)?;
        if made.contains_key(&number) {
            continue;
        }
        let headers = format!("-I{}", library.join("include").display());
        let folder = format!("-L{}", library.join("lib").display());
        let (define, own) = (number_is(number), include());
        let options = [
            "-O2",
            "-shared",
            "-fPIC",
            &define,
            &own,
            &headers,
            &folder,
            "-Wl,--no-as-needed",
            "-libverbs",
        ];
        let name = format!("libsluice-rdmav{number}.so");
        made.insert(
            number,
            program(place, &name, &[source("provider/sluice.c")], &options)?,
        );
    }
    Ok(made)
}

/// Programs that were linked with the distribution's library.
const SCRIPT: &str = r#"
both
ip link set lo up
hosts
for library in $LIBRARIES; do
    export LD_LIBRARY_PATH=$library/lib
    rm -f $library/etc/libibverbs.d/*
    echo "driver $PROVIDERS/libsluice" >$library/etc/libibverbs.d/sluice.driver
    ldd $VERBS | grep -q "=> $library/lib/libibverbs.so.1"
    # The distribution's are linked with its own library's private part.
    $library/bin/ibv_devinfo -d sluice1
    for command in transfers waits states remote_lies local_faults; do
        $VERBS $command sluice0 sluice1
    done
    SLUICE_RDMA_FAST=0 $VERBS transfers sluice0 sluice1
    for command in atomics invalidates uc srq datagrams groups; do
        $SERVICES $command sluice0 sluice1
    done
    EXTENDED=1 $EXTENDED_PROGRAM built sluice0 sluice1
    EXTENDED=1 $VERBS transfers sluice1 sluice0
    talk "rping -s -a 10.9.0.2 -C 5" "rping -c -a 10.9.0.2 -C 5 -V"
    $library/bin/ibv_rc_pingpong -d sluice1 -n 100 >/run/server &
    until grep -q ':4853 [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done
    $library/bin/ibv_rc_pingpong -d sluice0 -n 100 127.0.0.1
    wait $!
    echo "well: $library"
done
unset LD_LIBRARY_PATH
ip netns del host1
ip netns del host2
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
"#;

fn libraries() -> Verdict {
    let libraries = found()?;
    let place = tempfile::tempdir()?;
    let made = providers(place.path(), &libraries)?;
    let server = crate::guest::serve(place.path())?;
    let named: Vec<String> = libraries
        .iter()
        .map(|one| one.display().to_string())
        .collect();
    let script = format!(
        "LIBRARIES=\"{}\"\nPROVIDERS={}\n{SCRIPT}",
        named.join(" "),
        place.path().display()
    );
    sure(!made.is_empty(), "no provider")?;
    let devices = Some((&server, 2));
    let mut guest = rdma::boot(place.path(), devices, "bookworm-backports", &script, None)?;
    guest.run(|_| Ok(false))?;
    let console = guest.finish()?;
    for library in named {
        sure(
            console.contains(&format!("well: {library}")),
            console.clone(),
        )?;
    }
    Ok(())
}
