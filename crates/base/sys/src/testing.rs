//! What the tests of this crate, which are threads of one process, must know of each other.
//!
//! A child has all descriptors of the process and its mappings until it ends or executes a program, which may take
//! seconds on a busy machine. What another test closes meanwhile is not closed.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static CHILDREN: RwLock<()> = RwLock::new(());

/// For a test that has a child, from before its start until it has ended or executes its program.
pub fn with_children() -> RwLockWriteGuard<'static, ()> {
    CHILDREN.write().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that says what is seen once something is closed, from before it is opened on.
pub fn without_children() -> RwLockReadGuard<'static, ()> {
    CHILDREN.read().unwrap_or_else(PoisonError::into_inner)
}
