//! Texts and what they mean, or why not.

use super::*;

const EXAMPLE: &str = include_str!("../../sluiced.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/sluice/sluiced.toml"), text)
}

/// The text of the error without the file's name.
fn error(text: &str) -> String {
    let error = parse(text).expect_err(text).to_string();
    let prefix = "/etc/sluice/sluiced.toml:";
    error
        .strip_prefix(prefix)
        .unwrap_or_else(|| panic!("{error}"))
        .to_owned()
}

const PSK: &str = "[daemon]\nname = 'a'\npsk_file = 'k'\n";

#[test]
fn the_example_says_what_its_comments_say() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.name, "alpha");
    assert_eq!(config.listen, ["[::]:4797".parse().unwrap()]);
    let file = Some(PathBuf::from("/etc/sluice/peering.key"));
    assert_eq!(config.authentication, Some(Authentication::Psk { file }));
    assert_eq!(config.device, Some(Device::Roce));
    assert_eq!(config.threads, None);
    assert_eq!(config.discovery.networks.len(), 3);
    let beta = config.peer("beta").unwrap();
    assert_eq!(beta.control, "10.1.0.2:4797".parse().unwrap());
    assert_eq!(beta.psk_file, Some("/etc/sluice/beta.key".into()));
    let gamma = config.peer_at("fd00:1::3".parse().unwrap()).unwrap();
    assert_eq!(gamma.name, "gamma");
    let candidate = |port, remote: &str, program| Candidate {
        port,
        remote: remote.parse().unwrap(),
        program: Some(program),
    };
    for (port, remote, program, action) in [
        (22, "10.0.0.1", "nginx", Action::Leave),
        (80, "10.9.0.1", "nginx", Action::Accelerate),
        (80, "10.9.0.1", "curl", Action::Leave),
        (80, "10.8.0.1", "curl", Action::Accelerate),
    ] {
        let decided = config.rules.decide(&candidate(port, remote, program));
        assert_eq!(decided, action, "{port} {remote} {program}");
    }
}

#[test]
fn every_key_is_in_the_example() {
    // Each alternative that is commented out works when the others are taken out.
    let certificates = EXAMPLE
        .replace("psk_file = \"peering.key\"", "")
        .replace("psk_file = \"beta.key\"", "")
        .replace("authentication = \"psk\"", "")
        .replace("# certificate =", "certificate =")
        .replace("# private_key =", "private_key =")
        .replace("# ca =", "ca =")
        .replace(
            "64 hexadecimal digits\"",
            &format!("{}\"", "ab:".repeat(31) + "AB"),
        )
        .replace("# fingerprint =", "fingerprint =");
    let config = parse(&certificates).unwrap();
    let Some(Authentication::Certificates { ca, .. }) = &config.authentication else {
        panic!("{:?}", config.authentication);
    };
    assert_eq!(ca, Path::new("/etc/sluice/ca.pem"));
    let fingerprint = config.peer("beta").unwrap().fingerprint;
    assert_eq!(fingerprint, Some(Fingerprint([0xab; 32])));
}

#[test]
fn an_empty_file_talks_to_nobody() {
    let config = parse("").unwrap();
    assert_eq!(config.authentication, None);
    assert!(!config.discovery.enabled);
    assert!(is_name(&config.name), "{:?}", config.name);
    assert!(config.check().is_empty());
}

#[test]
fn defaults_are_those_of_the_documents() {
    let text = format!("{PSK}[[peer]]\nname = 'b'\naddresses = ['10.3.0.0/24', '10.0.0.2']\n");
    let config = parse(&text).unwrap();
    let socket = SocketAddr::new("10.0.0.2".parse().unwrap(), PORT_DEFAULT);
    assert_eq!(config.peer("b").unwrap().control, socket);
    assert!(!config.is_discovered("10.0.0.9".parse().unwrap()));
    let config = parse(&format!("{PSK}[discovery]\n")).unwrap();
    for (address, is_asked) in [
        ("10.0.0.9", true),
        ("::ffff:10.0.0.9", true),
        ("fd00::1", true),
        ("8.8.8.8", false),
        ("2001:db8::1", false),
        ("127.0.0.1", false),
    ] {
        assert_eq!(
            config.is_discovered(address.parse().unwrap()),
            is_asked,
            "{address}"
        );
    }
    assert_eq!(config.discovery.port, PORT_DEFAULT);
}

#[test]
fn errors_have_their_line_and_what_to_write() {
    for (text, expected) in [
        (
            "[daemon]\nprt = 7\n",
            "2: unknown key `prt`: write one of `name`, `listen`",
        ),
        (
            "\n\n[demon]\n",
            "3: unknown key `demon`: write one of `daemon`",
        ),
        ("[daemon]\nname = 7\n", "2: invalid type: integer"),
        ("[daemon\n", "1: "),
        ("[daemon]\nname = 'A b'\n", "2: \"A b\" is no name: write"),
        (
            "[daemon]\nname = '10.0.0.1'\n",
            "2: \"10.0.0.1\" is no name",
        ),
        (
            "[[peer]]\naddresses = []\n",
            "1: the key `name` is missing: write",
        ),
        (
            "[daemon]\nlisten = ['::']\n",
            " nothing says how daemons prove who they are: write",
        ),
        (
            "[discovery]\n",
            " nothing says how daemons prove who they are: write",
        ),
        (
            "[daemon]\nauthentication = 'off'\n",
            "2: write \"psk\", \"certificates\" or \"none\"",
        ),
        (
            "[daemon]\npsk_file = 'k'\nca = 'c'\n",
            "2: psk_file or certificate, private_key and ca: write one",
        ),
        (
            "[daemon]\npsk_file = 'k'\nauthentication = 'none'\n",
            "2: authentication is \"none\": leave psk_file out",
        ),
        (
            "[daemon]\nca = 'c'\ncertificate = 'd'\n",
            "3: write private_key = \"…\" as well",
        ),
        (
            "[daemon]\nauthentication = 'certificates'\n",
            "2: write certificate = \"…\" as well",
        ),
        (
            "[daemon]\npsk_file = 'k'\nlisten = [\n '::',\n 'host:1']\n",
            "5: \"host:1\" is no",
        ),
        (
            "[daemon]\npsk_file = 'k'\nlisten = ['1.2.3.4:0']\n",
            "3: \"1.2.3.4:0\" is no",
        ),
        (
            "[fabric]\ndevice = 'hw:'\n",
            "2: write \"roce\", \"roce-udp\", \"window:/PATH\", \"shm\" or",
        ),
        ("[fabric]\ndevice = 'hw:../x'\n", "2: write \"roce\""),
        ("[fabric]\nthreads = 0\n", "2: write a number from 1 to 8"),
        ("[fabric]\nthreads = 9\n", "2: write a number from 1 to 8"),
        (
            "[fabric]\ndevice = 'window:here'\n",
            "2: write \"window:\" and an absolute path",
        ),
        (
            "[fabric]\ndevice = 'window:/a,roce'\n",
            "2: write \"window:\" and an absolute path",
        ),
        (
            "[[rule]]\naction = 'drop'\n",
            "2: write \"accelerate\" or \"leave\"",
        ),
        (
            "[[rule]]\naction = 'leave'\nports = '5-1'\n",
            "3: a range begins with its lower port",
        ),
        (
            "[[rule]]\naction = 'leave'\nprograms = ['/bin/nc']\n",
            "3: \"/bin/nc\": write the last part",
        ),
        (
            "[[rule]]\naction = 'leave'\nnetworks = ['10.1.1.1/8']\n",
            "3: \"10.1.1.1/8\": write 10.0.0.0/8",
        ),
        ("[[rule]]\nports = '1'\n", "1: the key `action` is missing"),
    ] {
        let error = error(text);
        assert!(error.starts_with(expected), "{text}\n{error}\n{expected}");
    }
    for (text, expected) in [
        (
            "[[peer]]\nname = 'a'\ncontrol = '::1'\n",
            "5: a is this daemon itself",
        ),
        (
            "[[peer]]\nname = 'b'\n",
            "5: where its daemon listens is not said: write",
        ),
        (
            "[[peer]]\nname = 'b'\naddresses = ['10.0.0.0/8']\n",
            "5: where its daemon listens is not said",
        ),
        (
            "[[peer]]\nname='b'\ncontrol='::1'\n[[peer]]\ncontrol='::2'\nname='b'\n",
            "9: there is a [[peer]] b already",
        ),
        (
            "[[peer]]\nname='b'\ncontrol='::1'\nfingerprint='sha256:00'\n",
            "7: a fingerprint needs certificate",
        ),
        ("[discovery]\nport = 0\n", "5: write a port from 1"),
        ("[discovery]\nport = 65536\n", "5: "),
        (
            "[discovery]\ncgroup = '/sys/fs/cgroup'\n",
            "5: cgroup says whose handshakes have the option",
        ),
        ("[discovery]\noption = 'yes'\n", "5: "),
    ] {
        let error = error(&format!("{PSK}{text}"));
        assert!(error.starts_with(expected), "{text}\n{error}\n{expected}");
    }
    let none = "[daemon]\nauthentication='none'\n[[peer]]\nname='b'\ncontrol='::1'\npsk_file='x'\n";
    assert!(
        error(none).starts_with("6: a peer's psk_file needs"),
        "{}",
        error(none)
    );
    let keyless = "[daemon]\nauthentication='psk'\n[[peer]]\nname='b'\ncontrol='::1'\n";
    assert!(
        error(keyless).starts_with("4: b has no key"),
        "{}",
        error(keyless)
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(Path::new("/nonexistent/sluiced.toml")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("/nonexistent/sluiced.toml: No such file"),
        "{text}"
    );
}

#[test]
fn capture_is_read_and_wants_a_proof() {
    assert_eq!(parse(PSK).unwrap().capture, None);
    let capture = parse(&format!("{PSK}[capture]\n"))
        .unwrap()
        .capture
        .unwrap();
    let nothing_said = Capture {
        over: Over::Adapter,
        cgroup: None,
        ports: None,
        networks: None,
        programs: None,
        serve_ports: None,
        relay_port: 4796,
        drain: std::time::Duration::from_secs(30),
    };
    assert_eq!(capture, nothing_said);
    let capture = parse(EXAMPLE).unwrap().capture.unwrap();
    assert!(capture.wants("10.1.0.2".parse().unwrap(), 8099));
    assert!(!capture.wants("10.1.0.2".parse().unwrap(), 8100));
    assert!(capture.serves(6379) && !capture.serves(22));
    for (device, over, is_left) in [
        ("roce", "", true),
        ("shm", "over='adapter'", true),
        ("window:/dev/shm/w", "", true),
        ("hw:mlx5_0", "", false),
        ("roce", "over='any'", false),
        ("hw:mlx5_0", "over='any'", false),
    ] {
        let text = format!("{PSK}[fabric]\ndevice='{device}'\n[capture]\n{over}\n");
        let config = parse(&text).unwrap();
        let remark = config.capture_remark(config.names_adapter());
        assert_eq!(
            remark.is_some_and(|it| it.contains(device)),
            is_left,
            "{device} {over}"
        );
        let remark = |it: &Remark| !it.is_error && it.text.starts_with("[capture] leaves");
        assert_eq!(config.check().iter().any(remark), is_left, "{device}");
    }
    // The kernel emulates one.
    let text = format!("{PSK}[fabric]\ndevice='hw:rxe0'\n[capture]\n");
    assert!(parse(&text).unwrap().capture_remark(false).is_some());
    assert!(parse(PSK).unwrap().capture_remark(false).is_none());
    let names = format!("{PSK}[capture]\nprograms=['a-name-that-is-longer','ä-äääääääääää']\n");
    let names = parse(&names).unwrap().capture.unwrap().programs.unwrap();
    assert_eq!(names, ["a-name-that-is-", "ä-ääääää"]);
    for (text, says) in [
        (
            "relay_port=4797",
            "5: write a port from 1 to 65535 that is not",
        ),
        ("relay_port=0", "5: write a port from 1 to 65535"),
        ("ports='0'", "5: ports are numbers"),
        ("over='roce'", "5: \"roce\": write \"adapter\" or \"any\""),
        ("networks=['x']", "5: \"x\""),
        ("programs=['/bin/x']", "5: \"/bin/x\": write the last part"),
        ("other=1", "5: unknown key `other`"),
    ] {
        let error = error(&format!("{PSK}[capture]\n{text}\n"));
        assert!(error.starts_with(says), "{text}: {error}");
    }
    let open = error("[daemon]\nname='a'\nauthentication='none'\n[capture]\n");
    assert!(open.contains("prove who they are"), "{open}");
    let nowhere = format!("{PSK}[capture]\ncgroup='/proc'\n");
    let remarks = parse(&nowhere).unwrap().check();
    let found = |remark: &Remark| remark.is_error && remark.text.starts_with("the cgroup /proc");
    assert!(remarks.iter().any(found), "{remarks:?}");
}

#[test]
fn the_option_in_handshakes_is_asked_for() {
    let option = |text: &str| parse(&format!("{PSK}{text}")).unwrap().discovery.option;
    assert!(!option(""));
    assert!(!option("[discovery]\n"));
    assert!(option("[discovery]\noption = true\n"));
    assert!(!option("[discovery]\noption = false\n"));
    // There is nobody to be found then.
    assert!(!option("[discovery]\nenabled = false\noption = true\n"));
    let wrong = format!("{PSK}[discovery]\noption = true\ncgroup = '/proc'\n");
    let remarks = parse(&wrong).unwrap().check();
    let found = |remark: &Remark| remark.is_error && remark.text.starts_with("the cgroup /proc");
    assert!(remarks.iter().any(found), "{remarks:?}");
}

#[test]
fn discovery_without_a_common_key_is_said_to_find_nobody() {
    let keyless = "[daemon]\nname='a'\nauthentication='psk'\n[discovery]\n";
    let remarks = parse(keyless).unwrap().check();
    let found = |remark: &Remark| !remark.is_error && remark.text.contains("asks nobody");
    assert!(remarks.iter().any(found), "{remarks:?}");
    let remarks = parse(&keyless.replace("[discovery]", "")).unwrap().check();
    assert!(!remarks.iter().any(found), "{remarks:?}");
}

#[test]
fn gateways_and_nodes_have_no_more_addresses_than_are_told() {
    let text = |addresses: u8, users: &str| {
        let all: Vec<String> = (2..2 + addresses)
            .map(|last| format!("'10.0.0.{last}'"))
            .collect();
        let all = all.join(",");
        format!("{PSK}[[peer]]\nname='b'\ncontrol='10.0.0.2'\naddresses=[{all}]\n{users}")
    };
    let node = "[node]\ngateways=['b']\n";
    let gateway = "[gateway]\naddresses=['::']\n[[gateway.node]]\nname='b'\n";
    for users in [node, gateway] {
        assert!(parse(&text(8, users)).is_ok(), "{users}");
        let error = error(&text(9, users));
        assert!(error.contains("b has 9 addresses"), "{error}");
        assert!(error.contains("8 is the most"), "{error}");
    }
    assert!(parse(&text(200, "")).is_ok(), "others may have any number");
    // That of control is one more.
    let far = text(8, node).replace("control='10.0.0.2'", "control='10.9.9.9'");
    assert!(error(&far).contains("b has 9 addresses"));
}

#[test]
fn differences_are_found() {
    let old = parse(&format!(
        "{PSK}[[peer]]\nname='b'\ncontrol='::1'\n[[peer]]\nname='c'\ncontrol='::2'\n"
    ));
    let new = parse(&format!(
        "{PSK}[[peer]]\nname='b'\ncontrol='::3'\n[[peer]]\nname='d'\ncontrol='::2'\n[[rule]]\naction='leave'\n"
    ));
    let (old, new) = (old.unwrap(), new.unwrap());
    let changes = Changes::between(&old, &new);
    let expected = Changes {
        came: vec!["d".into()],
        went: vec!["c".into()],
        changed: vec!["b".into()],
        rules: true,
        ..Changes::default()
    };
    assert_eq!(changes, expected);
    assert!(Changes::between(&new, &new).is_empty());
}

#[test]
fn what_is_seldom_meant_is_remarked() {
    let text = "[daemon]\nname='a'\nauthentication='none'\n\
                [[peer]]\nname='b'\ncontrol='10.0.0.1'\naddresses=['10.0.0.0/24']\n\
                [[peer]]\nname='c'\ncontrol='10.0.0.2'\n\
                [[rule]]\naction='leave'\n[[rule]]\naction='accelerate'\n";
    let remarks = parse(text).unwrap().check();
    let texts: Vec<&str> = remarks.iter().map(|remark| remark.text.as_str()).collect();
    assert!(remarks.iter().all(|remark| !remark.is_error), "{texts:?}");
    assert!(
        texts[0].starts_with("authentication = \"none\""),
        "{texts:?}"
    );
    assert!(
        texts[1].starts_with("the [[rule]] number 1 is about all"),
        "{texts:?}"
    );
    assert!(
        texts[2].contains("of b and, in part at least, of c"),
        "{texts:?}"
    );
    let missing = parse(&format!("{PSK}[discovery]\n")).unwrap().check();
    assert!(missing[0].is_error, "{missing:?}");
    assert!(missing[0].text.contains("/etc/sluice/k"), "{missing:?}");
}

#[test]
fn gateways_and_those_who_use_them_are_read() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.publishing.gateways, ["gamma"]);
    assert_eq!(config.publishing.direct.len(), 2);
    let gateway = config.gateway.unwrap();
    assert_eq!(gateway.addresses.len(), 2);
    let beta = gateway.node("beta").unwrap();
    assert_eq!(beta.addresses, gateway.addresses[..1]);
    assert!(beta.may_publish(8080) && !beta.may_publish(8081));
    assert!(beta.may_connect("8.8.8.8".parse().unwrap()));
    assert!(gateway.node("gamma").is_none());
    // What is not said is not allowed.
    let peer = "[[peer]]\nname = 'b'\ncontrol = '10.0.0.2'\n";
    let text = format!("{PSK}{peer}[gateway]\naddresses = ['::']\n[[gateway.node]]\nname = 'b'\n");
    let gateway = parse(&text).unwrap().gateway.unwrap();
    let node = gateway.node("b").unwrap();
    assert_eq!(node.addresses, gateway.addresses);
    assert!(!node.may_publish(80));
    assert!(!node.may_connect("10.0.0.9".parse().unwrap()));
    assert!(parse("").unwrap().gateway.is_none());
}

#[test]
fn gateways_that_make_no_sense_are_refused_with_their_line() {
    let head = format!("{PSK}[[peer]]\nname = 'b'\ncontrol = '10.0.0.2'\n");
    let lines = head.lines().count();
    for (text, line, expected) in [
        ("[gateway]\naddresses = []\n", 1, "where clients connect to"),
        ("[gateway]\naddresses = ['gw']\n", 2, "is no address"),
        (
            "[gateway]\naddresses = ['::']\n[[gateway.node]]\nname = 'c'\n",
            4,
            "c is no peer",
        ),
        (
            "[gateway]\naddresses = ['::']\n[[gateway.node]]\nname = 'b'\naddresses = ['::1']\n",
            5,
            "::1 is not in the addresses",
        ),
        (
            "[gateway]\naddresses = ['::']\n[[gateway.node]]\nname = 'b'\nports = 'http'\n",
            5,
            "ports are numbers",
        ),
        ("[node]\ngateways = ['c']\n", 2, "c is no peer"),
    ] {
        let error = error(&format!("{head}{text}"));
        let place = format!("{}: ", lines + line);
        assert!(error.starts_with(&place), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn figures_are_for_this_host_alone_unless_an_address_is_written() {
    let of = |text: &str| super::metrics_address(text).map(|address| address.to_string());
    assert_eq!(of("9797").as_deref(), Ok("127.0.0.1:9797"));
    assert_eq!(of("[::]:9797").as_deref(), Ok("[::]:9797"));
    for wrong in ["", ":9797", "99999", "10.0.0.1", "localhost:1"] {
        assert!(
            of(wrong).is_err_and(|problem| problem.contains("write")),
            "{wrong}"
        );
    }
}

#[test]
fn windows_are_read_and_what_makes_no_sense_has_its_line() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.windows[0].path, Path::new("/run/window.sock"));
    assert_eq!(config.windows[0].users, [0, 1000]);
    assert!(!config.windows[0].is_for(1));
    let window = "[[window]]\npath = 'w'\n";
    let config = parse(&format!("{PSK}{window}")).unwrap();
    assert!(config.windows[0].users.is_empty(), "nobody unless named");
    let remarks = config.check();
    let says = |what: &str| {
        remarks
            .iter()
            .any(|it| it.text.contains(what) && !it.is_error)
    };
    assert!(
        says("has no users") && says("until 'sluice window serve' runs"),
        "{remarks:?}"
    );
    for (more, problem) in [
        ("kind = 'push'\n", "caches agree only"),
        ("kind = 'flush'\n", "caches agree only"),
        ("kind = 'other'\n", "write \"coherent\""),
        ("users = ['no such user']\n", "is no user"),
        ("user = ['root']\n", "unknown key"),
        (window, "there already"),
    ] {
        let error = parse(&format!("{PSK}{window}{more}")).unwrap_err();
        assert!(error.problem.contains(problem), "{error}");
        assert!(error.line.is_some(), "{error}");
    }
    let many = window.repeat(9);
    assert!(parse(&format!("{PSK}{many}")).is_err());
}

#[test]
fn threads_are_as_the_file_says_or_one_or_with_an_adapter_half_the_processors_at_most_four() {
    let written = parse(&format!("{PSK}[fabric]\nthreads = 3\n")).unwrap();
    assert_eq!((written.threads, written.fabric_threads()), (Some(3), 3));
    let default = parse(PSK).unwrap();
    assert_eq!(default.fabric_threads(), 1);
    let adapter = parse(&format!("{PSK}[fabric]\ndevice = \"hw:mlx5_0\"\n")).unwrap();
    assert!((1..=THREADS_DEFAULT_MAX).contains(&adapter.fabric_threads()));
    let processors = [0, 1, 2, 3, 4, 7, 8, 64];
    assert_eq!(processors.map(threads_for), [1, 1, 1, 1, 2, 3, 4, 4]);
    let changes = Changes::between(&default, &written);
    assert!(changes.threads && !changes.device);
}
