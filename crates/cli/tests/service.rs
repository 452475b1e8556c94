//! `sluice enable` and `sluice disable` in the root of another system, and what systemd thinks of it.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};

use common::{Scratch, stderr, stdout};

const RUN: &str = "/usr/bin/sluice run --no-daemon --socket /run/sluice/control.sock";
const UNITS: &str = "usr/lib/systemd/system";
const ADMIN: &str = "etc/systemd/system";

struct Image {
    scratch: Scratch,
    root: PathBuf,
}

impl Image {
    fn new() -> Image {
        let scratch = Scratch::new();
        let root = scratch.path("root");
        let image = Image { scratch, root };
        for program in [
            "usr/bin/sluice",
            "usr/bin/server",
            "usr/bin/other",
            "usr/bin/sluiced",
        ] {
            image.write(program, "#!/bin/sh\n");
            let mode = PermissionsExt::from_mode(0o755);
            fs::set_permissions(image.root.join(program), mode).unwrap();
        }
        let unit = "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/usr/bin/sluiced\n";
        image.write(&format!("{UNITS}/sluiced.service"), unit);
        image
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A unit whose section `[Service]` says this.
    fn unit(&self, name: &str, service: &str) {
        let text = format!("[Unit]\nDefaultDependencies=no\n[Service]\n{service}");
        self.write(&format!("{UNITS}/{name}"), &text);
    }

    fn sluice(&self, words: &[&str]) -> Output {
        let root = self.root.to_str().unwrap();
        let mut command = self.scratch.sluice([words[0], "--root", root]);
        command.args(&words[1..]).output().unwrap()
    }

    #[track_caller]
    fn good(&self, words: &[&str]) -> String {
        let output = self.sluice(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        stdout(&output)
    }

    #[track_caller]
    fn refused(&self, words: &[&str], why: &str) {
        let output = self.sluice(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(stderr(&output).contains(why), "{output:?}");
    }

    fn drop_in(&self, unit: &str) -> PathBuf {
        self.root.join(format!("{ADMIN}/{unit}.d/zz-sluice.conf"))
    }

    /// What the drop-in of an enabled unit says, without comments and empty lines.
    #[track_caller]
    fn says(&self, unit: &str) -> Vec<String> {
        let text = fs::read_to_string(self.drop_in(unit)).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(|line| line.replace(RUN, "RUN")).collect()
    }

    /// systemd itself reads the unit with its drop-ins.
    #[track_caller]
    fn verify(&self, unit: &str) {
        let mut analyze = Command::new("systemd-analyze");
        analyze.args([
            "verify",
            "--man=no",
            "--generators=no",
            "--recursive-errors=one",
        ]);
        analyze
            .arg(format!("--root={}", self.root.display()))
            .arg(unit);
        match analyze.output() {
            Ok(output) => {
                let said = stderr(&output);
                assert!(output.status.success() && said.is_empty(), "{unit}: {said}");
            }
            Err(error) => println!("SKIP systemd_reads_{unit}: no systemd-analyze: {error}"),
        }
    }
}

#[test]
fn every_form_of_command_is_kept_and_systemd_reads_it() {
    let image = Image::new();
    image.unit(
        "many.service",
        "Type=oneshot\nExecStartPre=/usr/bin/other\nExecStart=-/usr/bin/server a \\\n  b\n\
         ExecStart=@/usr/bin/server called -x\nExecStart=+/usr/bin/server ; !/usr/bin/other \"c d\" $E ${F}\n",
    );
    image.good(&["enable", "many"]);
    assert_eq!(
        image.says("many.service"),
        [
            "[Unit]",
            "Wants=sluiced.service",
            "After=sluiced.service",
            "[Service]",
            "ExecStart=",
            "ExecStart=-RUN -- /usr/bin/server a b",
            "ExecStart=RUN --argv0 called -- /usr/bin/server -x",
            "ExecStart=+RUN -- /usr/bin/server ; !RUN -- /usr/bin/other \"c d\" $E ${F}",
        ]
    );
    image.verify("many.service");
    let mode = fs::metadata(image.drop_in("many.service"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn confined_services_are_given_the_daemons_socket_and_no_other() {
    let image = Image::new();
    let hard = "ProtectSystem=strict\nPrivateTmp=yes\nNoNewPrivileges=yes\nMemoryDenyWriteExecute=yes\n\
                SystemCallFilter=@system-service\nExecStart=/usr/bin/server\n";
    for (name, families, is_added) in [
        ("inet", "AF_INET AF_INET6", true),
        ("unix", "AF_INET AF_UNIX", false),
        ("denied", "~AF_UNIX AF_PACKET", true),
        ("other", "~AF_PACKET", false),
        ("nothing", "none", true),
        ("later", "AF_INET\nRestrictAddressFamilies=AF_UNIX", false),
        (
            "taken",
            "AF_INET AF_UNIX\nRestrictAddressFamilies=~AF_UNIX",
            true,
        ),
        ("reset", "AF_INET\nRestrictAddressFamilies=", false),
    ] {
        let unit = format!("{name}.service");
        image.unit(
            &unit,
            &format!("{hard}RestrictAddressFamilies={families}\n"),
        );
        image.good(&["enable", name]);
        let says = image.says(&unit);
        let added = says.contains(&"RestrictAddressFamilies=AF_UNIX".to_owned());
        assert_eq!(added, is_added, "{name}: {says:?}");
        image.verify(&unit);
    }
    image.unit("open.service", "ExecStart=/usr/bin/server\n");
    image.good(&["enable", "open"]);
    // A list where there was none would take everything else away.
    assert_eq!(image.says("open.service").len(), 6);
    image.unit(
        "rooted.service",
        "RootDirectory=/srv\nNoExecPaths=/\nExecPaths=/usr/bin/server\nExecStart=/usr/bin/server\n",
    );
    image.good(&["enable", "rooted"]);
    let says = image.says("rooted.service").join("\n");
    assert!(
        says.contains("ExecPaths=/usr/bin/sluice -/usr/lib/sluice"),
        "{says}"
    );
    assert!(
        says.contains("BindReadOnlyPaths=/usr/bin/sluice -/usr/lib/sluice -/run/sluice"),
        "{says}"
    );
    image.unit(
        "narrow.service",
        "SystemCallFilter=read write\nExecStart=/usr/bin/server\n",
    );
    let noted = image.sluice(&["enable", "narrow"]);
    assert!(stderr(&noted).contains("@system-service"), "{noted:?}");
}

#[test]
fn templates_aliases_and_drop_ins_count_as_systemd_counts_them() {
    let image = Image::new();
    image.unit("worker@.service", "ExecStart=/usr/bin/server %i\n");
    image.good(&["enable", "worker@"]);
    assert!(
        image
            .says("worker@.service")
            .contains(&"ExecStart=RUN -- /usr/bin/server %i".to_owned())
    );
    image.verify("worker@7.service");
    // An instance with a command of its own is named, and can be enabled by itself.
    let own = format!("{ADMIN}/worker@x.service.d/override.conf");
    image.write(&own, "[Service]\nExecStart=\nExecStart=/usr/bin/other %i\n");
    let again = image.sluice(&["enable", "worker@.service"]);
    assert!(
        stderr(&again).contains("worker@x.service has drop-ins"),
        "{again:?}"
    );
    image.good(&["enable", "worker@x"]);
    assert!(
        image
            .says("worker@x.service")
            .contains(&"ExecStart=RUN -- /usr/bin/other %i".to_owned())
    );
    image.verify("worker@x.service");

    image.unit("real-server.service", "ExecStart=/usr/bin/server\n");
    // As 'systemctl enable' makes it: absolute, and meant within the root.
    symlink(
        "/usr/lib/systemd/system/real-server.service",
        image.root.join(ADMIN).join("real.service"),
    )
    .unwrap();
    image.good(&["enable", "real"]);
    assert!(image.drop_in("real-server.service").exists());
    assert!(!image.drop_in("real.service").exists());
    image.good(&["disable", "real"]);
    assert!(
        !image
            .drop_in("real-server.service")
            .parent()
            .unwrap()
            .exists()
    );

    // What 'systemctl edit' has written counts, and ours comes behind it.
    image.write(
        &format!("{ADMIN}/real-server.service.d/override.conf"),
        "[Service]\nExecStart=\nExecStart=/usr/bin/other\n",
    );
    image.write(
        &format!("{UNITS}/real-.service.d/10-a.conf"),
        "[Service]\nRestrictAddressFamilies=AF_INET\n",
    );
    image.good(&["enable", "real-server"]);
    let says = image.says("real-server.service").join("\n");
    assert!(
        says.contains("RestrictAddressFamilies=AF_UNIX") && says.contains("RUN -- /usr/bin/other"),
        "{says}"
    );
    // Others' drop-ins stay where they are.
    image.good(&["disable", "real-server"]);
    assert!(
        image
            .root
            .join(format!("{ADMIN}/real-server.service.d/override.conf"))
            .exists()
    );
    image.write(
        &format!("{ADMIN}/real-server.service.d/zzz.conf"),
        "[Service]\nExecStart=\nExecStart=/usr/bin/other\n",
    );
    image.refused(&["enable", "real-server"], "zzz.conf");
}

#[test]
fn what_is_enabled_is_kept_true_and_taken_back_without_a_trace() {
    let image = Image::new();
    image.unit("a.service", "ExecStart=/usr/bin/server\n");
    image.unit("b.service", "ExecStart=/usr/bin/server\n");
    image.unit("gone.service", "ExecStart=/usr/bin/server\n");
    let dry = image.good(&["enable", "--dry-run", "a"]);
    assert!(
        dry.contains("ExecStart=") && !image.root.join(ADMIN).exists(),
        "{dry}"
    );
    image.good(&["enable", "a", "b", "gone"]);
    let text = fs::read_to_string(image.drop_in("a.service")).unwrap();
    assert!(image.good(&["enable", "a"]).contains("already"));
    image.unit("a.service", "ExecStart=/usr/bin/other --new\n");
    fs::remove_file(image.root.join(UNITS).join("gone.service")).unwrap();
    // One that is gone does not keep the others.
    let refreshed = image.sluice(&["enable", "--refresh"]);
    assert!(
        stderr(&refreshed).contains("there is no gone.service"),
        "{refreshed:?}"
    );
    assert!(
        image
            .says("a.service")
            .contains(&"ExecStart=RUN -- /usr/bin/other --new".to_owned())
    );
    assert_ne!(
        fs::read_to_string(image.drop_in("a.service")).unwrap(),
        text
    );
    assert!(
        image
            .good(&["disable", "--dry-run", "a"])
            .contains("would remove")
    );
    assert!(image.drop_in("a.service").exists());
    image.good(&["disable", "--all"]);
    assert_eq!(fs::read_dir(image.root.join(ADMIN)).unwrap().count(), 0);
    assert!(image.good(&["disable", "a"]).contains("is not enabled"));
}

#[test]
fn units_and_images_that_lie_are_refused_and_nothing_is_written() {
    let image = Image::new();
    for (name, service) in [
        ("empty", "Type=oneshot\n"),
        ("open-quote", "ExecStart=/usr/bin/server \"a\n"),
        (
            "under",
            "ExecStart=/usr/bin/sluice run -- /usr/bin/server\n",
        ),
    ] {
        image.unit(&format!("{name}.service"), service);
        image.refused(&["enable", name], "ExecStart=");
    }
    image.refused(&["enable", "sluiced"], "under itself");
    image.refused(&["enable", "../../x"], "is no service");
    image.refused(&["enable", "x.socket"], "is no service");
    image.refused(&["enable", "nobody"], "there is no nobody.service");
    let units = image.root.join(UNITS);
    symlink("/dev/null", units.join("masked.service")).unwrap();
    image.refused(&["enable", "masked"], "is masked");
    symlink("two.service", units.join("one.service")).unwrap();
    symlink("one.service", units.join("two.service")).unwrap();
    image.refused(&["enable", "one"], "lead nowhere");
    // A file of this host is not read for an image, in which such a link leads to one of its own.
    symlink(
        "../../../../../../../../../../../etc/passwd",
        units.join("out.service"),
    )
    .unwrap();
    image.refused(&["enable", "out"], "No such file");
    image.unit("long.service", &"#".repeat(2 << 20));
    image.refused(&["enable", "long"], "too long");
    assert!(!image.root.join(ADMIN).exists());

    image.unit("good.service", "ExecStart=/usr/bin/server\n");
    image.write(
        &format!("{ADMIN}/good.service.d/zz-sluice.conf"),
        "[Service]\nNice=1\n",
    );
    image.refused(&["enable", "good"], "was not made by");
    image.refused(&["disable", "good"], "was not made by");
    // A folder that leads out of the image.
    let outside = image.scratch.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir_all(image.root.join("etc")).unwrap();
    symlink(&outside, image.root.join("etc")).unwrap();
    image.refused(&["enable", "good"], "leads out of");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_file(image.root.join("usr/bin/sluice")).unwrap();
    image.refused(&["enable", "good"], "there is no sluice");
}

#[test]
fn the_name_that_a_unit_gives_its_program_arrives() {
    let scratch = Scratch::new().with_library();
    let mut command = scratch.sluice(["run", "--no-daemon", "--argv0", "-called", "--"]);
    command.args(["/bin/sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline"]);
    let output = command.output().unwrap();
    assert_eq!(
        stdout(&output).trim(),
        "-called -c tr '\\0' ' ' </proc/$$/cmdline"
    );
}
