//! `sluice verbs --fault`: real programs whose packets get lost, come twice and late. Only programs
//! that bear it can be asked: most wait for ever for a datagram that is lost.

use libtest_mimic::Trial;
use sluice_tests::job::Outcome;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::stage::{LIMIT, Stage};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("fault/lost-datagrams", lost_datagrams),
        trial("fault/lost-messages-of-unreliable-connections", || {
            run_for_a_second("UC", "loss=20%,reorder=5%,corrupt=5%,seed=9")
        }),
        trial("fault/everything-but-loss", everything_but_loss),
        trial("fault/the-same-seed", the_same_seed),
        trial("fault/reliable-connections", reliable_connections),
        trial("fault/no-such-fault", no_such_fault),
        trial("fault/no-such-fault-in-the-environment", bad_environment),
    ]
}

fn fault(list: &str) -> [String; 2] {
    ["--fault".to_owned(), list.to_owned()]
}

/// What a program says of its faults at its end.
fn summary(outcome: &Outcome) -> Verdict<String> {
    let text = outcome.describe();
    let line = text.lines().find_map(|line| {
        let (_, rest) = line.split_once("sluice: fault: of ")?;
        Some(rest.to_owned())
    });
    match line {
        Some(line) => Ok(line),
        None => fail(format!("no summary of faults in\n{text}")),
    }
}

/// The numbers of that line: all, lost, doubled, late, damaged, the seed.
fn numbers(summary: &str) -> Vec<u64> {
    let words = summary.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The client's packets meet `list`; both run for a second, whatever arrives.
fn run_for_a_second(service: &str, list: &str) -> Verdict {
    let mut stage = Stage::new()?;
    let arguments = ["-c", service, "-D", "1", "-s", "512"];
    let (_, client) = stage.pair_with("ib_send_bw", &arguments, &[], &fault(list))?;
    let found = numbers(&summary(&client)?);
    let [all, lost, ..] = found[..] else {
        return fail(client.describe());
    };
    // 20 % of them, and at least hundreds: far from both ends.
    ensure(lost > all / 10 && lost < all / 3, || client.describe())
}

fn lost_datagrams() -> Verdict {
    run_for_a_second("UD", "loss=20%,dup=5%,reorder=5%,corrupt=5%,seed=9")
}

/// A program that counts: what arrives twice fills a second receive, what is late still arrives.
fn everything_but_loss() -> Verdict {
    let mut stage = Stage::new()?;
    let arguments = ["-c", "UD", "-n", "1000", "-s", "64"];
    let list = "reorder=20%,seed=4";
    let (_, client) = stage.pair_with("ib_send_bw", &arguments, &[], &fault(list))?;
    let found = numbers(&summary(&client)?);
    ensure(
        found.len() == 6 && found[1..3] == [0, 0] && found[3] > 0,
        || client.describe(),
    )
}

fn the_same_seed() -> Verdict {
    let mut found = Vec::new();
    for seed in [7, 7, 8] {
        let mut stage = Stage::new()?;
        let arguments = ["-c", "UC", "-n", "1000", "-s", "2"];
        let list = format!("dup=30%,seed={seed}");
        let (_, client) = stage.pair_with("ib_send_bw", &arguments, &[], &fault(&list))?;
        found.push(summary(&client)?);
    }
    ensure(found[0] == found[1] && found[0] != found[2], || {
        format!("{found:#?}")
    })
}

/// Nothing happens to them over shared memory, and that is said once, whatever the number of
/// queue pairs.
fn reliable_connections() -> Verdict {
    let mut stage = Stage::new()?;
    let arguments = ["-n", "100", "-q", "4"];
    let (_, client) = stage.pair_with("ib_send_bw", &arguments, &[], &fault("loss=50%"))?;
    let text = client.describe();
    let said = text.matches("nothing happens to reliable connections");
    ensure(said.count() == 1, || text.clone())?;
    // The seed that was chosen is printed, so that a run can be repeated.
    ensure(text.contains("sluice: fault: seed="), || text.clone())
}

fn no_such_fault() -> Verdict {
    let mut stage = Stage::new()?;
    for (list, part) in [
        ("lost=1%", "lost"),
        ("loss=2", "loss=2"),
        ("loss=60%,dup=60%", "more than 1"),
    ] {
        let outcome = stage.start_with("true", &[], &fault(list))?.finish(LIMIT)?;
        let text = outcome.describe();
        ensure(outcome.status.code() == Some(125), || text.clone())?;
        ensure(text.contains(part), || text.clone())?;
    }
    Ok(())
}

/// Without `sluice verbs` in front the library says it, and has no device: a program that was to
/// have faults does not run without.
fn bad_environment() -> Verdict {
    let mut stage = Stage::new()?;
    stage.set(&[("SLUICE_VERBS_FAULT", "lost=1%")]);
    let outcome = stage.run("ibv_devinfo", &[])?;
    ensure(!outcome.status.success(), || outcome.describe())?;
    ensure(
        outcome
            .describe()
            .contains("SLUICE_VERBS_FAULT: there is no fault"),
        || outcome.describe(),
    )
}
