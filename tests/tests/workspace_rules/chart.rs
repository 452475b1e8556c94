//! README's chart, its table and the figures behind them are the same.

use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::root;

/// bench/results.json; see bench/chart.
#[derive(Deserialize)]
struct Figures {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    unit: String,
    better: String,
    tcp: f64,
    sluice: f64,
    command: String,
}

impl Row {
    fn times(&self) -> f64 {
        match self.better.as_str() {
            "more" => self.sluice / self.tcp,
            "less" => self.tcp / self.sluice,
            other => panic!("{}: {other} is not better", self.name),
        }
    }

    /// As tables have a figure: three digits, or all of an integer's. The unit of many stands with the
    /// name, that of a few digits with the number.
    fn shown(&self, value: f64) -> String {
        let unit = &self.unit;
        match value {
            1000.0.. => {
                let digits = format!("{value:.0}");
                let (begin, end) = digits.split_at(digits.len() - 3);
                format!("{begin},{end}")
            }
            100.0.. => format!("{value:.0} {unit}"),
            10.0.. => format!("{value:.1} {unit}"),
            1.0.. => format!("{value:.2} {unit}"),
            _ => format!("{value:.3} {unit}"),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn figures() -> Figures {
    serde_json::from_str(&read("bench/results.json")).expect("figures are rows")
}

/// The cells of a table's line.
fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().strip_prefix('|').unwrap_or_default();
    inner.split('|').map(str::trim).collect()
}

/// That what a script of `bench` draws is of its figures.
fn check(script: &str) {
    // scripts/setup installs it.
    let mut check = Command::new("python3");
    let output = check.arg(root().join(script)).arg("--check").output();
    let output = output.expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_tables_and_plots_of_the_card_are_made_of_its_figures() {
    check("bench/nic");
}

#[test]
fn the_tables_of_the_kernels_device_are_made_of_its_figures() {
    check("bench/kernel");
}

#[test]
fn the_chart_is_made_of_the_figures() {
    check("bench/chart");
    assert!(read("README.md").contains("](docs/results.svg)"));
}

#[test]
fn the_table_of_the_readme_has_the_figures_of_the_chart() {
    let readme = read("README.md");
    let lines = readme
        .lines()
        .skip_while(|line| *line != "## What it gives");
    let table: Vec<&str> = lines.filter(|line| line.starts_with('|')).collect();
    let mut wrong = Vec::new();
    for row in figures().rows {
        let times = row.times();
        let digits = usize::from(times < 100.0);
        let expected = [
            row.shown(row.tcp),
            row.shown(row.sluice),
            format!("{times:.digits$}×"),
        ];
        // "the same, 50 clients" is the row before it, and the rest of the name.
        let rest = row.name.rsplit(", ").next().unwrap_or_default();
        let is_it = |line: &&&str| {
            let cells = cells(line);
            cells.get(1..4).is_some_and(|cells| cells == expected)
                && cells[0].contains(rest)
                && (cells[0].starts_with("the same,") || cells[0].contains(&row.command))
        };
        if !table.iter().any(|line| is_it(&line)) {
            wrong.push(format!("{}: {expected:?}", row.name));
        }
    }
    assert!(wrong.is_empty(), "not in README's table: {wrong:#?}");
}

#[test]
fn results_say_where_the_figures_of_the_chart_are_from() {
    let results = read("docs/results.md");
    for row in figures().rows {
        let both = [row.shown(row.tcp), row.shown(row.sluice)];
        let is_there = |line: &str| both.iter().all(|figure| line.contains(figure.as_str()));
        let found = results.lines().any(is_there);
        assert!(found, "{}: {both:?} are not in docs/results.md", row.name);
    }
}

/// What a stranger reads first fits on two screens.
#[test]
fn the_readme_is_short() {
    const LINES_MAX: usize = 120;
    let lines = read("README.md").lines().count();
    assert!(lines <= LINES_MAX, "README.md has {lines} lines");
}
