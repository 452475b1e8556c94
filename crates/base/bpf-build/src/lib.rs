//! Compiles a BPF program with clang, and takes from the object file the two things that the
//! loader needs: the instructions, and where which map's descriptor goes. What is left to do at
//! run time (`sluice_sys::bpf`) needs neither libbpf nor an ELF reader.
//!
//! This runs in build scripts: what is wrong stops the build.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Section types of ELF (System V ABI, chapter 4), little-endian or big-endian, 64 bits.
const SYMBOLS: u32 = 2;
const RELOCATIONS: u32 = 9;
/// `R_BPF_64_64`: the descriptor of a map in a 64-bit immediate load.
const MAP_RELOCATION: u32 = 1;
const INSTRUCTION_BYTES: usize = 8;

/// Compiles `source`, which is relative to the crate and includes at most `headers` of the
/// crate's, and writes for each of its programs `$OUT_DIR/NAME.rs`: an expression of the type
/// `sluice_sys::bpf::Code`, for `include!`. A program is a pair of its section, which holds this
/// one function, and its name.
pub fn compile(source: &str, headers: &[&str], programs: &[(&str, &str)]) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CLANG");
    for file in headers.iter().chain([&source]) {
        println!("cargo:rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let name = Path::new(source).file_stem().expect("a file");
    let object = out.join(name).with_extension("o");
    run_clang(source, &object);
    let elf = Elf {
        bytes: fs::read(&object).expect("clang wrote the object"),
        big: big_endian(),
        source: source.to_owned(),
    };
    for (section, name) in programs {
        let section = elf.section(section);
        let code = elf.content(section);
        assert!(
            !code.is_empty() && code.len().is_multiple_of(INSTRUCTION_BYTES),
            "the section of {name} holds no instructions"
        );
        let instructions = format!("{name}.insns");
        fs::write(out.join(&instructions), code).expect("the instructions can be written");
        let mut maps = String::new();
        for (at, map) in elf.relocations(section) {
            write!(maps, "({}, {map:?}), ", at / INSTRUCTION_BYTES).expect("memory");
        }
        // Beside the file that includes it: with a path of this machine in that one, debug information, which has a sum
        // of each source, would differ from machine to machine.
        let text = format!(
            "::sluice_sys::bpf::Code {{ instructions: include_bytes!({instructions:?}), \
             maps: &[{maps}] }}\n"
        );
        let code = out.join(name).with_extension("rs");
        fs::write(code, text).expect("the code can be written");
    }
}

fn big_endian() -> bool {
    env::var("CARGO_CFG_TARGET_ENDIAN").is_ok_and(|endian| endian == "big")
}

fn run_clang(source: &str, object: &Path) {
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let target = if big_endian() { "bpfeb" } else { "bpfel" };
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g0", "-target", target, "-mcpu=v3"]);
    command.args(["-Wall", "-Wextra", "-Werror"]);
    // Debian and its relatives have <asm/types.h> where only their own targets look.
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    command.arg(format!("-I/usr/include/{architecture}-linux-gnu"));
    command.args(["-c", source, "-o"]).arg(object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!(
            "{} could not compile {source} of {} ({status}, see above). It needs clang 11 or \
             newer and the kernel's headers (Debian: clang, linux-libc-dev)",
            clang.display(),
            env::var("CARGO_PKG_NAME").expect("cargo sets it")
        )),
        Err(error) => fail(&format!(
            "{} cannot be run ({error}). clang compiles the BPF programs of this crate: \
             `scripts/setup build` installs it, and CLANG=path says where another one is",
            clang.display()
        )),
    }
}

/// What the user can do something about: no backtrace.
fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1);
}

/// An object file that clang made just now.
struct Elf {
    bytes: Vec<u8>,
    big: bool,
    source: String,
}

#[derive(Clone, Copy)]
struct Section {
    index: usize,
    name: usize,
    kind: u32,
    offset: usize,
    size: usize,
    link: usize,
    info: usize,
}

impl Elf {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let field = &self.bytes[at..at + bytes];
        let add = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        if self.big {
            field.iter().fold(0, add)
        } else {
            field.iter().rev().fold(0, add)
        }
    }

    fn sections(&self) -> Vec<Section> {
        assert_eq!(self.bytes[..5], *b"\x7fELF\x02", "a 64-bit ELF object");
        let table = self.number(0x28, 8) as usize;
        let entry = self.number(0x3a, 2) as usize;
        let count = self.number(0x3c, 2) as usize;
        (0..count)
            .map(|index| {
                let at = table + index * entry;
                Section {
                    index,
                    name: self.number(at, 4) as usize,
                    kind: self.number(at + 4, 4) as u32,
                    offset: self.number(at + 0x18, 8) as usize,
                    size: self.number(at + 0x20, 8) as usize,
                    link: self.number(at + 0x28, 4) as usize,
                    info: self.number(at + 0x2c, 4) as usize,
                }
            })
            .collect()
    }

    fn content(&self, section: Section) -> &[u8] {
        &self.bytes[section.offset..section.offset + section.size]
    }

    fn string(&self, table: usize, at: usize) -> String {
        let bytes = &self.content(self.sections()[table])[at..];
        let end = bytes.iter().position(|byte| *byte == 0).expect("an end");
        String::from_utf8(bytes[..end].to_vec()).expect("names are ASCII")
    }

    fn section(&self, name: &str) -> Section {
        let names = self.number(0x3e, 2) as usize;
        self.sections()
            .into_iter()
            .find(|section| self.string(names, section.name) == name)
            .unwrap_or_else(|| panic!("{} has no section {name}", self.source))
    }

    /// Offsets in the code, and the maps whose descriptors go there.
    fn relocations(&self, code: Section) -> Vec<(usize, String)> {
        let sections = self.sections();
        let mut found = Vec::new();
        for table in &sections {
            if table.kind != RELOCATIONS || table.info != code.index {
                continue;
            }
            let symbols = sections[table.link];
            assert_eq!(symbols.kind, SYMBOLS);
            for at in (table.offset..table.offset + table.size).step_by(16) {
                let info = self.number(at + 8, 8);
                assert_eq!(info as u32, MAP_RELOCATION, "only maps are relocated");
                let symbol = symbols.offset + (info >> 32) as usize * 24;
                let name = self.string(symbols.link, self.number(symbol, 4) as usize);
                // A section's own symbol has no name.
                assert!(!name.is_empty(), "{} has constants in memory", self.source);
                found.push((self.number(at, 8) as usize, name));
            }
        }
        assert!(
            !found.is_empty(),
            "a program of {} uses no map",
            self.source
        );
        found
    }
}
