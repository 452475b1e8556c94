//! `sluice ca`: what it makes, who can read it, and that nothing is lost to it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use common::{Scratch, stderr, stdout};
use sluice_peering::{Config, Identity};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

struct Authority {
    scratch: Scratch,
    folder: String,
}

impl Authority {
    fn new() -> Authority {
        let scratch = Scratch::new();
        let folder = scratch.path("new/ca").to_str().unwrap().to_owned();
        let made = scratch.sluice(["ca", "create", &folder]).output().unwrap();
        assert_eq!(made.status.code(), Some(0), "{made:?}");
        Authority { scratch, folder }
    }

    fn host(&self, name: &str, more: &[&str]) -> Output {
        let mut command = self.scratch.sluice(["ca", "host", &self.folder, name]);
        command.args(more).output().unwrap()
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(&self.folder).join(name)
    }
}

#[track_caller]
fn refused(output: &Output, words: &str) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(output).contains(words), "{output:?}");
}

#[test]
fn a_hosts_folder_is_private_and_is_what_a_daemon_takes() {
    let authority = Authority::new();
    assert_eq!(mode(Path::new(&authority.folder)), 0o700);
    assert_eq!(mode(&authority.file("ca.key")), 0o600);
    let made = authority.host(
        "alpha",
        &["--peer", "beta=10.0.0.2", "--peer", "gamma=[fd00::3]:99"],
    );
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    assert!(stdout(&made).contains("/etc/sluice/"), "{made:?}");
    let folder = authority.file("alpha");
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("host.key")), 0o600);
    assert_eq!(mode(&folder.join("sluiced.toml")), 0o600);
    let environment = fs::read_to_string(folder.join("environment")).unwrap();
    assert_eq!(
        environment,
        "SLUICED_OPTIONS=--config /etc/sluice/sluiced.toml\n"
    );
    assert!(!folder.join("ca.key").exists());
    let config = Config::load(&folder.join("sluiced.toml")).unwrap();
    assert_eq!(Identity::load(&config).unwrap().problems(), [""; 0]);
    let peers: Vec<String> = config
        .peers
        .iter()
        .map(|peer| format!("{} {:?}", peer.name, peer.control))
        .collect();
    assert_eq!(peers.len(), 2, "{peers:?}");
    assert!(peers[0].contains("10.0.0.2:4797"), "{peers:?}");
    assert!(peers[1].contains("[fd00::3]:99"), "{peers:?}");
    assert!(!config.discovery.enabled);
}

#[test]
fn nothing_is_overwritten() {
    let authority = Authority::new();
    let key = fs::read(authority.file("ca.key")).unwrap();
    let again = authority
        .scratch
        .sluice(["ca", "create", &authority.folder])
        .output();
    refused(&again.unwrap(), "is there already");
    assert_eq!(fs::read(authority.file("ca.key")).unwrap(), key);

    assert_eq!(authority.host("alpha", &[]).status.code(), Some(0));
    let mine = fs::read(authority.file("alpha/host.key")).unwrap();
    refused(&authority.host("alpha", &[]), "is there already");
    assert_eq!(fs::read(authority.file("alpha/host.key")).unwrap(), mine);

    let file = authority.scratch.path("peering.key");
    let path = file.to_str().unwrap();
    let key = |path| {
        authority
            .scratch
            .sluice(["ca", "key", path])
            .output()
            .unwrap()
    };
    assert_eq!(key(path).status.code(), Some(0));
    assert_eq!(mode(&file), 0o600);
    let first = fs::read(&file).unwrap();
    refused(&key(path), "is there already");
    assert_eq!(fs::read(&file).unwrap(), first);
    // A link that leads nowhere is not followed to where it leads.
    let link = authority.scratch.path("link");
    std::os::unix::fs::symlink(authority.scratch.path("elsewhere"), &link).unwrap();
    refused(&key(link.to_str().unwrap()), "is there already");
    assert!(!authority.scratch.path("elsewhere").exists());
}

#[test]
fn half_an_authority_is_none() {
    let scratch = Scratch::new();
    let folder = scratch.path("ca");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("ca.pem"), "mine").unwrap();
    let path = folder.to_str().unwrap();
    let create = || scratch.sluice(["ca", "create", path]).output().unwrap();
    refused(&create(), "is there already");
    // The key that went with no certificate is gone again.
    assert!(!folder.join("ca.key").exists());
    let host = scratch
        .sluice(["ca", "host", path, "alpha"])
        .output()
        .unwrap();
    refused(&host, "sluice ca create");
}

#[test]
fn names_that_are_paths_or_the_authoritys_own_are_refused() {
    let authority = Authority::new();
    for name in [
        "../alpha", "/tmp/x", "", ".", "..", "a/b", "Alpha", "ca", "a\nb = 1",
    ] {
        refused(&authority.host(name, &[]), "is no daemon's name");
    }
    for peer in ["Beta=10.0.0.2", "\"=10.0.0.2", "alpha=10.0.0.2"] {
        refused(
            &authority.host("alpha", &["--peer", peer]),
            "is no daemon's name",
        );
    }
    for words in [
        ["--peer", "beta"],
        ["--peer", "b=x"],
        ["--days", "0"],
        ["--days", "4000"],
    ] {
        assert_eq!(
            authority.host("alpha", &words).status.code(),
            Some(2),
            "{words:?}"
        );
    }
    let left: Vec<_> = fs::read_dir(&authority.folder).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn an_authority_that_lies_leaves_nothing_behind() {
    let (one, other) = (Authority::new(), Authority::new());
    // The certificate of another authority: no peer would believe what this key signs.
    fs::copy(other.file("ca.pem"), one.file("ca.pem")).unwrap();
    refused(&one.host("alpha", &[]), "of one authority?");
    assert!(!one.file("alpha").exists());
    fs::write(one.file("ca.pem"), "no certificate").unwrap();
    refused(&one.host("alpha", &[]), "ca.pem");
    fs::write(other.file("ca.key"), "no key").unwrap();
    refused(&other.host("alpha", &[]), "cannot be used");
    fs::set_permissions(other.file("ca.key"), PermissionsExt::from_mode(0o644)).unwrap();
    refused(&other.host("alpha", &[]), "chmod 600");
    assert!(!one.file("alpha").exists() && !other.file("alpha").exists());
}
