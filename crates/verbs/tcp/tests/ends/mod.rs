//! Two ends without a link between them: what one says is handed to the other, or spoiled first.
#![allow(dead_code)]

use sluice_tcp::{Config, Connection, Instant, SECOND, Segment, State, Transmit};

pub const NOW: Instant = Instant(SECOND);

pub fn segment(sent: &Transmit) -> Segment {
    Segment {
        header: sent.header,
        bytes: (sent.payload.end - sent.payload.start) as u32,
        ecn: sent.ecn,
    }
}

pub fn plain() -> Config {
    Config {
        timestamps: false,
        ecn: false,
        ..Config::default()
    }
}

/// Hands over what both have to say until neither has anything.
pub fn talk(a: &mut Connection, b: &mut Connection) {
    talk_at(NOW, a, b);
}

/// The same at another time.
pub fn talk_at(now: Instant, a: &mut Connection, b: &mut Connection) {
    for _ in 0..1000 {
        let mut quiet = true;
        while let Some(sent) = a.transmit(now) {
            b.receive(now, &segment(&sent));
            quiet = false;
        }
        while let Some(sent) = b.transmit(now) {
            a.receive(now, &segment(&sent));
            quiet = false;
        }
        if quiet {
            return;
        }
    }
    panic!("they talk without end");
}

pub fn pair(config: Config) -> (Connection, Connection) {
    let mut a = Connection::connect(config, u32::MAX - 5, 1, NOW);
    let syn = a.transmit(NOW).expect("a SYN");
    let mut b = Connection::accept(config, &segment(&syn), 0x8000_0000, 2, NOW).expect("a SYN");
    talk(&mut a, &mut b);
    assert_eq!(
        (a.state(), b.state()),
        (State::Established, State::Established)
    );
    (a, b)
}

/// A byte of data with the numbers that `to` expects from `from`, to be spoiled.
pub fn honest(from: &mut Connection) -> Segment {
    from.write(1);
    segment(&from.transmit(NOW).expect("a byte"))
}
