//! Reads a unit as systemd does: its file, its drop-ins, and in which order they count
//! (systemd.unit(5), systemd.syntax(7)). Everything is looked for below a root, and links are
//! followed within it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::root::Root;

/// Where unit files and drop-ins are, the first of one name counts ("Unit File Load Path").
const FOLDERS: [&str; 12] = [
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "run/systemd/generator.early",
    CONFIGURATION,
    "etc/systemd/system.attached",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "run/systemd/generator.late",
];
/// Where an administrator's units and drop-ins are.
pub const CONFIGURATION: &str = "etc/systemd/system";
/// Bytes of a unit file that are read; real ones have some thousands.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Names that lead from one to the next.
const ALIASES_MAX: usize = 8;
/// Characters of a unit's name (`UNIT_NAME_MAX`).
const NAME_CHARS_MAX: usize = 255;

/// Why a unit cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitError {
    /// No name of a service.
    Name(String),
    Missing(String),
    /// A link to /dev/null, or an empty file.
    Masked(String),
    Read(PathBuf, String),
    /// Names that lead to each other.
    Circle(String),
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "{name:?} is no service: write its name, such as nginx.service or getty@.service"
            ),
            Self::Missing(name) => write!(
                f,
                "there is no {name}: 'systemctl list-unit-files --type=service' lists what there is"
            ),
            Self::Masked(name) => write!(f, "{name} is masked: 'systemctl unmask {name}' first"),
            Self::Read(path, why) => write!(f, "cannot read {}: {why}", path.display()),
            Self::Circle(name) => write!(f, "the links of {name} lead nowhere"),
        }
    }
}

/// A service's name with its ending.
///
/// # Errors
/// It is no name, or one of another kind of unit.
pub fn full_name(text: &str) -> Result<String, UnitError> {
    let bad = || Err(UnitError::Name(text.to_owned()));
    let known = [
        ".socket",
        ".target",
        ".timer",
        ".mount",
        ".path",
        ".slice",
        ".scope",
        ".swap",
        ".device",
        ".automount",
    ];
    if known.iter().any(|end| text.ends_with(end)) {
        return bad();
    }
    let stem = text.strip_suffix(".service").unwrap_or(text);
    let is_good = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if stem.is_empty() || stem.starts_with(['@', '.']) || !stem.chars().all(is_good) {
        return bad();
    }
    let name = format!("{stem}.service");
    if name.len() > NAME_CHARS_MAX {
        return bad();
    }
    Ok(name)
}

/// What a unit says, without one of its drop-ins.
#[derive(Debug, Default)]
pub struct Unit {
    /// After aliases.
    pub name: String,
    /// In the order in which they count: section, key, value.
    settings: Vec<(String, String, String)>,
    /// The names of its drop-ins that say what it runs, in order.
    commanders: Vec<String>,
}

impl Unit {
    /// Reads a unit, but for its drop-ins that are called `without`.
    pub fn load(root: &Path, name: &str, without: &str) -> Result<Unit, UnitError> {
        let mut name = name.to_owned();
        for _ in 0..ALIASES_MAX {
            match find(root, &name)? {
                Found::File(text) => {
                    let mut unit = Unit {
                        name,
                        ..Unit::default()
                    };
                    unit.settings = parse(&text);
                    unit.read_drop_ins(root, without)?;
                    return Ok(unit);
                }
                Found::Alias(other) => name = other,
            }
        }
        Err(UnitError::Circle(name))
    }

    fn read_drop_ins(&mut self, root: &Path, without: &str) -> Result<(), UnitError> {
        let mut files = BTreeMap::new();
        for folder in drop_in_folders(&self.name) {
            for base in FOLDERS {
                let folder = root.join(base).join(format!("{folder}.d"));
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if name.ends_with(".conf") && name != without {
                        files.entry(name).or_insert(entry.path());
                    }
                }
            }
        }
        for (name, path) in files {
            let settings = parse(&read(root, &path)?);
            if settings.iter().any(|(_, key, _)| key == "ExecStart") {
                self.commanders.push(name);
            }
            self.settings.extend(settings);
        }
        Ok(())
    }

    /// All values of a setting in order. An empty one takes back what was before it.
    pub fn values(&self, section: &str, key: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for (in_section, name, value) in &self.settings {
            if in_section == section && name == key {
                if value.is_empty() {
                    values.clear();
                } else {
                    values.push(value.as_str());
                }
            }
        }
        values
    }

    /// Whether there is such a setting.
    pub fn has(&self, section: &str, key: &str) -> bool {
        !self.values(section, key).is_empty()
    }

    /// A drop-in that says what the service runs, and whose name comes behind this one: it would
    /// count after it.
    pub fn overrides(&self, drop_in: &str) -> Option<&str> {
        let mut all = self.commanders.iter().map(String::as_str);
        all.find(|name| *name > drop_in)
    }
}

enum Found {
    File(String),
    Alias(String),
}

/// The template of an instance: `x@.service` of `x@a.service`.
pub fn template_of(name: &str) -> Option<String> {
    let (stem, instance) = name.strip_suffix(".service")?.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{stem}@.service"))
}

fn find(root: &Path, name: &str) -> Result<Found, UnitError> {
    let names = [Some(name.to_owned()), template_of(name)];
    for own in names.into_iter().flatten() {
        for folder in FOLDERS {
            let path = root.join(folder).join(&own);
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            if meta.is_symlink() {
                let target = fs::read_link(&path)
                    .map_err(|error| UnitError::Read(path.clone(), error.to_string()))?;
                if target == Path::new("/dev/null") {
                    return Err(UnitError::Masked(own));
                }
                // An alias of a template's instance is that template's instance.
                let base = target.file_name().map(|base| base.to_string_lossy());
                let base = base.filter(|base| base.ends_with(".service"));
                let other = base.and_then(|base| full_name(&base).ok());
                let other = other.map(|other| same_instance(name, &other));
                if let Some(other) = other.filter(|other| other != name) {
                    return Ok(Found::Alias(other));
                }
            }
            let text = read(root, &path)?;
            if text.is_empty() {
                return Err(UnitError::Masked(own));
            }
            return Ok(Found::File(text));
        }
    }
    Err(UnitError::Missing(name.to_owned()))
}

fn same_instance(name: &str, template: &str) -> String {
    let instance = name
        .strip_suffix(".service")
        .and_then(|stem| stem.split_once('@'))
        .map_or("", |(_, instance)| instance);
    match template.strip_suffix("@.service") {
        Some(stem) if !instance.is_empty() => format!("{stem}@{instance}.service"),
        _ => template.to_owned(),
    }
}

/// Folders of drop-ins without their `.d`, the first of one name counts: of the unit, of its
/// template, of each beginning up to a dash, of all services.
fn drop_in_folders(name: &str) -> Vec<String> {
    let mut folders = vec![name.to_owned()];
    folders.extend(template_of(name));
    let stem = name.strip_suffix(".service").unwrap_or(name);
    let stem = stem.split('@').next().unwrap_or(stem);
    let dashes = stem.char_indices().rev().filter(|(_, c)| *c == '-');
    for (at, _) in dashes.filter(|(at, _)| at + 1 < stem.len()) {
        folders.push(format!("{}.service", &stem[..=at]));
    }
    folders.push("service".to_owned());
    folders
}

/// A file below the root. Links begin at the root and end there, as they do for who lives in it.
fn read(root: &Path, path: &Path) -> Result<String, UnitError> {
    let bytes = Root::open(root).and_then(|root| root.read(path, FILE_BYTES_MAX));
    let bytes = bytes.map_err(|error| UnitError::Read(path.to_owned(), error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// systemd.syntax(7): comments, sections, lines that go on behind a backslash.
fn parse(text: &str) -> Vec<(String, String, String)> {
    let mut settings = Vec::new();
    let mut section = String::new();
    let mut begun = String::new();
    for line in text.lines() {
        let line = line.trim();
        // A comment within a line that goes on is left out, and the line goes on.
        if line.starts_with(['#', ';']) || (begun.is_empty() && line.is_empty()) {
            continue;
        }
        begun.push_str(line);
        if begun.ends_with('\\') {
            begun.pop();
            begun.push(' ');
            continue;
        }
        let whole = std::mem::take(&mut begun);
        let whole = whole.trim();
        if let Some(name) = whole.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, value)) = whole.split_once('=') {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            settings.push((section.clone(), key, value));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_behind_a_backslash_and_comments_are_left_out() {
        let text = "#c\n[Service]\n ExecStart = /a \\\n  # no\n  b \\\n  c\n\n;x\nExecStart=\n[X]\nA=b=c\n";
        let lines: Vec<String> = parse(text)
            .into_iter()
            .map(|(section, key, value)| format!("{section}|{key}|{value}"))
            .collect();
        assert_eq!(
            lines,
            [
                "Service|ExecStart|/a  b  c",
                "Service|ExecStart|",
                "X|A|b=c"
            ]
        );
    }

    #[test]
    fn names_are_those_of_services() {
        assert_eq!(full_name("nginx").unwrap(), "nginx.service");
        assert_eq!(full_name("a@b.service").unwrap(), "a@b.service");
        assert_eq!(full_name("a\\x2db@.service").unwrap(), "a\\x2db@.service");
        let long = "a".repeat(300);
        for bad in [
            "", "../x", "a/b", "a b", ".service", "@a", "x.socket", "a\n", &long,
        ] {
            assert!(full_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn drop_ins_are_those_of_template_beginnings_and_kind() {
        assert_eq!(
            drop_in_folders("a-b-c@d-e.service"),
            [
                "a-b-c@d-e.service",
                "a-b-c@.service",
                "a-b-.service",
                "a-.service",
                "service"
            ]
        );
        assert_eq!(drop_in_folders("-.service").len(), 2);
    }
}
