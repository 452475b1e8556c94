//! The records of test programs that `scripts/lib/programs.sh` writes: how each was started and how it ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One run of a test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The step of `scripts/test` that ran the program.
    pub step: String,
    /// The exit status as a shell gives it: 101 when tests failed, 124 or 137 when the time was up, 128 and the
    /// number of a signal that ended the program.
    pub status: i32,
    /// How long the program might run.
    pub seconds: u64,
    /// The folder that the program ran in.
    pub folder: PathBuf,
    pub program: PathBuf,
    /// `TMPDIR` of the step; empty if the step had none.
    pub tmpdir: String,
    /// When the program ended, as `date -Is` writes it.
    pub ended: String,
    /// `/proc/loadavg` at that time.
    pub load: String,
    /// What the program printed.
    pub log: PathBuf,
}

/// Reads every record below `runs`, which has a folder for each step. The order is that of the names.
pub fn read_all(runs: &Path) -> io::Result<Vec<Record>> {
    let mut files = Vec::new();
    for step in fs::read_dir(runs)? {
        for file in fs::read_dir(step?.path())? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "run") {
                files.push(path);
            }
        }
    }
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

/// Reads one record, `STEP/NUMBER.run`: a line for each field, its name and its value.
fn read(file: &Path) -> io::Result<Record> {
    let text = fs::read_to_string(file)?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .map(str::to_string)
            .ok_or_else(|| wrong(file, name))
    };
    let step = file.parent().and_then(Path::file_name);
    Ok(Record {
        step: step
            .ok_or_else(|| wrong(file, "folder"))?
            .to_string_lossy()
            .into_owned(),
        status: field("status")?
            .parse()
            .map_err(|_| wrong(file, "status"))?,
        seconds: field("seconds")?
            .parse()
            .map_err(|_| wrong(file, "seconds"))?,
        folder: field("folder")?.into(),
        program: field("program")?.into(),
        tmpdir: field("tmpdir")?,
        ended: field("ended")?,
        load: field("load")?,
        log: file.with_extension("log"),
    })
}

fn wrong(file: &Path, field: &str) -> io::Error {
    io::Error::other(format!(
        "{}: no valid line \"{field} VALUE\"",
        file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_the_order_of_their_names() {
        let runs = tempfile::tempdir().expect("a folder");
        for (name, status) in [("unit/0002", 101), ("fabric/0001", 0)] {
            let file = runs.path().join(name).with_extension("run");
            fs::create_dir_all(file.parent().expect("a parent")).expect("created");
            let text = format!(
                "status {status}\nseconds 600\nfolder /w/crates/a b\nprogram /t/a-1\ntmpdir \nended now\nload 1.0 2.0\n"
            );
            fs::write(&file, text).expect("written");
        }
        let records = read_all(runs.path()).expect("read");
        let steps: Vec<_> = records.iter().map(|one| one.step.as_str()).collect();
        assert_eq!(steps, ["fabric", "unit"]);
        assert_eq!(records[1].status, 101);
        assert_eq!(records[1].folder, Path::new("/w/crates/a b"));
        assert_eq!(records[1].tmpdir, "");
        assert_eq!(records[1].log, runs.path().join("unit/0002.log"));
    }

    #[test]
    fn a_record_without_a_field_is_an_error_that_names_both() {
        let runs = tempfile::tempdir().expect("a folder");
        fs::create_dir(runs.path().join("unit")).expect("created");
        fs::write(runs.path().join("unit/0001.run"), "status 101\n").expect("written");
        let error = read_all(runs.path()).expect_err("fields are missing");
        assert!(error.to_string().contains("unit/0001.run"), "{error}");
        assert!(error.to_string().contains("seconds"), "{error}");
    }
}
