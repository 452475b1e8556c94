//! The end of a process, and a process that writes nonsense.

mod common;

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{End, PATIENCE, Pair, Way, World, pair, until, wait};
use sluice_verbs::{QpState, QpType, WcStatus, WrOpcode};

/// A completion with an error must come this soon after the peer's death: at once, where somebody has
/// a processor for it.
const SOON: Duration = Duration::from_secs(40);

/// The two queue pairs know of one another, and a process says how far it is by files in the directory of both: the second
/// one may be killed once there is `introduced`, so that the first one waits for `ready` only so long.
fn introduced(world: &mut World) -> (End, PathBuf) {
    let directory = PathBuf::from(std::env::var_os("SLV_DIR").unwrap());
    let mut end = world.end(QpType::Rc, 1 << 20, None);
    world.introduce(&mut end);
    (end, directory)
}

fn survive(world: &mut World) {
    let (end, directory) = introduced(world);
    end.to_ready();
    let start = Instant::now();
    while !directory.join("ready").exists() && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let sge = [end.sge(0, 8192)];
    let mut turn = 0;
    // Every kind of request, until one fails.
    let (status, at) = loop {
        turn += 1;
        let opcode = match turn % 3 {
            0 => WrOpcode::Send,
            1 => WrOpcode::RdmaWrite,
            _ => WrOpcode::RdmaWriteWithImm,
        };
        let start = Instant::now();
        let wc = end.run(&end.request(opcode, turn, &sge, 0));
        if wc.status != 0 {
            break (wc.status, start.elapsed());
        }
    };
    // Between two requests the queue pair breaks by itself, and the next one is flushed.
    let expected = [WcStatus::RetryExcErr, WcStatus::WrFlushErr].map(|status| status as u32);
    assert!(expected.contains(&status), "{status}");
    until("the error state", || end.qp.state() == QpState::Err);
    // From the post to the completion; the death lies in between.
    assert!(at < SOON, "{at:?}");
    end.qp.destroy().unwrap();
    end.mr.destroy().unwrap();
}

fn be_killed(world: &mut World) {
    let (end, directory) = introduced(world);
    std::fs::write(directory.join("introduced"), []).unwrap();
    end.to_ready();
    std::fs::write(directory.join("ready"), []).unwrap();
    loop {
        while end.cq.poll_one().is_some() {}
        let _ = end.qp.post_recv(1, &[end.sge(0, 8192)]);
    }
}

#[test]
fn a_killed_peer_ends_what_is_outstanding() {
    let name = "a_killed_peer_ends_what_is_outstanding";
    match std::env::var("SLV_ROLE").as_deref() {
        Ok("first") => return survive(&mut World::new()),
        Ok(_) => return be_killed(&mut World::new()),
        Err(_) => {}
    }
    for (turn, way) in [Way::Shared, Way::Kernel, Way::Owner]
        .into_iter()
        .cycle()
        .take(9)
        .enumerate()
    {
        let mut pair = Pair::start(name, way);
        let introduced = pair.directory().join("introduced");
        until("an introduction", || introduced.exists());
        // At different moments: while they connect, and while they talk.
        std::thread::sleep(Duration::from_millis(37 * turn as u64));
        pair.second.kill().unwrap();
        let status = wait(&mut pair.first);
        assert!(status.success(), "turn {turn}, {way:?}");
    }
}

fn expect_error(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    let sge = [end.sge(0, 64)];
    end.qp
        .post_send(&end.request(WrOpcode::Send, 1, &sge, 0))
        .unwrap();
    end.qp
        .post_send(&end.request(WrOpcode::Send, 2, &sge, 0))
        .unwrap();
    world.meet();
    // Nobody polls here until the error is due: the engine thread notices the end.
    until("the end of the peer", || end.qp.state() == QpState::Err);
    assert_eq!(end.completion().status, WcStatus::RetryExcErr as u32);
    assert_eq!(end.completion().status, WcStatus::WrFlushErr as u32);
}

fn stop(world: &mut World) {
    let _end: End = world.connected(QpType::Rc, 4096);
    world.meet();
    std::process::exit(0);
}

#[test]
fn the_engine_thread_notices_the_end() {
    pair(
        "the_engine_thread_notices_the_end",
        Way::Shared,
        expect_error,
        stop,
    );
}

/// One message each way: both links are there, in both processes.
fn greet(world: &mut World, end: &End) {
    end.post_recv(100, 0, 64);
    world.meet();
    let sge = [end.sge(0, 64)];
    end.qp
        .post_send(&end.request(WrOpcode::Send, 101, &sge, 0))
        .unwrap();
    let mut ids = [end.good().wr_id, end.good().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [100, 101]);
    world.meet();
}

fn expect_receives_back(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    greet(world, &end);
    end.post_recv(1, 0, 64);
    end.post_recv(2, 0, 64);
    world.meet();
    // What the peer sent before its end comes first; then there is nobody who could send more.
    assert_eq!(end.good().wr_id, 1);
    let flushed = end.completion();
    assert_eq!(
        (flushed.wr_id, flushed.status),
        (2, WcStatus::WrFlushErr as u32)
    );
    assert_eq!(end.qp.state(), QpState::Err);
}

fn send_and_stop(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    greet(world, &end);
    world.meet();
    let sge = [end.sge(0, 64)];
    end.qp
        .post_send(&end.request(WrOpcode::Send, 1, &sge, 0))
        .unwrap();
    std::process::exit(0);
}

#[test]
fn a_receiver_hears_of_the_end() {
    pair(
        "a_receiver_hears_of_the_end",
        Way::Shared,
        expect_receives_back,
        send_and_stop,
    );
}

fn expect_nothing(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    greet(world, &end);
    end.post_recv(1, 0, 64);
    world.meet();
    // The witness breaks when the peer ends, in the same go.
    let witness = world.connected(QpType::Rc, 4096);
    witness.post_recv(2, 0, 64);
    world.meet();
    let wc = witness.completion();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushErr as u32));
    assert!(end.cq.poll_one().is_none());
    assert_eq!(end.qp.state(), QpState::Rts);
}

fn destroy_and_stop(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    greet(world, &end);
    world.meet();
    end.qp.destroy().unwrap();
    let _witness = world.connected(QpType::Rc, 4096);
    world.meet();
    std::process::exit(0);
}

/// As with other hardware: who destroys its queue pair leaves the other's alone.
#[test]
fn a_queue_pair_whose_peer_said_goodbye_stays() {
    pair(
        "a_queue_pair_whose_peer_said_goodbye_stays",
        Way::Shared,
        expect_nothing,
        destroy_and_stop,
    );
}

fn idle(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    end.post_recv(1, 0, 64);
    until("the message", || end.cq.poll_one().is_some());
    world.meet();
    // How often the threads have gone to sleep, and whether they sleep now.
    let switches = || {
        let mut total = 0u64;
        let mut all_sleep = true;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let mut text = String::new();
            let status = std::fs::File::open(task.path().join("status"));
            if status.is_err() || status.unwrap().read_to_string(&mut text).is_err() {
                continue;
            }
            if !text.contains("Name:\tsluice-verbs") {
                continue;
            }
            all_sleep &= text.contains("State:\tS");
            let line = text
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"));
            let count = line.and_then(|line| line.split_whitespace().nth(1));
            total += count.and_then(|count| count.parse().ok()).unwrap_or(0u64);
        }
        (total, all_sleep)
    };
    // They go to sleep when they get a processor; then no wake-up at all may happen. Where the whole machine has stood
    // still, one that was due before may come behind the first look.
    let mut before = switches();
    let mut alike = 0;
    until("sleep", || {
        std::thread::sleep(Duration::from_millis(300));
        let last = std::mem::replace(&mut before, switches());
        alike = if before == last && before.1 {
            alike + 1
        } else {
            0
        };
        alike == 2
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        switches(),
        before,
        "the engine thread woke up without a reason"
    );
    world.meet();
}

fn send_one(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    let sge = [end.sge(0, 64)];
    assert_eq!(end.run(&end.request(WrOpcode::Send, 1, &sge, 0)).status, 0);
    world.meet();
    world.meet();
}

#[test]
fn an_idle_process_is_not_woken() {
    pair("an_idle_process_is_not_woken", Way::Shared, idle, send_one);
}

const EVENTS: u64 = 3000;

/// Both sides sleep for each completion, of sends as of receives: a wake-up that is lost on
/// either side hangs both.
fn both_sleep(world: &mut World) {
    let first = std::env::var("SLV_ROLE").as_deref() == Ok("first");
    let channel = world.context.create_channel().unwrap();
    let mut end = world.end(QpType::Rc, 4096, Some(&channel));
    world.introduce(&mut end);
    end.to_ready();
    for id in 0..8 {
        end.post_recv(id, 0, 64);
    }
    end.cq.arm(false).unwrap();
    world.meet();
    let sge = [end.sge(128, 64)];
    let send = || {
        end.qp
            .post_send(&end.request(WrOpcode::Send, 100, &sge, 0))
            .unwrap();
    };
    let (mut sent, mut received) = (0, 0);
    if first {
        send();
    }
    while sent < EVENTS || received < EVENTS {
        channel.get_event().unwrap();
        end.cq.ack_events(1);
        end.cq.arm(false).unwrap();
        while let Some(wc) = end.cq.poll_one() {
            assert_eq!(wc.status, 0);
            if wc.wr_id == 100 {
                sent += 1;
                continue;
            }
            received += 1;
            end.post_recv(wc.wr_id, 0, 64);
            if received < EVENTS || !first {
                send();
            }
        }
    }
    world.meet();
}

#[test]
fn no_wake_up_is_lost_when_both_sleep() {
    pair(
        "no_wake_up_is_lost_when_both_sleep",
        Way::Shared,
        both_sleep,
        both_sleep,
    );
}

fn wait_for_event(world: &mut World) {
    let channel = world.context.create_channel().unwrap();
    let mut end = world.end(QpType::Rc, 4096, Some(&channel));
    world.introduce(&mut end);
    end.to_ready();
    for id in 0..100 {
        end.post_recv(id, 0, 64);
    }
    world.meet();
    for turn in 0..100 {
        end.cq.arm(false).unwrap();
        world.meet();
        let wc = loop {
            if let Some(wc) = end.cq.poll_one() {
                break wc;
            }
            channel.get_event().unwrap();
            end.cq.ack_events(1);
        };
        assert_eq!((wc.status, wc.wr_id), (0, turn));
    }
    world.meet();
}

fn send_to_sleeper(world: &mut World) {
    let end = world.connected(QpType::Rc, 4096);
    let sge = [end.sge(0, 64)];
    for turn in 0..100u64 {
        world.meet();
        if turn % 10 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            end.run(&end.request(WrOpcode::Send, turn, &sge, 0)).status,
            0
        );
    }
    world.meet();
}

#[test]
fn a_sleeper_is_woken_for_each_message() {
    pair(
        "a_sleeper_is_woken_for_each_message",
        Way::Shared,
        wait_for_event,
        send_to_sleeper,
    );
    assert!(PATIENCE > SOON);
}
