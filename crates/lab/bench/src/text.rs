//! The report as text: one table for each group of points.

use super::figures::counted;
use super::model::{Better, Point, PointSpec, WorkloadReport};
use super::report::Report;
use super::table::{self, Column};
use super::verdict::{Outcome, Verdict};

/// The whole report, the floors last. `brief` leaves out ranges.
pub fn render(report: &Report, brief: bool) -> String {
    let mut text = format!(
        "{} on {} cores ({}), {}, {} of {} s, medians\n",
        report.machine.cpu,
        report.machine.cores,
        report.machine.kernel,
        report.date,
        repetitions(report),
        report.seconds_per_run
    );
    for workload in &report.workloads {
        text.push_str(&format!("\n{}: {}\n", workload.name, workload.title));
        if let Some(reason) = &workload.skipped {
            text.push_str(&format!("  skipped: {reason}\n"));
        }
        for (group, points) in groups(workload) {
            text.push('\n');
            let ranges = if brief { Column::Hidden } else { Column::Shown };
            text.push_str(&aligned(&table::results(&group, &points, ranges)));
            if let Some(costs) = table::costs(&group, &points) {
                text.push('\n');
                text.push_str(&aligned(&costs));
            }
        }
        for remark in workload.remarks() {
            text.push_str(&format!("\n  {remark}\n"));
        }
        for failure in failures(workload) {
            text.push_str(&format!("\n  {failure}\n"));
        }
    }
    text.push_str(&format!("\nThe floors, {}\n\n", report.suite.floors));
    // With --only most floors were not even asked for; their names are enough then.
    let all_chosen = report.workloads.len() == report.suite.workloads.len();
    let (left_out, shown): (Vec<Verdict>, Vec<Verdict>) = report
        .verdicts
        .iter()
        .cloned()
        .partition(|verdict| !all_chosen && verdict.outcome == Outcome::NotRun);
    if !shown.is_empty() {
        text.push_str(&aligned(&table::verdicts(&shown)));
        text.push('\n');
    }
    text.push_str(&format!("  {}\n", table::tally(&report.verdicts)));
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|verdict| &*verdict.what).collect();
        text.push_str(&format!("  not run: {}\n", names.join("; ")));
    }
    text.push('\n');
    text
}

/// `1 repetition`, `3 repetitions`.
pub fn repetitions(report: &Report) -> String {
    counted(
        u32::try_from(report.repetitions).unwrap_or(u32::MAX),
        "repetition",
    )
}

/// The points of a workload by group, in the order of their first appearance.
pub fn groups(workload: &WorkloadReport) -> Vec<(String, Vec<&Point>)> {
    let mut groups: Vec<(String, Vec<&Point>)> = Vec::new();
    for point in &workload.points {
        match groups
            .iter_mut()
            .find(|(name, _)| *name == point.spec.group)
        {
            Some((_, points)) => points.push(point),
            None => groups.push((point.spec.group.clone(), vec![point])),
        }
    }
    groups
}

/// Every different failure once, with the points and variants that it cost.
pub fn failures(workload: &WorkloadReport) -> Vec<String> {
    let mut failures: Vec<(String, Vec<String>)> = Vec::new();
    for point in &workload.points {
        for series in &point.series {
            let Some(failure) = &series.failure else {
                continue;
            };
            let place = format!(
                "{} {}, {}",
                point.spec.group,
                point.spec.label,
                series.variant.title()
            );
            match failures.iter_mut().find(|(text, _)| text == failure) {
                Some((_, places)) => places.push(place),
                None => failures.push((failure.clone(), vec![place])),
            }
        }
    }
    failures
        .into_iter()
        .map(|(text, places)| format!("failed ({}): {text}", few(&places)))
        .collect()
}

/// The first places by name: a curve has many.
fn few(places: &[String]) -> String {
    const NAMED_MAX: usize = 6;
    let named = places.get(..NAMED_MAX).unwrap_or(places).join("; ");
    match places.len().saturating_sub(NAMED_MAX) {
        0 => named,
        others => format!("{named}; and {others} more"),
    }
}

/// What "ratio" means in a group.
pub fn ratio_meaning(spec: &PointSpec) -> String {
    let baseline = spec.baseline.title();
    match spec.better {
        Better::Higher => format!("higher is better; ratio: divided by {baseline}"),
        Better::Lower => format!("lower is better; ratio: {baseline} divided by it"),
    }
}

/// Columns side by side, two spaces apart; words to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            if column == 0 {
                line.push_str(&format!(" {cell}{padding}"));
            } else if table::is_words(rows, column) {
                line.push_str(&format!("  {cell}{padding}"));
            } else {
                line.push_str(&format!("  {padding}{cell}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_places_are_counted() {
        let places = |count: usize| {
            (0..count)
                .map(|number| number.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(few(&places(6)), "0; 1; 2; 3; 4; 5");
        assert_eq!(few(&places(8)), "0; 1; 2; 3; 4; 5; and 2 more");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a", "long"], vec!["µµµ", "1"]]
            .map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(aligned(&rows), "  a    long\n  µµµ     1\n");
    }
}
