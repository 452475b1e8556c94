//! Who gets a session, and what the others are told.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc;
use std::thread;

use sluice_peering::config::Fingerprint;
use sluice_peering::hello::{Hello, Reason, VERSIONS};
use sluice_peering::{Config, Identity, Method, PORT_DEFAULT, Versions, Why};

mod common;

use common::wire::Raw;
use common::{DISCOVERY, Lab, Node, address, certificate_lines, idle, join, peer, run};

/// The protocol inside TLS with a pre-shared key.
const PSK: &str = "sluice-peering-psk";
const HELLO: u8 = 1;
const REFUSE: u8 = 6;

/// What alpha, which connects, is told by beta; neither gets a session.
fn refusal(mut alpha: Node, mut beta: Node) -> Why {
    run([&mut alpha, &mut beta], "an answer", |[alpha, _]| {
        !alpha.unreachable().is_empty()
    });
    idle([&mut alpha, &mut beta], 5);
    assert_eq!((alpha.ups(), beta.ups()), (0, 0));
    alpha.unreachable().remove(0).1
}

/// Alpha and beta with these lines in `[daemon]`.
fn two(lab: &Lab, alpha: &str, beta: &str) -> (Node, Node) {
    let (here, there) = (address(), address());
    let alpha = lab.node("alpha", here, &format!("{alpha}{}", peer("beta", there)));
    let beta = lab.node("beta", there, &format!("{beta}{DISCOVERY}"));
    (alpha, beta)
}

#[test]
fn another_key_gets_no_session() {
    let lab = Lab::new();
    let (alpha, beta) = two(&lab, &lab.psk("one"), &lab.psk("other"));
    assert_eq!(refusal(alpha, beta), Why::Key);
}

#[test]
fn a_key_is_changed_by_reloading_both() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let rest = |key: &str, name: &str, at: Ipv4Addr| format!("{}{}", lab.psk(key), peer(name, at));
    let mut alpha = lab.node("alpha", here, &rest("old", "beta", there));
    let mut beta = lab.node("beta", there, &rest("old", "alpha", here));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    alpha.reload(lab.config("alpha", here, &rest("new", "beta", there)));
    run([&mut alpha, &mut beta], "a refusal", |[alpha, beta]| {
        let wrong = |node: &Node| node.unreachable().iter().any(|(_, why)| *why == Why::Key);
        wrong(alpha) || wrong(beta)
    });
    assert_eq!(alpha.downs(), [Why::Reconfigured]);
    assert_eq!(alpha.with("beta"), None);
    beta.reload(lab.config("beta", there, &rest("new", "alpha", here)));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
}

#[test]
fn the_key_of_all_does_not_open_what_two_have_for_themselves() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let all = lab.psk("all");
    let own = lab.psk("two");
    let with_own = |name, at| format!("{all}{}{own}{DISCOVERY}", peer(name, at));
    let mut alpha = lab.node("alpha", here, &with_own("beta", there));
    let mut beta = lab.node("beta", there, &with_own("alpha", here));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    // Somebody with the key of all says that it is beta: when it connects, ...
    let elsewhere = address();
    let mut thief = lab.node("beta", elsewhere, &format!("{all}{}", peer("alpha", here)));
    run([&mut alpha, &mut thief], "a refusal", |[_, thief]| {
        !thief.unreachable().is_empty()
    });
    assert_eq!(thief.unreachable()[0].1, Why::Key);
    // ... and when it is asked.
    let now = alpha.now();
    alpha.get().seek(elsewhere.into(), now);
    run([&mut alpha, &mut thief], "a refusal", |[alpha, _]| {
        !alpha.unreachable().is_empty()
    });
    assert_eq!(alpha.unreachable(), [(elsewhere.into(), Why::Key)]);
    assert_eq!((alpha.ups(), thief.ups()), (1, 0));
}

#[test]
fn a_proof_is_worth_nothing_on_another_connection() {
    let lab = Lab::new();
    let (between, there) = (address(), address());
    let psk = lab.psk("key");
    // Alpha connects to somebody who passes its hello on to beta.
    let mut alpha = lab.node(
        "alpha",
        address(),
        &format!("{psk}{}", peer("beta", between)),
    );
    let mut beta = lab.node("beta", there, &format!("{psk}{DISCOVERY}"));
    let listener = TcpListener::bind((between, PORT_DEFAULT)).unwrap();
    let target = beta.listens_at();
    let (told, answer) = mpsc::channel();
    let mallory = thread::spawn(move || {
        let mut from_alpha = Raw::accept(&listener, PSK);
        let (kind, hello) = from_alpha.frame().unwrap();
        assert_eq!(kind, HELLO);
        assert_eq!(Hello::decode(&hello).unwrap().name, "alpha");
        let mut to_beta = Raw::connect(target, PSK);
        to_beta.send_frame(HELLO, &hello).unwrap();
        let refusal = to_beta.frame();
        // Its own proof sent back to it is no proof of the other side either, under any name.
        let mut reflected = Hello::decode(&hello).unwrap();
        reflected.name = "beta".into();
        reflected.instance = [9; 16];
        from_alpha.send_frame(HELLO, &reflected.encode()).unwrap();
        told.send((refusal, from_alpha.frame())).unwrap();
    });
    let mut answers = None;
    run([&mut alpha, &mut beta], "both answers", |_| {
        answers = answers.take().or(answer.try_recv().ok());
        answers.is_some()
    });
    mallory.join().unwrap();
    let (from_beta, from_alpha) = answers.unwrap();
    for (kind, body) in [from_beta.unwrap(), from_alpha.unwrap()] {
        assert_eq!((kind, body[0]), (REFUSE, Reason::Key as u8));
    }
    assert_eq!(alpha.unreachable()[0].1, Why::Key);
    assert_eq!((alpha.ups(), beta.ups()), (0, 0));
}

#[test]
fn certificates_of_one_authority_give_a_session() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let rest = |name, other, at| format!("{}{}", lab.certificate("ca", name), peer(other, at));
    let mut alpha = lab.node("alpha", here, &rest("alpha", "beta", there));
    let mut beta = lab.node("beta", there, &rest("beta", "alpha", here));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    // A renewed certificate ends nothing.
    for file in ["alpha.pem", "alpha.key"] {
        fs::remove_file(lab.path("ca").join(file)).unwrap();
    }
    alpha.reload(lab.config("alpha", here, &rest("alpha", "beta", there)));
    idle([&mut alpha, &mut beta], 10);
    assert_eq!((alpha.downs(), beta.downs()), (vec![], vec![]));
}

#[test]
fn certificates_of_another_authority_give_none() {
    let lab = Lab::new();
    let (ours, theirs) = (
        lab.certificate("ca", "alpha"),
        lab.certificate("other", "beta"),
    );
    let (alpha, beta) = two(&lab, &ours, &theirs);
    let why = refusal(alpha, beta);
    assert_eq!(
        why,
        Why::Certificate("is not signed by the authority in ca".into())
    );
    // The other way round: alpha trusts both, beta does not.
    let both = lab.path("both");
    fs::create_dir(&both).unwrap();
    for file in ["alpha.pem", "alpha.key"] {
        fs::copy(lab.path("ca").join(file), both.join(file)).unwrap();
    }
    let authority = |name: &str| fs::read_to_string(lab.path(name).join("ca.pem")).unwrap();
    fs::write(both.join("ca.pem"), authority("ca") + &authority("other")).unwrap();
    let (alpha, beta) = two(&lab, &certificate_lines(&both, "alpha"), &theirs);
    let why = refusal(alpha, beta);
    assert!(matches!(why, Why::OwnCertificate(_)), "{why:?}");
}

/// A certificate that ended yesterday, from the authority in `ca`.
fn expire(lab: &Lab, name: &str) {
    let directory = lab.path("ca");
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    let authority = rcgen::KeyPair::from_pem(&read("ca.key")).unwrap();
    // The subject is that of the authority's certificate.
    let short = {
        let digest = ring::digest::digest(&ring::digest::SHA256, authority.public_key_raw());
        digest.as_ref()[..4]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, format!("Sluice peers {short}"));
    let issuer = rcgen::Issuer::new(params, authority);
    let key = rcgen::KeyPair::from_pem(&read(&format!("{name}.key"))).unwrap();
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 12, 31);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
}

#[test]
fn an_expired_certificate_gives_none() {
    let lab = Lab::new();
    let (ours, theirs) = (
        lab.certificate("ca", "alpha"),
        lab.certificate("ca", "beta"),
    );
    expire(&lab, "beta");
    let (mut alpha, beta) = two(&lab, &ours, &theirs);
    let config = beta.peering.as_ref().unwrap().config().clone();
    let remarks = config.check();
    assert!(
        remarks[0].is_error && remarks[0].text.ends_with("has expired"),
        "{remarks:?}"
    );
    alpha.turn();
    assert_eq!(refusal(alpha, beta), Why::Certificate("has expired".into()));
    // The other way round.
    let (alpha, beta) = two_named(&lab, ("beta", &theirs), ("alpha", &ours));
    let why = refusal(alpha, beta);
    assert_eq!(why, Why::OwnCertificate("CertificateExpired".into()));
}

/// The first one connects to the second.
fn two_named(lab: &Lab, first: (&str, &str), second: (&str, &str)) -> (Node, Node) {
    let (here, there) = (address(), address());
    let rest = format!("{}{}", first.1, peer(second.0, there));
    let first = lab.node(first.0, here, &rest);
    let second = lab.node(second.0, there, &format!("{}{DISCOVERY}", second.1));
    (first, second)
}

#[test]
fn a_certificate_for_another_name_gives_none() {
    let lab = Lab::new();
    let alpha = lab.certificate("ca", "alpha");
    let gamma = lab.certificate("ca", "gamma");
    // Beta has gamma's.
    let (first, second) = two_named(&lab, ("alpha", &alpha), ("beta", &gamma));
    assert_eq!(refusal(first, second), Why::CertificateName("beta".into()));
    let (first, second) = two_named(&lab, ("beta", &gamma), ("alpha", &alpha));
    assert_eq!(refusal(first, second), Why::Refused(Some(Reason::Name)));
    let config = lab.config("beta", address(), &gamma);
    let remarks = config.check();
    assert!(remarks[0].text.contains("is not for beta"), "{remarks:?}");
}

#[test]
fn a_certificate_that_is_not_the_pinned_one_gives_none() {
    let lab = Lab::new();
    let alpha = lab.certificate("ca", "alpha");
    let beta = lab.certificate("ca", "beta");
    let there = address();
    let pem = fs::read(lab.path("ca").join("beta.pem")).unwrap();
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let der = CertificateDer::from_pem_slice(&pem).unwrap();
    let digest = ring::digest::digest(&ring::digest::SHA256, &der);
    let mut fingerprint: [u8; 32] = digest.as_ref().try_into().unwrap();
    let rest = |fingerprint: [u8; 32]| {
        let line = format!("fingerprint = '{}'\n", Fingerprint(fingerprint));
        format!("{alpha}{}{line}", peer("beta", there))
    };
    let mut right = lab.node("alpha", address(), &rest(fingerprint));
    let mut server = lab.node("beta", there, &format!("{beta}{DISCOVERY}"));
    join((&mut right, "alpha"), (&mut server, "beta"));
    fingerprint[0] ^= 1;
    let wrong = lab.node("alpha", address(), &rest(fingerprint));
    let mut server = {
        drop((right, server));
        lab.node("beta", there, &format!("{beta}{DISCOVERY}"))
    };
    server.turn();
    assert_eq!(refusal(wrong, server), Why::CertificateName("beta".into()));
}

#[test]
fn different_ways_to_authenticate_do_not_meet() {
    let lab = Lab::new();
    let none = "authentication = 'none'\n".to_owned();
    let psk = lab.psk("key");
    let ca = |name: &str| lab.certificate("ca", name);
    for (ours, theirs, method) in [
        (none.clone(), psk.clone(), Method::None),
        (psk.clone(), none.clone(), Method::Psk),
        (psk.clone(), ca("beta"), Method::Psk),
        (ca("alpha"), none.clone(), Method::Certificates),
    ] {
        let (alpha, beta) = two(&lab, &ours, &theirs);
        assert_eq!(refusal(alpha, beta), Why::Method { ours: method });
    }
    // None is enough if both ask for it.
    let (mut alpha, mut beta) = two(&lab, &none, &none);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
}

#[test]
fn a_server_of_another_kind_is_no_daemon() {
    let lab = Lab::new();
    let there = address();
    let rest = format!("authentication = 'none'\n{}", peer("beta", there));
    let mut alpha = lab.node("alpha", address(), &rest);
    let listener = TcpListener::bind((there, PORT_DEFAULT)).unwrap();
    let server = thread::spawn(move || Raw::accept(&listener, "http/1.1").frame());
    run([&mut alpha], "an answer", |[alpha]| {
        !alpha.unreachable().is_empty()
    });
    assert_eq!(alpha.unreachable()[0].1, Why::Method { ours: Method::None });
    assert_eq!(server.join().unwrap(), None);
}

#[test]
fn another_version_is_told_which_ones_there_are() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let rest = format!("authentication = 'none'\n{}", peer("beta", there));
    let mut alpha = lab.node("alpha", here, &rest);
    let later = Versions {
        first: VERSIONS.last + 6,
        last: VERSIONS.last + 8,
    };
    let (at, listener) = (
        alpha.listens_at(),
        TcpListener::bind((there, PORT_DEFAULT)).unwrap(),
    );
    let beta = thread::spawn(move || {
        let protocol = "sluice-peering-none";
        let hello = Hello {
            versions: later,
            proof: [0; 32],
            instance: [1; 16],
            name: "beta".into(),
            software: "sluiced 9".into(),
        };
        // Whatever follows the versions may be different as well.
        let mut hello = hello.encode();
        hello.truncate(4);
        let mut dialed = Raw::connect(at, protocol);
        dialed.send_frame(HELLO, &hello).unwrap();
        let refusal = dialed.frame();
        let mut accepted = Raw::accept(&listener, protocol);
        accepted.frame().unwrap();
        accepted.send_frame(HELLO, &hello).unwrap();
        accepted.frame();
        refusal
    });
    run([&mut alpha], "an answer", |[alpha]| {
        !alpha.unreachable().is_empty()
    });
    let why = alpha.unreachable().remove(0).1;
    assert_eq!(why, Why::Version { theirs: later });
    let versions = format!("speaks version {later}, this one {VERSIONS}");
    assert!(why.to_string().contains(&versions), "{why}");
    run([&mut alpha], "the refusal", |_| beta.is_finished());
    let (kind, body) = beta.join().unwrap().unwrap();
    let versions = [VERSIONS.first, VERSIONS.last].map(u16::to_be_bytes);
    let refusal = [&[Reason::Version as u8], versions.as_flattened()].concat();
    assert_eq!((kind, body), (REFUSE, refusal));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let lab = Lab::new();
    let here = address();
    let text = |config: &Config| Identity::load(config).unwrap_err().to_string();
    let missing = lab.config("alpha", here, "psk_file = '/nonexistent/key'\n");
    assert!(
        text(&missing).starts_with("/nonexistent/key: No such file"),
        "{}",
        text(&missing)
    );
    let alpha = lab.certificate("ca", "alpha");
    lab.certificate("ca", "beta");
    let mixed = lab.config("alpha", here, &alpha.replace("alpha.key", "beta.key"));
    assert!(
        text(&mixed).contains("does not go with the private key"),
        "{}",
        text(&mixed)
    );
    let swapped = lab.config("alpha", here, &alpha.replace("alpha.pem", "alpha.key"));
    assert!(
        text(&swapped).ends_with("alpha.key has no certificate (PEM)"),
        "{}",
        text(&swapped)
    );
    let keyless = lab.config("alpha", here, &alpha.replace("alpha.key", "alpha.pem"));
    let path = lab.path("ca").join("alpha.pem");
    assert!(text(&keyless).contains("chmod 600"), "{}", text(&keyless));
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(
        text(&keyless).ends_with("has no private key (PEM)"),
        "{}",
        text(&keyless)
    );
    let nothing = Config::parse(&lab.path("x"), "").unwrap();
    assert!(
        text(&nothing).contains("does not say how daemons prove"),
        "{}",
        text(&nothing)
    );
}

#[test]
fn daemons_of_one_cluster_have_the_same_number() {
    let lab = Lab::new();
    let number = |rest: &str| {
        Identity::load(&lab.config("alpha", address(), rest))
            .unwrap()
            .cluster()
    };
    let (one, other) = (number(&lab.psk("one")), number(&lab.psk("other")));
    assert_eq!(one, number(&lab.psk("one")));
    assert_ne!(one, other);
    let authority = number(&lab.certificate("ca", "alpha"));
    assert_eq!(authority, number(&lab.certificate("ca", "beta")));
    // However the file is written.
    let file = lab.path("ca").join("ca.pem");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("# ours\n{text}\n{text}")).unwrap();
    assert_eq!(authority, number(&lab.certificate("ca", "alpha")));
    assert_ne!(authority, number(&lab.certificate("other-ca", "alpha")));
    assert_ne!(authority, one);
}
