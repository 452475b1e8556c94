//! `tests/unsteady.toml`: the tests that were unsteady in CI.

use std::fs;
use std::process::Command;

use serde::Deserialize;

use crate::root;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    test: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    step: String,
    name: String,
    first_seen: String,
    seen: u32,
    mechanism: String,
    at_fault: String,
}

#[test]
fn unsteady_tests_are_listed_with_all_that_is_known_of_them() {
    let text = fs::read_to_string(root().join("tests/unsteady.toml")).expect("the list");
    let list: List = toml::from_str(&text).expect("as its head says");
    let steps = Command::new("scripts/test")
        .arg("--list")
        .current_dir(root())
        .output()
        .expect("scripts/test runs");
    let steps = String::from_utf8(steps.stdout).expect("text");
    let mut before: Vec<(&str, &str)> = Vec::new();
    for entry in &list.test {
        let (step, name) = (entry.step.as_str(), entry.name.as_str());
        assert!(steps.lines().any(|known| known == step), "no step {step}");
        assert!(!before.contains(&(step, name)), "{step} {name}: twice");
        before.push((step, name));
        let is_date = entry.first_seen.len() == 10 && entry.first_seen.split('-').count() == 3;
        assert!(is_date, "{step} {name}: first_seen is YYYY-MM-DD");
        assert!(entry.seen > 0, "{step} {name}: seen at least once");
        assert!(!entry.mechanism.is_empty(), "{step} {name}: a mechanism");
        let at_fault = ["product", "test", "unknown"];
        assert!(
            at_fault.contains(&entry.at_fault.as_str()),
            "{step} {name}: at_fault is one of {at_fault:?}"
        );
    }
}
