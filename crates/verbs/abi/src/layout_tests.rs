//! Every structure and every number against `infiniband/verbs.h` of the distribution.

use std::fmt::Write as _;
use std::process::Command;

use super::{Layout, address, context, device, memory, queues, send_queue, work};

fn all() -> impl Iterator<Item = &'static Layout> {
    [
        address::LAYOUTS,
        context::LAYOUTS,
        device::LAYOUTS,
        memory::LAYOUTS,
        queues::LAYOUTS,
        send_queue::LAYOUTS,
        work::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}

fn c_name(field: &str) -> &str {
    field.strip_prefix("r#").unwrap_or(field)
}

/// Name and value, as C writes it, of the constants that the header has too.
fn constants() -> Vec<(&'static str, String)> {
    let lines = include_str!("constants.rs").lines();
    let constants = lines.filter_map(|line| line.strip_prefix("pub const IBV_"));
    let constants: Vec<_> = constants
        .map(|line| {
            let (name, rest) = line.split_once(": ").unwrap();
            let (_, value) = rest.split_once(" = ").unwrap();
            (name, value.trim_end_matches(';').replace('_', ""))
        })
        .collect();
    assert!(constants.len() > 100, "{}", constants.len());
    constants
}

/// A program that prints `struct size` and `struct.field offset`, one per line.
fn program() -> String {
    let mut source = String::from("#include <infiniband/verbs.h>\n#include <stdio.h>\n");
    source.push_str("#include <time.h>\n");
    for (name, value) in constants() {
        writeln!(
            source,
            "_Static_assert(IBV_{name} == ({value}), \"IBV_{name}\");"
        )
        .unwrap();
    }
    source.push_str("int main(void) {\n");
    for Layout { name, fields, .. } in all() {
        writeln!(source, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        for field in fields.iter().map(|(field, _)| c_name(field)) {
            writeln!(
                source,
                "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));"
            )
            .unwrap();
        }
    }
    source.push_str("return 0; }\n");
    source
}

fn ours() -> String {
    let mut text = String::new();
    for Layout { name, size, fields } in all() {
        writeln!(text, "{name} {size}").unwrap();
        for (field, offset) in fields.iter() {
            writeln!(text, "{name}.{} {offset}", c_name(field)).unwrap();
        }
    }
    text
}

#[test]
fn structures_and_numbers_are_those_of_the_header() {
    if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("SKIP ibverbs_layout: needs infiniband/verbs.h (libibverbs-dev)");
        return;
    }
    let directory = std::env::temp_dir().join(format!("sluice-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&source, program()).unwrap();
    let compiled = Command::new("cc")
        .arg("-o")
        .args([&binary, &source])
        .output()
        .expect("cc runs");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let theirs = Command::new(&binary).output().expect("the program runs");
    std::fs::remove_dir_all(&directory).unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    for (ours, theirs) in ours().lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs, "ours is left, the header's right");
    }
    assert_eq!(ours().lines().count(), theirs.lines().count());
}
