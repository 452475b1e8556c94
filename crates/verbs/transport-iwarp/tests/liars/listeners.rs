//! Listeners that end while others connect, ask, and wait for an answer.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use sluice_verbs::iw_cm::Event;
use sluice_verbs_testing::until;

use crate::peer::{Heard, Host, Liar, asking, parameters};

/// Threads that connect while the listener ends, and the connections that each of them keeps.
const THREADS: usize = 3;
const CONNECTIONS: usize = 16;
/// Of this test alone: another one may listen at the port that becomes free.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 17);
/// Requests that the program has heard of when it ends the listener.
const REQUESTS: usize = 20;

/// A peer that has connected and has sent nothing, half of a request, or a whole one.
fn connects(address: SocketAddr, turn: usize) -> std::io::Result<Liar> {
    let mut liar = Liar::on(TcpStream::connect(address)?);
    let asking = asking();
    liar.says(&asking[..turn % 3 * asking.len() / 2]);
    Ok(liar)
}

fn is_left(mut liar: Liar) {
    let heard = liar.hears();
    assert!(matches!(heard, Heard::End | Heard::Reset), "{heard:?}");
}

#[test]
fn a_listener_ends_while_others_connect_and_ask() {
    for _ in 0..5 {
        let host = Host::at(ADDRESS, false);
        let address = host.address();
        let strangers = [0, 1].map(|turn| connects(address, turn).unwrap());
        // The program has these, and answers when the listener has ended.
        let mut held = Vec::new();
        for _ in 0..2 {
            let liar = Liar::asks(address);
            let (stream, event) = host.event();
            assert!(matches!(event, Event::Requested { .. }), "{event:?}");
            held.push((stream, liar));
        }
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                // Until nobody listens there.
                scope.spawn(|| {
                    let mut liars = VecDeque::new();
                    let mut turn = 0;
                    while let Ok(liar) = connects(address, turn) {
                        liars.push_back(liar);
                        liars.drain(..liars.len().saturating_sub(CONNECTIONS));
                        turn += 1;
                    }
                });
            }
            for turn in 0..REQUESTS {
                let (stream, event) = host.event();
                assert!(matches!(event, Event::Requested { .. }), "{event:?}");
                match turn % 3 {
                    // It may have gone.
                    0 => drop(host.cm().accept(stream, &parameters())),
                    1 => host.cm().reject(stream, b"no"),
                    _ => {}
                }
            }
            host.ends_listening();
            // Once more is nothing.
            host.ends_listening();
        });
        for stranger in strangers {
            is_left(stranger);
        }
        until("the end of all others", || host.streams() == 2);
        let late = host.events();
        let known = |event: &Event| matches!(event, Event::Requested { .. } | Event::Closed);
        assert!(late.iter().all(|(_, event)| known(event)), "{late:?}");
        // As a connection manager does with requests for a listener that has gone.
        for (stream, _) in late {
            host.cm().forget(stream);
        }
        let (stream, mut liar) = held.remove(0);
        host.cm().accept(stream, &parameters()).unwrap();
        let end = host.end(stream);
        liar.hears_reply();
        liar.fetches(1, &end, 8, 100_000);
        let (stream, liar) = held.remove(0);
        host.cm().reject(stream, &[]);
        drop(liar);
        assert_eq!(host.streams(), 1);
    }
}
