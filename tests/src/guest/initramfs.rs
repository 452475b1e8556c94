//! The archive that a kernel unpacks before it starts its first process ("newc" cpio; in the
//! kernel's documentation: driver-api/early-userspace/buffer-format).

const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// An archive that grows.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER | 0o755, &[]);
    }

    pub fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        self.entry(name, REGULAR | permissions, contents);
    }

    /// Its bytes, with the entry that ends it.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).unwrap_or(u32::MAX);
        let name_size = name.len() as u32 + 1;
        let links = 1;
        // inode, mode, uid, gid, links, time, size, device twice major and minor, name, checksum
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    /// Headers and contents begin at multiples of four.
    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}
