//! What a drop-in says so that a service runs under Sluice, from what its unit says.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::unit::Unit;

/// The socket of the daemon that its unit starts.
pub const SOCKET: &str = "/run/sluice/control.sock";
/// The unit of that daemon.
pub const DAEMON_UNIT: &str = "sluiced.service";
/// How our drop-ins begin.
pub const MARK: &str = "# Made by 'sluice enable' for ";

/// Why a unit cannot run under Sluice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrapError {
    /// The daemon itself.
    Daemon,
    NoCommand,
    /// The line, and what is wrong with it.
    Command(String, &'static str),
    /// A path that a command line would split or change.
    Path(String),
}

impl fmt::Display for WrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => f.write_str("sluiced cannot run under itself"),
            Self::NoCommand => f.write_str("it has no ExecStart= to run under Sluice"),
            Self::Command(line, why) => write!(f, "ExecStart={line}: {why}"),
            Self::Path(path) => write!(
                f,
                "{path} cannot be written into a unit: install Sluice in a folder without spaces, \
                 quotes and backslashes"
            ),
        }
    }
}

/// The text of the drop-in.
///
/// Commands are run by `sluice run`, which tries the filters of system calls that the service has and tells the
/// library of them (decision 0045).
///
/// # Errors
/// There is no command, or one that cannot be put behind another program.
pub fn drop_in(unit: &Unit, sluice: &str) -> Result<String, WrapError> {
    if unit.name == DAEMON_UNIT {
        return Err(WrapError::Daemon);
    }
    let breaks = |c: char| c.is_whitespace() || c.is_control() || "\"'\\;$".contains(c);
    if sluice.contains(breaks) {
        return Err(WrapError::Path(sluice.to_owned()));
    }
    let program = sluice.replace('%', "%%");
    let commands = unit.values("Service", "ExecStart");
    if commands.is_empty() {
        return Err(WrapError::NoCommand);
    }
    let mut text = format!(
        "{MARK}{}; 'sluice disable' removes it.\n\
         # What is written here is lost: write a drop-in of your own.\n\
         # Program: {sluice}\n\n\
         [Unit]\n\
         Wants={DAEMON_UNIT}\n\
         After={DAEMON_UNIT}\n\n\
         [Service]\n",
        unit.name
    );
    let mut add = |line: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
    };
    if unix_sockets_are_refused(unit) {
        add("# The daemon is reached by a Unix socket.");
        add("RestrictAddressFamilies=AF_UNIX");
    }
    let libraries = folder_of_libraries(&program);
    if unit.has("Service", "NoExecPaths") {
        add(&format!("ExecPaths={program} {libraries}"));
    }
    let hides = ["RootDirectory", "RootImage", "TemporaryFileSystem"];
    if hides.iter().any(|key| unit.has("Service", key)) {
        add(&format!(
            "BindReadOnlyPaths={program} {libraries} -/run/sluice"
        ));
    }
    add("ExecStart=");
    for command in commands {
        add(&format!("ExecStart={}", wrapped(command, &program)?));
    }
    Ok(text)
}

/// `/usr/lib/sluice` of `/usr/bin/sluice`; beside it if it is in no `bin`.
fn folder_of_libraries(program: &str) -> String {
    let folder = program.rsplit_once('/').map_or("", |(folder, _)| folder);
    match folder.strip_suffix("/bin") {
        Some(prefix) => format!("-{prefix}/lib/sluice"),
        None => folder.to_owned(),
    }
}

/// What `RestrictAddressFamilies=` leaves, as systemd reads it: the first line says whether it is a
/// list of what is allowed or of what is not, others add to it or take away.
fn unix_sockets_are_refused(unit: &Unit) -> bool {
    let mut listed = BTreeSet::new();
    let mut allows = None;
    for value in unit.values("Service", "RestrictAddressFamilies") {
        if value == "none" {
            listed.clear();
            allows = Some(true);
            continue;
        }
        let (inverted, names) = match value.strip_prefix('~') {
            Some(names) => (true, names),
            None => (false, value),
        };
        let is_allowed = *allows.get_or_insert(!inverted);
        for name in names.split_whitespace() {
            if inverted != is_allowed {
                listed.insert(name);
            } else {
                listed.remove(name);
            }
        }
    }
    let unix = listed.contains("AF_UNIX") || listed.contains("AF_LOCAL");
    allows.is_some_and(|allows| allows != unix)
}

/// What an administrator should know of a filter of system calls that may be too narrow.
pub fn filter_note(unit: &Unit) -> Option<&'static str> {
    let filters = unit.values("Service", "SystemCallFilter");
    let is_allow_list = filters.first().is_some_and(|first| !first.starts_with('~'));
    let has_usual = filters.iter().any(|line| {
        let names = line.split_whitespace();
        !line.starts_with('~') && names.into_iter().any(|name| name == "@system-service")
    });
    (is_allow_list && !has_usual).then_some(
        "its SystemCallFilter= is narrower than @system-service: if the service does not start, or stays \
         on TCP, allow that, or write SystemCallErrorNumber=EPERM",
    )
}

/// A command line, behind `sluice run`. Words are kept as they are written: quotes, specifiers and
/// variables mean the same in an argument.
fn wrapped(line: &str, program: &str) -> Result<String, WrapError> {
    let bad = |why| WrapError::Command(line.to_owned(), why);
    let mut commands = Vec::new();
    let words = words(line).ok_or_else(|| bad("a quote is not closed"))?;
    for command in words.split(|word| *word == ";") {
        let Some((first, arguments)) = command.split_first() else {
            // A semicolon at the end.
            continue;
        };
        let name = first.trim_start_matches(['-', '@', ':', '+', '!']);
        let prefix = &first[..first.len() - name.len()];
        if name.starts_with('|') {
            return Err(bad("the prefix | is not known here"));
        }
        let unquoted = name.strip_prefix(['"', '\'']).unwrap_or(name);
        let bare = unquoted.trim_end_matches(['"', '\'']);
        let has_prefix_inside = bare.starts_with(['-', '@', ':', '+', '!']);
        if bare.is_empty() || has_prefix_inside {
            return Err(bad("write a program, and prefixes before its quote"));
        }
        if bare.rsplit('/').next() == Some("sluice") {
            return Err(bad("it runs sluice already"));
        }
        let mut words = vec![
            format!("{}{program}", prefix.replace('@', "")),
            format!("run --no-daemon --socket {SOCKET}"),
        ];
        let mut arguments = arguments;
        if prefix.contains('@') {
            let Some((argv0, rest)) = arguments.split_first() else {
                return Err(bad("after @ a name for the program is missing"));
            };
            words.push(format!("--argv0 {argv0}"));
            arguments = rest;
        }
        words.push("--".to_owned());
        // In an argument a dollar sign is a variable's, in the program it was none.
        let is_literal = prefix.contains(':');
        words.push(if is_literal {
            name.to_owned()
        } else {
            name.replace('$', "$$")
        });
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        commands.push(words.join(" "));
    }
    if commands.is_empty() {
        return Err(bad("there is no program"));
    }
    Ok(commands.join(" ; "))
}

/// Words as they are written, with their quotes and backslashes. `None`: a quote is not closed.
fn words(line: &str) -> Option<Vec<&str>> {
    let mut words = Vec::new();
    let (mut start, mut quote, mut escaped) = (None, None, false);
    for (at, c) in line.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && (c == '"' || c == '\'') {
            quote = Some(c);
        }
        let is_between = quote.is_none() && !escaped && c.is_whitespace();
        match (start, is_between) {
            (None, false) => start = Some(at),
            (Some(from), true) => {
                words.push(&line[from..at]);
                start = None;
            }
            _ => {}
        }
    }
    words.extend(start.map(|from| &line[from..]));
    (quote.is_none() && !escaped).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "/b/sluice run --no-daemon --socket /run/sluice/control.sock";

    fn of(line: &str) -> String {
        wrapped(line, "/b/sluice").unwrap().replace(RUN, "RUN")
    }

    #[test]
    fn commands_keep_their_words_and_prefixes() {
        for (line, expected) in [
            ("/bin/a", "RUN -- /bin/a"),
            ("/bin/a -x  $B ${C} %i", "RUN -- /bin/a -x $B ${C} %i"),
            ("-/bin/a x", "-RUN -- /bin/a x"),
            ("!!-/bin/a", "!!-RUN -- /bin/a"),
            ("+:/bin/a $x", "+:RUN -- /bin/a $x"),
            (":/bin/$a", ":RUN -- /bin/$a"),
            ("/bin/$a", "RUN -- /bin/$$a"),
            ("@/bin/a name -y", "RUN --argv0 name -- /bin/a -y"),
            ("-@/bin/a \"my name\"", "-RUN --argv0 \"my name\" -- /bin/a"),
            ("\"/opt/my a/b\" 'c d'", "RUN -- \"/opt/my a/b\" 'c d'"),
            ("/bin/a ; -/bin/b c", "RUN -- /bin/a ; -RUN -- /bin/b c"),
            ("/bin/a \\; x ';' y\\ z", "RUN -- /bin/a \\; x ';' y\\ z"),
            ("a b ;", "RUN -- a b"),
            (
                "/bin/sh -c \"a 'b' ; c\"",
                "RUN -- /bin/sh -c \"a 'b' ; c\"",
            ),
        ] {
            assert_eq!(of(line), expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_wrapped_is_named() {
        for line in [
            "/bin/a \"b",
            "/bin/a \\",
            "|/bin/a",
            "@/bin/a",
            "\"-/bin/a\"",
            "-",
            ";",
            "\"\"",
            "/usr/bin/sluice run -- x",
            "\"/usr/bin/sluice\" run",
        ] {
            assert!(wrapped(line, "/b/sluice").is_err(), "{line}");
        }
    }
}
