//! The text formats of Prometheus and of OpenMetrics, by their rules.

use std::collections::{BTreeMap, BTreeSet};

use sluice_tests::suite::{Verdict, ensure, fail};

/// Values by name and labels, as they are written.
pub type Values = BTreeMap<String, f64>;

/// Reads figures; every rule that is broken is an error. `is_open`: OpenMetrics.
pub fn parse(text: &str, is_open: bool) -> Verdict<Values> {
    let text = match text.strip_suffix("# EOF\n") {
        Some(text) if is_open => text,
        None if !is_open => text,
        _ => return fail(format!("the end: {text}")),
    };
    let mut reader = Reader {
        is_open,
        ..Reader::default()
    };
    for line in text.lines() {
        match line.splitn(4, ' ').collect::<Vec<&str>>()[..] {
            ["#", what, name, rest] => reader.comment(line, what, name, rest)?,
            _ => reader.sample(line)?,
        }
    }
    Ok(reader.values)
}

#[derive(Default)]
struct Reader<'a> {
    is_open: bool,
    values: Values,
    kinds: BTreeMap<&'a str, &'a str>,
    /// Families that there were, with the one that the last comment was about.
    families: BTreeSet<&'a str>,
    family: &'a str,
}

impl<'a> Reader<'a> {
    fn comment(&mut self, line: &str, what: &str, name: &'a str, rest: &'a str) -> Verdict {
        if name != self.family {
            let is_new = self.families.insert(name);
            ensure(is_new, || format!("{name} comes twice"))?;
            self.family = name;
        }
        match what {
            "HELP" => ensure(!rest.is_empty(), || format!("no help: {line}")),
            "TYPE" => {
                self.kinds.insert(name, rest);
                ensure(matches!(rest, "counter" | "gauge"), || line.to_owned())
            }
            "UNIT" if self.is_open => {
                ensure(name.ends_with(&format!("_{rest}")), || line.to_owned())
            }
            _ => fail(format!("a comment of another kind: {line}")),
        }
    }

    fn sample(&mut self, line: &str) -> Verdict {
        let Some((name, value)) = line.rsplit_once(' ') else {
            return fail(format!("no sample: {line}"));
        };
        let (base, labels) = name.split_at(name.find('{').unwrap_or(name.len()));
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        ensure(!base.is_empty() && base.chars().all(legal), || {
            line.to_owned()
        })?;
        if !labels.is_empty() {
            check_labels(labels).map_err(|problem| problem.with(|| line.to_owned()))?;
        }
        let (family, expected) = match base.strip_suffix("_total") {
            Some(family) if self.is_open => (family, "counter"),
            Some(_) => (base, "counter"),
            None => (base, "gauge"),
        };
        ensure(family == self.family, || {
            format!("not with its family: {line}")
        })?;
        let kind = self.kinds.get(family).copied();
        ensure(kind == Some(expected), || format!("{line}: {kind:?}"))?;
        let Ok(value) = value.parse::<f64>() else {
            return fail(format!("no number: {line}"));
        };
        let former = self.values.insert(name.to_owned(), value);
        ensure(former.is_none(), || format!("twice: {line}"))
    }
}

/// `{name="value",…}`.
fn check_labels(labels: &str) -> Verdict {
    let inner = labels.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
    let Some(inner) = inner else {
        return fail("labels without an end");
    };
    for label in inner.split(',') {
        let value = label.split_once('=').map(|(_, value)| value);
        let quoted = value.is_some_and(|it| it.len() >= 2 && it.starts_with('"'));
        ensure(quoted && label.ends_with('"'), || label.to_owned())?;
    }
    Ok(())
}
