//! Many small requests that are posted one by one, by a program that then does not call the library again:
//! all of them leave.

use sluice_verbs::{SendWr, WrOpcode};
use sluice_verbs_testing::request;
use sluice_wire::iwarp::{Kind, Segment};

use crate::peer::{Host, write};

/// Bursts, each some longer than the one before, and requests of the longest.
const BURSTS: usize = 400;
const LONGEST: usize = 70;

#[test]
fn bursts_leave_though_nobody_polls() {
    for crc in [false, true] {
        let host = Host::new(crc);
        let (end, mut liar) = host.join();
        liar.sends(&[write(0, 0, &[])]);
        let mut number = 0u32;
        for burst in 0..BURSTS {
            let length = 1 + burst % LONGEST;
            for _ in 0..length {
                let sges = [end.sge(number as usize % 1000, 16)];
                let send = SendWr {
                    flags: 0,
                    ..request(WrOpcode::Send, u64::from(number), &sges, 0, 0)
                };
                end.qp.post_send(&send).unwrap();
                number += 1;
            }
            // All of them, in order, with their bytes; or this waits for ever.
            for awaited in number - length as u32..number {
                let ulpdu = liar.next().unwrap().expect("the end");
                let segment = Segment::parse(&ulpdu).unwrap();
                let Kind::Send { place, .. } = segment.header().kind else {
                    panic!("{:?}", segment.header());
                };
                assert_eq!(place.msn, awaited + 1);
                let wanted = end.memory.bytes(awaited as usize % 1000, 16);
                assert_eq!(segment.payload(), wanted);
            }
            // What was not signalled has room in the queue when something behind it is complete.
            if burst % 2 == 1 {
                let sges = [end.sge(0, 1)];
                let last = request(WrOpcode::Send, u64::MAX, &sges, 0, 0);
                end.qp.post_send(&last).unwrap();
                assert_eq!(end.good().wr_id, u64::MAX);
                liar.next().unwrap().expect("the end");
                number += 1;
            }
        }
    }
}
