//! What the tests of this crate have in common; not every one needs all of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluice_transport_window::WindowTransport;
use sluice_window::Kind;
use sluice_window::region::Region;

/// Longer than any test.
pub const FOR_EVER: Duration = Duration::from_secs(3600);
/// Longer than a thread that is to beat gets no processor: programs wait half of it.
pub const QUIET: Duration = Duration::from_secs(6);

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

    /// A host to which no other one is dead before it says so, however long it gets no processor.
    pub fn open(&self) -> Arc<WindowTransport> {
        WindowTransport::with_silence(&self.0, FOR_EVER).unwrap()
    }

    /// A host that notices when another one has died.
    pub fn open_alert(&self) -> Arc<WindowTransport> {
        WindowTransport::with_silence(&self.0, QUIET).unwrap()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}
