//! A peer that does not keep to the protocol: the stream of who hears it ends, or goes on, and nothing else happens.

use std::collections::HashSet;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, Release},
};
use std::thread;

use libc::{EPIPE, EPROTO, MSG_DONTWAIT};

use super::Stream;
use crate::poll::rpoll;
use crate::tests::{Buffers, Socket, pair, receive, receive_exactly, send, wait};
use crate::wire::{Buffer, DATA_LEN_MAX, Message, SGE_LEN};
use crate::{Kind, find};

/// Bytes of a buffer, and messages that may be sent ahead.
pub(crate) const SMALL: Buffers = Buffers {
    bytes: Some(4096),
    receives: Some(16),
};

/// Does something with the liar's own stream.
pub(crate) fn with<T>(liar: &Socket, act: impl FnOnce(&mut Stream) -> T) -> T {
    let Some(Kind::Stream(socket)) = find(liar.0) else {
        panic!("a stream");
    };
    let mut state = socket.lock();
    act(state.stream.as_mut().expect("it is connected"))
}

/// Says 32 bits of immediate data, with nothing else.
pub(crate) fn say(liar: &Socket, word: u32) {
    with(liar, |stream| {
        stream
            .post_word(None, false, (0, 0), Some(word), 0)
            .expect("there is a place")
    });
}

/// All that was said is where the victim looks.
fn await_arrival(liar: &Socket) {
    let has_come = |stream: &mut Stream| {
        stream.progress();
        stream.drained()
    };
    while !with(liar, has_come) {
        std::thread::yield_now();
    }
}

/// The connection is no more, as far as the liar has heard.
fn has_ended(liar: &Socket) -> bool {
    let mut item = libc::pollfd {
        fd: liar.0,
        events: 0,
        revents: 0,
    };
    // SAFETY: one pollfd that lives through the call.
    unsafe { rpoll(&raw mut item, 1, 0) == 1 }
}

/// Each socket goes on where others are lied to.
pub(crate) fn be_honest((one, other): (Socket, Socket)) {
    assert_eq!(send(&one, b"honest", 0), Ok(6));
    assert_eq!(receive_exactly(&other, 6), b"honest");
}

#[test]
fn words_that_nobody_knows_end_the_stream() {
    let beside = pair(SMALL);
    for word in [
        1 << 29,
        2 << 29,
        3 << 29 | 77,
        5 << 29,
        4 << 29 | 0x1_0000,
        6 << 29 | 0x100,
        7 << 29 | 3,
        u32::MAX,
    ] {
        let (liar, victim) = pair(SMALL);
        say(&liar, word);
        assert_eq!(receive(&victim, 1, 0), Err(EPROTO), "{word:#x}");
        assert_eq!(send(&victim, b"x", 0), Err(EPIPE), "{word:#x}");
    }
    be_honest(beside);
}

#[test]
fn more_bytes_than_were_offered_end_the_stream() {
    for bytes in [DATA_LEN_MAX, 4097] {
        let (liar, victim) = pair(SMALL);
        say(&liar, Message::Data(bytes).emit());
        assert_eq!(receive(&victim, 1, 0), Err(EPROTO), "{bytes}");
    }
    // By pieces that are small enough each.
    let (liar, victim) = pair(SMALL);
    for _ in 0..3 {
        say(&liar, Message::Data(2048).emit());
    }
    await_arrival(&liar);
    assert_eq!(receive(&victim, 1, 0), Err(EPROTO));
}

#[test]
fn more_messages_than_were_granted_end_the_stream() {
    let (liar, victim) = pair(SMALL);
    let granted = with(&liar, |stream| stream.granted);
    for _ in 0..=granted {
        say(&liar, Message::Data(0).emit());
    }
    // The victim grants more whenever it looks.
    await_arrival(&liar);
    assert_eq!(receive(&victim, 1, 0), Err(EPROTO));
}

#[test]
fn credits_that_are_taken_back_end_the_stream() {
    let (liar, victim) = pair(SMALL);
    for index in 0..40 {
        // What was said may be said again.
        say(
            &liar,
            Message::Credits(with(&liar, |stream| stream.told)).emit(),
        );
        wait(&victim, libc::POLLOUT);
        assert_eq!(send(&victim, &[index], 0), Ok(1));
        assert_eq!(receive_exactly(&liar, 1), [index]);
    }
    // One less, no more than was sent, less than that, and one more than the liar has receives for.
    for lie in [None, Some(1), Some(0), Some(18)] {
        let (liar, victim) = pair(SMALL);
        assert_eq!(send(&victim, b"a", 0), Ok(1));
        assert_eq!(receive_exactly(&liar, 1), b"a");
        let limit = lie.unwrap_or_else(|| with(&liar, |stream| stream.told) - 1);
        say(&liar, Message::Credits(limit).emit());
        assert_eq!(receive(&victim, 1, 0), Err(EPROTO), "{limit}");
        assert_eq!(send(&victim, b"x", 0), Err(EPIPE), "{limit}");
    }
}

/// The transport writes to the table of a process that runs; here a thread does.
#[test]
fn an_entry_that_changes_while_it_is_read_is_read_once() {
    let (_liar, victim) = pair(SMALL);
    let table = with(&victim, |stream| stream.table.addr(0)) as usize;
    let is_done = AtomicBool::new(false);
    let taken = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                for (entry, length) in [(0, 2048), (1, 2048), (0, 0), (1, 0)] {
                    let at = (table + entry * SGE_LEN + 12) as *mut u32;
                    // SAFETY: the last word of an entry of the victim's table, which lives through the scope.
                    unsafe { AtomicU32::from_ptr(at) }.store(length, Release);
                }
            }
        });
        let take = |stream: &mut Stream| {
            stream.target.length = 0;
            stream.next_target();
            (stream.target.length, stream.broken)
        };
        let mut taken = HashSet::new();
        for _ in 0..200_000 {
            taken.insert(with(&victim, take));
        }
        is_done.store(true, Relaxed);
        taken
    });
    // Nothing, or what stood there.
    assert_eq!(taken, HashSet::from([(0, None), (2048, None)]));
}

#[test]
fn the_end_may_be_said_twice_and_mappings_that_there_are_not_are_nothing() {
    let (liar, victim) = pair(SMALL);
    for message in [Message::IoMap(0), Message::IoMap(255), Message::KeepAlive] {
        say(&liar, message.emit());
    }
    assert_eq!(send(&liar, b"then", 0), Ok(4));
    assert_eq!(receive_exactly(&victim, 4), b"then");
    for message in [Message::Shutdown, Message::Disconnect, Message::Disconnect] {
        say(&liar, message.emit());
    }
    assert_eq!(receive(&victim, 1, 0), Ok(Vec::new()));
}

#[test]
fn a_buffer_that_cannot_be_ends_the_stream_when_its_turn_comes() {
    let (liar, victim) = pair(SMALL);
    let offered = Buffer {
        addr: u64::MAX - 10,
        key: 5,
        length: 2048,
    };
    with(&liar, |stream| {
        // Over the one that it offers by itself.
        stream.progress();
        let to = stream.peer_table.addr + SGE_LEN as u64;
        let message = Message::Credits(stream.told);
        stream.post_note(&offered.emit(), to, message)
    })
    .expect("there is a place");
    await_arrival(&liar);
    // The first half is honest.
    wait(&victim, libc::POLLOUT);
    let mut sent = 0;
    let end = loop {
        match send(&victim, &[7; 512], MSG_DONTWAIT) {
            Ok(bytes) => sent += bytes,
            // Until the word has come.
            Err(libc::EAGAIN) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!((end, sent), (EPIPE, 2048));
}

/// What a peer may say as often as it likes, and what it must not say.
#[test]
fn a_socket_closes_while_a_liar_speaks() {
    for message in [Message::KeepAlive, Message::IoMap(7), Message::Data(100)] {
        for _ in 0..20 {
            let (liar, victim) = pair(SMALL);
            say(&liar, message.emit());
            await_arrival(&liar);
            let speaker = thread::spawn(move || {
                // Until it hears of the end.
                while !has_ended(&liar) {
                    with(&liar, |stream| {
                        if stream.places > 0 {
                            // One that finds the connection ended is heard of in the next turn.
                            let _ = stream.post(None, false, (0, 0), Some(message), 0);
                        }
                    });
                }
            });
            drop(victim);
            speaker.join().unwrap();
        }
    }
}
