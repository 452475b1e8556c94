use super::*;
use crate::Kind;
use crate::claim::SILENCE_NS;
use crate::layout::Geometry;
use crate::mailbox::{MESSAGE_BYTES_MAX, Sent};
use crate::model::{Chooser, Model, ModelView};

const KINDS: [Kind; 3] = [Kind::Coherent, Kind::Flush, Kind::Push];

fn model(kind: Kind, seed: u64) -> Model {
    let needed = Geometry::of_region(2, 1 << 20).unwrap();
    Model::random(kind, 2, needed.slot_bytes(), seed)
}

/// A host, and what it has said and heard in its present link.
struct Host {
    view: ModelView,
    me: u32,
    link: Link,
    next_generation: u64,
    /// The peer's generation, and how many messages each way since.
    epoch: Option<u64>,
    sent: u32,
    received: u32,
}

impl Host {
    fn new(model: &Model, me: u32) -> Host {
        let view = model.view(me);
        let next_generation = 1 + 1_000 * u64::from(me + 1);
        Host {
            link: Link::new(Pair::new(me, 1 - me), next_generation, &view),
            view,
            me,
            next_generation,
            epoch: None,
            sent: 0,
            received: 0,
        }
    }

    fn again(&mut self) {
        self.next_generation += 1;
        let pair = Pair::new(self.me, 1 - self.me);
        self.link = Link::new(pair, self.next_generation, &self.view);
        (self.epoch, self.sent, self.received) = (None, 0, 0);
    }

    fn poll(&mut self, now_ns: u64) {
        match self.link.poll(&self.view, now_ns) {
            Some(Event::Up { generation }) => {
                self.epoch = Some(generation);
            }
            Some(Event::Down(_)) => self.again(),
            Some(Event::OtherVersion(version)) => panic!("version {version}"),
            None => {}
        }
    }

    /// A message says who sent it, in which of its links, and which one it is.
    fn send(&mut self) {
        if !self.link.is_up() {
            return;
        }
        let mut message = self.link.generation.to_le_bytes().to_vec();
        message.resize(8 + self.sent as usize % 40, self.sent as u8);
        if self.link.sender.send(&self.view, self.sent, &message) == Ok(Sent::Yes) {
            self.sent += 1;
        }
    }

    fn receive(&mut self) {
        if !self.link.is_up() {
            return;
        }
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        // A peer that was restarted may have been seen in part: then this link ends.
        if let Ok(Some((kind, message))) = self.link.receiver.receive(&self.view, &mut buffer) {
            let from = u64::from_le_bytes(message[..8].try_into().unwrap());
            assert_eq!(Some(from), self.epoch, "a message of another link");
            assert_eq!(kind, self.received);
            assert_eq!(message.len(), 8 + self.received as usize % 40);
            assert!(message[8..].iter().all(|byte| *byte == kind as u8));
            self.received += 1;
        }
    }
}

#[test]
fn two_hosts_find_each_other_and_messages_stay_in_their_link() {
    for kind in KINDS {
        let mut messages = 0;
        let mut links = 0;
        for seed in 1..40 {
            let model = model(kind, seed * 11);
            let mut hosts = [Host::new(&model, 0), Host::new(&model, 1)];
            let mut chance = Chooser::Random(seed);
            for step in 0..1_500_u64 {
                // The clock stands still: nobody is silent here.
                let host = chance.choose(2);
                match chance.choose(100) {
                    0 => {
                        model.kill(host);
                        hosts[host as usize].again();
                        links += 1;
                    }
                    1 if step % 5 == 0 => {
                        let mine = &mut hosts[host as usize];
                        let fresh = Link::new(mine.link.pair(), 7 + step, &mine.view);
                        std::mem::replace(&mut mine.link, fresh).leave(&mine.view);
                        mine.again();
                    }
                    2..40 => hosts[host as usize].poll(0),
                    40..70 => hosts[host as usize].send(),
                    _ => hosts[host as usize].receive(),
                }
            }
            for _ in 0..400 {
                for host in &mut hosts {
                    host.poll(0);
                }
                if hosts.iter().all(|host| host.link.is_up()) {
                    break;
                }
            }
            assert!(hosts.iter().all(|host| host.link.is_up()), "{kind} {seed}");
            messages += hosts.iter().map(|host| host.received).sum::<u32>();
        }
        assert!(links > 100 && messages > 100, "{kind}: {links} {messages}");
    }
}

fn connect(hosts: &mut [Host; 2], now_ns: u64) {
    for _ in 0..1_000 {
        for host in hosts.iter_mut() {
            host.poll(now_ns);
        }
        if hosts.iter().all(|host| host.link.is_up()) {
            return;
        }
    }
    panic!("no link");
}

/// Messages come in a link that is up.
fn talk(hosts: &mut [Host; 2]) {
    for _ in 0..100 {
        hosts[0].send();
        hosts[1].receive();
    }
    assert!(hosts[1].received > 10);
}

#[test]
fn a_host_that_stops_is_given_up_and_comes_back_as_another_link() {
    for kind in KINDS {
        let model = model(kind, 3);
        let mut hosts = [Host::new(&model, 0), Host::new(&model, 1)];
        connect(&mut hosts, 0);
        let old = hosts[0].epoch;
        let mut now = 0;
        let mut ended = None;
        while ended.is_none() {
            now += crate::claim::BEAT_NS;
            assert!(now < 4 * SILENCE_NS, "{kind}: a silent host stays up");
            let host = &mut hosts[0];
            host.link.beat(&host.view);
            ended = host.link.poll(&host.view, now);
        }
        assert_eq!(ended, Some(Event::Down(Ended::Silent)));
        assert!(now >= SILENCE_NS);
        assert_eq!(hosts[0].link.poll(&model.view(0), now), None);
        hosts[0].again();
        connect(&mut hosts, now);
        assert_ne!(hosts[0].epoch, old);
    }
}

/// As those of a machine that was stopped do: whoever looks first has seen nothing of the other one for long.
#[test]
fn hosts_that_stood_still_together_keep_their_link() {
    for kind in KINDS {
        let model = model(kind, 5);
        let mut hosts = [Host::new(&model, 0), Host::new(&model, 1)];
        connect(&mut hosts, 0);
        let mut now = 0;
        for round in 0..20 {
            now += 10 * SILENCE_NS;
            let first = &mut hosts[round % 2];
            assert_eq!(first.link.poll(&first.view, now), None, "{kind} {round}");
            for host in &mut hosts {
                host.link.beat(&host.view);
                assert_eq!(host.link.poll(&host.view, now), None, "{kind} {round}");
            }
        }
        talk(&mut hosts);
    }
}

#[test]
fn a_cut_window_ends_links_and_a_healed_one_has_them_again() {
    for kind in KINDS {
        let model = model(kind, 9);
        let mut hosts = [Host::new(&model, 0), Host::new(&model, 1)];
        connect(&mut hosts, 0);
        model.set_cut(true);
        let mut now = 0;
        while hosts.iter().any(|host| host.link.is_up()) {
            now += crate::claim::BEAT_NS;
            assert!(now < 4 * SILENCE_NS, "{kind}: a cut link stays up");
            for host in &mut hosts {
                host.link.beat(&host.view);
                host.poll(now);
            }
        }
        model.set_cut(false);
        // What was said while it was cut is lost: who calls says it again with each beat.
        let mut beats = 0;
        while !hosts.iter().all(|host| host.link.is_up()) {
            beats += 1;
            assert!(beats < 1_000, "{kind}: no link when the way is healed");
            for host in &mut hosts {
                host.link.beat(&host.view);
                host.poll(now);
            }
        }
        talk(&mut hosts);
    }
}

/// A way may be cut in one direction alone, or as the first of two is up already, which says nothing again.
#[test]
fn an_answer_that_is_lost_ends_in_another_link() {
    for kind in KINDS {
        for seed in 1..40 {
            let model = model(kind, seed);
            let mut hosts = [Host::new(&model, 0), Host::new(&model, 1)];
            let first = loop {
                hosts.iter_mut().for_each(|host| host.poll(0));
                if let Some(up) = hosts.iter().position(|host| host.link.is_up()) {
                    break up as u32;
                }
            };
            let page = crate::layout::PEER_BYTES;
            let all_ones = vec![0xff; page as usize];
            model.scribble(1 - first, u64::from(first) * page, &all_ones);
            let mut now = 0;
            while !hosts.iter().all(|host| host.link.is_up()) {
                now += crate::claim::BEAT_NS;
                assert!(now < 4 * SILENCE_NS, "{kind} {seed}: no link");
                for host in &mut hosts {
                    host.link.beat(&host.view);
                    for _ in 0..10 {
                        host.poll(now);
                    }
                }
            }
            talk(&mut hosts);
        }
    }
}

/// Its call is old by then, and the peer's life has just begun.
#[test]
fn who_has_called_for_long_is_up_with_the_first_that_comes() {
    for kind in KINDS {
        for seed in 1..60 {
            let model = model(kind, seed);
            let mut first = Host::new(&model, 0);
            let mut now = 0;
            while now < 5 * SILENCE_NS {
                now += crate::claim::BEAT_NS;
                first.link.beat(&first.view);
                assert_eq!(first.link.poll(&first.view, now), None);
            }
            let mut hosts = [first, Host::new(&model, 1)];
            let mut chance = Chooser::Random(seed);
            let mut ups = 0;
            for _ in 0..2_000 {
                let host = &mut hosts[chance.choose(2) as usize];
                if chance.choose(4) == 0 {
                    host.link.beat(&host.view);
                }
                now += 1_000_000;
                match host.link.poll(&host.view, now) {
                    Some(Event::Up { .. }) => ups += 1,
                    None => {}
                    other => panic!("{kind} {seed}: {other:?}"),
                }
            }
            assert_eq!(ups, 2, "{kind} {seed}");
        }
    }
}

#[test]
fn garbage_in_the_page_of_a_peer_ends_that_link_and_nothing_else() {
    for seed in 1..300 {
        let model = model(Kind::Coherent, seed);
        let mut hosts = [Host::new(&model, 0), Host::new(&model, 1)];
        connect(&mut hosts, 0);
        let mut chance = Chooser::Random(seed * 3);
        for _ in 0..50 {
            // Host 1 is the stranger: it writes to its page in slot 0.
            let at = u64::from(PEER_WORDS[chance.choose(PEER_WORDS.len() as u32) as usize]);
            let word = [0, u64::MAX, 1 << 63, 5, HELLO][chance.choose(5) as usize];
            let at = crate::layout::PEER_BYTES + at;
            model.scribble(0, at, &word.to_le_bytes());
            let host = &mut hosts[0];
            let _ = host.link.poll(&host.view, 0);
            if host.link.is_up() {
                let mut buffer = [0; MESSAGE_BYTES_MAX];
                let _ = host.link.receiver.receive(&host.view, &mut buffer);
                let _ = host.link.sender.send(&host.view, 0, &[1; 100]);
            }
        }
    }
}

/// Hello, beat, positions, and the first words of the mailbox.
const PEER_WORDS: [u32; 9] = [0, 8, 16, 64, 128, 192, 8192, 8200, 8208];

#[test]
fn another_version_is_said_once_and_not_spoken_to() {
    let model = model(Kind::Coherent, 1);
    let mut host = Host::new(&model, 0);
    let at = crate::layout::PEER_BYTES;
    let hello = HELLO & HELLO_MASK | 9 << 48;
    model.scribble(0, at, &hello.to_le_bytes());
    model.scribble(0, at + 8, &77_u64.to_le_bytes());
    let event = host.link.poll(&host.view, 0);
    assert_eq!(event, Some(Event::OtherVersion(9)));
    assert_eq!(host.link.poll(&host.view, 0), None);
    assert!(!host.link.is_up());
}
