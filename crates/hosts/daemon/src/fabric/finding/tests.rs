//! What a configuration and a verdict make of it.

use std::path::Path;

use super::*;

fn read(text: &str) -> Config {
    let head = "[daemon]\nname = 'a'\nauthentication = 'none'\n[discovery]\noption = true\n";
    let networks = "networks = ['10.0.0.0/8', 'fd00::/8']\nport = 4000\n";
    Config::parse(Path::new("/x.toml"), &format!("{head}{networks}{text}")).expect("good")
}

#[test]
fn networks_of_discovery_are_chosen_but_for_configured_peers() {
    let rules = rules(&read(
        "[[peer]]\nname = 'b'\ncontrol = '10.0.0.7'\naddresses = ['10.1.0.0/16', 'fd00::7']\n",
    ));
    let network = |text: &str| text.parse::<Network>().expect("a network");
    assert!(rules.enabled && !rules.other_networks);
    let expected = [
        (network("10.0.0.0/8"), true),
        (network("fd00::/8"), true),
        (network("10.1.0.0/16"), false),
        (network("fd00::7"), false),
    ];
    assert_eq!(rules.networks, expected);
    assert_eq!(rules.ports, PortSet::all().with(4000..=4000, false));
}

#[test]
fn ports_that_rules_leave_in_any_case_are_not() {
    let none = PortSet::all().with(4000..=4000, false);
    for (text, left) in [
        ("[[rule]]\naction = 'leave'\nports = '22'\n", true),
        (
            "[[rule]]\naction = 'leave'\nports = '22'\nprograms = ['x']\n",
            false,
        ),
        (
            "[[rule]]\naction = 'leave'\nports = '22'\nnetworks = ['10.0.0.0/9']\n",
            false,
        ),
        (
            "[[rule]]\naction = 'accelerate'\nprograms = ['x']\n\
             [[rule]]\naction = 'leave'\nports = '22'\n",
            false,
        ),
        (
            "[[rule]]\naction = 'accelerate'\nports = '23'\n\
             [[rule]]\naction = 'leave'\nports = '22'\n",
            true,
        ),
    ] {
        let expected = none.clone().with(22..=22, !left);
        assert_eq!(rules(&read(text)).ports, expected, "{text}");
    }
    let all = rules(&read("[[rule]]\naction = 'leave'\n"));
    assert_eq!(all.ports, PortSet::none());
}

#[test]
fn only_an_answer_with_the_key_is_a_proof() {
    for (peer, active, expected) in [
        (Peer::Can, true, Advice::AskAnew),
        (Peer::Can, false, Advice::Ask),
        (Peer::Cannot, true, Advice::Leave),
        (Peer::Cannot, false, Advice::Leave),
        (Peer::Echoed, true, Advice::Leave),
        (Peer::Foreign, true, Advice::Leave),
        (Peer::Foreign, false, Advice::Leave),
        (Peer::Unheard, true, Advice::Leave),
    ] {
        let verdict = Verdict {
            peer,
            active,
            nonce: 1,
        };
        assert_eq!(advice(verdict), expected, "{peer:?} {active}");
    }
}
