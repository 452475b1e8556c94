//! Ring bytes on their way back: whoever changes the word first decides, and every byte comes once, in order.

use super::{Stream, World, check, pop};
use crate::direction::{Direction, Reclaim};
use crate::handover::{Back, Next, Receiver, Sender};
use crate::sync::Ordering;
use loom::thread;

/// Hears what became of a wish, whose time is over if `is_over`.
type Hear = fn(&mut Receiver, &Direction, bool) -> Back;

/// What a sender does before it writes, and where it waits.
fn answer(stream: &mut Stream, world: &World) {
    let direction = &world.direction;
    if !Sender::is_asked_back(direction) {
        return;
    }
    stream.sender.leave(direction);
    let pieces = stream.sender.take_back(direction, |_| true);
    for (address, len) in pieces.into_iter().flatten() {
        for at in 0..len {
            // SAFETY: the piece lies in the ring, and its reader has given it up.
            world.kernel.send(unsafe { *address.add(at) });
            stream.by_tcp += 1;
        }
    }
}

/// Gives the socket of a reader away, and reads all of two bytes as those who have them then.
fn give_away(world: &World, hear: Hear) -> Vec<u8> {
    let direction = &world.direction;
    let mut receiver = Receiver::default();
    receiver.retire(direction);
    while direction.is_write_in_flight() {
        thread::yield_now();
    }
    if receiver.consumer().available(direction) != Ok(0) {
        receiver.ask_back(direction);
        let mut is_over = false;
        loop {
            match hear(&mut receiver, direction, is_over) {
                // One look, and the time is over.
                Back::Asked => is_over = true,
                Back::Taken | Back::Kept => break,
            }
        }
    }
    let mut bytes = Vec::new();
    while bytes.len() < 2 {
        match receiver.next(direction).unwrap() {
            Next::Ring(_) => bytes.extend(pop(direction, receiver.consumer())),
            Next::Owed(_) | Next::Tcp | Next::Empty => {
                let more = world.kernel.receive(1);
                receiver.count(more.len() as u64);
                bytes.extend(more);
            }
        }
    }
    bytes
}

fn model(hear: Hear) -> impl Fn() {
    move || {
        let (world, sender) = World::with_sender(move |stream, sender| {
            stream.send(sender, 0);
            answer(stream, sender);
            stream.send(sender, 1);
            answer(stream, sender);
        });
        let bytes = give_away(&world, hear);
        assert!(bytes == [0, 1], "bytes out of order");
        sender.join().unwrap();
        assert!(!world.kernel.is_readable(), "bytes that came twice");
    }
}

#[test]
fn bytes_go_back_or_stay() {
    check(3, model(Receiver::hear_back));
}

/// Takes the wish back without looking whether it was answered.
fn hear_and_withdraw_blindly(receiver: &mut Receiver, into: &Direction, is_over: bool) -> Back {
    if is_over && into.reclaim() == Reclaim::Asked {
        into.receiver().reclaim.store(0, Ordering::Release);
        return Back::Kept;
    }
    receiver.hear_back(into, is_over)
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_takes_its_wish_back_blindly() {
    check(3, model(hear_and_withdraw_blindly));
}
