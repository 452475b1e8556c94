//! Modules that their crates keep to themselves, compiled here once more: parsers that depend on
//! nothing else.
#![allow(dead_code)]

#[path = "../../crates/verbs/transport-shm/src/hello.rs"]
pub mod hello;

#[path = "../../crates/cli/src/elf.rs"]
pub mod elf;
