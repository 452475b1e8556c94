//! What the planner is told of a connection before it says which of two ways the next packet takes.

use sluice_planner::{Begins, Seen, Ways};
use sluice_protocol::Instant;
use sluice_protocol::rc::Connection;

/// In front of every look for the next packet. `flows`: the program posts much at a time.
pub fn look(ways: &mut Ways, connection: &mut Connection, mtu: u64, flows: bool, now: Instant) {
    let begins = connection.begins().map(|request| Begins {
        length: u64::from(request.length),
        is_sent: !request.operation.has_response_data(),
    });
    let seen = Seen {
        is_quiet: connection.is_quiet(),
        begins,
        waiting: connection.waiting(),
        reply_packets: connection.reply_packets(),
        mtu,
        flows,
    };
    if let Some(holds) = ways.look(&seen, now) {
        connection.hold(holds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_protocol::rc::Config;
    use sluice_protocol::{
        Access, Atomic, Memory, Operation, Received, Refusal, Remote, Request, ScatterError,
        TakeError,
    };
    use sluice_wire::bth::Bth;
    use sluice_wire::extended::{Aeth, Reth, RnrTimer, Syndrome};
    use sluice_wire::opcode::{Operation as Op, Service};
    use sluice_wire::{Ecn, Headers, Mtu, Opcode, Packet, Psn, Qpn};

    const MTU: u64 = 1024;
    /// Packets of a message from which on it is bulk.
    const BATCH: u64 = 8;
    const LINGER_NS: u64 = 2_000_000;
    const NOW: Instant = Instant::from_nanos(1_000);

    fn connection() -> Connection {
        Connection::new(&Config {
            destination: Qpn::new(2),
            pkey: 0xffff,
            mtu: Mtu::Bytes1024,
            send_psn: Psn::new(0),
            receive_psn: Psn::new(0),
            depth: 100,
            window: 100,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::from_code(1),
            extended: false,
            early: false,
            single_writes: false,
            rate: None,
        })
    }

    fn post(connection: &mut Connection, seq: u64, operation: Operation, length: u64) {
        let request = Request {
            seq,
            operation,
            length: length as u32,
            solicited: false,
            srq: None,
        };
        assert!(connection.post(request).is_ok());
    }

    /// Memory in which everything may be done and nothing is.
    struct Nothing;

    impl Memory for Nothing {
        fn place(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), Refusal> {
            Ok(())
        }
        fn select(&mut self, _: Qpn) {}
        fn check(&mut self, _: Access, _: Remote, _: u32) -> Result<(), Refusal> {
            Ok(())
        }
        fn write(&mut self, _: Remote, _: &[u8]) -> Result<(), Refusal> {
            Ok(())
        }
        fn atomic(&mut self, _: Remote, _: Atomic) -> Result<u64, Refusal> {
            Ok(0)
        }
        fn take_receive(&mut self) -> Result<(), TakeError> {
            Ok(())
        }
        fn scatter(&mut self, _: u32, _: &[u8]) -> Result<(), ScatterError> {
            Ok(())
        }
        fn invalidate(&mut self, _: u32) -> Result<(), Refusal> {
            Ok(())
        }
        fn complete_receive(&mut self, _: &Received) {}
    }

    fn feed(connection: &mut Connection, operation: Op, psn: u32, change: impl Fn(&mut Headers)) {
        let opcode = Opcode::new(Service::Rc, operation).expect("an opcode of RC");
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(psn)));
        change(&mut headers);
        let mut bytes = [0; 64];
        let length = headers.emit(&[], &mut bytes).expect("legal");
        let packet = Packet::parse(&bytes[..length]).expect("legal");
        connection.receive(NOW, &packet, Ecn::NotCapable, &mut Nothing);
        connection.hold(false);
    }

    fn acknowledge(connection: &mut Connection, psn: u32) {
        feed(connection, Op::Acknowledge, psn, |headers| {
            headers.aeth = Some(Aeth {
                syndrome: Syndrome::Ack(None),
                msn: Psn::new(0),
            });
        });
    }

    /// Sends what may be sent; for each packet whether it goes by the socket.
    fn sent(bulk: &mut Ways, connection: &mut Connection, now: Instant) -> Vec<bool> {
        sent_while(false, bulk, connection, now)
    }

    fn sent_while(
        flows: bool,
        bulk: &mut Ways,
        connection: &mut Connection,
        now: Instant,
    ) -> Vec<bool> {
        let mut ways = Vec::new();
        loop {
            look(bulk, connection, MTU, flows, now);
            let Some(packet) = connection.transmit(now) else {
                return ways;
            };
            ways.push(match packet.headers.bth.opcode.is_response() {
                true => {
                    let operation = packet.headers.bth.opcode.operation();
                    bulk.reply(operation == Op::Acknowledge)
                }
                false => bulk.request(),
            });
        }
    }

    #[test]
    fn requests_change_their_way_only_when_nothing_is_under_way() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        post(&mut connection, 0, Operation::Send, 8);
        post(&mut connection, 1, Operation::Send, 3 * MTU);
        // One packet and three go past the kernel; the bulk waits for their answers.
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false; 4]);
        post(&mut connection, 2, Operation::Send, 4 * MTU + 1);
        post(&mut connection, 3, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), []);
        acknowledge(&mut connection, 2);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), []);
        acknowledge(&mut connection, 3);
        // What is behind it goes with it.
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true; 6]);
        post(&mut connection, 4, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true]);
        acknowledge(&mut connection, 10);
        // All is answered.
        post(&mut connection, 5, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
        acknowledge(&mut connection, 11);
        post(&mut connection, 6, Operation::Send, 64 * MTU);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true; 64]);
    }

    #[test]
    fn many_small_messages_are_bulk_once_those_before_are_answered() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        let few = BATCH - 1;
        (0..few).for_each(|seq| post(&mut connection, seq, Operation::Send, 8));
        let all = |way, count| vec![way; count as usize];
        assert_eq!(sent(&mut bulk, &mut connection, NOW), all(false, few));
        (0..few).for_each(|seq| post(&mut connection, few + seq, Operation::Send, 8));
        // Too few to wait for anything.
        assert_eq!(sent(&mut bulk, &mut connection, NOW), all(false, few));
        (0..BATCH).for_each(|seq| post(&mut connection, 2 * few + seq, Operation::Send, 8));
        assert_eq!(sent(&mut bulk, &mut connection, NOW), []);
        acknowledge(&mut connection, 2 * few as u32 - 2);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), []);
        acknowledge(&mut connection, 2 * few as u32 - 1);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), all(true, BATCH));
        // One more behind them must not overtake them.
        let seq = 2 * few + BATCH;
        post(&mut connection, seq, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true]);
        acknowledge(&mut connection, seq as u32);
        post(&mut connection, seq + 1, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
    }

    #[test]
    fn many_small_messages_with_a_short_last_packet_each_are_none() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        let messages = |connection: &mut Connection, from: u64, length| {
            (from..from + BATCH).for_each(|seq| post(connection, seq, Operation::Send, length));
        };
        let ways = |way, packets: u64| vec![way; (packets * BATCH) as usize];
        messages(&mut connection, 0, 2 * MTU + 1);
        let sent = sent_while(true, &mut bulk, &mut connection, NOW);
        assert_eq!(sent, ways(false, 3));
        acknowledge(&mut connection, 3 * BATCH as u32 - 1);
        messages(&mut connection, BATCH, 2 * MTU);
        let sent = sent_while(false, &mut bulk, &mut connection, NOW);
        assert_eq!(sent, ways(true, 2));
    }

    #[test]
    fn a_program_that_posts_much_at_a_time_has_its_first_message_with_the_rest() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        post(&mut connection, 0, Operation::Send, 8);
        assert_eq!(sent_while(true, &mut bulk, &mut connection, NOW), [true]);
        // What is under way past the kernel is not waited for by few.
        acknowledge(&mut connection, 0);
        post(&mut connection, 1, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
        post(&mut connection, 2, Operation::Send, 8);
        assert_eq!(sent_while(true, &mut bulk, &mut connection, NOW), [false]);
    }

    #[test]
    fn answers_stay_where_bulk_was_for_a_while() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        let read = |connection: &mut Connection, psn, packets: u32| {
            feed(connection, Op::ReadRequest, psn, |headers| {
                headers.reth = Some(Reth {
                    address: 0,
                    rkey: 0,
                    length: packets * MTU as u32,
                });
            });
        };
        read(&mut connection, 0, 3);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false; 3]);
        read(&mut connection, 3, 5);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true; 5]);
        read(&mut connection, 8, 1);
        let soon = NOW.after_nanos(LINGER_NS - 1);
        assert_eq!(sent(&mut bulk, &mut connection, soon), [true]);
        read(&mut connection, 9, 1);
        let later = NOW.after_nanos(LINGER_NS);
        assert_eq!(sent(&mut bulk, &mut connection, later), [false]);
        // Requests have nothing to do with it.
        post(&mut connection, 0, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
    }

    #[test]
    fn what_may_answer_is_behind_an_acknowledgement_where_bulk_was() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        post(&mut connection, 0, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
        feed(&mut connection, Op::ReadRequest, 0, |headers| {
            headers.reth = Some(Reth {
                address: 0,
                rkey: 0,
                length: 5 * MTU as u32,
            });
        });
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true; 5]);
        feed(&mut connection, Op::SendOnly, 5, |headers| {
            headers.bth.ack_request = true;
        });
        post(&mut connection, 1, Operation::Send, 8);
        // The acknowledgement is behind the data, and the answer waits for what is under way elsewhere.
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true]);
        acknowledge(&mut connection, 0);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true]);
        acknowledge(&mut connection, 1);
        post(&mut connection, 2, Operation::Send, 8);
        let later = NOW.after_nanos(LINGER_NS);
        assert_eq!(sent(&mut bulk, &mut connection, later), [false]);
    }

    #[test]
    fn an_acknowledgement_goes_with_the_bulk_behind_it() {
        let (mut bulk, mut connection) = (Ways::default(), connection());
        let message = |connection: &mut Connection, psn| {
            feed(connection, Op::SendOnly, psn, |headers| {
                headers.bth.ack_request = true;
            });
        };
        message(&mut connection, 0);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
        message(&mut connection, 1);
        post(&mut connection, 0, Operation::Send, 4 * MTU + 1);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [true; 6]);
        // Behind it there is none.
        message(&mut connection, 2);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false]);
        acknowledge(&mut connection, 4);
        message(&mut connection, 3);
        post(&mut connection, 1, Operation::Send, 8);
        assert_eq!(sent(&mut bulk, &mut connection, NOW), [false; 2]);
    }
}
