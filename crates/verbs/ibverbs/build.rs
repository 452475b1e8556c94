//! Makes two things of the symbol tables: the linker's version script, and the assembly that gives
//! each symbol its versions.
//!
//! A symbol is a jump to a private function. That is how one function can have several versions,
//! and how nothing is exported that is not in a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

const TABLES: &[&str] = &[
    "symbols/verbs.txt",
    "symbols/ancient.txt",
    "symbols/private.txt",
    "symbols/rdmacm.txt",
];

/// One symbol under one version.
struct Export {
    name: String,
    node: String,
    /// What a program that is linked today gets (`name@@NODE`); otherwise for programs that ask
    /// for this version (`name@NODE`).
    default: bool,
    /// A function of this crate or of one that its root takes in, or `byte`.
    target: String,
}

/// A table has lines `[NODE]`, `[NODE old]` or `[NODE | NODE old | …]`, each followed by lines
/// `symbol target`.
fn parse(path: &str, text: &str) -> Vec<Export> {
    let mut exports = Vec::new();
    let mut nodes: Vec<(String, bool)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            nodes = header
                .split('|')
                .map(|node| match node.trim().strip_suffix(" old") {
                    Some(node) => (node.to_owned(), false),
                    None => (node.trim().to_owned(), true),
                })
                .collect();
            continue;
        }
        let Some((name, target)) = line.split_once(char::is_whitespace) else {
            panic!("{path}:{}: expected 'symbol target'", index + 1);
        };
        for (node, default) in &nodes {
            exports.push(Export {
                name: name.to_owned(),
                node: node.clone(),
                default: *default,
                target: target.trim().to_owned(),
            });
        }
    }
    exports
}

/// Nodes of one library inherit from the one before. The first hides everything else.
fn version_script(exports: &[Export]) -> String {
    let mut nodes: BTreeMap<(bool, String, u32), Vec<&str>> = BTreeMap::new();
    for export in exports {
        let (family, number) = export
            .node
            .rsplit_once(['.', '_'])
            .expect("a node ends in a number");
        let number = number.parse().expect("a node ends in a number");
        let private = family.contains("PRIVATE");
        nodes
            .entry((private, family.to_owned(), number))
            .or_default()
            .push(&export.name);
    }
    let mut script = String::new();
    let mut previous: Option<(String, String)> = None;
    for ((private, family, number), names) in &nodes {
        let separator = if *private { '_' } else { '.' };
        let node = format!("{family}{separator}{number}");
        writeln!(script, "{node} {{\n global:").unwrap();
        for name in names {
            writeln!(script, "  {name};").unwrap();
        }
        if previous.is_none() {
            writeln!(script, " local: *;").unwrap();
        }
        match &previous {
            Some((before, its_family)) if its_family == family && !private => {
                writeln!(script, "}} {before};").unwrap();
            }
            _ => writeln!(script, "}};").unwrap(),
        }
        previous = Some((node, family.clone()));
    }
    script
}

fn assembly(exports: &[Export]) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp",
        Ok("aarch64") => "b",
        other => panic!("no jump instruction is known for {other:?}: add it to build.rs"),
    };
    let mut text = String::new();
    for Export {
        name,
        node,
        default,
        target,
    } in exports
    {
        let label = format!("__sluice_{name}_{node}");
        let at = if *default { "@@" } else { "@" };
        let (section, kind, body, size, operand) = if target == "byte" {
            (
                ".bss.{label}, \\\"aw\\\", %nobits",
                "object",
                ".zero 1".to_owned(),
                "1".to_owned(),
                String::new(),
            )
        } else {
            (
                ".text.{label}, \\\"ax\\\", %progbits",
                "function",
                format!("{jump} {{target}}"),
                format!(". - {label}"),
                format!(" target = sym crate::{target},"),
            )
        };
        let section = section.replace("{label}", &label);
        writeln!(
            text,
            "std::arch::global_asm!(\"\
             .pushsection {section}\\n.p2align 4\\n.globl {label}\\n.type {label}, %{kind}\\n\
             {label}:\\n{body}\\n.size {label}, {size}\\n.symver {label}, {name}{at}{node}\\n\
             .popsection\",{operand});"
        )
        .unwrap();
    }
    text
}

/// Makes `verbs/` beside what cargo builds, with the names under which programs look for the
/// library. Both are links: the dynamic linker then sees one file.
fn link_names(out: &Path) {
    // out is <profile>/build/<package>-<hash>/out.
    let Some(profile) = out.ancestors().nth(3) else {
        return;
    };
    let folder = profile.join("verbs");
    fs::create_dir_all(&folder).expect("a folder beside the build can be made");
    for (name, target) in [
        ("libibverbs.so.1", "../libsluice_ibverbs.so"),
        ("librdmacm.so.1", "libibverbs.so.1"),
    ] {
        let link = folder.join(name);
        if fs::read_link(&link).is_ok_and(|present| present == Path::new(target)) {
            continue;
        }
        // What is there and is something else, if anything.
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).expect("a link beside the build can be made");
    }
}

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let mut exports = Vec::new();
    for table in TABLES {
        println!("cargo:rerun-if-changed={table}");
        let path = Path::new(&root).join(table);
        let text = fs::read_to_string(&path).expect("a table can be read");
        exports.extend(parse(table, &text));
    }
    println!("cargo:rerun-if-changed=build.rs");
    let script = Path::new(&out).join("versions.map");
    fs::write(&script, version_script(&exports)).expect("the version script can be written");
    fs::write(Path::new(&out).join("exports.rs"), assembly(&exports))
        .expect("the exports can be written");
    link_names(Path::new(&out));
    // rustc passes a version script of its own; only lld accepts a second one.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        script.display()
    );
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Its threads go on when a program closes it (dlclose(3)), as UCX and libfabric do.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
