//! What the tests of this crate have in common; not every one needs all of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_transport_window::WindowTransport;
use sluice_window::Kind;
use sluice_window::region::Region;

/// A window that goes with this, and what lies beside it.
pub struct Window(PathBuf);

impl Window {
    pub fn new(kind: Kind, hosts: u32) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        let folder = std::env::temp_dir().join(format!("sluice-window-test-{id}-{number}"));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("window");
        Region::create(&path, Some(8 << 20), hosts, kind, false).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn open(&self) -> Arc<WindowTransport> {
        WindowTransport::open(&self.0).unwrap()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}
