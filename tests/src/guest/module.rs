//! Modules of `kernel/` for kernels that were fetched with what builds them (`tests/guest/nic-kernel`), and
//! guests that run one script with them.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::initramfs::Archive;
use crate::job::{command, find_program};
use crate::suite::{Verdict, fail, skip};

/// Where the modules' sources are.
pub fn kernel_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel")
}

/// Where the scripts that fetch are, and programs for guests.
pub fn guest_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// A kernel of `tests/guest/nic-kernel`.
#[derive(Clone, Debug)]
pub struct Kernel {
    suite: &'static str,
    folder: PathBuf,
}

impl Kernel {
    /// `suite` as that script has it. Skips where it was not fetched.
    pub fn find(suite: &'static str) -> Verdict<Kernel> {
        if !rustix::process::geteuid().is_root() {
            return skip("needs root");
        }
        let script = guest_folder().join("nic-kernel");
        let output = command(script).args([suite, "--folder"]).output()?;
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
        if !folder.join("stamp").is_file() {
            return skip(format!("no {}; scripts/setup test", folder.display()));
        }
        Ok(Kernel { suite, folder })
    }

    /// Where it is, and what was made for it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The files of its own modules of these names, dependencies first.
    pub fn modules(&self, names: &[&str]) -> Verdict<Vec<PathBuf>> {
        let version = fs::read_to_string(self.folder.join("version"))?;
        let modprobe = find_program("modprobe").unwrap_or_else(|| "/usr/sbin/modprobe".into());
        let mut found = Vec::new();
        for name in names {
            let mut ask = command(&modprobe);
            ask.arg("-d").arg(self.folder.join("root"));
            ask.args(["-S", version.trim(), "--show-depends", name]);
            let output = ask.output()?;
            // "insmod PATH", perhaps with values of its parameters, or "builtin NAME"
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let words = line.strip_prefix("insmod ");
                if let Some(path) = words.and_then(|words| words.split_ascii_whitespace().next()) {
                    let path = PathBuf::from(path);
                    if !found.contains(&path) {
                        found.push(path);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Builds these files, each with its name in the folder where that happens, once for each version of
    /// them and of make's arguments. Warnings are errors. The folder.
    pub fn build(
        &self,
        what: &str,
        files: &[(String, PathBuf)],
        arguments: &[&str],
    ) -> Verdict<PathBuf> {
        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        for (name, path) in files {
            name.hash(&mut hasher);
            fs::read(path)?.hash(&mut hasher);
        }
        let made = self.folder.join(format!("{what}-{:016x}", hasher.finish()));
        if made.is_dir() {
            return Ok(made);
        }
        let unfinished = tempfile::Builder::new()
            .prefix(&format!("{what}-"))
            .tempdir_in(&self.folder)?;
        for (name, path) in files {
            let place = unfinished.path().join(name);
            if let Some(folder) = place.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::copy(path, place)?;
        }
        let mut build = command(guest_folder().join("nic-kernel"));
        build.args([self.suite, "--build"]).arg(unfinished.path());
        let output = build.arg("-j2").args(arguments).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() || text.to_ascii_lowercase().contains("warning:") {
            return fail(format!("{what} does not build cleanly:\n{text}"));
        }
        if fs::rename(unfinished.path(), &made).is_ok() {
            // What was a folder for now is there to stay.
            let _ = unfinished.keep();
        }
        Ok(made)
    }
}

/// What a module is built from, by its name in its folder. Not what a build by hand left there.
pub fn sources(folder: &Path) -> Verdict<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let source = name.ends_with(".c") || name.ends_with(".h");
        if name == "Kbuild" || source && !name.contains(".mod") {
            files.push((name.into_owned(), path));
        }
    }
    files.sort();
    Ok(files)
}

/// A program of C sources, where `place` is.
pub fn program(
    place: &Path,
    name: &str,
    sources: &[PathBuf],
    options: &[&str],
) -> Verdict<PathBuf> {
    let Some(gcc) = find_program("gcc") else {
        return skip("gcc is not installed; run scripts/setup test");
    };
    let made = place.join(name);
    let mut compile = command(gcc);
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"]);
    compile.args(options).arg("-o").arg(&made).args(sources);
    let output = compile.output()?;
    if !output.status.success() {
        return fail(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(made)
}

/// What a guest begins with: loads `modules`, runs `prelude` and `script`, says `script_failed=1` if that
/// failed, what its kernel warned of, and `script_ended=1`, and switches itself off.
pub fn image(modules: &[PathBuf], agent: &Path, prelude: &str, script: &str) -> Verdict<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["dev", "modules"] {
        archive.folder(folder);
    }
    for (at, module) in modules.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(module)?;
        archive.file(&format!("modules/{at:02}-{name}"), 0o644, &bytes);
    }
    archive.file("init", 0o755, &fs::read(agent)?);
    // Not `( … ) ||`: there `set -e` says nothing, and a command that fails would not end the script.
    let setup = format!(
        "{prelude}\nset +e\n( set -e\n{script}\n ) 2>&1\n[ $? = 0 ] || echo script_failed=1\n\
         dmesg -l emerg,alert,crit,err,warn | sed 's/^/dmesg: /' || :\n\
         echo script_ended=1\necho o >/proc/sysrq-trigger\nsleep 100\n"
    );
    archive.file("setup", 0o644, setup.as_bytes());
    Ok(archive.finish())
}

/// What kernels of guests are told. Where all guests' processors have to wait for ours, timers come late, and
/// a kernel that looks whether they come panics. A kernel that compares its clocks finds that they differ, stops using
/// the TSC, and patches its own code for that. The emulator may then run code that it translated before
/// ([`super::machine`], `STALE_BREAKPOINT`).
pub const PATIENT: &str =
    "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable";

/// A machine with that kernel and image, this machine's file system to read, and its console at its
/// standard streams. What it is, its memory and its processors are the caller's to say.
pub fn machine(qemu: &Path, kernel: &Kernel, image: &Path) -> Command {
    let mut command = command(qemu);
    command
        .args(["-cpu", "max", "-nodefaults", "-no-user-config"])
        .args(["-display", "none", "-no-reboot"])
        .args(["-chardev", "stdio,id=console,signal=off"])
        .args(["-serial", "chardev:console"])
        .arg("-kernel")
        .arg(kernel.image())
        .arg("-initrd")
        .arg(image)
        .args(["-append", PATIENT])
        .args([
            "-fsdev",
            "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        ])
        .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=host"]);
    command
}
