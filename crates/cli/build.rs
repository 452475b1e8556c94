//! Tells the program which commit it was built from, where that can be known.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A source archive has no repository; the version alone must do then.
    if let Some(directory) = git(&["rev-parse", "--absolute-git-dir"]) {
        // The log of HEAD grows with each commit, and HEAD changes with each switch.
        for file in ["HEAD", "logs/HEAD"] {
            let path = Path::new(&directory).join(file);
            if path.exists() {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let long = match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo:rustc-env=SLUICE_LONG_VERSION={long}");
}
