//! The C programs of `tests/apps`: their directives, and compiling them.
//!
//! Directives are lines of a program's file that start with `//:`.
//!
//! | directive | meaning | default |
//! |---|---|---|
//! | `lane required` or `any` | whether the accelerated run must use a lane | `required` |
//! | `ends thread fork exec` | values of `APP_ENDS` to run with | one run, variable unset |
//! | `family 4 6` | values of `APP_FAMILY` to run with | both |
//! | `builds plain fortify lfs` | how to compile it | all |
//! | `timeout SECONDS` | limit of one run | 60 |
//! | `plugin` | its file is also compiled with `-DPLUGIN`, to a shared object with the program's name and `.so` beside it | |
//! | `needs root` | skipped for other users | |
//! | `alone` | not at the same time as other programs | |
//! | `known-fault WHY` | Sluice is known to differ (docs/limitations.md); the test fails once it does not | |

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::job::{command, find_program, run};
use crate::suite::{Verdict, fail, skip};

/// How a program of Go's is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    Statically,
    /// The same without symbols.
    Stripped,
    /// With the C library, as Go does where it finds a C compiler.
    WithC,
    /// The same, to any address.
    Anywhere,
    /// The same, with the race detector.
    Raced,
    /// To any address, with a dynamic linker and without a C library.
    Alone,
}

impl Linked {
    /// The end of the file's name, the value of CGO_ENABLED, and arguments.
    fn how(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Self::Statically => ("", "0", &[]),
            Self::Stripped => ("-stripped", "0", &["-ldflags", "-s -w"]),
            Self::WithC => ("-c", "1", &[]),
            Self::Anywhere => ("-pie", "1", &["-buildmode=pie"]),
            Self::Raced => ("-race", "1", &["-race"]),
            Self::Alone => ("-alone", "0", &["-buildmode=pie"]),
        }
    }
}

/// A program of `tests/apps/go`, in that directory.
pub fn compile_go(source: &str, linked: Linked, dir: &Path) -> Verdict<PathBuf> {
    let (end, with_c, options) = linked.how();
    let binary = dir.join(format!("{}{end}", source.trim_end_matches(".go")));
    if !binary.exists() {
        let Some(go) = find_program("go") else {
            return skip("go is not installed; run scripts/setup test");
        };
        let mut build = command(go);
        build.arg("build").args(options).arg("-o").arg(&binary);
        build.arg(apps_dir().join("go").join(source));
        build.env("CGO_ENABLED", with_c).env("GO111MODULE", "off");
        run(build, dir, "go-build", Duration::from_secs(360))?.success()?;
    }
    Ok(binary)
}

/// A way to compile a program: its name and the compiler's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    pub name: &'static str,
    flags: &'static [&'static str],
}

/// `fortify` reaches the `__*_chk` entry points, `lfs` the names ending in 64.
pub const BUILDS: [Build; 3] = [
    Build {
        name: "plain",
        flags: &["-O1"],
    },
    Build {
        name: "fortify",
        flags: &["-O2", "-D_FORTIFY_SOURCE=2"],
    },
    Build {
        name: "lfs",
        flags: &["-O1", "-D_FILE_OFFSET_BITS=64"],
    },
];

/// Nothing can be preloaded into it.
pub const STATIC: Build = Build {
    name: "static",
    flags: &["-O1", "-static"],
};

/// A program's source and what its directives say.
#[derive(Clone, Debug)]
pub struct App {
    pub name: String,
    pub source: PathBuf,
    pub lane_required: bool,
    pub ends: Vec<String>,
    pub families: Vec<String>,
    pub builds: Vec<Build>,
    pub limit: Duration,
    pub has_plugin: bool,
    pub needs_root: bool,
    pub alone: bool,
    /// Why the accelerated run is known to differ.
    pub known_fault: Option<String>,
}

pub fn apps_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("apps")
}

/// All programs that take part in the differential suite: `apps/*.c` with a directive line.
pub fn all() -> Verdict<Vec<App>> {
    let mut apps = Vec::new();
    for entry in fs::read_dir(apps_dir())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            let text = fs::read_to_string(&path)?;
            if text.lines().any(|line| line.starts_with("//:")) {
                apps.push(parse(&path, &text)?);
            }
        }
    }
    apps.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(apps)
}

fn parse(path: &Path, text: &str) -> Verdict<App> {
    let name = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut app = App {
        name,
        source: path.to_path_buf(),
        lane_required: true,
        ends: Vec::new(),
        families: vec!["4".into(), "6".into()],
        builds: BUILDS.to_vec(),
        limit: Duration::from_secs(60),
        has_plugin: false,
        needs_root: false,
        alone: false,
        known_fault: None,
    };
    for line in text.lines().filter_map(|line| line.strip_prefix("//:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["differential"] => {}
            ["lane", "required"] => app.lane_required = true,
            ["lane", "any"] => app.lane_required = false,
            ["ends", ends @ ..] => app.ends = ends.iter().map(|end| end.to_string()).collect(),
            ["family", families @ ..] => {
                app.families = families.iter().map(|family| family.to_string()).collect();
            }
            ["builds", names @ ..] => {
                app.builds = BUILDS
                    .iter()
                    .copied()
                    .filter(|b| names.contains(&b.name))
                    .collect();
                if app.builds.len() != names.len() {
                    return fail(format!("{}: unknown build in {line:?}", app.name));
                }
            }
            ["timeout", seconds] => match seconds.parse() {
                Ok(seconds) => app.limit = Duration::from_secs(seconds),
                Err(error) => return fail(format!("{}: {line:?}: {error}", app.name)),
            },
            ["plugin"] => app.has_plugin = true,
            ["needs", "root"] => app.needs_root = true,
            ["alone"] => app.alone = true,
            ["known-fault", why @ ..] if !why.is_empty() => {
                app.known_fault = Some(why.join(" "));
            }
            _ => return fail(format!("{}: unknown directive {line:?}", app.name)),
        }
    }
    Ok(app)
}

/// Compiles one source of `apps/`; the binary is `dir/<name>-<build>`.
pub fn compile(source: &Path, build: Build, dir: &Path) -> Verdict<PathBuf> {
    compile_to(source, build, dir, "", &["-Wl,-rpath,$ORIGIN"])
}

/// The same for the plugin of a program with one.
pub fn compile_plugin(source: &Path, build: Build, dir: &Path) -> Verdict<PathBuf> {
    compile_to(source, build, dir, ".so", &["-DPLUGIN", "-shared", "-fPIC"])
}

fn compile_to(
    source: &Path,
    build: Build,
    dir: &Path,
    end: &str,
    more: &[&str],
) -> Verdict<PathBuf> {
    let Some(gcc) = find_program("gcc") else {
        return skip("gcc is not installed; run scripts/setup test");
    };
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let label = format!("{stem}-{}{end}", build.name);
    let binary = dir.join(&label);
    let mut gcc = command(gcc);
    gcc.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-pthread",
    ])
    // Scenarios ignore results on purpose and pass bad pointers.
    .args([
        "-Wno-unused-result",
        "-Wno-nonnull",
        "-Wno-stringop-overflow",
    ])
    .args(["-Wno-stringop-overread", "-Wno-array-bounds"])
    .args(build.flags)
    .args(more)
    .arg("-o")
    .arg(&binary)
    .arg(source);
    run(gcc, dir, &format!("gcc-{label}"), Duration::from_secs(60))?.success()?;
    Ok(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_of_every_program_parse() {
        let apps = all().expect("directives that parse");
        assert!(apps.len() > 40, "only {} programs found", apps.len());
    }

    #[test]
    fn an_unknown_directive_is_an_error() {
        assert!(parse(Path::new("x.c"), "//: lane maybe\n").is_err());
        assert!(parse(Path::new("x.c"), "//: builds plain fast\n").is_err());
    }

    #[test]
    fn directives_replace_the_defaults() {
        let text = "//: lane any\n//: family 4\n//: ends fork exec\n//: builds lfs\n";
        let app = parse(Path::new("x.c"), text).expect("good directives");
        assert!(!app.lane_required);
        assert_eq!(
            (app.families.len(), app.ends.len(), app.builds.len()),
            (1, 2, 1)
        );
    }
}
