//! Which connections are worth a lane.

use std::net::IpAddr;

use sluice_control::ports::Ports;

use super::network::Network;

/// What is known of a connection when that is decided.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The port of the end that was connected to, in host byte order.
    pub port: u16,
    /// The other end.
    pub remote: IpAddr,
    /// The last part of the path of the program at this end; `None` when it is not known.
    pub program: Option<&'a str>,
}

/// What a rule says of the connections that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Accelerate,
    /// The connection stays with the kernel.
    Leave,
}

/// One rule. A condition that is absent holds for every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub action: Action,
    pub ports: Option<Ports>,
    /// Last parts of paths. A program that is not known is none of them.
    pub programs: Option<Vec<String>>,
    /// Of the other end.
    pub networks: Option<Vec<Network>>,
}

impl Rule {
    /// Whether it is about this connection: all its conditions hold.
    pub fn is_about(&self, candidate: &Candidate<'_>) -> bool {
        let port = self
            .ports
            .is_none_or(|ports| ports.contains(candidate.port));
        let program = self.programs.as_ref().is_none_or(|programs| {
            let named = |name| programs.iter().any(|program| program == name);
            candidate.program.is_some_and(named)
        });
        let network = self.networks.as_ref().is_none_or(|networks| {
            let inside = |network: &Network| network.contains(candidate.remote);
            networks.iter().any(inside)
        });
        port && program && network
    }

    /// Whether it is about every connection, so that no rule behind it ever counts.
    pub fn is_about_all(&self) -> bool {
        self.ports.is_none() && self.programs.is_none() && self.networks.is_none()
    }
}

/// The rules in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

impl Rules {
    /// What the first rule says that is about the connection; without one it is accelerated.
    pub fn decide(&self, candidate: &Candidate<'_>) -> Action {
        let rule = self.0.iter().find(|rule| rule.is_about(candidate));
        rule.map_or(Action::Accelerate, |rule| rule.action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: Action, ports: &str, programs: &[&str], networks: &[&str]) -> Rule {
        let programs: Vec<String> = programs.iter().map(|name| name.to_string()).collect();
        let networks: Vec<Network> = networks.iter().map(|text| text.parse().unwrap()).collect();
        Rule {
            action,
            ports: (!ports.is_empty()).then(|| Ports::parse(ports).unwrap()),
            programs: (!programs.is_empty()).then_some(programs),
            networks: (!networks.is_empty()).then_some(networks),
        }
    }

    fn candidate<'a>(port: u16, remote: &str, program: &'a str) -> Candidate<'a> {
        Candidate {
            port,
            remote: remote.parse().unwrap(),
            program: (!program.is_empty()).then_some(program),
        }
    }

    #[test]
    fn the_first_rule_that_is_about_a_connection_decides() {
        let rules = Rules(vec![
            rule(Action::Leave, "22", &[], &[]),
            rule(Action::Accelerate, "", &["redis-server"], &["10.0.0.0/8"]),
            rule(Action::Leave, "6000-6999", &["redis-server", "nc"], &[]),
        ]);
        for (port, remote, program, action) in [
            (22, "10.0.0.1", "redis-server", Action::Leave),
            (6379, "10.0.0.1", "redis-server", Action::Accelerate),
            (6379, "192.0.2.1", "redis-server", Action::Leave),
            (7000, "192.0.2.1", "redis-server", Action::Accelerate),
            (6379, "10.0.0.1", "nc", Action::Leave),
            (6379, "10.0.0.1", "", Action::Accelerate),
        ] {
            let decided = rules.decide(&candidate(port, remote, program));
            assert_eq!(decided, action, "{port} {remote} {program}");
        }
        let none = Rules::default();
        let any = candidate(1, "::1", "");
        assert_eq!(none.decide(&any), Action::Accelerate);
        assert!(rule(Action::Leave, "", &[], &[]).is_about_all());
        assert!(!rules.0[0].is_about_all());
    }
}
