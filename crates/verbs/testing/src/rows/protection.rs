//! What peers must not do, and what it leads to.

use std::time::{Duration, Instant};

use sluice_verbs::types::{EventType, MwType};
use sluice_verbs::{
    Element, MwBind, QpAttr, QpState, QpType, SendWr, WcStatus, WrOpcode, access, qp_mask,
    send_flags, wc_flags,
};

use crate::end::until;
use crate::row::{Need, Row};
use crate::side::{Joined, Side};

const LEN: usize = 16_384;
const COOKIE: u64 = 77;

/// Waits for the end of the connection at the responder.
fn is_ended(end: &Joined) {
    until("the end of the connection", || {
        let _ = end.cq.poll_one();
        end.qp.state() == QpState::Err
    });
}

pub const fn what_is_forbidden_is_refused_and_writes_nothing() -> Row {
    Row::new(&[], try_what_is_forbidden, be_unharmed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Key,
    LowByteOfTheKey,
    OwnKey,
    Below,
    Beyond,
    /// Address plus length is 2^64.
    Around,
    DestroyedRegion,
}

const WRONG: [Wrong; 7] = [
    Wrong::Key,
    Wrong::LowByteOfTheKey,
    Wrong::OwnKey,
    Wrong::Below,
    Wrong::Beyond,
    Wrong::Around,
    Wrong::DestroyedRegion,
];

fn operations(side: &Side) -> Vec<(WrOpcode, usize)> {
    // Of the long ones the first packets would be allowed.
    let mut all = vec![
        (WrOpcode::RdmaWrite, 64),
        (WrOpcode::RdmaWrite, LEN),
        (WrOpcode::RdmaRead, 64),
        (WrOpcode::RdmaRead, LEN),
    ];
    if Need::Atomics.is_met(&side.caps()) {
        all.push((WrOpcode::AtomicFetchAndAdd, 8));
    }
    all
}

fn try_what_is_forbidden(side: &mut Side) {
    for (opcode, len) in operations(side) {
        for wrong in WRONG {
            let end = side.connected(QpType::Rc, LEN);
            end.memory.fill(0, len, 1);
            let sge = [end.sge(0, len)];
            let mut wr = end.request(opcode, 1, &sge, 0);
            wr.compare_add = 1;
            match wrong {
                Wrong::Key => wr.rkey ^= 0x100,
                Wrong::LowByteOfTheKey => wr.rkey ^= 1,
                Wrong::OwnKey => wr.rkey = end.mr.rkey(),
                Wrong::Below => wr.remote_addr -= 8,
                Wrong::Beyond => wr.remote_addr += (LEN - len + 8) as u64,
                Wrong::Around => wr.remote_addr = (len as u64).wrapping_neg(),
                Wrong::DestroyedRegion => side.meet(),
            }
            // Behind the bad one, what would be allowed.
            let good = end.request(WrOpcode::RdmaWrite, 2, &sge, 0);
            end.post(&wr);
            end.post(&good);
            for (id, wanted) in [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)] {
                let (ended, status) = end.outcome();
                let sent = end.completes_when_sent && status == 0;
                let right = sent || status == wanted as u32;
                assert!(
                    ended == id && right,
                    "{opcode:?} of {len} {wrong:?}: {ended}, {status}"
                );
            }
            until("the error state", || end.qp.state() == QpState::Err);
            side.meet();
            side.meet();
        }
    }
}

fn be_unharmed(side: &mut Side) {
    for (opcode, _) in operations(side) {
        for wrong in WRONG {
            let end = side.connected(QpType::Rc, LEN);
            if wrong == Wrong::DestroyedRegion {
                end.mr.destroy().unwrap();
                side.meet();
            }
            side.meet();
            is_ended(&end);
            let bytes = end.memory.bytes(0, LEN);
            assert!(bytes.iter().all(|byte| *byte == 0), "{opcode:?} {wrong:?}");
            side.meet();
        }
    }
}

pub const fn nothing_behind_a_failure_is_carried_out() -> Row {
    Row::new(&[], post_behind_a_failure, be_unharmed_by_what_follows)
}

const FAILURES: usize = 20;

fn post_behind_a_failure(side: &mut Side) {
    // They are posted before, while and after the requester hears of the refusal.
    const BEHIND: u64 = 200;
    const BETWEEN: Duration = Duration::from_micros(10);
    for _ in 0..FAILURES {
        let end = side.connected(QpType::Rc, LEN);
        end.memory.fill(0, 8, 1);
        let sge = [end.sge(0, 8)];
        let mut bad = end.request(WrOpcode::RdmaWrite, 0, &sge, 0);
        bad.rkey ^= 0x100;
        end.post(&bad);
        for id in 1..=BEHIND {
            let start = Instant::now();
            while start.elapsed() < BETWEEN {
                std::hint::spin_loop();
            }
            end.post(&end.request(WrOpcode::RdmaWrite, id, &sge, 0));
        }
        let mut has_failed = false;
        for id in 0..=BEHIND {
            let (ended, status) = end.outcome();
            let wanted = match (has_failed, id) {
                (true, _) => WcStatus::WrFlushErr,
                (false, 0) => WcStatus::RemAccessErr,
                (false, _) => WcStatus::Success,
            };
            let sent = end.completes_when_sent && !has_failed;
            let is_right = status == wanted as u32 || sent;
            assert!(ended == id && is_right, "{id}: {ended}, {status}");
            has_failed |= status != 0;
        }
        until("the error state", || end.qp.state() == QpState::Err);
        side.meet();
        side.meet();
    }
}

fn be_unharmed_by_what_follows(side: &mut Side) {
    for _ in 0..FAILURES {
        let end = side.connected(QpType::Rc, LEN);
        side.meet();
        is_ended(&end);
        let bytes = end.memory.bytes(0, LEN);
        assert!(bytes.iter().all(|byte| *byte == 0), "{:?}", &bytes[..8]);
        side.meet();
    }
}

pub const fn rights_of_the_key_count() -> Row {
    Row::new(&[], use_a_key_for_reading, give_a_key_for_reading)
}

fn use_a_key_for_reading(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let rkey = side.swap([0; 4])[0] as u32;
    let sge = [end.sge(0, 64)];
    let mut wr = end.request(WrOpcode::RdmaRead, 1, &sge, 0);
    wr.rkey = rkey;
    end.done(&wr);
    wr.opcode = WrOpcode::RdmaWrite;
    end.is_refused(&wr, &[WcStatus::RemAccessErr]);
    side.meet();
}

fn give_a_key_for_reading(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let start = end.memory.start as u64;
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    let mr = side.pd.reg_mr(start, LEN as u64, start, rights).unwrap();
    side.swap([u64::from(mr.rkey()), 0, 0, 0]);
    is_ended(&end);
    side.meet();
}

pub const fn rights_of_the_queue_pair_count() -> Row {
    Row::new(&[], write_where_reading_is_allowed, allow_reading)
}

fn write_where_reading_is_allowed(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    let sge = [end.sge(0, 64)];
    end.done(&end.request(WrOpcode::RdmaRead, 1, &sge, 0));
    let wr = end.request(WrOpcode::RdmaWrite, 1, &sge, 0);
    end.is_refused(&wr, &[WcStatus::RemAccessErr, WcStatus::RemInvReqErr]);
    side.meet();
}

fn allow_reading(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let attr = QpAttr {
        qp_access_flags: access::REMOTE_READ,
        ..QpAttr::default()
    };
    end.qp.modify(&attr, qp_mask::ACCESS_FLAGS).unwrap();
    side.meet();
    is_ended(&end);
    side.meet();
}

pub const fn an_atomic_beside_its_word_is_refused() -> Row {
    Row::new(&[Need::Atomics], add_beside, is_refusing)
}

fn add_beside(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let sge = [end.sge(0, 8)];
    let wr = end.request(WrOpcode::AtomicFetchAndAdd, 1, &sge, 4);
    // RDMAP has no word for it.
    end.is_refused(&wr, &[WcStatus::RemInvReqErr, WcStatus::RemOpErr]);
    side.meet();
}

fn is_refusing(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    is_ended(&end);
    side.meet();
}

/// Binds a window to bytes 1024 to 2047, and tells its key.
fn bind(side: &mut Side, end: &Joined, kind: MwType) -> (std::sync::Arc<sluice_verbs::Mw>, u32) {
    let mw = side.pd.alloc_mw(kind).unwrap();
    let rkey = mw.next_rkey();
    let wr = SendWr {
        flags: send_flags::SIGNALED,
        bind: Some(MwBind {
            mw: &mw,
            rkey,
            mr: Some(&end.mr),
            addr: end.memory.start as u64 + 1024,
            length: 1024,
            access: access::REMOTE_WRITE,
        }),
        ..SendWr::new(WrOpcode::BindMw, 5)
    };
    end.done(&wr);
    side.swap([u64::from(rkey), 0, 0, 0]);
    (mw, rkey)
}

pub const fn a_window_opens_its_part() -> Row {
    Row::new(&[], write_through_a_window, open_a_window)
}

fn write_through_a_window(side: &mut Side) {
    for (at, opcode) in [
        (1024 + 1024 - 63, WrOpcode::RdmaWrite),
        (1023, WrOpcode::RdmaWrite),
        (1024, WrOpcode::RdmaRead),
    ] {
        let end = side.connected(QpType::Rc, LEN);
        let rkey = side.swap([0; 4])[0] as u32;
        end.memory.fill(0, 64, 7);
        let sge = [end.sge(0, 64)];
        let mut wr = end.request(WrOpcode::RdmaWrite, 1, &sge, 1024 + 1024 - 64);
        wr.rkey = rkey;
        end.done(&wr);
        let mut wr = end.request(opcode, 2, &sge, at);
        wr.rkey = rkey;
        end.is_refused(&wr, &[WcStatus::RemAccessErr]);
        side.meet();
    }
}

fn open_a_window(side: &mut Side) {
    for _ in 0..3 {
        let end = side.connected(QpType::Rc, LEN);
        let (mw, _) = bind(side, &end, MwType::Type1);
        is_ended(&end);
        side.meet();
        end.memory.check(2048 - 64, 64, 7);
        assert_eq!((end.memory.byte(2048), end.memory.byte(1023)), (0, 0));
        mw.destroy().unwrap();
    }
}

pub const fn a_send_takes_a_key_away() -> Row {
    Row::new(&[Need::Invalidate], invalidate, be_invalidated)
}

fn invalidate(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    let rkey = side.swap([0; 4])[0] as u32;
    let sge = [end.sge(0, 64)];
    let mut write = end.request(WrOpcode::RdmaWrite, 1, &sge, 1024);
    write.rkey = rkey;
    end.done(&write);
    let mut send = end.request(WrOpcode::SendWithInv, 2, &sge, 0);
    send.imm = rkey;
    end.done(&send);
    end.is_refused(&write, &[WcStatus::RemAccessErr]);
    side.meet();
}

fn be_invalidated(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    end.post_recv(6, 0, 64);
    let (_mw, rkey) = bind(side, &end, MwType::Type2);
    let wc = end.good();
    assert_eq!((wc.wr_id, wc.wc_flags), (6, wc_flags::WITH_INV));
    assert_eq!((wc.imm, wc.byte_len), (rkey, 64));
    is_ended(&end);
    side.meet();
}

pub const fn a_send_takes_no_key_that_is_not_open_to_it() -> Row {
    Row::new(
        &[Need::Invalidate],
        take_what_is_not_open,
        keep_what_is_not_open,
    )
}

/// Keys that a peer names in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Region,
    /// Of a window that another queue pair of this domain has bound.
    OfAnother,
    /// Of a window for all queue pairs.
    OfAll,
    /// Of a window of its own, but for the low byte.
    LowByte,
    /// Of a window that is not bound.
    Unbound,
    /// Of no place at all.
    Nothing,
}

const KEPT: [Kept; 6] = [
    Kept::Region,
    Kept::OfAnother,
    Kept::OfAll,
    Kept::LowByte,
    Kept::Unbound,
    Kept::Nothing,
];
/// In one packet and in several: the last one names the key.
const LENGTHS: [usize; 2] = [64, LEN];

fn take_what_is_not_open(side: &mut Side) {
    for (kept, len) in KEPT.iter().flat_map(|kept| LENGTHS.map(|len| (*kept, len))) {
        let end = side.connected(QpType::Rc, LEN);
        let other = side.connected(QpType::Rc, LEN);
        let rkey = side.swap([0; 4])[0] as u32;
        let sge = [end.sge(0, len)];
        let mut send = end.request(WrOpcode::SendWithInv, 1, &sge, 0);
        send.imm = match kept {
            Kept::LowByte => rkey ^ 1,
            _ => rkey,
        };
        // RDMAP says that the key cannot be invalidated, and not that access is refused.
        end.is_refused(&send, &[WcStatus::RemAccessErr, WcStatus::RemInvReqErr]);
        if matches!(kept, Kept::Region | Kept::OfAnother | Kept::OfAll) {
            other.memory.fill(0, 64, 7);
            let sge = [other.sge(0, 64)];
            let mut write = other.request(WrOpcode::RdmaWrite, 2, &sge, 1024);
            write.rkey = rkey;
            other.done(&write);
        }
        side.meet();
    }
}

fn keep_what_is_not_open(side: &mut Side) {
    for (kept, len) in KEPT.iter().flat_map(|kept| LENGTHS.map(|len| (*kept, len))) {
        let end = side.connected(QpType::Rc, LEN);
        let other = side.connected(QpType::Rc, LEN);
        end.post_recv(6, 0, len);
        let mut window = None;
        match kept {
            Kept::Region => drop(side.swap([u64::from(other.mr.rkey()), 0, 0, 0])),
            Kept::OfAnother => window = Some(bind(side, &other, MwType::Type2).0),
            Kept::OfAll => window = Some(bind(side, &other, MwType::Type1).0),
            Kept::LowByte => window = Some(bind(side, &end, MwType::Type2).0),
            Kept::Unbound => {
                let mw = side.pd.alloc_mw(MwType::Type2).unwrap();
                side.swap([u64::from(mw.rkey()), 0, 0, 0]);
                window = Some(mw);
            }
            Kept::Nothing => drop(side.swap([u64::from(!end.mr.rkey()), 0, 0, 0])),
        }
        let (id, status) = end.outcome();
        assert!(id == 6 && status != 0, "{kept:?}: {id}, {status}");
        is_ended(&end);
        side.meet();
        if matches!(kept, Kept::Region | Kept::OfAnother | Kept::OfAll) {
            other.memory.check(1024, 64, 7);
        }
        drop(window);
    }
}

pub const fn a_refusal_is_an_event_of_the_responder() -> Row {
    Row::new(&[], refuse_access, hear_of_it)
}

fn refuse_access(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    side.meet();
    let sge = [end.sge(0, 64)];
    let mut wr = end.request(WrOpcode::RdmaWrite, 1, &sge, 0);
    wr.rkey ^= 0x100;
    end.is_refused(&wr, &[WcStatus::RemAccessErr]);
    side.meet();
}

fn hear_of_it(side: &mut Side) {
    let end = side.connected(QpType::Rc, LEN);
    end.qp.set_cookie(COOKIE);
    for id in 0..3 {
        end.post_recv(id, 0, 64);
    }
    side.meet();
    let told = side.event();
    assert_eq!(told.event, EventType::QpAccessErr, "{told:?}");
    assert_eq!(told.element, Element::Qp(COOKIE));
    end.qp.ack_async_event();
    for id in 0..3 {
        assert_eq!(end.outcome(), (id, WcStatus::WrFlushErr as u32));
    }
    side.meet();
}
