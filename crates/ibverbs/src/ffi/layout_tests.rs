//! Every structure against `infiniband/verbs.h` of the distribution.

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

/// A program that prints `struct size` and `struct.field offset`, one per line.
fn program() -> String {
    let mut source = String::from("#include <infiniband/verbs.h>\n#include <stdio.h>\n");
    source.push_str("#include <time.h>\nint main(void) {\n");
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
fn every_structure_has_the_layout_of_the_header() {
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
