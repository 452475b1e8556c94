//! The tables of the report as rows of cells, the header first, for text and HTML alike.

use super::figures::{dash, number, ratio};
use super::model::{CostUnit, Point, Series, Variant};
use super::verdict::{Outcome, Verdict};

/// A cell of a cost table that has a floor.
pub const REACHED: &str = "ok";
pub const MISSED: &str = "miss";

/// Whether a table has the columns of least and greatest values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Shown,
    Hidden,
}

/// Medians and ratios of one group.
pub fn results(group: &str, points: &[&Point], ranges: Column) -> Vec<Vec<String>> {
    let Some(first) = points.first() else {
        return Vec::new();
    };
    let unit = first.spec.unit;
    let paired = first.spec.paired;
    // The spread that matters for pairs is that of their ratios; both would not fit on a page.
    let ranges = if paired { Column::Hidden } else { ranges };
    let mut header = vec![group.to_owned()];
    for series in &first.series {
        header.push(format!("{} {unit}", series.variant.title()));
        if ranges == Column::Shown {
            header.push("min–max".to_owned());
        }
        match series.variant {
            variant if variant == first.spec.baseline => {}
            _ if paired => header.extend(["paired ratio", "middle half"].map(str::to_owned)),
            _ => header.push("ratio".to_owned()),
        }
    }
    let row = |point: &&Point| {
        let mut cells = vec![point.spec.label.clone()];
        for series in &point.series {
            cells.push(series.median.map_or_else(|| "failed".to_owned(), number));
            if ranges == Column::Shown {
                cells.push(range(series));
            }
            if series.variant != point.spec.baseline {
                cells.extend(ratio_cells(point, series));
            }
        }
        cells
    };
    let mut rows = vec![header];
    rows.extend(points.iter().map(row));
    rows
}

fn ratio_cells(point: &Point, series: &Series) -> Vec<String> {
    let doubt = if point.is_doubtful(series) { "?" } else { "" };
    if !point.spec.paired {
        return vec![ratio(series.ratio) + doubt];
    }
    let Some(paired) = series.paired_ratio else {
        return vec![dash(), dash()];
    };
    let (lower, upper) = (paired.lower_quartile, paired.upper_quartile);
    vec![
        format!("{:.3}×{doubt}", paired.median),
        format!("{lower:.3}–{upper:.3}"),
    ]
}

/// CPU costs of one group and whether lanes cost less than TCP; `None` if the group has no costs.
pub fn costs(group: &str, points: &[&Point]) -> Option<Vec<Vec<String>>> {
    let first = points.first()?;
    let unit = cost_title(first.spec.cost_unit)?;
    let mut header = vec![format!("{group}: {unit}")];
    for series in &first.series {
        header.push(series.variant.title().to_owned());
        if series.variant != first.spec.baseline {
            header.push("ratio".to_owned());
        }
        if series.variant == Variant::Sluice {
            header.push("below TCP's".to_owned());
        }
    }
    let row = |point: &&Point| {
        let mut cells = vec![point.spec.label.clone()];
        for series in &point.series {
            cells.push(series.cpu_cost.map_or_else(dash, number));
            if series.variant != point.spec.baseline {
                cells.push(ratio(series.cpu_cost_ratio));
            }
            if series.variant == Variant::Sluice {
                cells.push(series.cpu_cost_ratio.map_or_else(dash, |ratio| {
                    if ratio < 1.0 { REACHED } else { MISSED }.to_owned()
                }));
            }
        }
        cells
    };
    let mut rows = vec![header];
    rows.extend(points.iter().map(row));
    Some(rows)
}

fn cost_title(unit: CostUnit) -> Option<&'static str> {
    match unit {
        CostUnit::Operation => Some("CPU µs per operation"),
        CostUnit::Gigabyte => Some("CPU s per GB"),
        CostUnit::None => None,
    }
}

/// Every floor with what was measured.
pub fn verdicts(verdicts: &[Verdict]) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["what", "floor", "outcome", "measured"]
            .map(str::to_owned)
            .into(),
    ];
    rows.extend(verdicts.iter().map(|verdict| {
        let doubt = if verdict.doubtful { " ?" } else { "" };
        vec![
            verdict.what.clone(),
            verdict.floor.clone(),
            format!("{}{doubt}", verdict.outcome.title()),
            verdict.measured.clone(),
        ]
    }));
    rows
}

/// One line that counts the outcomes, and explains the question mark if there is one.
pub fn tally(verdicts: &[Verdict]) -> String {
    let outcomes = [
        Outcome::Ok,
        Outcome::BelowFloor,
        Outcome::Failed,
        Outcome::NotRun,
    ];
    let counts: Vec<String> = outcomes
        .into_iter()
        .map(|outcome| {
            let count = verdicts.iter().filter(|v| v.outcome == outcome).count();
            format!("{count} {}", outcome.title())
        })
        .collect();
    let doubt = if verdicts.iter().any(|verdict| verdict.doubtful) {
        " (?: other programs disturbed the runs)"
    } else {
        ""
    };
    format!("{}{doubt}", counts.join(", "))
}

/// Whether a column holds words, to be aligned to the left: no cell below its header begins with
/// a digit, or cells are too long to be figures.
pub fn is_words(rows: &[Vec<String>], column: usize) -> bool {
    const FIGURES_MAX: usize = 24;
    let cells = || rows.iter().skip(1).filter_map(|row| row.get(column));
    let is_text = |cell: &String| cell.starts_with(char::is_alphabetic) && cell != "failed";
    cells().any(|cell| cell.chars().count() > FIGURES_MAX) || cells().any(is_text)
}

fn range(series: &Series) -> String {
    match (series.min, series.max) {
        (Some(min), Some(max)) => format!("{}–{}", number(min), number(max)),
        _ => dash(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Better, PointSpec, Sample};

    fn point(cost_unit: CostUnit, paired: bool, cpu_sluice_s: f64) -> Point {
        let spec = PointSpec {
            group: "g".to_owned(),
            label: "l".to_owned(),
            x: None,
            unit: "requests/s",
            better: Better::Higher,
            cost_unit,
            paired,
            baseline: Variant::Tcp,
        };
        let mut point = Point::new(spec, &[Variant::Tcp, Variant::Sluice]);
        for (series, cpu_client_s) in point.series.iter_mut().zip([1.0, cpu_sluice_s]) {
            series.samples = vec![Sample {
                value: 100.0,
                cpu_client_s,
                operations: 1e6,
                bytes: 1e9,
                ..Sample::default()
            }];
        }
        point.summarise();
        point
    }

    #[test]
    fn missing_ratio_is_a_dash() {
        assert_eq!(ratio(None), "–");
        assert_eq!(ratio(Some(15.26)), "15.3×");
        assert_eq!(ratio(Some(0.979)), "0.98×");
    }

    #[test]
    fn cost_below_and_above_that_of_tcp() {
        let last = |cpu_s| {
            let point = point(CostUnit::Operation, false, cpu_s);
            let rows = costs("g", &[&point]).expect("it has costs");
            rows[1].last().cloned()
        };
        assert_eq!(last(0.5).as_deref(), Some(REACHED));
        assert_eq!(last(1.0).as_deref(), Some(MISSED));
        let per_gb = point(CostUnit::Gigabyte, false, 0.5);
        let rows = costs("g", &[&per_gb]).expect("it has costs");
        assert_eq!(rows[0][0], "g: CPU s per GB");
        assert_eq!(costs("g", &[&point(CostUnit::None, false, 0.5)]), None);
    }

    #[test]
    fn paired_points_show_their_spread() {
        let paired = point(CostUnit::None, true, 1.0);
        let rows = results("g", &[&paired], Column::Hidden);
        assert_eq!(rows[0].last().map(String::as_str), Some("middle half"));
        assert_eq!(rows[1][3..], ["1.000×", "1.000–1.000"]);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }
}
