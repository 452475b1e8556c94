//! The chart that a page begins with: for each group of points how many times better Sluice was than what it is
//! compared with, on one axis for all of them.

use std::fmt::Write;

use super::model::{Point, Variant, WorkloadReport};
use super::plot::escape;
use super::stats::median;
use super::text;

const WIDTH: f64 = 760.0;
/// Names end left of the bars, and figures stand right of them.
const BARS_FROM: f64 = 330.0;
const BARS_TO: f64 = 600.0;
const TOP: f64 = 24.0;
const ROW: f64 = 22.0;
const BAR: f64 = 12.0;
/// Longer names are cut: what the font takes for a letter is not known here.
const NAME_CHARS_MAX: usize = 46;
const BETTER: &str = "#d9480f";
const WORSE: &str = "#7a7f87";

/// One group of points.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    variant: Variant,
    baseline: Variant,
    least: f64,
    median: f64,
    greatest: f64,
    points: usize,
}

/// The first variant that is Sluice and is not compared with itself.
fn of_sluice(points: &[&Point]) -> Option<Variant> {
    let point = points.first()?;
    let variants = point.series.iter().map(|series| series.variant);
    let mut ours = variants.filter(|it| it.is_sluice() && *it != point.spec.baseline);
    ours.next()
}

fn row(workload: &WorkloadReport, group: &str, points: &[&Point]) -> Option<Row> {
    let variant = of_sluice(points)?;
    let ratio = |point: &&Point| {
        let series = point.of(variant)?;
        let paired = series.paired_ratio.as_ref().map(|ratio| ratio.median);
        paired.filter(|_| point.spec.paired).or(series.ratio)
    };
    let ratios: Vec<f64> = points.iter().filter_map(ratio).collect();
    // The workload's name is said once where the group has it, too.
    let name = if group.contains(workload.name) {
        group.to_owned()
    } else {
        format!("{}: {group}", workload.name)
    };
    Some(Row {
        name,
        variant,
        baseline: points.first()?.spec.baseline,
        least: ratios.iter().copied().reduce(f64::min)?,
        median: median(&ratios)?,
        greatest: ratios.iter().copied().reduce(f64::max)?,
        points: ratios.len(),
    })
}

/// The chart, or nothing if Sluice was compared with nothing.
pub fn render(workloads: &[WorkloadReport]) -> String {
    let mut rows = Vec::new();
    for workload in workloads {
        let groups = text::groups(workload);
        rows.extend(
            groups
                .iter()
                .filter_map(|(group, points)| row(workload, group, points)),
        );
    }
    if rows.is_empty() {
        return String::new();
    }
    let least = rows.iter().map(|row| row.least).fold(0.5, f64::min);
    let greatest = rows.iter().map(|row| row.greatest).fold(2.0, f64::max);
    let (from, to) = (least.ln(), greatest.ln());
    let place = |ratio: f64| BARS_FROM + (ratio.ln() - from) / (to - from) * (BARS_TO - BARS_FROM);
    let height = TOP + ROW * rows.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"How many times better, for all workloads\">\n"
    );
    for tick in [0.1, 1.0, 10.0, 100.0, 1000.0] {
        if tick < least || tick > greatest {
            continue;
        }
        let x = place(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{height:.0}\"/>\
             <text x=\"{x:.1}\" y=\"14\" text-anchor=\"middle\">{tick}×</text>"
        );
    }
    for (number, row) in rows.iter().enumerate() {
        draw(&mut svg, row, TOP + ROW * number as f64, place);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, row: &Row, y: f64, place: impl Fn(f64) -> f64) {
    let mut name: String = row.name.chars().take(NAME_CHARS_MAX).collect();
    if name.len() < row.name.len() {
        name.push('…');
    }
    let (one, middle) = (place(1.0), place(row.median));
    let (x, width) = (one.min(middle), (one - middle).abs().max(1.0));
    let fill = if row.median >= 1.0 { BETTER } else { WORSE };
    let (text_y, bar_y, line_y) = (y + 15.0, y + 5.0, y + 5.0 + BAR / 2.0);
    let mut figures = times(row.median);
    if row.points > 1 {
        figures = format!(
            "{figures} ({} to {})",
            times(row.least),
            times(row.greatest)
        );
    }
    let compared = format!(
        "{}: {}, {} against {}",
        row.name,
        figures,
        row.variant.title(),
        row.baseline.title()
    );
    let _ = writeln!(
        svg,
        "<g><title>{}</title><text x=\"{:.0}\" y=\"{text_y:.0}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{x:.1}\" y=\"{bar_y:.0}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>",
        escape(&compared),
        BARS_FROM - 10.0,
        escape(&name),
    );
    if row.points > 1 {
        let (left, right) = (place(row.least), place(row.greatest));
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{line_y:.0}\" y2=\"{line_y:.0}\" stroke=\"currentColor\"/>"
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"{text_y:.0}\">{figures}</text></g>",
        BARS_TO + 10.0
    );
}

/// With as many digits as count.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 100.0 => format!("{ratio:.0}×"),
        ratio if ratio >= 10.0 => format!("{ratio:.1}×"),
        ratio => format!("{ratio:.2}×"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Better, CostUnit, PointSpec, Sample};

    fn point(label: &str, better: Better, values: &[(Variant, f64)]) -> Point {
        let spec = PointSpec {
            group: "requests <per> s".to_owned(),
            label: label.to_owned(),
            x: None,
            unit: "requests/s",
            better,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: Variant::Tcp,
        };
        let variants: Vec<Variant> = values.iter().map(|(variant, _)| *variant).collect();
        let mut point = Point::new(spec, &variants);
        for (series, (_, value)) in point.series.iter_mut().zip(values) {
            series.samples.push(Sample {
                value: *value,
                ..Sample::default()
            });
        }
        point.summarise();
        point
    }

    fn workload(points: Vec<Point>) -> WorkloadReport {
        WorkloadReport {
            name: "redis",
            title: "redis",
            about: "",
            skipped: None,
            missing: Vec::new(),
            points,
            commands: Vec::new(),
        }
    }

    /// Not of whatever comes second: that is a Unix socket.
    #[test]
    fn the_bar_is_that_of_sluice() {
        let all = [
            (Variant::Tcp, 10.0),
            (Variant::Unix, 20.0),
            (Variant::Sluice, 50.0),
            (Variant::ServerOnly, 9.0),
        ];
        let report = workload(vec![point("1", Better::Higher, &all)]);
        let groups = text::groups(&report);
        let row = row(&report, &groups[0].0, &groups[0].1).unwrap();
        assert_eq!(row.variant, Variant::Sluice);
        assert_eq!((row.least, row.median, row.greatest), (5.0, 5.0, 5.0));
        let svg = render(&[report]);
        assert!(svg.contains("5.00×") && !svg.contains("2.00×"), "{svg}");
        assert!(
            svg.contains("&lt;per&gt;") && svg.contains("Sluice against TCP"),
            "{svg}"
        );
    }

    #[test]
    fn a_group_has_its_middle_and_its_range() {
        let of = |label, sluice| {
            let values = [(Variant::Tcp, 40.0), (Variant::Sluice, sluice)];
            point(label, Better::Lower, &values)
        };
        let report = workload(vec![of("1", 10.0), of("2", 80.0), of("3", 20.0)]);
        let svg = render(&[report]);
        assert!(svg.contains(">2.00× (0.50× to 4.00×)<"), "{svg}");
        for tag in ["svg", "g", "text", "title"] {
            let opened =
                svg.matches(&format!("<{tag}>")).count() + svg.matches(&format!("<{tag} ")).count();
            assert_eq!(
                opened,
                svg.matches(&format!("</{tag}>")).count(),
                "{tag}: {svg}"
            );
        }
    }

    #[test]
    fn without_a_comparison_there_is_no_chart() {
        let alone = point(
            "1",
            Better::Higher,
            &[(Variant::Tcp, 1.0), (Variant::Unix, 2.0)],
        );
        assert_eq!(render(&[workload(vec![alone])]), "");
        assert_eq!(render(&[]), "");
        // What failed has no ratio.
        let mut failed = point(
            "1",
            Better::Higher,
            &[(Variant::Tcp, 1.0), (Variant::Sluice, 2.0)],
        );
        failed.series[1].ratio = None;
        assert_eq!(render(&[workload(vec![failed])]), "");
    }
}
