//! The loop, with work that is made up: which step follows which.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use super::super::policy::BULK;
use super::*;

/// What is asked of the work, by name.
type Steps = Vec<&'static str>;

#[derive(Default)]
struct Node {
    control: Control,
    alive: AtomicUsize,
}

/// Work as a script has it: each answer once, then nothing.
#[derive(Default)]
struct Script<const FROM_AFAR: bool> {
    steps: Steps,
    looks: Vec<Option<[usize; 1]>>,
    announces: Vec<bool>,
    untils: Vec<Option<u64>>,
    polled: Vec<u64>,
    waits: Vec<Woken>,
}

/// Work that the kernel makes heard.
type Heard = Script<false>;

fn next<T: Clone>(answers: &mut Vec<T>, otherwise: T) -> T {
    if answers.is_empty() {
        otherwise
    } else {
        answers.remove(0)
    }
}

impl<const FROM_AFAR: bool> Work<1> for Script<FROM_AFAR> {
    type Node = Node;

    const MANNER: Manner = if FROM_AFAR {
        Manner::RUNG_FROM_AFAR
    } else {
        Manner::HEARD
    };

    fn control(node: &Node) -> &Control {
        &node.control
    }

    fn polled(&self, _node: &Node) -> [u64; 1] {
        [self.polled.first().copied().unwrap_or(0)]
    }

    fn awakes(&mut self, _node: &Node) {
        self.steps.push("awakes");
    }

    fn look(&mut self, _node: &Node, look: Look<1>) -> Option<[usize; 1]> {
        self.steps.push(match look {
            Look::Round { .. } => "look",
            Look::Again { .. } => "again",
        });
        next(&mut self.looks, Some([0]))
    }

    fn announce(&mut self, _node: &Node, sleeps: bool) -> bool {
        self.steps.push(if sleeps { "sleeps" } else { "watches" });
        next(&mut self.announces, false)
    }

    fn until(&mut self, _node: &Node, _sleeps: bool, _now: u64) -> Option<u64> {
        self.steps.push("until");
        next(&mut self.untils, Some(u64::MAX))
    }

    fn wait(&mut self, _node: &Node, _sleeps: bool, timeout_ns: Option<u64>) -> Woken {
        self.steps.push(match timeout_ns {
            None => "wait",
            Some(0) => "glance",
            Some(_) => "doze",
        });
        if !self.polled.is_empty() {
            self.polled.remove(0);
        }
        next(&mut self.waits, Woken::default())
    }

    fn events(&mut self, _node: &Node, _woken: Woken) {
        self.steps.push("events");
    }
}

fn steps_of<const FROM_AFAR: bool>(work: Script<FROM_AFAR>, rounds: usize) -> Steps {
    let node = Node::default();
    // Of a machine where there is another processor, and calls take long.
    let policy = Policy::new(Script::<FROM_AFAR>::MANNER, 100_000, 2);
    let mut thread = Rounds { work, policy };
    for _ in 0..rounds {
        thread.round(&node);
    }
    thread.work.steps
}

const WHOLE: [&str; 6] = ["awakes", "look", "sleeps", "until", "wait", "events"];

#[test]
fn it_says_that_it_sleeps_between_its_look_and_its_sleep() {
    assert_eq!(steps_of(Heard::default(), 1), WHOLE);
}

#[test]
fn what_comes_in_front_of_the_announcement_is_not_slept_on() {
    let work = Heard {
        announces: vec![true],
        ..Heard::default()
    };
    let mut expected = vec!["awakes", "look", "sleeps"];
    expected.extend(WHOLE);
    assert_eq!(steps_of(work, 2), expected);
}

#[test]
fn a_deadline_that_did_not_see_the_sleep_is_not_slept_on() {
    let work = Heard {
        untils: vec![None],
        ..Heard::default()
    };
    let mut expected = vec!["awakes", "look", "sleeps", "until"];
    expected.extend(WHOLE);
    assert_eq!(steps_of(work, 2), expected);
}

#[test]
fn a_stream_is_taken_by_glances_and_a_nap() {
    let work = Heard {
        looks: vec![Some([60]), Some([0]), Some([0])],
        ..Heard::default()
    };
    let round = |wait| ["awakes", "look", "sleeps", "until", wait, "events"];
    let expected = [round("glance"), round("glance"), round("wait")].concat();
    assert_eq!(steps_of(work, 3), expected);
}

/// Who is woken by work soon after work looks on before it sleeps, and does not sleep when that was
/// not in vain.
#[test]
fn it_looks_on_with_its_sleep_announced() {
    let by_work = Woken {
        count: 1,
        by_work: true,
    };
    // Some rounds: the time between two may be long once, on a busy machine.
    let mut work = Heard::default();
    for _ in 0..1000 {
        work.looks.extend([Some([1]), Some([1])]);
        work.waits.push(by_work);
    }
    let steps = steps_of(work, 500);
    let again = steps.iter().position(|step| *step == "again");
    let again = again.expect("it never looked on");
    assert_eq!(steps[again - 1], "sleeps");
    assert_eq!(steps[again + 1], "awakes");
}

#[test]
fn where_others_ring_it_looks_on_before_it_says_that_it_sleeps() {
    let by_work = Woken {
        count: 1,
        by_work: true,
    };
    let mut work = Script::<true>::default();
    for _ in 0..1000 {
        // However much comes: there are no naps.
        work.looks.extend([Some([BULK]), Some([1])]);
        work.waits.push(by_work);
    }
    let steps = steps_of(work, 1500);
    let again = steps.iter().position(|step| *step == "again");
    let again = again.expect("it never looked on");
    assert_eq!(steps[again - 1..=again + 1], ["look", "again", "awakes"]);
    // In the end it looks on in vain.
    let sleeps = steps.windows(2).filter(|pair| pair[1] == "sleeps");
    assert!(sleeps.clone().any(|pair| pair[0] == "look"));
    for pair in steps.windows(2).filter(|pair| pair[1] == "again") {
        assert!(["look", "again"].contains(&pair[0]), "{pair:?}");
    }
}

#[test]
fn watches_are_left_to_a_program_that_polls() {
    // It polls for three looks, so that the thread watches, and for two watches more.
    let polled = [1, 2, 3, 4, 5, 6, 7, 7];
    let work = Heard {
        polled: polled.to_vec(),
        untils: vec![Some(u64::MAX); 3],
        ..Heard::default()
    };
    let watch = ["awakes", "look", "watches", "until"];
    let mut expected = [WHOLE, WHOLE, WHOLE].concat();
    expected.extend(watch);
    // The wait of the watch, one for each time that it had taken something, and the next look when
    // it had not.
    expected.extend(["wait", "wait", "wait", "wait", "events"]);
    assert_eq!(steps_of(work, 4), expected);
}

/// Counts the threads that have it.
struct Counted(Arc<Node>);

impl Counted {
    fn new(node: Arc<Node>) -> Self {
        node.alive.fetch_add(1, Ordering::SeqCst);
        Self(node)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Work that never is: the thread goes round until it is stopped.
struct Idle {
    _counted: Counted,
    name: Arc<Mutex<Option<String>>>,
}

impl Work<1> for Idle {
    type Node = Node;

    const MANNER: Manner = Manner::RUNG;

    fn control(node: &Node) -> &Control {
        &node.control
    }

    fn polled(&self, _node: &Node) -> [u64; 1] {
        [0]
    }

    fn awakes(&mut self, _node: &Node) {}

    fn look(&mut self, _node: &Node, _look: Look<1>) -> Option<[usize; 1]> {
        let name = std::thread::current().name().map(str::to_owned);
        *self.name.lock().unwrap() = name;
        Some([0])
    }

    fn announce(&mut self, _node: &Node, _sleeps: bool) -> bool {
        false
    }

    fn until(&mut self, _node: &Node, _sleeps: bool, now: u64) -> Option<u64> {
        Some(now)
    }

    fn wait(&mut self, _node: &Node, _sleeps: bool, _timeout_ns: Option<u64>) -> Woken {
        std::thread::yield_now();
        Woken::default()
    }

    fn events(&mut self, _node: &Node, _woken: Woken) {}
}

/// Waits for a condition; what is late has hung.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = now_ns() + 60_000_000_000;
    while !condition() {
        assert!(now_ns() < end, "{what} does not come");
        std::thread::yield_now();
    }
}

#[test]
fn the_thread_ends_when_it_is_told_to_or_with_its_node() {
    let counts = Arc::new(Node::default());
    let name = Arc::new(Mutex::new(None));
    let nodes = [(); 2].map(|()| {
        let node = Arc::new(Node::default());
        let work = Idle {
            _counted: Counted::new(counts.clone()),
            name: name.clone(),
        };
        start(&node, "sluice-idle".to_owned(), work).unwrap();
        node
    });
    until("a round", || name.lock().unwrap().is_some());
    assert_eq!(name.lock().unwrap().as_deref(), Some("sluice-idle"));
    assert_eq!(counts.alive.load(Ordering::SeqCst), 2);
    let [told, dropped] = nodes;
    told.control.stop();
    until("the end of one", || {
        counts.alive.load(Ordering::SeqCst) == 1
    });
    drop(dropped);
    until("the other's", || counts.alive.load(Ordering::SeqCst) == 0);
}
