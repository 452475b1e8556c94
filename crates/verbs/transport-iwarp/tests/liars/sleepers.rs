//! Peers that miss what comes while they are busy, as Linux's siw does, and find it when more comes.

use sluice_verbs::WrOpcode;
use sluice_verbs_testing::request;
use sluice_wire::iwarp::{Kind, Segment};

use crate::peer::{Host, send, write};

/// The program says one thing and waits for the answer. The peer looks at the stream only when something comes behind
/// what it has missed.
#[test]
fn a_peer_that_has_missed_a_message_is_sent_more() {
    for crc in [false, true] {
        let host = Host::new(crc);
        let (end, mut liar) = host.join();
        liar.sends(&[write(0, 0, &[])]);
        let sges = [end.sge(0, 16)];
        end.qp
            .post_send(&request(WrOpcode::Send, 1, &sges, 0, 0))
            .unwrap();
        assert_eq!(end.good().wr_id, 1);
        // What it has missed: all that is there now, and that is the message.
        let missed = liar.next().unwrap().expect("the end");
        let segment = Segment::parse(&missed).unwrap();
        assert!(matches!(segment.header().kind, Kind::Send { .. }));
        // More comes, of which the program knows nothing.
        let more = liar.next_of_any().unwrap().expect("the end");
        assert_eq!(more, write(0, 0, &[]));
        liar.sends(&[send(true, 1, 0, &missed[missed.len() - 16..])]);
        assert_eq!(end.good().byte_len, 16);
    }
}
