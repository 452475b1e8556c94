//! The report as text: one table for each group of points.

use super::model::{Better, CostUnit, Point, Report, Series, Variant, WorkloadReport};

/// The whole report. `brief` leaves out ranges and CPU costs.
pub fn render(report: &Report, brief: bool) -> String {
    let mut text = format!(
        "{} on {} cores ({}), {}, {} repetitions of {} s, medians\n",
        report.machine.cpu,
        report.machine.cores,
        report.machine.kernel,
        report.date,
        report.repetitions,
        report.seconds_per_run
    );
    for workload in &report.workloads {
        text.push_str(&format!("\n{}: {}\n", workload.name, workload.title));
        if let Some(reason) = &workload.skipped {
            text.push_str(&format!("  skipped: {reason}\n"));
        }
        for (group, points) in groups(workload) {
            text.push('\n');
            text.push_str(&aligned(&table(&group, &points, brief)));
        }
        for remark in workload.remarks() {
            text.push_str(&format!("\n  {remark}\n"));
        }
        for failure in failures(workload) {
            text.push_str(&format!("\n  {failure}\n"));
        }
    }
    text.push('\n');
    text
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
        .map(|(text, places)| format!("failed ({}): {text}", places.join("; ")))
        .collect()
}

/// Rows of cells, the header first.
pub fn table(group: &str, points: &[&Point], brief: bool) -> Vec<Vec<String>> {
    let Some(first) = points.first() else {
        return Vec::new();
    };
    let cost = cost_title(first.spec.cost_unit).filter(|_| !brief);
    let unit = first.spec.unit;
    let mut header = vec![group.to_owned()];
    for series in &first.series {
        let title = series.variant.title();
        header.push(format!("{title} {unit}"));
        if !brief {
            header.push("min–max".to_owned());
        }
        if series.variant != Variant::Tcp {
            header.push("ratio".to_owned());
        }
    }
    if let Some(cost) = cost {
        for series in &first.series {
            header.push(format!("{} {cost}", series.variant.title()));
            if series.variant != Variant::Tcp {
                header.push("ratio".to_owned());
            }
        }
    }
    let mut rows = vec![header];
    rows.extend(points.iter().map(|point| row(point, brief, cost.is_some())));
    rows
}

fn row(point: &Point, brief: bool, with_cost: bool) -> Vec<String> {
    let mut cells = vec![point.spec.label.clone()];
    for series in &point.series {
        cells.push(match series.median {
            Some(median) => number(median),
            None => "failed".to_owned(),
        });
        if !brief {
            cells.push(range(series));
        }
        if series.variant != Variant::Tcp {
            let doubt = if point.is_doubtful(series) { "?" } else { "" };
            cells.push(ratio(series.ratio_to_tcp) + doubt);
        }
    }
    if with_cost {
        for series in &point.series {
            cells.push(series.cpu_cost.map_or_else(dash, number));
            if series.variant != Variant::Tcp {
                cells.push(ratio(series.cpu_cost_to_tcp));
            }
        }
    }
    cells
}

fn cost_title(unit: CostUnit) -> Option<&'static str> {
    match unit {
        CostUnit::Operation => Some("CPU µs/op"),
        CostUnit::Gigabyte => Some("CPU s/GB"),
        CostUnit::None => None,
    }
}

/// What "ratio" means in a group.
pub fn ratio_meaning(better: Better) -> &'static str {
    match better {
        Better::Higher => "higher is better; ratio: divided by TCP",
        Better::Lower => "lower is better; ratio: TCP divided by it",
    }
}

fn range(series: &Series) -> String {
    match (series.min, series.max) {
        (Some(min), Some(max)) => format!("{}–{}", number(min), number(max)),
        _ => dash(),
    }
}

fn dash() -> String {
    "–".to_owned()
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(dash, |ratio| {
        if ratio >= 10.0 {
            format!("{ratio:.1}×")
        } else {
            format!("{ratio:.2}×")
        }
    })
}

/// Three or four significant digits, thousands apart.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) = match plain.find('.') {
        Some(point) => plain.split_at(point),
        None => (plain.as_str(), ""),
    };
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// Columns side by side, two spaces apart, numbers to the right.
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
    fn numbers_keep_their_significant_digits() {
        assert_eq!(number(70_422.54), "70,423");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(16.53), "16.5");
        assert_eq!(number(0.0625), "0.062");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(-123.0), "-123");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a", "long"], vec!["µµµ", "1"]]
            .map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(aligned(&rows), "  a    long\n  µµµ     1\n");
    }

    #[test]
    fn missing_ratio_is_a_dash() {
        assert_eq!(ratio(None), "–");
        assert_eq!(ratio(Some(15.26)), "15.3×");
        assert_eq!(ratio(Some(0.979)), "0.98×");
    }
}
