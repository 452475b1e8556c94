//! The kernel's error numbers.

/// A positive `errno` value as the kernel returned it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);
