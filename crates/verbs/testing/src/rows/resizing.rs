//! Queues that change their length while they are in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_verbs::types::srq_mask;
use sluice_verbs::{Cq, QpType, SrqAttr, WrOpcode};

use crate::end::until;
use crate::row::Row;
use crate::rows::receives::{sharing, srq};
use crate::side::{Joined, Side};

const SENDERS: usize = 3;
/// Messages of each connection before both programs say whether they go on.
const ROUND: u64 = 64;
const RECEIVES: u32 = SENDERS as u32 * ROUND as u32;
/// Each behind another message than the one before.
const RESIZES: u64 = 200;

pub const fn queues_change_their_length_while_messages_arrive() -> Row {
    Row::new(&[], send_and_resize, receive_and_resize)
}

/// Waits for another completion, and returns the next length of a queue, which has room for `least`.
fn next_length(completions: &AtomicU64, seen: &mut u64, turn: u64, least: u32) -> u32 {
    until("another completion", || {
        completions.load(Ordering::Relaxed) > *seen
    });
    *seen = completions.load(Ordering::Relaxed);
    least << (turn % 3)
}

/// Calls `resize` in a thread, [`RESIZES`] times, and `round` meanwhile, as long as one of the two programs resizes.
fn while_resizing(side: &mut Side, resize: impl Fn(u32) + Sync, mut round: impl FnMut(&AtomicU64)) {
    let completions = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            let mut seen = 0;
            for turn in 0..RESIZES {
                resize(next_length(&completions, &mut seen, turn, RECEIVES));
            }
        });
        loop {
            let goes_on = !resizer.is_finished();
            let theirs = side.swap([u64::from(goes_on), 0, 0, 0])[0];
            if !goes_on && theirs == 0 {
                break;
            }
            round(&completions);
        }
    });
}

fn position(ends: &[Joined], qpn: u32) -> usize {
    let position = ends.iter().position(|end| end.qp.num() == qpn);
    position.expect("one of them")
}

fn is_empty(cq: &Cq) {
    assert!(cq.poll_one().is_none(), "a completion comes twice");
}

fn send_and_resize(side: &mut Side) {
    let cq = side.cq(None);
    let ends: Vec<Joined> = (0..SENDERS)
        .map(|_| {
            let end = side.end_with(QpType::Rc, 8192, &cq);
            side.connect(end)
        })
        .collect();
    let resize = |length| cq.resize(length).unwrap();
    let mut begun = 0;
    while_resizing(side, resize, |completions| {
        for id in begun..begun + ROUND {
            for end in &ends {
                let at = (id % ROUND * 8) as usize;
                end.memory.set_word(at, id);
                let sge = [end.sge(at, 8)];
                end.post(&end.request(WrOpcode::Send, id, &sge, 0));
            }
        }
        let mut next = [begun; SENDERS];
        for _ in 0..RECEIVES {
            let wc = ends[0].good();
            completions.fetch_add(1, Ordering::Relaxed);
            let sender = position(&ends, wc.qp_num);
            assert_eq!(wc.wr_id, next[sender], "completions in posting order");
            next[sender] += 1;
        }
        begun += ROUND;
        is_empty(&cq);
    });
}

fn receive_and_resize(side: &mut Side) {
    let srq = srq(side, RECEIVES);
    let ends = sharing(side, &srq, SENDERS);
    // When each receive was posted: as how many-th of all.
    let mut order = [None; RECEIVES as usize];
    let mut count = 0;
    let mut post = |id: u64, order: &mut [Option<u64>]| {
        let sge = [ends[0].sge(id as usize * 8, 8)];
        srq.post_recv(id, &sge).unwrap();
        order[id as usize] = Some(count);
        count += 1;
    };
    for id in 0..u64::from(RECEIVES) {
        post(id, &mut order);
    }
    let cq: Arc<Cq> = ends[0].cq.clone();
    let resize = |length| {
        cq.resize(length).unwrap();
        let attr = SrqAttr {
            max_wr: length,
            ..SrqAttr::default()
        };
        srq.modify(&attr, srq_mask::MAX_WR).unwrap();
    };
    let (mut next, mut first) = ([0; SENDERS], [0; SENDERS]);
    while_resizing(side, resize, |completions| {
        for _ in 0..RECEIVES {
            let wc = ends[0].good();
            completions.fetch_add(1, Ordering::Relaxed);
            let word = ends[0].memory.word(wc.wr_id as usize * 8);
            let sender = position(&ends, wc.qp_num);
            assert_eq!(word, next[sender], "each message once, in its order");
            next[sender] += 1;
            let taken = order[wc.wr_id as usize].take();
            let taken = taken.expect("a receive completes twice");
            assert!(taken >= first[sender], "receives in posting order");
            first[sender] = taken + 1;
            post(wc.wr_id, &mut order);
        }
        is_empty(&cq);
    });
}
