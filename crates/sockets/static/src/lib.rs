//! What a static program's file says, and where Go's runtime enters the kernel in it.
//!
//! This half has no `unsafe` and no system call: [`image`] reads the file's headers, [`go`] says what is changed where
//! `sluice-go` has recognised Go's runtime, [`start`] makes what a program finds on its stack. The other half is
//! the program `sluice-static`.

pub mod go;
pub mod image;
pub mod start;
