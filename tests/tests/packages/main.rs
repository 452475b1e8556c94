//! What `scripts/package` makes of the build that the other suites test, and how it lives in a root of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use sluice_tests::job::{find_program, run};
use sluice_tests::own_root;
use sluice_tests::suite::{self, Verdict, ensure, fail, skip, trial};

/// Making packages compresses some megabytes, on a machine that does other things.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let trials: Vec<Trial> = vec![
        trial("packages/life/deb", || life(Kind::Deb)),
        trial("packages/life/rpm", || life(Kind::Rpm)),
        trial("packages/contents", contents),
        trial("packages/cargo-install", cargo_install),
        trial("packages/dkms/deb", || dkms(Kind::Deb)),
        trial("packages/dkms/rpm", || dkms(Kind::Rpm)),
        trial("packages/paths", paths),
        trial("packages/made-sources", made_sources),
        trial("packages/deny", deny),
    ];
    suite::run(trials, 2).exit_code()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of the programs that are tested, and that it is one that `scripts/package` takes.
fn profile() -> Verdict<(PathBuf, String)> {
    let sluice = sluice_tests::lab::find_sluice()?;
    let folder = sluice.parent().map(Path::to_path_buf).unwrap_or_default();
    let name = folder
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    match (folder.parent(), name) {
        (Some(target), Some(name)) => Ok((target.to_owned(), name)),
        _ => fail(format!("{} is in no target folder", sluice.display())),
    }
}

fn package(out: &Path, more: &[&str]) -> Verdict {
    for program in ["jq", "objcopy", "readelf", "strip"] {
        if find_program(program).is_none() {
            return skip(format!("no {program}"));
        }
    }
    let (target, profile) = profile()?;
    let mut command = Command::new(source().join("scripts/package"));
    command
        .args(["--profile", &profile, "--out"])
        .arg(out)
        .args(more)
        .env("CARGO_TARGET_DIR", target);
    run(command, out.parent().unwrap_or(out), "package", LIMIT)?.success()?;
    Ok(())
}

/// The one file in the folder whose name ends so.
fn only(folder: &Path, end: &str) -> Verdict<PathBuf> {
    let files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let found: Vec<PathBuf> = files
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        other => fail(format!("{other:?} end with {end} in {}", folder.display())),
    }
}

/// What installs a package.
#[derive(Clone, Copy)]
enum Kind {
    Deb,
    Rpm,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Deb => "deb",
            Kind::Rpm => "rpm",
        }
    }

    /// The program that does it.
    fn program(self) -> &'static str {
        match self {
            Kind::Deb => "dpkg",
            Kind::Rpm => "rpm",
        }
    }

    /// How the file of a package ends whose version is a number with two points: the one of programs, or of a module.
    fn file(self, package: &str, version: &str, is_module: bool) -> String {
        match (self, is_module) {
            (Kind::Deb, false) => format!("/{package}_{version}-1_amd64.deb"),
            (Kind::Deb, true) => format!("/{package}_{version}-1_all.deb"),
            (Kind::Rpm, false) => format!("/{package}-{version}-1.x86_64.rpm"),
            (Kind::Rpm, true) => format!("/{package}-{version}-1.noarch.rpm"),
        }
    }
}

/// Two versions of all packages, in folders of that one.
fn two_versions(dir: &Path, kind: Kind) -> Verdict<[(PathBuf, &'static str); 2]> {
    let made = ["0.0.1", "0.0.2"].map(|version| (dir.join(version), version));
    for (folder, version) in &made {
        package(folder, &["--only", kind.name(), "--version", version])?;
    }
    Ok(made)
}

fn life(kind: Kind) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skip("a root of its own takes root");
    }
    for program in [kind.program(), "unshare"] {
        if find_program(program).is_none() {
            return skip(format!("no {program}"));
        }
    }
    let dir = tempfile::tempdir()?;
    let root = dir.path().join("r");
    fs::create_dir(&root)?;
    let mut command = own_root::script(&source().join("tests/tests/packages/life.sh"));
    command.arg(kind.name());
    for (folder, version) in two_versions(dir.path(), kind)? {
        command.arg(only(&folder, &kind.file("sluice", version, false))?);
    }
    command
        .arg(source().join("tests/apps/scripts/live_talk.py"))
        .arg(&root);
    let outcome = run(command, dir.path(), "life", LIMIT)?;
    ensure(outcome.text().ends_with("all good\n"), || {
        outcome.describe()
    })
}

/// What packages are built by keeps the folders of this machine out of programs and of what debuggers read:
/// the same program from two folders is the same, bit for bit, and without it is not.
fn paths() -> Verdict {
    let dir = tempfile::tempdir()?;
    let wrapper = source().join("scripts/lib/anywhere-rustc");
    let sysroot = text_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let build = |name: &str, is_wrapped: bool| -> Verdict<Vec<u8>> {
        let folder = dir.path().join(name);
        fs::create_dir_all(folder.join("target"))?;
        let text = "fn main() { let at = std::env::args().count(); [0u8; 1][at]; panic!(\"{}\", file!()) }";
        fs::write(folder.join("main.rs"), text)?;
        let mut command = if is_wrapped {
            let mut command = Command::new(&wrapper);
            command.arg("rustc");
            command
        } else {
            Command::new("rustc")
        };
        command
            .args([
                "-A",
                "warnings",
                "-C",
                "debuginfo=2",
                "--crate-name",
                "main",
                "-o",
            ])
            .arg(folder.join("target/main"))
            .arg(folder.join("main.rs"))
            .current_dir(&folder)
            .env("SOURCE_ROOT", &folder)
            .env("TARGET_ROOT", folder.join("target"))
            .env("SYSROOT", sysroot.trim());
        text_of(&mut command)?;
        Ok(fs::read(folder.join("target/main"))?)
    };
    let has = |program: &[u8], text: &str| {
        program
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    let name = dir.path().to_string_lossy().into_owned();
    let (one, other) = (build("a", true)?, build("another-one", true)?);
    ensure(!has(&one, &name) && has(&one, "/sluice/main.rs"), || {
        format!("{name} is in the program")
    })?;
    ensure(one == other, || "the two programs differ".to_owned())?;
    ensure(has(&build("a", false)?, &name), || {
        format!("{name} is in no program at all")
    })
}

/// Sources that builds make name no folder of this machine: debug information has a sum of each. Of several builds in one
/// target folder the last ones are looked at.
fn made_sources() -> Verdict {
    let (target, profile) = profile()?;
    let name = target.to_string_lossy().into_owned();
    let mut last = BTreeMap::new();
    for build in fs::read_dir(target.join(profile).join("build"))?.flatten() {
        let Ok(files) = fs::read_dir(build.path().join("out")) else {
            continue;
        };
        for file in files.flatten().map(|entry| entry.path()) {
            if file.extension().is_some_and(|it| it == "rs") {
                let made = fs::metadata(&file)?.modified()?;
                let known = last
                    .entry(file.file_name().map(OsString::from))
                    .or_insert((made, file.clone()));
                if known.0 <= made {
                    *known = (made, file);
                }
            }
        }
    }
    ensure(last.contains_key(&Some("steer.rs".into())), || {
        format!("{:?}", last.keys())
    })?;
    for (_, file) in last.values() {
        let text = fs::read_to_string(file)?;
        ensure(!text.contains(&name), || {
            format!("{} names {name}:\n{text}", file.display())
        })?;
    }
    Ok(())
}

/// cargo-deny reads deny.toml as the rules' own tests do.
fn deny() -> Verdict {
    if find_program("python3").is_none() {
        return skip("no python3, which fetches cargo-deny");
    }
    let dir = tempfile::tempdir()?;
    let command = Command::new(source().join("scripts/deny"));
    let outcome = run(command, dir.path(), "deny", LIMIT)?.success()?;
    ensure(
        outcome.text().contains("bans ok, licenses ok, sources ok"),
        || outcome.describe(),
    )
}

/// Of `kernel/`, and what each is called by the kernel.
const MODULES: [(&str, &str); 3] = [
    ("window", "sluice_window"),
    ("rdma", "sluice_rdma"),
    ("opennic", "opennic"),
];

/// DKMS itself, which the modules' packages depend on, fetched once into the folder of guests.
fn fetch_dkms() -> Verdict<PathBuf> {
    let cache = std::env::var_os("SLUICE_GUEST_CACHE").map(PathBuf::from);
    let cache = cache
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/sluice/guest")));
    let Some(folder) = cache.map(|cache| cache.join("dkms")) else {
        return skip("there is no folder for what is fetched");
    };
    if only(&folder, ".deb").is_err() {
        fs::create_dir_all(&folder)?;
        let mut fetch = Command::new("apt-get");
        fetch.args(["download", "dkms"]).current_dir(&folder);
        if !fetch.output()?.status.success() {
            return skip("apt-get does not get dkms");
        }
    }
    only(&folder, ".deb")
}

fn dkms(kind: Kind) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skip("a root of its own takes root");
    }
    for program in [
        kind.program(),
        "dpkg",
        "apt-get",
        "unshare",
        "modinfo",
        "gcc",
        "make",
    ] {
        if find_program(program).is_none() {
            return skip(format!("no {program}"));
        }
    }
    let dir = tempfile::tempdir()?;
    let made = two_versions(dir.path(), kind)?;
    let fetched = fetch_dkms()?;
    let mut kernel = Command::new(source().join("tests/guest/nic-kernel"));
    let kernel = text_of(kernel.arg("bookworm"))?;
    for (name, module) in MODULES {
        let root = dir.path().join(name);
        fs::create_dir(&root)?;
        let mut command = own_root::script(&source().join("tests/tests/packages/dkms.sh"));
        let package = format!("sluice-{name}-dkms");
        command
            .args([kind.name(), kernel.trim()])
            .args([&fetched, &root]);
        for (folder, version) in &made {
            command.arg(only(folder, &kind.file(&package, version, true))?);
        }
        command.args([module, &package]);
        let outcome = run(command, dir.path(), name, LIMIT)?;
        ensure(outcome.text().ends_with("all good\n"), || {
            outcome.describe()
        })?;
    }
    Ok(())
}

/// `cargo install` cannot bring libraries: what it brings says what to do, and that works.
fn cargo_install() -> Verdict {
    let (target, profile) = profile()?;
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["install", "--debug", "--locked", "--offline", "--path"])
        .arg(source().join("crates/cli"))
        .arg("--root")
        .arg(dir.path())
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_INCREMENTAL", "0");
    run(command, dir.path(), "install", LIMIT)?.success()?;
    let sluice = dir.path().join("bin/sluice");
    for words in [["run", "--", "true"], ["verbs", "--", "true"]] {
        let output = Command::new(&sluice)
            .args(words)
            .env_remove("SLUICE_LIBDIR")
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(
            output.status.code() == Some(125)
                && [
                    "cargo install",
                    "SLUICE_LIBDIR",
                    "target/release",
                    "package",
                ]
                .iter()
                .all(|word| said.contains(word)),
            || format!("{words:?} says {said}"),
        )?;
        let mut command = Command::new(&sluice);
        command
            .args(words)
            .env("SLUICE_LIBDIR", target.join(&profile));
        run(command, dir.path(), words[0], LIMIT)?.success()?;
    }
    Ok(())
}

fn text_of(command: &mut Command) -> Verdict<String> {
    let output = command.output()?;
    ensure(output.status.success(), || {
        format!("{command:?}: {output:?}")
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn contents() -> Verdict {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("out");
    package(&out, &["--version", "0.0.1"])?;
    let mut sums = Command::new("sha256sum");
    let sums = text_of(sums.args(["--check", "SHA256SUMS"]).current_dir(&out))?;
    ensure(sums.lines().count() == 13, || sums.clone())?;
    // The same build gives the same files, wherever they are written.
    let again = dir.path().join("another-folder");
    package(&again, &["--version", "0.0.1"])?;
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS"));
    let (first, second) = (sums(&out)?, sums(&again)?);
    ensure(first == second, || format!("{first}\n{second}"))?;
    // One layout: files and links of the archive are those of the .deb, and of the .rpm.
    let normal = |list: &str| {
        let mut names: Vec<String> = list
            .lines()
            .map(|name| name.trim_start_matches('.').to_owned())
            .filter(|name| !name.ends_with('/') && !name.is_empty() && name != "/etc/sluice")
            .collect();
        names.sort();
        names
    };
    let archive = text_of(
        Command::new("tar")
            .arg("-tzf")
            .arg(only(&out, "linux-x86_64.tar.gz")?),
    )?;
    let archive = archive.replace("sluice-0.0.1-linux-x86_64/", "/");
    let expected = normal(&archive);
    for file in [
        "/usr/bin/sluice",
        "/usr/share/man/man8/sluiced.8.gz",
        "/usr/lib/systemd/system/sluiced.service",
    ] {
        ensure(expected.iter().any(|name| name == file), || {
            format!("no {file}: {expected:?}")
        })?;
    }
    if find_program("dpkg-deb").is_some() {
        let mut list = Command::new("sh");
        list.args(["-c", "dpkg-deb --fsys-tarfile \"$1\" | tar -t", "sh"]);
        let deb = text_of(list.arg(only(&out, "sluice_0.0.1-1_amd64.deb")?))?;
        ensure(normal(&deb) == expected, || deb.clone())?;
    }
    if find_program("rpm").is_some() {
        let rpm = only(&out, "sluice-0.0.1-1.x86_64.rpm")?;
        let mut list = Command::new("rpm");
        list.args(["-qp", "--nosignature", "--queryformat"]);
        list.arg("[%{FILEMODES:perms} %{FILENAMES}\n]");
        let rpm = text_of(list.arg(rpm))?;
        let (folders, files): (Vec<&str>, Vec<&str>) =
            rpm.lines().partition(|line| line.starts_with('d'));
        let names = |lines: Vec<&str>| {
            let names = lines.into_iter().filter_map(|line| line.split_once(' '));
            names.map(|(_, name)| name.to_owned()).collect::<Vec<_>>()
        };
        let (folders, files) = (names(folders), names(files));
        ensure(normal(&files.join("\n")) == expected, || rpm.clone())?;
        // It removes no folder that it does not have.
        for folder in ["/etc/sluice", "/usr/lib/sluice", "/usr/share/doc/sluice"] {
            ensure(folders.iter().any(|it| it == folder), || rpm.clone())?;
        }
    }
    // What a module is built of, and no more.
    if find_program("dpkg-deb").is_some() {
        for (name, folder) in MODULES {
            let mut list = Command::new("sh");
            list.args(["-c", "dpkg-deb --fsys-tarfile \"$1\" | tar -t", "sh"]);
            let deb = only(&out, &format!("sluice-{name}-dkms_0.0.1-1_all.deb"))?;
            let deb = text_of(list.arg(deb))?;
            let place = format!("./usr/src/{folder}-0.0.1/");
            let mut packed: Vec<&str> = deb
                .lines()
                .filter_map(|path| path.strip_prefix(&place))
                .collect();
            packed.retain(|path| {
                let is_other = ["include/", "window/", "provider/"]
                    .iter()
                    .any(|folder| path.starts_with(folder));
                !path.is_empty() && !path.ends_with('/') && !is_other
            });
            packed.sort_unstable();
            let files = fs::read_dir(source().join("kernel").join(name))?.flatten();
            let mut expected: Vec<String> = files
                .filter(|entry| entry.path().is_file())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|file| {
                    let is_source = Path::new(file)
                        .extension()
                        .is_some_and(|kind| kind == "c" || kind == "h");
                    ["Kbuild", "COPYING", "dkms.conf"].contains(&file.as_str())
                        || (is_source && !file.ends_with(".mod.c"))
                })
                .collect();
            expected.sort();
            ensure(packed == expected, || format!("{packed:?} {expected:?}"))?;
            ensure(
                deb.contains("include/uapi/sluice_window.h") == (name != "opennic"),
                || deb.clone(),
            )?;
            ensure(
                ["window/sw_core.c", "provider/private.h"]
                    .iter()
                    .all(|file| deb.contains(&format!("{place}{file}")) == (name == "rdma")),
                || deb.clone(),
            )?;
        }
    }
    // The bill has what is linked in, and not what only tests use.
    let bill: Value = serde_json::from_slice(&fs::read(only(&out, ".cdx.json")?)?)
        .or_else(|error| fail(error.to_string()))?;
    let has = |name: &str| {
        let all = bill["components"].as_array();
        all.into_iter()
            .flatten()
            .any(|component| component["name"] == name)
    };
    ensure(bill["bomFormat"] == "CycloneDX", || {
        bill["bomFormat"].to_string()
    })?;
    ensure(
        has("rustls") && has("sluice-lane") && !has("proptest") && !has("loom"),
        || "the bill of materials has not what is linked in".to_owned(),
    )
}
