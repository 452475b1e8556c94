//! The picture in docs/handover.md: the transitions that the search has seen, of either end.

use super::{Away, BYTES, Reading, State, Without, World, search};
use crate::handover::search::World as _;
use crate::handover::{Next, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const DOCUMENT: &str = include_str!("../../../../../../docs/handover.md");

/// Of each pair of states the deeds that lead from one to the other.
type Edges = BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>;

fn sender_state((ends, ..): &State) -> &'static str {
    match ends.sender.way() {
        Way::Ring if ends.is_writing => "Writing",
        Way::Ring => "Ring",
        Way::Left => "Left",
        Way::Tcp => "TCP",
    }
}

fn receiver_state(world: &mut World, state: &State) -> &'static str {
    world.load(state);
    let is_kernels = world.is_kernels();
    let ends = &mut world.ends;
    match (ends.away, ends.reading) {
        (Away::Asks, _) => return "Asking",
        (_, Reading::Unbounded) => return "ReadingTCP",
        (_, Reading::Asleep) => return "Asleep",
        _ if ends.receiver.is_uncounted() => return "Uncounted",
        _ if is_kernels => return "Given",
        _ => {}
    }
    match ends.receiver.next(&world.direction) {
        Ok(Next::Owed(_)) => "Owed",
        Ok(Next::Ring(_)) => "Bytes",
        Ok(Next::Empty) => "Empty",
        Ok(Next::Tcp) => "TCP",
        Err(_) => "Broken",
    }
}

fn drawn(first: &str, edges: &Edges) -> String {
    let mut text = format!("```mermaid\nstateDiagram-v2\n    [*] --> {first}\n");
    for ((from, to), deeds) in edges {
        let deeds: Vec<_> = deeds.iter().copied().collect();
        writeln!(text, "    {from} --> {to}: {}", deeds.join(", ")).unwrap();
    }
    text + "```\n"
}

#[test]
fn the_document_has_the_picture() {
    let (mut sender, mut receiver) = (Edges::new(), Edges::new());
    search(Without::Nothing, BYTES, |world, before, after| {
        let deed = world.deed;
        assert_ne!(deed, "", "{before:?} becomes {after:?}, and nobody did it");
        let ways = [before, after].map(sender_state);
        let nexts = [before, after].map(|state| receiver_state(world, state));
        for (edges, [from, to]) in [(&mut sender, ways), (&mut receiver, nexts)] {
            if from != to {
                edges.entry((from, to)).or_default().insert(deed);
            }
        }
    });
    let seen = [drawn("Left", &sender), drawn("TCP", &receiver)];
    let missing: Vec<_> = seen
        .into_iter()
        .filter(|picture| !DOCUMENT.contains(picture))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/handover.md has not what was seen:\n{}",
        missing.join("\n")
    );
}
