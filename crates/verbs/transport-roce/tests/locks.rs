//! How many locks the requester's side of a request takes, from `ibv_post_send` to the completion that a
//! poll gives. Counted in builds with debug assertions, as tests are.
#![cfg(debug_assertions)]

mod common;

use common::{End, Side, connected, until, world};
use sluice_verbs::locks::{Taken, watch};
use sluice_verbs::{QpType, WcStatus, WrOpcode};

/// Requests that are counted. The engine makes every 64th poll in a row that finds something look for
/// packets as well, which is one of them at most.
const ROUNDS: usize = 60;
/// Requests that are sent at most to have them.
const ROUNDS_MAX: u64 = 6000;

/// What one request took: to post it, and in the poll that gave its completion.
struct Path {
    post: Vec<Taken>,
    poll: Vec<Taken>,
}

impl Path {
    fn count(&self) -> usize {
        self.post.len() + self.poll.len()
    }

    fn all(&self) -> impl Iterator<Item = &Taken> {
        self.post.iter().chain(&self.poll)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, taken) in [("post", &self.post), ("poll", &self.poll)] {
            writeln!(f, "{name}:")?;
            for one in taken {
                writeln!(f, "  {} (within {})", one.at, one.within)?;
            }
        }
        Ok(())
    }
}

/// Sends one message of 8 bytes. Its acknowledgement waits until the sender is about to poll.
fn send(left: &Side, a: &End, b: &End, id: u64) -> Path {
    left.inbox.allow(0);
    let before = left.inbox.seen();
    b.post_recv(id, 0, 8);
    let sges = [a.sge(0, 8)];
    let wr = End::request(WrOpcode::Send, id, &sges, b, 0);
    let (posted, post) = watch(|| a.qp.post_send(&wr));
    posted.unwrap();
    b.good();
    until("an acknowledgement", || {
        assert!(b.cq.poll_one().is_none());
        left.inbox.seen() > before
    });
    left.inbox.allow(usize::MAX);
    loop {
        let (wc, poll) = watch(|| a.cq.poll_one());
        if let Some(wc) = wc {
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success as u32));
            return Path { post, poll };
        }
    }
}

/// The transport's own thread may be at it just then: it takes the acknowledgement before the program
/// polls, or the program's locks are more or fewer. Rounds in which the program took it count, and what
/// most of them take is what the path has.
#[test]
fn a_small_message_takes_few_locks_on_its_senders_side() {
    let (left, right) = world("");
    let (a, b) = connected(&left, &right, QpType::Rc, 4096);
    let paths: Vec<_> = (0..ROUNDS_MAX)
        .map(|id| send(&left, &a, &b, id))
        .filter(|path| !path.poll.is_empty())
        .take(ROUNDS)
        .collect();
    assert_eq!(paths.len(), ROUNDS, "the program took hardly any");
    let alike = |path: &Path| {
        let count = path.count();
        paths.iter().filter(move |other| other.count() == count)
    };
    let usual = paths.iter().max_by_key(|path| alike(path).count()).unwrap();
    let deepest = usual.all().map(|one| one.within).max();
    assert_eq!((usual.count(), deepest), (3, Some(0)), "{usual}");
}
