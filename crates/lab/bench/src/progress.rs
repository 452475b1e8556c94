//! What happens now, on standard error: one line updated in place, or plain lines in a log.

use std::io::{IsTerminal, Write};

/// Counts runs and says which one it is.
#[derive(Debug)]
pub struct Progress {
    in_place: bool,
    total: usize,
    done: usize,
    last: String,
}

impl Progress {
    /// `total` runs are to come.
    pub fn new(total: usize) -> Self {
        Self {
            in_place: std::io::stderr().is_terminal(),
            total,
            done: 0,
            last: String::new(),
        }
    }

    /// The next run begins. On a terminal every run shows; in a log only every new `title`, so
    /// that it stays readable.
    pub fn next(&mut self, title: &str, detail: &str) {
        self.done += 1;
        let (done, total) = (self.done, self.total);
        if self.in_place {
            write(&format!("\r\x1b[K[{done}/{total}] {title}: {detail}"));
        } else if self.last != title {
            write(&format!("[{done}/{total}] {title}\n"));
        }
        title.clone_into(&mut self.last);
    }

    /// So many runs have to be done again.
    pub fn more(&mut self, runs: usize) {
        self.total += runs;
    }

    /// Runs that will not take place.
    pub fn skip(&mut self, runs: usize) {
        self.done += runs;
    }

    /// Says something that stays.
    pub fn note(&mut self, text: &str) {
        self.clear();
        write(&format!("{text}\n"));
        self.last.clear();
    }

    fn clear(&self) {
        if self.in_place {
            write("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Nobody may be reading; that is no reason to stop.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
