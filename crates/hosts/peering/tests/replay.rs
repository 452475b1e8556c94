//! Somebody on the way who says again what was said before.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sluice_peering::{PORT_DEFAULT, Why};

mod common;

use common::{DISCOVERY, Lab, Node, address, idle, join, peer, run};

/// Bytes in front of a TLS record (RFC 8446 §5.1): its type, a version, and its length.
const RECORD_HEADER_BYTES: usize = 5;

/// Passes one connection on, and keeps what the one who connects says.
struct Between {
    said: Arc<Mutex<Vec<u8>>>,
    to_beta: Arc<Mutex<Option<TcpStream>>>,
}

impl Between {
    fn new(here: Ipv4Addr, beta: SocketAddr) -> Between {
        let listener = TcpListener::bind((here, PORT_DEFAULT)).unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let to_beta = Arc::new(Mutex::new(None));
        let (keeps, has) = (Arc::clone(&said), Arc::clone(&to_beta));
        // Both end with the connections, at the end of the test.
        thread::spawn(move || {
            let (mut from_alpha, _) = listener.accept().unwrap();
            let mut to_beta = TcpStream::connect(beta).unwrap();
            *has.lock().unwrap() = Some(to_beta.try_clone().unwrap());
            let (mut answers, mut back) = (
                to_beta.try_clone().unwrap(),
                from_alpha.try_clone().unwrap(),
            );
            thread::spawn(move || std::io::copy(&mut answers, &mut back));
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from_alpha.read(&mut bytes) {
                keeps.lock().unwrap().extend(&bytes[..count]);
                if to_beta.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        });
        Between { said, to_beta }
    }

    /// The last whole record of what was said.
    fn last_record(&self) -> Vec<u8> {
        let said = self.said.lock().unwrap();
        let mut rest = said.as_slice();
        let mut last: &[u8] = &[];
        while let [_, _, _, high, low, ..] = *rest {
            let bytes = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
            let Some((record, behind)) = rest.split_at_checked(bytes) else {
                break;
            };
            (last, rest) = (record, behind);
        }
        last.to_vec()
    }

    fn say(&self, bytes: &[u8]) {
        let to_beta = self.to_beta.lock().unwrap();
        to_beta.as_ref().unwrap().write_all(bytes).unwrap();
    }
}

/// A session of two that goes by somebody else, and one message that has arrived.
fn session(lab: &Lab) -> (Node, Node, Between) {
    let here = address();
    let psk = lab.psk("key");
    let rest = format!("{psk}{}", peer("beta", here));
    let mut alpha = lab.node("alpha", address(), &rest);
    let mut beta = lab.node("beta", address(), &format!("{psk}{DISCOVERY}"));
    let between = Between::new(here, beta.listens_at());
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let to = alpha.with("beta").unwrap();
    alpha.get().send(to, b"do it once").unwrap();
    run([&mut alpha, &mut beta], "the message", |[_, beta]| {
        beta.messages().len() == 1
    });
    (alpha, beta, between)
}

#[test]
fn a_record_that_is_said_again_ends_the_session_and_is_not_heard() {
    let lab = Lab::new();
    let (mut alpha, mut beta, between) = session(&lab);
    between.say(&between.last_record());
    run([&mut alpha, &mut beta], "the end", |[_, beta]| {
        !beta.downs().is_empty()
    });
    let why = beta.downs().remove(0);
    assert!(matches!(why, Why::Tls(_)), "{why:?}");
    assert_eq!(beta.messages(), [b"do it once"]);
}

#[test]
fn a_session_that_is_said_again_from_its_beginning_is_none() {
    let lab = Lab::new();
    let (mut alpha, mut beta, between) = session(&lab);
    let said = between.said.lock().unwrap().clone();
    let failed = beta.get().counters().failed;
    let mut again = TcpStream::connect(beta.listens_at()).unwrap();
    again.write_all(&said).unwrap();
    run([&mut alpha, &mut beta], "a refusal", |[_, beta]| {
        beta.get().counters().failed > failed
    });
    // The one that it was taken from goes on.
    idle([&mut alpha, &mut beta], 10);
    assert_eq!((beta.ups(), beta.downs()), (1, Vec::new()));
    assert_eq!(beta.messages(), [b"do it once"]);
    let to = alpha.with("beta").unwrap();
    alpha.get().send(to, b"and this").unwrap();
    run([&mut alpha, &mut beta], "the next message", |[_, beta]| {
        beta.messages().len() == 2
    });
}
