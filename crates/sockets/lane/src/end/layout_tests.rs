//! Where each word of a record is: other versions of sluiced, and forks of a program that has loaded another version
//! of the library, read the same.

use super::*;
use crate::table::VERSION;
use core::mem::offset_of;

#[test]
fn each_word_is_where_this_version_of_the_table_has_it() {
    assert_eq!(VERSION, 3, "which has the words that follow");
    let offsets = [
        ("generation", offset_of!(End, life.generation), 0),
        ("state", offset_of!(End, life.state), 4),
        ("refs", offset_of!(End, life.refs), 8),
        ("reason", offset_of!(End, reason), 12),
        ("chunk", offset_of!(End, memory.chunk), 16),
        ("peer_parking", offset_of!(End, memory.peer_parking), 24),
        ("own_parking", offset_of!(End, memory.own_parking), 32),
        ("lanes", offset_of!(End, memory.lanes), 40),
        ("ring_bytes", offset_of!(End, memory.ring_bytes), 44),
        ("lane", offset_of!(End, lane), 48),
        ("flags", offset_of!(End, flags), 52),
        ("owner", offset_of!(End, owner), 56),
        ("tx", offset_of!(End, tx), 64),
        ("empty_reads", offset_of!(End, empty_reads), 136),
        ("rx", offset_of!(End, rx), 144),
        ("gaps", offset_of!(End, gaps), 200),
        ("role", offset_of!(End, role), 208),
        ("postponed", offset_of!(End, postponed), 212),
        ("repeats", offset_of!(End, repeats), 216),
        ("ring_rx", offset_of!(End, bytes.ring_rx), 224),
        ("ring_tx", offset_of!(End, bytes.ring_tx), 232),
        ("tcp_rx", offset_of!(End, bytes.tcp_rx), 240),
        ("tcp_tx", offset_of!(End, bytes.tcp_tx), 248),
        ("switches", offset_of!(End, events.switches), 256),
        ("sleeps", offset_of!(End, events.sleeps), 260),
        ("spins", offset_of!(End, events.spins), 264),
        (
            "unbounded_reads",
            offset_of!(End, kernel_calls.unbounded_reads),
            268,
        ),
        (
            "draining_read",
            offset_of!(End, kernel_calls.draining_read),
            272,
        ),
        ("writes", offset_of!(End, kernel_calls.writes), 276),
        ("turnarounds", offset_of!(End, turnarounds), 280),
        ("local", offset_of!(End, addresses.local), 284),
        ("peer", offset_of!(End, addresses.peer), 302),
    ];
    let wrong: Vec<_> = offsets.iter().filter(|(_, is, was)| is != was).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
