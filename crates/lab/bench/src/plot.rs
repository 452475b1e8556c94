//! Plots as SVG text: curves for points with a place on an axis, bars for the others.

use std::fmt::Write;

use super::figures::number;
use super::model::{Point, PointSpec, Series, Variant};

const WIDTH: f64 = 760.0;
const MARGIN_LEFT: f64 = 70.0;
const MARGIN_RIGHT: f64 = 20.0;
const CURVE_HEIGHT: f64 = 320.0;
const CURVE_TOP: f64 = 34.0;
const LEGEND_ROW: f64 = 20.0;
const CURVE_BOTTOM: f64 = 46.0;
const BAR_HEIGHT: f64 = 16.0;
const BAR_GAP: f64 = 14.0;
const BAR_LABELS: f64 = 200.0;
const BAR_VALUES: f64 = 130.0;
/// From this quotient of largest and smallest on, an axis of places is logarithmic.
const LOG_FROM: f64 = 20.0;
/// Labels nearer to each other than this many pixels are left out.
const LABEL_DISTANCE: f64 = 26.0;

/// A plot of one group of points, or nothing if no point has a result.
pub fn render(points: &[&Point]) -> String {
    let has_values = points
        .iter()
        .flat_map(|point| &point.series)
        .any(|series| series.median.is_some());
    if !has_values {
        return String::new();
    }
    if points.len() > 2 && points.iter().all(|point| point.spec.x.is_some()) {
        curve(points)
    } else {
        bars(points)
    }
}

fn colour(variant: Variant) -> &'static str {
    match variant {
        Variant::Tcp => "#7a7f87",
        Variant::Unix => "#2f7fc1",
        Variant::Sluice => "#d9480f",
        Variant::ServerOnly => "#2b8a3e",
        Variant::ClientOnly => "#ae3ec9",
        Variant::Verbs => "#d9480f",
        Variant::VerbsPrivate => "#f08c00",
        Variant::UcxPosix => "#2f7fc1",
        Variant::UcxCma => "#74c0fc",
        Variant::Libfabric => "#2b8a3e",
        Variant::Memcpy => "#7a7f87",
        Variant::TcpPolling => "#adb5bd",
        Variant::RoceXdp => "#d9480f",
        Variant::RoceUdp => "#f08c00",
        Variant::Iwarp => "#ae3ec9",
        Variant::RawXdp => "#2b8a3e",
        Variant::Rxe => "#7a7f87",
        Variant::RxeOneDevice => "#adb5bd",
        Variant::VerbsShm => "#2b8a3e",
        Variant::SluiceRings => "#f08c00",
        Variant::Window | Variant::VerbsWindow => "#d9480f",
        Variant::WindowDelayed | Variant::VerbsWindowDelayed => "#f08c00",
        Variant::WindowDaemons => "#2b8a3e",
        Variant::WindowDaemonsDelayed => "#82c91e",
        Variant::SluiceCaptured => "#f08c00",
        Variant::CaptureByDefault => "#2b8a3e",
        Variant::SkMsg => "#2f7fc1",
        Variant::TwoProxies => "#2f7fc1",
    }
}

fn open_svg(height: f64, name: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(name)
    )
}

/// Where each series' mark is, from the left and from the top: in as many rows as they need.
fn legend_places(points: &[&Point]) -> Vec<(f64, f64)> {
    let Some(first) = points.first() else {
        return Vec::new();
    };
    let (mut x, mut y) = (MARGIN_LEFT, 6.0);
    let place = |series: &Series| {
        let width = 40.0 + 8.0 * series.variant.title().len() as f64;
        if x > MARGIN_LEFT && x + width > WIDTH {
            (x, y) = (MARGIN_LEFT, y + LEGEND_ROW);
        }
        let place = (x, y);
        x += width;
        place
    };
    first.series.iter().map(place).collect()
}

/// What the rows of the legend behind the first push down.
fn legend_extra(points: &[&Point]) -> f64 {
    legend_places(points).last().map_or(0.0, |(_, y)| y - 6.0)
}

/// The picture below it is to be drawn in the group that this begins.
fn legend(svg: &mut String, points: &[&Point]) {
    let Some(first) = points.first() else { return };
    for (series, (x, y)) in first.series.iter().zip(legend_places(points)) {
        let fill = colour(series.variant);
        let title = series.variant.title();
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"12\" height=\"12\" fill=\"{fill}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{title}</text>",
            x + 17.0,
            y + 10.0,
        );
    }
    let _ = writeln!(
        svg,
        "<g transform=\"translate(0 {:.0})\">",
        legend_extra(points)
    );
}

/// Maps a value to pixels, linearly or by its logarithm.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    pixel_from: f64,
    pixel_to: f64,
}

impl Axis {
    fn pixel(self, value: f64) -> f64 {
        let place = |value: f64| {
            if self.logarithmic { value.ln() } else { value }
        };
        let span = place(self.to) - place(self.from);
        let share = if span > 0.0 {
            (place(value) - place(self.from)) / span
        } else {
            0.5
        };
        self.pixel_from + share * (self.pixel_to - self.pixel_from)
    }
}

fn curve(points: &[&Point]) -> String {
    let height = CURVE_HEIGHT + legend_extra(points);
    let mut svg = open_svg(height, &points[0].spec.group);
    legend(&mut svg, points);
    let xs: Vec<f64> = points.iter().filter_map(|point| point.spec.x).collect();
    let (from, to) = bounds(&xs);
    let x_axis = Axis {
        from,
        to,
        logarithmic: from > 0.0 && to / from >= LOG_FROM,
        pixel_from: MARGIN_LEFT + 12.0,
        pixel_to: WIDTH - MARGIN_RIGHT - 12.0,
    };
    let step = nice_step(largest(points) / 4.5);
    let y_to = (largest(points) / step).ceil() * step;
    let y_axis = Axis {
        from: 0.0,
        to: y_to,
        logarithmic: false,
        pixel_from: CURVE_HEIGHT - CURVE_BOTTOM,
        pixel_to: CURVE_TOP,
    };
    grid(&mut svg, y_axis, step, points[0].spec.unit);
    let mut labelled_at = f64::NEG_INFINITY;
    for point in points {
        let Some(x) = point.spec.x.map(|x| x_axis.pixel(x)) else {
            continue;
        };
        if x - labelled_at >= LABEL_DISTANCE {
            let (y, label) = (
                CURVE_HEIGHT - CURVE_BOTTOM + 18.0,
                point.spec.x.unwrap_or(0.0),
            );
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
            );
            labelled_at = x;
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(MARGIN_LEFT, WIDTH),
        CURVE_HEIGHT - 8.0,
        escape(axis_title(points))
    );
    for index in 0..points[0].series.len() {
        line(&mut svg, points, index, x_axis, y_axis);
    }
    svg.push_str("</g></svg>\n");
    svg
}

/// What the places are numbers of: the words behind them in the last label, which is of several.
fn axis_title<'a>(points: &[&'a Point]) -> &'a str {
    let label = points.last().map_or("", |point| &point.spec.label);
    label.split_once(' ').map_or("", |(_, words)| words)
}

fn grid(svg: &mut String, axis: Axis, step: f64, unit: &str) {
    let mut value = 0.0;
    while value <= axis.to * 1.001 {
        let y = axis.pixel(value);
        let (right, left, text_y) = (WIDTH - MARGIN_RIGHT, MARGIN_LEFT - 8.0, y + 4.0);
        let label = number(value);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{MARGIN_LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{left}\" y=\"{text_y:.1}\" text-anchor=\"end\">{label}</text>"
        );
        value += step;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"16\" text-anchor=\"end\">{}</text>",
        WIDTH - MARGIN_RIGHT,
        escape(unit)
    );
}

/// One variant: a line through the medians, with a whisker from the least to the greatest.
fn line(svg: &mut String, points: &[&Point], index: usize, x_axis: Axis, y_axis: Axis) {
    let stroke = colour(points[0].series[index].variant);
    let mut path = String::new();
    let mut marks = String::new();
    for point in points {
        let Some(series) = point.series.get(index) else {
            continue;
        };
        let (Some(x), Some(median)) = (point.spec.x, series.median) else {
            continue;
        };
        let (x, y) = (x_axis.pixel(x), y_axis.pixel(median));
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{x:.1} {y:.1} ");
        if let (Some(min), Some(max)) = (series.min, series.max) {
            let (low, high) = (y_axis.pixel(min), y_axis.pixel(max));
            let _ = writeln!(
                marks,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{stroke}\"/>"
            );
        }
        let _ = writeln!(
            marks,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{stroke}\"><title>{}</title></circle>",
            escape(&described(point, series))
        );
    }
    let _ = writeln!(
        svg,
        "<path d=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\"/>",
        path.trim_end()
    );
    svg.push_str(&marks);
}

fn described(point: &Point, series: &Series) -> String {
    format!(
        "{}, {}: {} {}",
        point.spec.label,
        series.variant.title(),
        series.median.map_or_else(String::new, number),
        point.spec.unit
    )
}

fn bars(points: &[&Point]) -> String {
    let block = |point: &Point| point.series.len() as f64 * (BAR_HEIGHT + 3.0) + BAR_GAP;
    let height =
        CURVE_TOP + legend_extra(points) + points.iter().map(|point| block(point)).sum::<f64>();
    let mut svg = open_svg(height, &points[0].spec.group);
    legend(&mut svg, points);
    let axis = Axis {
        from: 0.0,
        to: largest(points),
        logarithmic: false,
        pixel_from: BAR_LABELS,
        pixel_to: WIDTH - BAR_VALUES,
    };
    let mut y = CURVE_TOP;
    for point in points {
        let middle = y + (block(point) - BAR_GAP) / 2.0 + 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            BAR_LABELS - 8.0,
            escape(&point.spec.label)
        );
        for series in &point.series {
            bar(&mut svg, series, &point.spec, axis, y);
            y += BAR_HEIGHT + 3.0;
        }
        y += BAR_GAP;
    }
    svg.push_str("</g></svg>\n");
    svg
}

fn bar(svg: &mut String, series: &Series, spec: &PointSpec, axis: Axis, y: f64) {
    let fill = colour(series.variant);
    let text_y = y + BAR_HEIGHT - 4.0;
    let Some(median) = series.median else {
        let x = BAR_LABELS + 4.0;
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{text_y:.1}\">failed</text>");
        return;
    };
    let end = axis.pixel(median);
    let width = (end - BAR_LABELS).max(1.0);
    let ratio = match (series.variant, series.paired_ratio) {
        (variant, _) if variant == spec.baseline => None,
        (_, Some(ratio)) if spec.paired => Some(format!(" ({:.3}×)", ratio.median)),
        _ => series.ratio.map(|ratio| format!(" ({ratio:.2}×)")),
    };
    let ratio = ratio.unwrap_or_default();
    let _ = writeln!(
        svg,
        "<rect x=\"{BAR_LABELS}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{fill}\"/>\
         <text x=\"{:.1}\" y=\"{text_y:.1}\">{}{ratio}</text>",
        BAR_LABELS + width + 6.0,
        number(median)
    );
}

fn largest(points: &[&Point]) -> f64 {
    let values = points.iter().flat_map(|point| &point.series);
    let largest = values.filter_map(|series| series.max).fold(0.0, f64::max);
    // Bars of nothing but zeros still need an axis.
    if largest > 0.0 { largest } else { 1.0 }
}

fn bounds(values: &[f64]) -> (f64, f64) {
    let from = values.iter().copied().fold(f64::INFINITY, f64::min);
    let to = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (from, to)
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `wanted`.
fn nice_step(wanted: f64) -> f64 {
    let power = 10_f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= wanted)
        .unwrap_or(10.0 * power)
}

/// Text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Better, CostUnit, Sample};

    fn point(x: Option<f64>, values: [f64; 2]) -> Point {
        let spec = PointSpec {
            group: "a<b".to_owned(),
            label: "1 of l&m".to_owned(),
            x,
            unit: "requests/s",
            better: Better::Higher,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: Variant::Tcp,
        };
        let mut point = Point::new(spec, &[Variant::Tcp, Variant::Sluice]);
        for (series, value) in point.series.iter_mut().zip(values) {
            series.samples.push(Sample {
                value,
                ..Sample::default()
            });
        }
        point.summarise();
        point
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(nice_step(1.0), 1.0);
        assert_eq!(nice_step(30_000.0), 50_000.0);
        assert_eq!(nice_step(70.0), 100.0);
        assert_eq!(nice_step(0.15), 0.2);
    }

    #[test]
    fn logarithmic_axis_puts_the_geometric_mean_in_the_middle() {
        let axis = Axis {
            from: 1.0,
            to: 100.0,
            logarithmic: true,
            pixel_from: 0.0,
            pixel_to: 200.0,
        };
        assert!((axis.pixel(10.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn places_make_curves_and_labels_make_bars() {
        let places: Vec<Point> = [1.0, 10.0, 100.0]
            .map(|x| point(Some(x), [x, 2.0 * x]))
            .into();
        let svg = render(&places.iter().collect::<Vec<_>>());
        assert_eq!(svg.matches("<path ").count(), 2, "{svg}");
        assert_eq!(svg.matches("<circle ").count(), 6, "{svg}");
        assert!(svg.contains(">of l&amp;m</text>"), "{svg}");
        let labels = [point(None, [1.0, 3.0])];
        let svg = render(&labels.iter().collect::<Vec<_>>());
        assert!(svg.contains("(3.00×)") && svg.contains("l&amp;m"), "{svg}");
        assert!(!svg.contains("a<b"), "{svg}");
    }

    #[test]
    fn long_legends_take_several_rows_within_the_picture() {
        let one = point(None, [1.0, 1.0]);
        let variants = [
            Variant::Tcp,
            Variant::Unix,
            Variant::Sluice,
            Variant::ServerOnly,
            Variant::ClientOnly,
            Variant::Verbs,
            Variant::VerbsPrivate,
            Variant::UcxPosix,
            Variant::UcxCma,
            Variant::Libfabric,
            Variant::Memcpy,
            Variant::TcpPolling,
            Variant::RoceXdp,
            Variant::RoceUdp,
        ];
        let mut many = Point::new(one.spec.clone(), &variants);
        for series in &mut many.series {
            series.samples.push(Sample {
                value: 1.0,
                ..Sample::default()
            });
        }
        many.summarise();
        let places = legend_places(&[&many]);
        let ends = places.iter().zip(&many.series);
        let mut before = (0.0, 0.0);
        for ((x, y), series) in ends {
            let end = x + 17.0 + 8.0 * series.variant.title().len() as f64;
            assert!(end <= WIDTH || *x == MARGIN_LEFT, "{x} {y}");
            assert!(*y > before.1 || *x >= before.0, "{x} {y} over {before:?}");
            before = (end, *y);
        }
        assert!(legend_extra(&[&many]) >= LEGEND_ROW);
        let svg = render(&[&many]);
        assert!(svg.contains("translate(0 "), "{svg}");
    }

    #[test]
    fn nothing_measured_is_no_plot() {
        let mut empty = point(None, [1.0, 1.0]);
        for series in &mut empty.series {
            series.median = None;
        }
        assert_eq!(render(&[&empty]), "");
    }
}
