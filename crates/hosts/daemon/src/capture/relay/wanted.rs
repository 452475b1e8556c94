//! Which connections the kernel is told to capture.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use sluice_bpf::{Destination, PortSet};
use sluice_peering::config::{Action, Candidate, Capture as Choice, Config};

/// Chooses by what the configuration says, which stays as it is.
#[derive(Debug)]
pub struct Wanted {
    config: Config,
    choice: Choice,
    /// All ports that can be captured, in pieces about which the configuration says the same.
    pieces: Vec<RangeInclusive<u16>>,
    /// What the kernel was told last.
    told: Option<Vec<Destination>>,
}

impl Wanted {
    /// `own_ports` are nobody's programs'.
    pub fn new(config: Config, choice: Choice, own_ports: &[u16]) -> Self {
        let pieces = pieces(&config, &choice, own_ports);
        Self {
            config,
            choice,
            pieces,
            told: None,
        }
    }

    /// Whether connections to this address and port are to be captured.
    pub fn wants(&self, to: IpAddr, port: u16) -> bool {
        let candidate = Candidate {
            port,
            remote: to,
            program: None,
        };
        self.choice.wants(to, port) && self.config.rules.decide(&candidate) == Action::Accelerate
    }

    /// What to tell the kernel when these are the destinations; None: it knows.
    pub fn change(&mut self, mut destinations: Vec<Destination>) -> Option<Change> {
        destinations.sort_by_key(|destination| destination.address);
        if self.told.as_ref() == Some(&destinations) {
            return None;
        }
        let is_wanted = |port: u16| {
            let mut all = destinations.iter();
            all.any(|destination| self.wants(destination.address, port))
        };
        let wanted = self.pieces.iter().filter(|piece| is_wanted(*piece.start()));
        let ports = wanted.fold(PortSet::none(), |ports, piece| {
            ports.with(piece.clone(), true)
        });
        self.told = Some(destinations.clone());
        Some(Change {
            ports,
            destinations,
        })
    }

    /// The kernel does not know all of the last change.
    pub fn has_failed(&mut self) {
        self.told = None;
    }
}

/// What the kernel is to be told.
#[derive(Debug)]
pub struct Change {
    pub ports: PortSet,
    pub destinations: Vec<Destination>,
}

/// Rules name ports by ranges, so that there are few pieces: there may be hundreds of addresses to
/// decide about for each.
fn pieces(config: &Config, choice: &Choice, own_ports: &[u16]) -> Vec<RangeInclusive<u16>> {
    // What the rules that name ports say of one.
    let said_of = |port: u16| -> Option<Vec<bool>> {
        let is_chosen = choice.takes(port);
        let named = config.rules.0.iter().filter_map(|rule| rule.ports.as_ref());
        (is_chosen && !own_ports.contains(&port))
            .then(|| named.map(|ports| ports.contains(port)).collect())
    };
    let mut pieces: Vec<RangeInclusive<u16>> = Vec::new();
    let mut former = None;
    for port in 1..=u16::MAX {
        let said = said_of(port);
        match pieces.last_mut() {
            Some(piece) if said.is_some() && said == former => *piece = *piece.start()..=port,
            _ if said.is_some() => pieces.push(port..=port),
            _ => {}
        }
        former = said;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const RULES: &str = "
        [[rule]]
        action = 'leave'
        ports = '22,6000-6999,60000-65535'
        [[rule]]
        action = 'accelerate'
        ports = '80'
        networks = ['10.1.0.0/16']
        [[rule]]
        action = 'leave'
        ports = '1-100,443'
        networks = ['10.0.0.0/8']
        [[rule]]
        action = 'leave'
        networks = ['192.0.2.0/24']
    ";

    fn wanted(choice: &str, rules: &str, own_ports: &[u16]) -> Wanted {
        let text = format!("[daemon]\nname='a'\npsk_file='k'\n[capture]\n{choice}\n{rules}");
        let config = Config::parse(Path::new("/a.toml"), &text).unwrap();
        let choice = config.capture.clone().unwrap();
        Wanted::new(config, choice, own_ports)
    }

    fn destinations(addresses: &[&str]) -> Vec<Destination> {
        let destination = |address: &&str| Destination {
            address: address.parse().unwrap(),
            port: None,
            source: None,
        };
        addresses.iter().map(destination).collect()
    }

    #[test]
    fn each_port_is_chosen_as_if_it_were_asked_about() {
        let own_ports = [4796, 4797, 5000];
        for choice in [
            "",
            "ports = '1-90,443,5000-6100'",
            "networks = ['10.1.0.0/16']",
        ] {
            for addresses in [
                &["10.1.2.3"][..],
                &["10.2.2.3"],
                &["192.0.2.1"],
                &["192.0.2.1", "10.2.2.3", "fd00::1"],
                &[],
            ] {
                let mut wanted = wanted(choice, RULES, &own_ports);
                let all = destinations(addresses);
                let expected = (1..=u16::MAX).filter(|port| {
                    let is_wanted = all.iter().any(|it| wanted.wants(it.address, *port));
                    is_wanted && !own_ports.contains(port)
                });
                let expected =
                    expected.fold(PortSet::none(), |ports, port| ports.with(port..=port, true));
                let change = wanted.change(all).unwrap();
                assert_eq!(change.ports, expected, "{choice} {addresses:?}");
            }
        }
    }

    #[test]
    fn decisions_are_as_many_as_there_are_pieces() {
        let pieces = |choice, rules| wanted(choice, rules, &[]).pieces;
        assert_eq!(pieces("", ""), [1..=178, 180..=u16::MAX]);
        assert_eq!(pieces("ports = '80,443'", ""), [80..=80, 443..=443]);
        // Nine ranges, each of which begins and ends a piece at most.
        assert!(pieces("", RULES).len() <= 2 * 9 + 1);
        let all = wanted("ports = '1-65535'", "", &[1, 3, 65535]);
        assert_eq!(all.pieces, [2..=2, 4..=65534]);
    }

    #[test]
    fn the_kernel_is_told_what_is_new() {
        let mut wanted = wanted("", "", &[]);
        let [one, other] = ["10.0.0.1", "10.0.0.2"];
        assert!(wanted.change(destinations(&[one, other])).is_some());
        assert!(wanted.change(destinations(&[other, one])).is_none());
        let change = wanted.change(destinations(&[one])).unwrap();
        assert_eq!(change.destinations, destinations(&[one]));
        wanted.has_failed();
        assert!(wanted.change(destinations(&[one])).is_some());
    }
}
