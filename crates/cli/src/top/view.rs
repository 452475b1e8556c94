//! How `sluice top` looks: totals, a table, the selected connection in full, the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Clear, Paragraph};

use super::model::{Model, Rates, Row};
use super::verbs;
use crate::status::layout::{Column, Keep, fit, line, titles};
use crate::terminal::harmless;
use crate::units;

const COLUMNS: [Column; 13] = [
    Column::left("PROGRAM").shrinks_to(12, Keep::Both),
    Column::left("LOCAL").shrinks_to(13, Keep::End),
    Column::left("PEER").shrinks_to(13, Keep::End),
    Column::left("PEER PROGRAM")
        .sacrifice(2)
        .shrinks_to(12, Keep::Both),
    Column::left("PATH"),
    Column::right("LANE-IN"),
    Column::right("LANE-OUT"),
    Column::right("TCP-IN"),
    Column::right("TCP-OUT"),
    Column::right("SWITCH").sacrifice(5),
    Column::right("SLEEPS").sacrifice(4),
    Column::right("SPINS").sacrifice(3),
    Column::left("WHY TCP")
        .sacrifice(1)
        .shrinks_to(12, Keep::Start),
];

/// Whether colours may be used, besides bold and reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    pub colour: bool,
}

impl Palette {
    fn colour(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

/// A rate as text, rounded down as all figures here are.
fn bytes(rate: f64) -> String {
    units::bytes(rate as u64)
}

fn count(rate: f64) -> String {
    units::count(rate as u64)
}

fn cells(row: &Row) -> Vec<String> {
    let connection = &row.connection;
    let Rates {
        lane_in,
        lane_out,
        tcp_in,
        tcp_out,
        switches,
        sleeps,
        spins,
    } = row.rates;
    vec![
        harmless(&format!("{}[{}]", row.program, row.pid)),
        harmless(&connection.local),
        harmless(&connection.peer),
        harmless(&connection.peer_name()),
        connection.path().to_owned(),
        bytes(lane_in),
        bytes(lane_out),
        bytes(tcp_in),
        bytes(tcp_out),
        count(switches),
        count(sleeps),
        count(spins),
        harmless(connection.why_tcp()),
    ]
}

/// Rows of the table that a screen of this height has room for.
pub fn table_rows(height: u16) -> usize {
    usize::from(height.saturating_sub(7))
}

/// Hosts that get a line of their own, and devices of verbs processes.
const HOSTS_MAX: usize = 4;
const DEVICES_MAX: usize = 4;

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model, palette: Palette) {
    let hosts_shown = model.hosts.len().min(HOSTS_MAX);
    let devices_shown = model.verbs.rows.len().min(DEVICES_MAX);
    let [
        summary,
        daemons,
        hosts,
        devices,
        heading,
        table,
        detail,
        keys,
    ] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(hosts_shown as u16),
        Constraint::Length(devices_shown as u16),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Clear, frame.area());
    frame.render_widget(totals(model), summary);
    frame.render_widget(daemon_line(model, palette), daemons);
    frame.render_widget(host_lines(model, hosts_shown), hosts);
    frame.render_widget(device_lines(&model.verbs.rows, devices_shown), devices);

    let rows = model.shown();
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row)).collect();
    let widths = fit(&COLUMNS, &cells, Some(usize::from(table.width)));
    let bar = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(
        Paragraph::new(titles(&COLUMNS, &widths)).style(bar),
        heading,
    );

    if rows.is_empty() {
        let text = if model.filter.is_empty() {
            "No connections. Start programs with 'sluice run -- PROGRAM'."
        } else {
            "No connection matches the filter."
        };
        frame.render_widget(Paragraph::new(text), table);
    }
    let room = usize::from(table.height);
    let first = model.selected.saturating_sub(room.saturating_sub(1));
    for (place, row) in rows.iter().enumerate().skip(first).take(room) {
        let text = line(&COLUMNS, &widths, &cells[place]);
        let mut style = if row.connection.on_lane() {
            palette.colour(Color::Green)
        } else {
            Style::new()
        };
        if place == model.selected {
            style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        }
        // At most as many as the terminal has lines.
        let offset = u16::try_from(place - first).unwrap_or(u16::MAX);
        let area = Rect {
            y: table.y.saturating_add(offset),
            height: 1,
            ..table
        };
        frame.render_widget(Paragraph::new(text).style(style), area);
    }
    if let Some(row) = rows.get(model.selected) {
        frame.render_widget(Paragraph::new(details(row)), detail);
    }
    frame.render_widget(key_line(model), keys);
}

fn totals(model: &Model) -> Paragraph<'static> {
    let (ends, laned, sum) = model.totals();
    let mut spans = vec![
        Span::styled("sluice top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            "  {}, {laned} on a lane  lane/s {} in {} out  tcp/s {} in {} out",
            units::plural(ends as u64, "end"),
            bytes(sum.lane_in),
            bytes(sum.lane_out),
            bytes(sum.tcp_in),
            bytes(sum.tcp_out),
        )),
    ];
    if model.paused {
        spans.push(Span::styled(
            "  PAUSED",
            Style::new().add_modifier(Modifier::REVERSED),
        ));
    }
    Paragraph::new(Line::from(spans))
}

fn daemon_line(model: &Model, palette: Palette) -> Paragraph<'static> {
    match (model.error(), model.daemons.as_slice()) {
        (Some(error), _) => Paragraph::new(harmless(error)).style(palette.colour(Color::Red)),
        (None, [one]) => Paragraph::new(one.clone()),
        (None, many) => Paragraph::new(units::plural(many.len() as u64, "daemon")),
    }
}

/// The busiest hosts.
fn host_lines(model: &Model, shown: usize) -> Paragraph<'static> {
    let lines = model.hosts.iter().take(shown).map(|host| {
        Line::raw(format!(
            "  host {}: link {}, {}, /s {} in {} out",
            harmless(&host.name),
            harmless(&host.link),
            units::plural(host.lanes, "lane"),
            bytes(host.received),
            bytes(host.sent),
        ))
    });
    Paragraph::new(Text::from(lines.collect::<Vec<Line<'static>>>()))
}

/// The busiest devices of verbs processes.
fn device_lines(rows: &[verbs::Row], shown: usize) -> Paragraph<'static> {
    let lines = rows.iter().take(shown).map(|row| {
        let pid = row.pid.map_or("?".to_owned(), |pid| pid.to_string());
        let again = match row.repeated > 0.0 {
            true => format!(", {} packets again", count(row.repeated)),
            false => String::new(),
        };
        Line::raw(harmless(&format!(
            "  verbs {}[{pid}] {}: {}, /s {} in {} out, {} receives {} sends{again}, {}",
            row.program,
            row.device,
            row.queue_pairs,
            bytes(row.received_bytes),
            bytes(row.sent_bytes),
            count(row.receives),
            count(row.sends),
            row.over,
        )))
    });
    Paragraph::new(Text::from(lines.collect::<Vec<Line<'static>>>()))
}

/// The selected connection's totals, which the table has no room for.
fn details(row: &Row) -> Text<'static> {
    let c = &row.connection;
    let path = if c.on_lane() {
        "on a lane".to_owned()
    } else {
        format!("on TCP: {}", harmless(c.why_tcp()))
    };
    Text::from(vec![
        Line::raw(format!(
            "{}[{}]  {} - {} {}",
            harmless(&row.program),
            row.pid,
            harmless(&c.local),
            harmless(&c.peer),
            harmless(&c.peer_name()),
        )),
        Line::raw(path),
        Line::raw(format!(
            "lane {} in {} out, tcp {} in {} out, {}, {} sleeps, {} spins",
            units::bytes(c.lane_rx_bytes),
            units::bytes(c.lane_tx_bytes),
            units::bytes(c.tcp_rx_bytes),
            units::bytes(c.tcp_tx_bytes),
            units::plural(c.switches, "switch"),
            units::count(c.sleeps),
            units::count(c.spins),
        )),
    ])
}

fn key_line(model: &Model) -> Paragraph<'static> {
    if model.typing {
        return Paragraph::new(format!("filter: {}_", harmless(&model.filter)));
    }
    let order = if model.reverse { "reversed " } else { "" };
    let filter = if model.filter.is_empty() {
        "/ filter".to_owned()
    } else {
        format!("/ filter '{}'", harmless(&model.filter))
    };
    Paragraph::new(format!(
        "q quit  s sort by {order}{}  r reverse  {filter}  p pause",
        model.sort.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::look;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let palette = Palette { colour: false };
        terminal.draw(|frame| draw(frame, model, palette)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        (0..height)
            .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect())
            .collect()
    }

    fn model() -> Model {
        let mut model = Model::new();
        let connections: Vec<(&str, u64)> = (0..30).map(|n| ("lane", n)).collect();
        model.update(
            look(&[
                ("redis-server", 41_234, &connections),
                ("nc", 7, &[("tcp", 0)]),
            ]),
            Duration::ZERO,
        );
        model
    }

    #[test]
    fn a_small_terminal_shows_what_matters() {
        let lines = screen(&model(), 80, 24);
        assert!(lines[0].contains("31 ends, 30 on a lane"), "{lines:?}");
        for title in ["PROGRAM", "LOCAL", "PEER", "PATH", "LANE-IN", "TCP-OUT"] {
            assert!(lines[2].contains(title), "{title} in {}", lines[2]);
        }
        assert!(lines.iter().any(|line| line.contains("redis-")));
        assert!(lines[23].contains("q quit"));
    }

    #[test]
    fn a_wide_terminal_says_why() {
        let lines = screen(&model(), 200, 50);
        assert!(lines[2].contains("WHY TCP") && lines[2].contains("SPINS"));
        assert!(lines.iter().any(|line| line.contains("no reason given")));
    }

    #[test]
    fn the_selected_row_is_scrolled_into_view() {
        let mut model = model();
        model.select(100);
        let lines = screen(&model, 80, 24);
        let last = model.shown()[model.selected].connection.local.clone();
        assert!(lines[19].contains(&last[..9]), "{lines:?}");
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (10, 3), (80, 6), (3, 40)] {
            screen(&model(), width, height);
        }
    }

    #[test]
    fn verbs_processes_have_lines_of_their_own() {
        let mut model = model();
        let looks = [(0, Duration::ZERO), (1 << 20, Duration::from_secs(1))];
        for (bytes, elapsed) in looks {
            let look = super::verbs::tests::look(bytes >> 10, bytes);
            model.verbs.update(&look, elapsed);
        }
        let lines = screen(&model, 120, 24);
        let line = lines.iter().find(|line| line.contains("verbs"));
        let line = line.expect("a line");
        for part in [
            "ib_write_bw[7] sluice0: 2 RTS, 1 INIT",
            "1.0M out",
            "1.0k sends",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(lines[3].contains("PROGRAM"), "{lines:?}");
    }

    #[test]
    fn an_empty_screen_says_what_to_do() {
        let lines = screen(&Model::new(), 80, 24);
        assert!(
            lines
                .iter()
                .any(|line| line.contains("sluice run -- PROGRAM"))
        );
    }
}
