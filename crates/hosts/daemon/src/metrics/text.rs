//! The two text formats: Prometheus' own, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>), and OpenMetrics 1.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::fmt::Write as _;

use super::{Family, Kind};

/// How figures are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// For the header of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All of it.
pub fn render(families: &[Family], format: Format) -> String {
    let mut out = String::with_capacity(8192);
    for family in families {
        family_text(&mut out, family, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn family_text(out: &mut String, family: &Family, format: Format) {
    let suffix = match family.kind {
        Kind::Counter => "_total",
        Kind::Gauge => "",
    };
    // In the older format a family is called like its values, in the newer one they have an end of
    // their own.
    let own = match format {
        Format::Prometheus => suffix,
        Format::OpenMetrics => "",
    };
    let kind = match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let name = family.name;
    // Writing to a String cannot fail.
    let _ = write!(out, "# HELP {name}{own} ");
    escape(out, family.help, format == Format::OpenMetrics);
    let _ = writeln!(out, "\n# TYPE {name}{own} {kind}");
    if format == Format::OpenMetrics && !family.unit.is_empty() {
        let _ = writeln!(out, "# UNIT {name} {}", family.unit);
    }
    for sample in &family.samples {
        let _ = write!(out, "{name}{suffix}");
        if !sample.labels.is_empty() {
            out.push('{');
            for (at, (label, value)) in sample.labels.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                let _ = write!(out, "{comma}{label}=\"");
                escape(out, value, true);
                out.push('"');
            }
            out.push('}');
        }
        let _ = writeln!(out, " {}", sample.value);
    }
}

/// Peers name themselves: what they say must stay one label of one line.
fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        vec![
            Family::counter("sluice_peer_sent_bytes", "Bytes \\ sent.")
                .with(vec![("peer", "a\"b\\c\nd".to_owned())], 5.0)
                .with(vec![("peer", "e".to_owned()), ("x", "y".to_owned())], 1e18),
            Family::gauge("sluice_lanes_in_use", "Lanes.").value(3.0),
        ]
    }

    #[test]
    fn the_format_of_prometheus() {
        let text = render(&families(), Format::Prometheus);
        assert_eq!(
            text,
            "# HELP sluice_peer_sent_bytes_total Bytes \\\\ sent.\n\
             # TYPE sluice_peer_sent_bytes_total counter\n\
             sluice_peer_sent_bytes_total{peer=\"a\\\"b\\\\c\\nd\"} 5\n\
             sluice_peer_sent_bytes_total{peer=\"e\",x=\"y\"} 1000000000000000000\n\
             # HELP sluice_lanes_in_use Lanes.\n\
             # TYPE sluice_lanes_in_use gauge\n\
             sluice_lanes_in_use 3\n"
        );
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        let text = render(&families(), Format::OpenMetrics);
        assert!(text.contains("# TYPE sluice_peer_sent_bytes counter\n"));
        assert!(text.contains("# UNIT sluice_peer_sent_bytes bytes\n"));
        assert!(text.contains("sluice_peer_sent_bytes_total{peer=\"e\",x=\"y\"} 1"));
        assert!(!text.contains("# UNIT sluice_lanes_in_use"));
        assert!(text.ends_with("\n# EOF\n"));
    }
}
