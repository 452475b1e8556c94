//! Other hosts as a table: who is there, how the fabric reaches them, and what went over it.

use std::fmt::Write as _;

use super::layout::{Column, Keep, fit_with_reasons, line, titles};
use crate::document::{Captured, Fabric, Handshakes, Peer};
use crate::terminal::{Style, harmless};
use crate::units;

const COLUMNS: [Column; 10] = [
    Column::left("HOST").shrinks_to(12, Keep::Start),
    Column::left("ADDRESS").shrinks_to(15, Keep::End),
    Column::right("UP").sacrifice(4),
    Column::left("LINK"),
    Column::right("LANES"),
    Column::right("WAITING").sacrifice(3),
    Column::right("IN"),
    Column::right("OUT"),
    Column::right("LOSSES").sacrifice(2),
    Column::left("WHY").sacrifice(1).shrinks_to(10, Keep::Start),
];
const INDENT: usize = 2;

/// `lanes to other hosts by roce from 10.0.0.1: 3 of 65536 in use, 1 of 2 hosts up`.
pub fn heading(fabric: &Fabric) -> String {
    let up = fabric.peers.iter().filter(|peer| peer.is_up).count();
    format!(
        "lanes to other hosts by {} from {}: {} of {} in use, {up} of {} up",
        harmless(&fabric.device),
        harmless(&fabric.address),
        fabric.lanes.in_use,
        fabric.lanes.max,
        units::plural(fabric.peers.len() as u64, "host"),
    )
}

/// `captured: 3 open of 120, 2 of them direct, 0 lost; for other hosts 1 open of 40, 0 refused`.
fn captured(captured: &Captured) -> String {
    format!(
        "captured: {} open of {}, {} of them direct, {} lost; for other hosts {} open of {}, {} refused",
        units::count(captured.open),
        units::count(captured.captured),
        units::count(captured.direct),
        units::count(captured.lost),
        units::count(captured.served_open),
        units::count(captured.served),
        units::count(captured.refused),
    )
}

/// `why: 2 left terms, 1 refused port`; none: there is nothing to say.
fn reasons(captured: &Captured) -> Option<String> {
    let all = captured.reasons.iter().filter(|(_, count)| **count > 0);
    let all: Vec<String> = all
        .map(|(reason, count)| {
            let words = harmless(reason).replace('_', " ");
            format!("{} {words}", units::count(*count))
        })
        .collect();
    (!all.is_empty()).then(|| format!("why: {}", all.join(", ")))
}

/// `handshakes: 40 found, 3 not, 1 echoed, 0 foreign, 0 unheard; 5 ends did not ask`.
fn handshakes(seen: &Handshakes) -> String {
    if !seen.in_use {
        let reason = harmless(seen.reason.as_deref().unwrap_or("not known"));
        return format!("handshakes: the option is not used, every host is asked: {reason}");
    }
    let mut text = format!(
        "handshakes: {} found, {} not, {} echoed, {} foreign, {} unheard; {} did not ask",
        units::count(seen.can),
        units::count(seen.cannot),
        units::count(seen.echoed),
        units::count(seen.foreign),
        units::count(seen.unheard),
        units::plural(seen.not_asked, "end"),
    );
    if seen.left_alone > 0 {
        let addresses = match seen.left_alone {
            1 => "1 address".to_owned(),
            count => format!("{} addresses", units::count(count)),
        };
        let _ = write!(text, "; {addresses} without the option for a while");
    }
    text
}

fn cells(peer: &Peer) -> Vec<String> {
    let why = match (&peer.link_failure, peer.is_up) {
        (Some(why), true) => why.clone(),
        (_, true) => String::new(),
        (_, false) => "no control connection: 'sluice doctor --peer ADDRESS' says why".to_owned(),
    };
    vec![
        harmless(&peer.name),
        harmless(peer.address.as_deref().unwrap_or("-")),
        peer.up_s.map_or("-".to_owned(), units::seconds),
        link(peer),
        units::count(peer.lanes),
        units::count(peer.waiting),
        units::bytes(peer.received_bytes),
        units::bytes(peer.sent_bytes),
        units::count(peer.link_losses),
        harmless(&why),
    ]
}

/// `up`, or `up 2/3` where it consists of several queue pairs.
fn link(peer: &Peer) -> String {
    let pairs = &peer.queue_pairs;
    let up = pairs.iter().filter(|it| it.link == "up").count();
    match pairs.len() {
        0 | 1 => harmless(&peer.link),
        all => format!("{} {up}/{all}", harmless(&peer.link)),
    }
}

/// The heading, and the table if there are hosts. `limit`: the width that lines may have.
pub fn render(fabric: &Fabric, style: Style, limit: Option<usize>) -> String {
    let mut text = format!("{}\n", style.dim(&heading(fabric)));
    if let Some(seen) = &fabric.option {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", style.dim(&handshakes(seen)));
    }
    if let Some(counts) = &fabric.captured {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", style.dim(&captured(counts)));
        if let Some(reasons) = reasons(counts) {
            let _ = writeln!(text, "{}", style.dim(&reasons));
        }
    }
    if let Some(why) = &fabric.left_to_tcp {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", style.dim(&harmless(why)));
    }
    if fabric.peers.is_empty() {
        return text;
    }
    let rows: Vec<Vec<String>> = fabric.peers.iter().map(cells).collect();
    let limit = limit.map(|limit| limit.saturating_sub(INDENT));
    let widths = fit_with_reasons(&COLUMNS, &rows, limit);
    let indent = " ".repeat(INDENT);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{indent}{}", style.dim(&titles(&COLUMNS, &widths)));
    for row in &rows {
        let _ = writeln!(text, "{indent}{}", line(&COLUMNS, &widths, row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Lanes, QueuePair};

    fn fabric() -> Fabric {
        let peer = |name: &str, is_up| Peer {
            name: name.to_owned(),
            address: Some("10.0.0.2:4797".to_owned()),
            is_up,
            up_s: is_up.then_some(185),
            link: if is_up { "up" } else { "down" }.to_owned(),
            lanes: 3,
            received_bytes: 123_456_789,
            ..Peer::default()
        };
        Fabric {
            device: "roce".to_owned(),
            address: "10.0.0.1".to_owned(),
            threads: 1,
            lanes: Lanes {
                in_use: 3,
                max: 100,
                shrunk: 0,
            },
            peers: vec![peer("beta", true), peer("gamma", false)],
            option: None,
            captured: None,
            left_to_tcp: None,
        }
    }

    #[test]
    fn hosts_are_listed_with_what_went_over_the_fabric() {
        let text = render(&fabric(), Style::PLAIN, None);
        for part in [
            "by roce from 10.0.0.1: 3 of 100 in use, 1 of 2 hosts up",
            "beta",
            "3m05s",
            "117M",
            "sluice doctor --peer",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('/'), "one queue pair");
        let mut several = fabric();
        several.peers[0].queue_pairs = ["up", "trying", "up"]
            .map(|link| QueuePair {
                link: link.to_owned(),
                ..QueuePair::default()
            })
            .into();
        assert!(render(&several, Style::PLAIN, None).contains("up 2/3"));
        let mut all_up = fabric();
        all_up.peers.pop();
        assert!(!render(&all_up, Style::PLAIN, None).contains("WHY"));
    }

    #[test]
    fn captured_connections_are_shown_where_they_are_captured() {
        let mut host = fabric();
        assert!(!render(&host, Style::PLAIN, None).contains("captured"));
        host.captured = Some(Captured {
            open: 3,
            captured: 120,
            lost: 0,
            direct: 2,
            served_open: 1,
            served: 40,
            refused: 0,
            reasons: [("direct_refused", 2), ("left_full", 0), ("left_terms", 7)]
                .map(|(reason, count)| (reason.to_owned(), count))
                .into(),
        });
        let line = "captured: 3 open of 120, 2 of them direct, 0 lost; for other hosts 1 open of 40, 0 refused\n\
                    why: 2 direct refused, 7 left terms\n";
        assert!(render(&host, Style::PLAIN, Some(100)).contains(line));
        host.captured = None;
        host.left_to_tcp = Some("[capture] leaves connections to TCP".to_owned());
        let text = render(&host, Style::PLAIN, Some(100));
        assert!(
            text.contains("\n[capture] leaves connections to TCP\n"),
            "{text}"
        );
    }

    #[test]
    fn what_handshakes_have_shown_is_a_line() {
        let mut host = fabric();
        assert!(!render(&host, Style::PLAIN, None).contains("handshakes"));
        let seen = Handshakes {
            in_use: true,
            can: 40,
            cannot: 3,
            echoed: 1,
            not_asked: 4,
            ..Handshakes::default()
        };
        host.option = Some(seen.clone());
        let line =
            "handshakes: 40 found, 3 not, 1 echoed, 0 foreign, 0 unheard; 4 ends did not ask\n";
        assert!(render(&host, Style::PLAIN, Some(100)).contains(line));
        host.option = Some(Handshakes {
            left_alone: 1,
            ..seen
        });
        let more = "did not ask; 1 address without the option for a while\n";
        assert!(render(&host, Style::PLAIN, None).contains(more));
        host.option = Some(Handshakes {
            reason: Some("no cgroups".to_owned()),
            ..Handshakes::default()
        });
        let unused = "handshakes: the option is not used, every host is asked: no cgroups\n";
        assert!(render(&host, Style::PLAIN, None).contains(unused));
    }

    #[test]
    fn lines_fit_a_hundred_columns_and_names_are_harmless() {
        let mut evil = fabric();
        evil.peers[1].name = "x\x1b[2J".to_owned();
        let text = render(&evil, Style::PLAIN, Some(100));
        assert!(!text.contains('\x1b'));
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
