//! Hosts whose window gets other memory, together or one after the other.

use std::io;
use std::sync::{Arc, Mutex};

use sluice_window::claim::{Table, Word};

use super::super::super::pieces::{DirectLane, Ended, Loan};
use super::*;

const THEIRS: u32 = 9;
/// Steps in which all that is going to happen without anybody's doing has happened.
const LONG: u32 = 500;

impl Lab {
    /// The host hears of this memory from its server.
    fn join(&mut self, host: &'static str, memory: &Fd) {
        let window = &mut self.windows(host).all[0];
        let joined = window.join(fake::same(memory), Origin::Server, host);
        joined.expect("a window");
    }

    /// The host's daemon is another one, and finds this memory.
    fn restart(&mut self, host: &'static str, memory: &Fd) {
        self.hosts.remove(host);
        self.memory = fake::same(memory);
        self.start(host);
    }

    fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// A lane that `v` lends to a program of `b`.
    fn lend(&mut self) -> (DirectLane, Loan) {
        let windows = self.windows("v");
        let lane = windows.lend(CLIENT, &"b".into(), THEIRS).expect("a lane");
        let loan = windows.loan(&lane).expect("it is lent");
        (lane, loan)
    }

    fn borrow(&mut self, loan: &Loan) -> DirectLane {
        let borrowed = self.windows("b").borrow(CLIENT, &"v".into(), loan);
        borrowed.expect("a lane")
    }

    /// A lane that is over again; where it was.
    fn try_one(&mut self) -> WindowId {
        let (lane, loan) = self.lend();
        let borrowed = self.borrow(&loan);
        self.end(&lane, &borrowed);
        loan.window
    }

    fn end(&mut self, lent: &DirectLane, borrowed: &DirectLane) {
        self.windows("v").over(lent, Ended::Ours);
        self.windows("b").over(borrowed, Ended::Ours);
    }

    /// Steps until new lanes lie there.
    fn settle_in(&mut self, id: WindowId) {
        for _ in 0..LONG {
            self.step();
            if self.try_one() == id {
                return;
            }
        }
        panic!("lanes do not come from the newer memory");
    }

    fn memories(&self, host: &str) -> Vec<WindowId> {
        self.hosts[host].all[0].all().map(Shared::id).collect()
    }

    fn lanes(&self, host: &str) -> Vec<u32> {
        let mut report = self.hosts[host].report();
        let window = report.remove(0);
        let retired = window.retired.iter().map(|memory| memory.lanes);
        [window.present.lanes].into_iter().chain(retired).collect()
    }
}

#[test]
fn lanes_go_on_in_the_memory_before_and_new_ones_lie_in_the_new_one() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    let (old, memory) = (lab.id, fake::memory());
    let new = id_of(&memory);
    let (lane, loan) = lab.lend();
    let borrowed = lab.borrow(&loan);
    // One that the borrower hears of later.
    let (late, late_loan) = lab.lend();
    // The program has it mapped.
    let given = lab.windows("v").given(&lane).expect("a descriptor");
    lab.join("v", &memory);
    lab.steps(LONG);
    // The other host does not know of the new memory yet.
    assert_eq!(lab.try_one(), old);
    lab.join("b", &memory);
    lab.settle_in(new);
    assert_eq!(lab.memories("v"), [new, old]);
    let late_borrowed = lab.borrow(&late_loan);
    lab.end(&late, &late_borrowed);
    for _ in 0..LONG {
        lab.step();
        assert_eq!(lab.try_one(), new);
    }
    assert_eq!((lab.lanes("v"), lab.lanes("b")), (vec![0, 1], vec![0, 1]));
    lab.end(&lane, &borrowed);
    lab.steps(LONG);
    assert_eq!(lab.memories("v"), [new, old], "a process has it mapped");
    drop(given);
    lab.steps(LONG);
    assert_eq!(
        (lab.memories("v"), lab.memories("b")),
        (vec![new], vec![new])
    );
    assert_eq!(lab.try_one(), new);
}

#[test]
fn the_memory_before_goes_when_nothing_lies_in_it() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    // Twice at once, and both hosts see the second one alone, or not.
    let (passed, memory) = (fake::memory(), fake::memory());
    let new = id_of(&memory);
    lab.join("v", &passed);
    lab.step();
    lab.join("v", &memory);
    lab.join("b", &memory);
    lab.settle_in(new);
    lab.steps(LONG);
    assert_eq!(
        (lab.memories("v"), lab.memories("b")),
        (vec![new], vec![new])
    );
    // Nobody has a slot there.
    for memory in [&lab.memory, &passed] {
        let left = Shared::open(fake::same(memory), Origin::Server, "").expect("a window");
        let generations = (0..4).map(|slot| left.region.look(slot, Word::Generation));
        assert!(generations.into_iter().all(|generation| generation == 0));
    }
    assert_eq!(lab.try_one(), new);
}

#[test]
fn a_host_that_stays_in_the_memory_before_has_lanes_there() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    let (old, memory) = (lab.id, fake::memory());
    lab.join("v", &memory);
    for _ in 0..LONG {
        lab.step();
        assert_eq!(lab.try_one(), old);
    }
    // Its daemon ends, and nothing keeps the memory.
    lab.hosts.remove("b");
    lab.windows("v").peer_down(&"b".into());
    lab.windows("v").forget(&"b".into());
    lab.steps(LONG);
    assert_eq!(lab.memories("v"), [id_of(&memory)]);
}

#[test]
fn a_peer_that_has_left_many_memories_is_believed_in_the_last_one() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    for number in 0..10 * CLAIMS_MAX as u64 {
        let seat = Seat {
            id: [number, 7],
            slot: 1,
            kernel: [9, 9],
        };
        lab.windows("v").heard_seat(&"b".into(), seat);
    }
    assert!(lab.may_share("v", "b"), "one that this host has is kept");
    let memory = fake::memory();
    for host in ["v", "b"] {
        lab.join(host, &memory);
    }
    lab.settle_in(id_of(&memory));
}

/// What is written to the log meanwhile that is a warning.
fn warnings(run: impl FnOnce()) -> String {
    let written = Arc::new(Mutex::new(Vec::new()));
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer({
            let written = written.clone();
            move || Written(written.clone())
        })
        .finish();
    tracing::subscriber::with_default(log, run);
    let bytes = written.lock().expect("the log").clone();
    String::from_utf8(bytes).expect("text")
}

struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn hosts_in_different_memories_say_so_once_and_find_each_other_later() {
    let mut lab = Lab::with(&["v", "b"]);
    lab.settle("v", "b");
    let memory = fake::memory();
    let said = warnings(|| {
        lab.restart("b", &memory);
        lab.steps(LONG);
        assert!(!lab.may_share("v", "b") && !lab.may_share("b", "v"));
    });
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "one of each host: {said}");
    for line in lines {
        assert!(line.contains("is in a window's memory"), "{line}");
    }
    let said = warnings(|| {
        lab.join("v", &memory);
        lab.settle("v", "b");
        assert_eq!(lab.try_one(), id_of(&memory));
    });
    assert_eq!(said, "");
}
