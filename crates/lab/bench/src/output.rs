//! Where the report goes, and that nothing is left there by a run that has no report.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{BenchError, Result};
use super::html;
use super::report::Report;

/// The report's two files, ready to be written.
///
/// Dropped before [`Self::write`], it removes the files and folders that it has made.
#[derive(Debug)]
pub struct OutputFiles {
    pub json: PathBuf,
    pub html: PathBuf,
    /// What was not there before, in the order in which it was made.
    made: Vec<Made>,
}

#[derive(Debug)]
enum Made {
    Folder(PathBuf),
    File(PathBuf),
}

impl OutputFiles {
    /// Makes sure that both files can be written: a run of half an hour must not end with a wrong
    /// path. What is in them stays until [`Self::write`].
    pub fn prepare(json: PathBuf, html: PathBuf) -> Result<Self> {
        let mut files = Self {
            json,
            html,
            made: Vec::new(),
        };
        for file in [files.json.clone(), files.html.clone()] {
            if let Some(folder) = file.parent() {
                files.make_folder(folder)?;
            }
            let is_new = !file.exists();
            let opened = fs::OpenOptions::new().append(true).create(true).open(&file);
            opened.map_err(|error| {
                BenchError::io(format!("write the report to {}", file.display()), &error)
            })?;
            if is_new {
                files.made.push(Made::File(file));
            }
        }
        Ok(files)
    }

    fn make_folder(&mut self, folder: &Path) -> Result<()> {
        let mut missing: Vec<&Path> = folder
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .collect();
        missing.reverse();
        for folder in missing {
            fs::create_dir(folder).map_err(|error| {
                BenchError::io(format!("make the folder {}", folder.display()), &error)
            })?;
            self.made.push(Made::Folder(folder.to_owned()));
        }
        Ok(())
    }

    /// Writes the report; from now on the files stay.
    pub fn write(&mut self, report: &Report) -> Result<()> {
        let json = serde_json::to_string_pretty(report)
            .map_err(|error| BenchError::Failed(format!("cannot express the report: {error}")))?;
        self.made.clear();
        write_file(&self.json, &json)?;
        write_file(&self.html, &html::render(report))
    }
}

impl Drop for OutputFiles {
    fn drop(&mut self) {
        for made in self.made.drain(..).rev() {
            // Best effort; a folder into which somebody else has put something stays.
            let _ = match made {
                Made::Folder(path) => fs::remove_dir(path),
                Made::File(path) => fs::remove_file(path),
            };
        }
    }
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .map_err(|error| BenchError::io(format!("write {}", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_a_report_leaves_only_what_was_there() {
        let name = format!("sluice-bench-output-test.{}", std::process::id());
        let base = std::env::temp_dir().join(name);
        fs::create_dir(&base).expect("make a folder");
        let old = base.join("report.json");
        fs::write(&old, "old").expect("write a file");
        let new = base.join("a/b/report.html");
        let files = OutputFiles::prepare(old.clone(), new.clone()).expect("both can be written");
        assert!(new.exists());
        drop(files);
        assert!(!base.join("a").exists());
        assert_eq!(fs::read_to_string(&old).expect("it stays"), "old");
        fs::remove_dir_all(base).expect("remove the folder");
    }
}
