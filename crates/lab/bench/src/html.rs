//! The report as one HTML file that needs nothing else: no script, no font, no network.

use std::fmt::Write;

use super::figures::{counted, number};
use super::model::WorkloadReport;
use super::overview;
use super::plot::{self, escape};
use super::report::Report;
use super::table::{self, Column};
use super::text;
use super::verdict::{Outcome, Verdict};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--good:#2b8a3e;--bad:#c92a2a}\
@media(prefers-color-scheme:dark){:root{--good:#69db7c;--bad:#ff8787}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{margin-top:2.5rem;border-bottom:1px solid var(--line)}h3{margin-bottom:.2rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}\
.wide{overflow-x:auto;margin:.9rem 0}\
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child,.words{text-align:left}\
.floors td:last-child{white-space:normal}\
.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}\
svg{width:100%;max-width:760px;height:auto;display:block;margin:.5rem 0}\
svg text{font:12px system-ui,sans-serif;fill:currentColor}svg .grid{stroke:currentColor;opacity:.2}\
pre{background:var(--soft);padding:.6rem;overflow-x:auto;font-size:.8rem;white-space:pre-wrap}\
.failed{border-left:4px solid var(--bad);padding-left:.6rem;white-space:pre-wrap}\
.note{opacity:.75;font-size:.9rem}";

/// The whole page.
pub fn render(report: &Report) -> String {
    let mut page =
        String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n");
    let _ = writeln!(
        page,
        "<title>{}, {}</title>",
        report.suite.title,
        escape(&report.date)
    );
    let title = report.suite.title;
    let _ = writeln!(
        page,
        "<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    );
    chart(&mut page, report);
    introduction(&mut page, report);
    floors(&mut page, report);
    machine(&mut page, report);
    let (left_out, run): (Vec<_>, Vec<_>) = report
        .workloads
        .iter()
        .partition(|workload| workload.skipped.is_some() && workload.points.is_empty());
    for workload in run {
        section(&mut page, workload);
    }
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|workload| workload.title).collect();
        let names = escape(&names.join("; "));
        let _ = writeln!(page, "<details><summary>Not run: {names}</summary>");
        for workload in left_out {
            section(&mut page, workload);
        }
        page.push_str("</details>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn chart(page: &mut String, report: &Report) {
    let chart = overview::render(&report.workloads);
    if chart.is_empty() {
        return;
    }
    page.push_str(&chart);
    page.push_str(
        "<p class=\"note\">How many times better Sluice was than what it is compared with: the median over a \
         group's points, with a line from the least to the greatest of them. The first way of Sluice counts \
         where there are several.</p>\n",
    );
}

fn introduction(page: &mut String, report: &Report) {
    let _ = writeln!(
        page,
        "<p>Medians of {} of {} s. Within a repetition the variants ran one after the \
         other, so that changes of the machine meet all of them. No program was pinned to a core. \
         {}A ratio is given only if every run of both sides succeeded.</p>",
        text::repetitions(report),
        report.seconds_per_run,
        report.suite.about_costs
    );
}

fn floors(page: &mut String, report: &Report) {
    let _ = writeln!(
        page,
        "<h2 id=\"floors\">The floors</h2>\n<p>What Sluice promises, {}.</p>\n<div class=\"floors\">",
        escape(report.suite.floors)
    );
    let (left_out, shown): (Vec<Verdict>, Vec<Verdict>) = report
        .verdicts
        .iter()
        .cloned()
        .partition(|verdict| verdict.outcome == Outcome::NotRun);
    if !shown.is_empty() {
        markup(page, &table::verdicts(&shown));
    }
    if !left_out.is_empty() {
        let number = u32::try_from(left_out.len()).unwrap_or(u32::MAX);
        let summary = counted(number, "floor");
        let _ = writeln!(
            page,
            "<details><summary>{summary} of what was not run</summary>"
        );
        markup(page, &table::verdicts(&left_out));
        page.push_str("</details>\n");
    }
    let tally = escape(&table::tally(&report.verdicts));
    let _ = writeln!(page, "</div><p class=\"note\">{tally}</p>");
}

fn machine(page: &mut String, report: &Report) {
    let machine = &report.machine;
    let kind = if machine.virtual_machine {
        "virtual machine"
    } else {
        "not virtual"
    };
    let mut rows = vec![
        ("date", report.date.clone()),
        ("command", report.command.clone()),
        ("sluice", report.sluice_version.clone()),
        (
            "machine",
            format!(
                "{}, {} cores, {} MiB, {kind}",
                machine.cpu, machine.cores, machine.memory_mib
            ),
        ),
        (
            "system",
            format!("{}, Linux {}", machine.distribution, machine.kernel),
        ),
        ("load before", machine.load_before.clone()),
        ("open files", machine.descriptors_max.to_string()),
    ];
    rows.extend(
        machine
            .settings
            .iter()
            .map(|(name, value)| (*name, value.clone())),
    );
    rows.extend(
        report
            .versions
            .iter()
            .map(|(name, version)| (*name, version.clone())),
    );
    page.push_str("<details><summary>Machine and versions</summary><div class=\"wide\"><table>\n");
    for (name, value) in rows {
        let (name, value) = (escape(name), escape(&value));
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td style=\"text-align:left\">{value}</td></tr>"
        );
    }
    page.push_str("</table></div></details>\n");
}

fn section(page: &mut String, workload: &WorkloadReport) {
    let _ = writeln!(
        page,
        "<h2 id=\"{}\">{}</h2>\n<p>{}</p>",
        escape(workload.name),
        escape(workload.title),
        escape(workload.about)
    );
    if let Some(reason) = &workload.skipped {
        let _ = writeln!(page, "<p class=\"failed\">Skipped: {}</p>", escape(reason));
    }
    for (group, points) in text::groups(workload) {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&group));
        if let Some(point) = points.first() {
            let meaning = escape(&text::ratio_meaning(&point.spec));
            let unit = escape(point.spec.unit);
            let _ = writeln!(page, "<p class=\"note\">{unit}; {meaning}</p>");
        }
        page.push_str(&plot::render(&points));
        markup(page, &table::results(&group, &points, Column::Shown));
        if let Some(costs) = table::costs(&group, &points) {
            markup(page, &costs);
        }
        details(page, &points);
    }
    for remark in workload.remarks() {
        let _ = writeln!(page, "<p class=\"failed\">{}</p>", escape(&remark));
    }
    for failure in text::failures(workload) {
        let _ = writeln!(page, "<p class=\"failed\">{}</p>", escape(&failure));
    }
    if !workload.commands.is_empty() {
        let commands = escape(&workload.commands.join("\n"));
        let _ = writeln!(
            page,
            "<details><summary>Commands of the first repetition</summary><pre>{commands}</pre></details>"
        );
    }
}

fn markup(page: &mut String, rows: &[Vec<String>]) {
    page.push_str("<div class=\"wide\"><table>\n");
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let _ = write!(page, "<tr>");
        for (column, cell) in row.iter().enumerate() {
            let class = class(index, cell, table::is_words(rows, column));
            let _ = write!(page, "<{tag}{class}>{}</{tag}>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

/// How a cell looks: outcomes have colours, words begin at the left.
fn class(row: usize, cell: &str, words: bool) -> &'static str {
    let outcome = cell.trim_end_matches([' ', '?']);
    if row > 0 && outcome == table::REACHED {
        " class=\"words good\""
    } else if row > 0
        && [
            table::MISSED,
            Outcome::BelowFloor.title(),
            Outcome::Failed.title(),
        ]
        .contains(&outcome)
    {
        " class=\"words bad\""
    } else if words {
        " class=\"words\""
    } else {
        ""
    }
}

/// The other results of the same runs, if there are any: latencies, mostly.
fn details(page: &mut String, points: &[&super::model::Point]) {
    let all = points.iter().flat_map(|point| &point.series);
    let mut names: Vec<&'static str> = all
        .flat_map(|series| series.details.keys().copied())
        .collect();
    names.sort_unstable();
    names.dedup();
    let Some(first) = points.first().filter(|_| !names.is_empty()) else {
        return;
    };
    let mut header = vec![String::new()];
    for name in &names {
        for series in &first.series {
            header.push(format!("{name} {}", series.variant.title()));
        }
    }
    let mut rows = vec![header];
    for point in points {
        let mut row = vec![point.spec.label.clone()];
        for name in &names {
            for series in &point.series {
                let value = series.details.get(name).copied();
                row.push(value.map_or_else(|| "–".to_owned(), number));
            }
        }
        rows.push(row);
    }
    page.push_str("<details><summary>Other results of these runs (medians)</summary>");
    markup(page, &rows);
    page.push_str("</details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::{suites, verdict};

    #[test]
    fn page_shows_every_floor_and_closes_what_it_opens() {
        check_page(
            &suites::SOCKETS,
            verdict::tests::reports(|_, _, _| Some(120.0)),
        );
        for suite in [
            &suites::VERBS,
            &suites::ROCE,
            &suites::IWARP,
            &suites::FABRIC,
            &suites::RXE,
        ] {
            check_page(
                suite,
                verdict::verbs::tests::reports(suite, |_, _| Some(0.1)),
            );
        }
    }

    fn check_page(suite: &'static suites::Suite, workloads: Vec<WorkloadReport>) {
        let report = report(suite, workloads);
        let page = render(&report);
        for verdict in &report.verdicts {
            assert!(page.contains(&escape(&verdict.what)), "{}", verdict.what);
        }
        for tag in [
            "table", "tr", "td", "th", "svg", "details", "p", "h2", "div",
        ] {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            let closed = page.matches(&format!("</{tag}>")).count();
            assert!(
                opened == closed && opened > 0,
                "{tag}: {opened} and {closed}"
            );
        }
        assert!(!page.contains("bench <&>"));
        let chart = page.find("How many times better").expect("a chart");
        assert!(chart < page.find("id=\"floors\"").expect("floors"));
    }

    /// What nobody asked for stands below a line that opens.
    #[test]
    fn what_was_not_run_is_folded() {
        let suite = &suites::SOCKETS;
        let mut workloads = verdict::tests::reports(|_, _, _| Some(120.0));
        let left_out = workloads.last_mut().expect("there are some");
        left_out.points.clear();
        left_out.skipped = Some("its program is not there".to_owned());
        let title = escape(left_out.title);
        let report = report(suite, workloads);
        let not_run = report
            .verdicts
            .iter()
            .find(|verdict| verdict.outcome == Outcome::NotRun);
        let page = render(&report);
        let is_folded = |text: &str| {
            let at = page.find(text).expect("it is on the page");
            let before = &page[..at];
            before.rfind("<details>") > before.rfind("</details>")
        };
        assert!(is_folded("its program is not there"));
        assert!(page.contains(&format!("<summary>Not run: {title}</summary>")));
        assert!(is_folded(&escape(&not_run.expect("a floor").what)));
        let run = &report.workloads[0];
        assert!(!is_folded(&format!("<h2 id=\"{}\">", run.name)));
    }

    fn report(suite: &'static suites::Suite, workloads: Vec<WorkloadReport>) -> Report {
        Report {
            format: 2,
            suite,
            sluice_version: "0".to_owned(),
            date: "2026-11-21T08:30:00Z".to_owned(),
            command: "sluice bench <&>".to_owned(),
            repetitions: 1,
            seconds_per_run: 1,
            machine: Machine::read(0),
            versions: std::collections::BTreeMap::new(),
            verdicts: (suite.verdicts)(&workloads),
            workloads,
        }
    }
}
