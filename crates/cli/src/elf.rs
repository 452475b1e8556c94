//! Whether a program can be preloaded at all, read from its file.
//!
//! `LD_PRELOAD` is a request to the dynamic linker. A program that starts without one, whose
//! linker is another architecture's, or that the kernel starts in secure mode ignores it. This
//! module only looks: the program is run in any case.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{getgid, getuid};

/// Why a program will not load the library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It has no dynamic linker.
    Static,
    /// It is for another machine, or a 32-bit program on a 64-bit one.
    Foreign,
    /// Its dynamic linker is not glibc's: the path of that linker.
    OtherLibc(String),
    /// It gains rights when it is executed (setuid, setgid or file capabilities).
    Privileged,
}

impl Obstacle {
    /// True where the library must not even be offered: musl's dynamic linker ends a program
    /// whose preloaded library needs glibc.
    pub fn forbids_preload(&self) -> bool {
        matches!(self, Self::OtherLibc(_))
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("is statically linked"),
            Self::Foreign => f.write_str("is for another architecture or word size"),
            Self::OtherLibc(linker) => write!(f, "uses the dynamic linker {linker}, not glibc's"),
            Self::Privileged => {
                f.write_str("gains rights when executed (setuid, setgid or capabilities)")
            }
        }
    }
}

/// What a program's file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The file that the kernel would map: the program or, for a script, its interpreter.
    pub file: PathBuf,
    /// What keeps the library out, if anything.
    pub obstacle: Option<Obstacle>,
    /// Whether executing it changes rights, as [`Obstacle::Privileged`] says of a dynamic program.
    pub gains_rights: bool,
}

/// Scripts may name scripts as interpreters; the kernel gives up after this many as well.
const INTERPRETERS_MAX: usize = 5;
/// The kernel reads this much of a `#!` line (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE_BYTES_MAX: usize = 256;
/// Program headers that are looked at. Real programs have about a dozen.
const PROGRAM_HEADERS_MAX: usize = 256;
/// A path in `PT_INTERP` cannot be longer than this (`PATH_MAX`).
const INTERPRETER_BYTES_MAX: u64 = 4096;

/// Finds `name` as execvp(3) does: a name with a slash is a path, any other is looked for in
/// `path_variable`, or the default path if that is not set. `None` if nothing executable is found.
pub fn resolve(name: &OsStr, path_variable: Option<&OsStr>) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = path_variable.unwrap_or(OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path)
        .map(|folder| {
            // An empty entry means the working directory.
            let folder = if folder.as_os_str().is_empty() {
                PathBuf::from(".")
            } else {
                folder
            };
            folder.join(name)
        })
        .find(|candidate| {
            candidate
                .metadata()
                .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

/// Reads a program's file. `None` if it cannot be read (an executable needs no read permission)
/// or is of no kind that this module knows: nothing can be said about it then.
pub fn inspect(program: &Path) -> Option<Verdict> {
    let mut file = program.to_owned();
    for _ in 0..INTERPRETERS_MAX {
        let opened = File::open(&file).ok()?;
        let mut start = [0_u8; SCRIPT_LINE_BYTES_MAX];
        let length = read_up_to(&opened, &mut start)?;
        let start = &start[..length];
        if let Some(interpreter) = script_interpreter(start) {
            // The kernel ignores the setuid bit of scripts.
            file = PathBuf::from(interpreter);
            continue;
        }
        let found = inspect_elf(&opened, start)?;
        let gains_rights = gains_rights(&opened, &file);
        let obstacle = found.or(gains_rights.then_some(Obstacle::Privileged));
        return Some(Verdict {
            file,
            obstacle,
            gains_rights,
        });
    }
    None
}

fn read_up_to(mut file: &File, buffer: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(length)
}

/// The interpreter that a `#!` line names, if the file starts with one.
fn script_interpreter(start: &[u8]) -> Option<OsString> {
    let line = start.strip_prefix(b"#!")?;
    let end = line
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(line.len());
    let mut words = line[..end]
        .split(|byte| *byte == b' ' || *byte == b'\t')
        .filter(|word| !word.is_empty());
    words.next().map(|word| OsStr::from_bytes(word).to_owned())
}

/// Little-endian fields at fixed places; `None` past the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, offset: usize) -> Option<u16> {
        let bytes = self.0.get(offset..offset.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }
    fn u32(&self, offset: usize) -> Option<u32> {
        let bytes = self.0.get(offset..offset.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }
    fn u64(&self, offset: usize) -> Option<u64> {
        let bytes = self.0.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// `e_machine` of programs that this library can be loaded into.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

const CLASS_64: u8 = 2;
const DATA_LITTLE_ENDIAN: u8 = 1;
const PT_INTERP: u32 = 3;

/// `None`: not an ELF file, or cut off. `Some(None)`: an ordinary dynamic program.
fn inspect_elf(file: &File, start: &[u8]) -> Option<Option<Obstacle>> {
    if start.get(..4)? != b"\x7fELF" {
        return None;
    }
    if *start.get(4)? != CLASS_64 || *start.get(5)? != DATA_LITTLE_ENDIAN {
        return Some(Some(Obstacle::Foreign));
    }
    let header = Fields(start);
    if header.u16(18)? != MACHINE {
        return Some(Some(Obstacle::Foreign));
    }
    let table_offset = header.u64(32)?;
    let entry_bytes = usize::from(header.u16(54)?);
    let entries = usize::from(header.u16(56)?).min(PROGRAM_HEADERS_MAX);
    for index in 0..entries {
        let offset = table_offset.checked_add(u64::try_from(index * entry_bytes).ok()?)?;
        let mut entry = [0_u8; 56];
        file.read_exact_at(&mut entry, offset).ok()?;
        let entry = Fields(&entry);
        if entry.u32(0)? != PT_INTERP {
            continue;
        }
        let bytes = entry.u64(32)?.min(INTERPRETER_BYTES_MAX);
        let mut path = vec![0_u8; usize::try_from(bytes).ok()?];
        file.read_exact_at(&mut path, entry.u64(8)?).ok()?;
        while path.last() == Some(&0) {
            path.pop();
        }
        let path = String::from_utf8_lossy(&path).into_owned();
        // glibc's linker is ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, or (a Nix store, a
        // container) the same name somewhere else.
        let name = path.rsplit('/').next().unwrap_or_default();
        return Some((!name.starts_with("ld-linux")).then_some(Obstacle::OtherLibc(path)));
    }
    Some(Some(Obstacle::Static))
}

/// Whether executing the file starts it in secure mode (`AT_SECURE`), in which ld.so(8) drops
/// preloaded libraries that are named by a path.
fn gains_rights(opened: &File, path: &Path) -> bool {
    let Ok(metadata) = opened.metadata() else {
        return false;
    };
    let mode = metadata.mode();
    let setuid = mode & 0o4000 != 0 && metadata.uid() != getuid().as_raw();
    // Without the group's execute bit the kernel does not honour setgid.
    let setgid = mode & 0o2010 == 0o2010 && metadata.gid() != getgid().as_raw();
    let mut value = [0_u8; 64];
    let capabilities = !getuid().is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok();
    setuid || setgid || capabilities
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A dynamic program in two parts: a header with one program header, and the linker's path.
    fn image(class: u8, machine: u16, interpreter: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0_u8; 64 + 56];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = class;
        bytes[5] = DATA_LITTLE_ENDIAN;
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        if let Some(path) = interpreter {
            bytes[64..68].copy_from_slice(&PT_INTERP.to_le_bytes());
            let offset = u64::try_from(bytes.len()).unwrap();
            bytes[72..80].copy_from_slice(&offset.to_le_bytes());
            let length = u64::try_from(path.len() + 1).unwrap();
            bytes[96..104].copy_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(path.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("sluice-elf-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
        fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            File::create(&path).unwrap().write_all(bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const LINKER: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");

    #[test]
    fn each_kind_of_program_is_told_apart() {
        let scratch = Scratch::new("kinds");
        let verdict = |name: &str, bytes: &[u8]| {
            let path = scratch.file(name, bytes, 0o755);
            inspect(&path).map(|verdict| verdict.obstacle)
        };
        assert_eq!(verdict("dynamic", &image(2, MACHINE, LINKER)), Some(None));
        assert_eq!(
            verdict("static", &image(2, MACHINE, None)),
            Some(Some(Obstacle::Static))
        );
        assert_eq!(
            verdict("old", &image(1, MACHINE, LINKER)),
            Some(Some(Obstacle::Foreign))
        );
        assert_eq!(
            verdict("other", &image(2, 8, LINKER)),
            Some(Some(Obstacle::Foreign))
        );
        let musl = "/lib/ld-musl-x86_64.so.1";
        let obstacle = Obstacle::OtherLibc(musl.to_owned());
        assert!(obstacle.forbids_preload());
        assert_eq!(
            verdict("musl", &image(2, MACHINE, Some(musl))),
            Some(Some(obstacle))
        );
    }

    #[test]
    fn what_is_no_program_gives_no_verdict() {
        let scratch = Scratch::new("garbage");
        let dynamic = image(2, MACHINE, LINKER);
        for (name, bytes) in [
            ("empty", &b""[..]),
            ("text", b"echo hello\n"),
            ("short", &dynamic[..40]),
            ("cut", &dynamic[..100]),
        ] {
            let path = scratch.file(name, bytes, 0o755);
            assert_eq!(inspect(&path), None, "{name}");
        }
        // Offsets at the end of the number range must not overflow.
        let mut far = dynamic;
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        let path = scratch.file("far", &far, 0o755);
        assert_eq!(inspect(&path), None);
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let scratch = Scratch::new("scripts");
        let program = scratch.file("static", &image(2, MACHINE, None), 0o755);
        let inner = scratch.file(
            "inner",
            format!("#! \t{} -x\n", program.display()).as_bytes(),
            0o755,
        );
        let outer = scratch.file(
            "outer",
            format!("#!{}\n", inner.display()).as_bytes(),
            0o755,
        );
        let verdict = inspect(&outer).unwrap();
        assert_eq!(verdict.file, program);
        assert_eq!(verdict.obstacle, Some(Obstacle::Static));
    }

    #[test]
    fn a_script_that_names_itself_ends() {
        let scratch = Scratch::new("loop");
        let path = scratch.0.join("self");
        let path = scratch.file("self", format!("#!{}\n", path.display()).as_bytes(), 0o755);
        assert_eq!(inspect(&path), None);
    }

    #[test]
    fn names_are_looked_for_in_the_path() {
        let scratch = Scratch::new("path");
        scratch.file("plain", b"", 0o644);
        let program = scratch.file("tool", b"", 0o755);
        let path = std::env::join_paths([Path::new("/nonexistent"), &scratch.0]).unwrap();
        let find = |name: &str| resolve(OsStr::new(name), Some(&path));
        assert_eq!(find("tool"), Some(program));
        assert_eq!(find("plain"), None);
        assert_eq!(find("./plain"), Some(PathBuf::from("./plain")));
        assert_eq!(find(""), None);
    }

    #[test]
    fn this_test_is_an_ordinary_program() {
        let verdict = inspect(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(verdict.obstacle, None);
    }
}
