//! Hosts of a window that end: in order, killed, stopped, replaced, and with the window itself cut off.

mod common;
#[path = "common/liar.rs"]
mod liar;
#[path = "common/scene.rs"]
mod scene;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{QUIET, Window};
use scene::{Honest, Scene, connect};
use sluice_transport_window::{OpenError, WindowTransport};
use sluice_verbs::{QpState, WcStatus, WrOpcode};
use sluice_verbs_testing::{request, until};
use sluice_window::Kind;
use sluice_window::layout::Pair;
use sluice_window::link::ALL_ONES;
use sluice_window::view::View as _;

/// What waits for the peer ends by the cause, the first with the reason, and the queue pair breaks. What was posted behind
/// some causes would be flushed.
fn all_ends(scene: &mut Scene, beats: bool, cause: impl FnOnce(&mut Scene)) {
    let end = &scene.victim;
    let sge = [end.sge(0, 64)];
    for (id, opcode) in [(1, WrOpcode::Send), (2, WrOpcode::RdmaRead)] {
        end.qp.post_send(&request(opcode, id, &sge, 0, 0)).unwrap();
    }
    end.post_recv(3, 0, 64);
    cause(scene);
    let end = &scene.victim;
    let mut outcomes = Vec::new();
    until("all to end", || {
        if beats {
            scene.liar.poll();
        }
        outcomes.extend(end.cq.poll_one().map(|wc| (wc.wr_id, wc.status)));
        outcomes.len() == 3
    });
    outcomes.sort_unstable();
    let [gone, flushed] = [WcStatus::RetryExcErr, WcStatus::WrFlushErr].map(|it| it as u32);
    assert_eq!(outcomes, [(1, gone), (2, flushed), (3, flushed)]);
    assert_eq!(end.qp.state(), QpState::Err);
    scene.honesty.works();
}

#[test]
fn one_that_gives_no_sign_of_life_is_dead() {
    let mut scene = Scene::joined_to_die();
    all_ends(&mut scene, false, |_| {});
}

#[test]
fn one_that_lives_and_takes_nothing_is_waited_for_until_it_dies() {
    let mut scene = Scene::joined_to_die();
    let sge = [scene.victim.sge(0, 60_000)];
    // More than its ring holds.
    for id in 0..4 {
        let write = request(WrOpcode::RdmaWrite, id, &sge, 0, 0);
        scene.victim.qp.post_send(&write).unwrap();
    }
    let start = Instant::now();
    while start.elapsed() < QUIET + Duration::from_secs(1) {
        scene.liar.poll();
        assert!(scene.victim.cq.poll_one().is_none());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(scene.victim.qp.state(), QpState::Rts);
    let wc = scene.victim.completion();
    assert_eq!((wc.wr_id, wc.status), (0, WcStatus::RetryExcErr as u32));
    scene.honesty.works();
}

/// What the liar's hello at the victim becomes: word 1 is its generation, word 2 its answer.
fn with_hello(word: u64, value: u64) {
    let mut scene = Scene::joined();
    until("a channel", || {
        scene.liar.poll();
        scene.liar.is_heard()
    });
    let pair = Pair::new(scene.liar.slot(), scene.host.slot);
    all_ends(&mut scene, false, |scene| {
        let view = scene.liar.region.view(scene.liar.slot());
        view.say(pair.hello_out(word), value);
    });
}

#[test]
fn one_that_leaves_is_gone() {
    with_hello(1, 0);
    with_hello(2, 0);
}

#[test]
fn one_that_leaves_is_missed_when_something_is_sent_to_it() {
    let mut scene = Scene::joined_to_die();
    scene.victim.post_recv(3, 0, 64);
    until("a channel", || {
        scene.liar.poll();
        scene.liar.is_heard()
    });
    let pair = Pair::new(scene.liar.slot(), scene.host.slot);
    let view = scene.liar.region.view(scene.liar.slot());
    view.say(pair.hello_out(1), 0);
    until("the link's end", || scene.liar.is_cut_off());
    scene.honesty.works();
    let end = &scene.victim;
    assert!(end.cq.poll_one().is_none());
    assert_eq!(end.qp.state(), QpState::Rts);
    let sge = [end.sge(0, 64)];
    end.qp
        .post_send(&request(WrOpcode::Send, 1, &sge, 0, 0))
        .unwrap();
    let mut outcomes = Vec::new();
    until("the end", || {
        outcomes.extend(end.cq.poll_one().map(|wc| (wc.wr_id, wc.status)));
        outcomes.len() == 2
    });
    let [gone, flushed] = [WcStatus::RetryExcErr, WcStatus::WrFlushErr].map(|it| it as u32);
    assert_eq!(outcomes, [(1, gone), (3, flushed)]);
}

#[test]
fn one_that_was_replaced_is_gone() {
    with_hello(1, 12345);
}

#[test]
fn a_window_that_reads_as_ones_is_gone() {
    with_hello(1, ALL_ONES);
}

#[test]
fn a_host_whose_slot_is_taken_ends_all_its_connections() {
    let mut scene = Scene::joined();
    until("a channel", || {
        scene.liar.poll();
        scene.liar.is_heard()
    });
    all_ends(&mut scene, true, |scene| {
        scene.liar.take_slot(scene.host.slot);
    });
    // What is posted later fails as well, and nobody waits for ever.
    let other = scene.host.end();
    connect(&other, scene.qpn, 7);
    let sge = [other.sge(0, 8)];
    let wc = other.run(&request(WrOpcode::Send, 9, &sge, 0, 0));
    assert_eq!(wc.status, WcStatus::RetryExcErr as u32);
}

#[test]
fn a_queue_pair_of_a_slot_that_nobody_holds_fails_at_once() {
    let window = Window::new(Kind::Coherent, 3);
    let host = Honest::new(&window);
    let end = host.end();
    for slot in [2_u32, 31] {
        let end = if slot == 2 { &end } else { &host.end() };
        connect(end, slot << 19 | 5, 7);
        let sge = [end.sge(0, 8)];
        let wc = end.run(&request(WrOpcode::Send, 9, &sge, 0, 0));
        assert_eq!(wc.status, WcStatus::RetryExcErr as u32);
    }
}

#[test]
fn a_full_window_says_so_and_has_room_when_one_has_left() {
    let window = Window::new(Kind::Coherent, 2);
    let first = window.open();
    let second = window.open();
    match WindowTransport::with_silence(window.path(), QUIET) {
        Err(error @ OpenError::NoSlot(..)) => {
            assert!(error.to_string().contains("--hosts"), "{error}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("three hosts in a window of two"),
    }
    let slot = second.slot();
    drop(second);
    let third = window.open();
    assert_eq!(third.slot(), slot);
    drop((first, third));
}

const ROLE: &str = "SLUICE_TEST_WINDOW";

/// A process that writes to its peer until it is killed.
fn child(test: &str, window: &Window, qpn: u32, psn: u32) -> Victim {
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, format!("{} {qpn} {psn}", window.path().display()))
        .stdout(Stdio::null())
        .spawn();
    Victim(process.unwrap())
}

/// A process that does not outlive the test.
struct Victim(Child);

impl Victim {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_killed_process_ends_what_is_outstanding_and_gives_its_slot_back() {
    if let Ok(role) = std::env::var(ROLE) {
        let words: Vec<&str> = role.split(' ').collect();
        return be_killed(
            words[0],
            words[1].parse().unwrap(),
            words[2].parse().unwrap(),
        );
    }
    let window = Window::new(Kind::Coherent, 2);
    let host = Honest::on(window.open_alert());
    for _ in 0..2 {
        let end = host.end();
        let mut process = child(
            "a_killed_process_ends_what_is_outstanding_and_gives_its_slot_back",
            &window,
            end.qp.num(),
            end.psn,
        );
        let note = std::path::PathBuf::from(format!("{}.note", window.path().display()));
        let mut numbers = None;
        until("the other process", || {
            let text = std::fs::read_to_string(&note).unwrap_or_default();
            let words: Vec<u32> = text.split(' ').filter_map(|it| it.parse().ok()).collect();
            numbers = (words.len() == 3).then(|| (words[0], words[1]));
            numbers.is_some()
        });
        std::fs::remove_file(&note).unwrap();
        let (qpn, psn) = numbers.unwrap();
        connect(&end, qpn, psn);
        let sge = [end.sge(0, 30_000)];
        let wc = end.run(&request(WrOpcode::Send, 1, &sge, 0, 0));
        assert_eq!(wc.status, 0);
        process.kill();
        let wc = loop {
            let wc = end.run(&request(WrOpcode::RdmaRead, 2, &sge, 0, 0));
            if wc.status != 0 {
                break wc;
            }
        };
        assert_eq!(wc.status, WcStatus::RetryExcErr as u32);
        until("the error state", || end.qp.state() == QpState::Err);
    }
}

fn be_killed(path: &str, qpn: u32, psn: u32) {
    let transport = WindowTransport::with_silence(path.as_ref(), QUIET).unwrap();
    let host = Honest::on(transport);
    let end = host.end();
    connect(&end, qpn, psn);
    end.post_recv(1, 0, 60_000);
    let part = format!("{path}.part");
    std::fs::write(&part, format!("{} {} 0", end.qp.num(), end.psn)).unwrap();
    std::fs::rename(&part, format!("{path}.note")).unwrap();
    loop {
        while end.cq.poll_one().is_some() {}
        std::thread::yield_now();
    }
}
