//! `sluice top` on a terminal of its own: it takes the terminal, and gives it back.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};

use common::{Daemon, Ended, Manner, Scratch, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const LEAVE_ALTERNATE_SCREEN: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// A terminal of 80 columns and 24 lines, and all that was ever written on it.
struct Screen {
    keyboard: File,
    terminal: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn new() -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let keyboard = File::from(controller);
        let mut reader = keyboard.try_clone().unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&written);
        // Ends when the last user of the terminal has closed it.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                collected.lock().unwrap().extend(&buffer[..length]);
            }
        });
        Self {
            keyboard,
            terminal,
            written,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    fn type_keys(&mut self, keys: &str) {
        use std::io::Write;
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether keys come line by line with an echo, as a shell's user expects.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

fn document() -> String {
    r#"{"version":"x","pid":5,"processes":[{"client":1,"pid":42,"program":"server",
    "connections":[{"local":"127.0.0.1:6379","peer":"127.0.0.1:40000","state":"lane"}]}]}"#
        .to_owned()
}

/// Starts top and waits until it shows the connection.
fn start(scratch: &Scratch, screen: &Screen) -> Ended {
    let stdio = || screen.terminal.try_clone().unwrap();
    let child = scratch
        .sluice(["top", "-d", "0.1"])
        .env("TERM", "xterm")
        .stdin(stdio())
        .stdout(stdio())
        .stderr(stdio())
        .spawn()
        .unwrap();
    wait_for("the first screen", || screen.text().contains("server[42]"));
    assert!(!screen.is_cooked());
    Ended(child)
}

fn assert_given_back(screen: &Screen) {
    assert!(screen.is_cooked());
    wait_for("the return of the screen", || {
        let text = screen.text();
        text.contains(LEAVE_ALTERNATE_SCREEN) && text.contains(SHOW_CURSOR)
    });
}

#[test]
fn q_quits_and_gives_the_terminal_back() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document()));
    let mut screen = Screen::new();
    let mut top = start(&scratch, &screen);
    screen.type_keys("s/serv\rq");
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
    assert_given_back(&screen);
}

#[test]
fn a_signal_ends_it_and_gives_the_terminal_back() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document()));
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let screen = Screen::new();
        let mut top = start(&scratch, &screen);
        kill_process(Pid::from_child(&top.0), signal).unwrap();
        assert_eq!(top.0.wait().unwrap().signal(), Some(signal.as_raw()));
        assert_given_back(&screen);
    }
}

#[test]
fn a_stop_gives_the_terminal_back_until_it_goes_on() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document()));
    let mut screen = Screen::new();
    let mut top = start(&scratch, &screen);
    let stat = format!("/proc/{}/stat", top.0.id());
    kill_process(Pid::from_child(&top.0), Signal::TSTP).unwrap();
    wait_for("the stop", || {
        let text = std::fs::read_to_string(&stat).unwrap();
        text.rsplit(") ").next().unwrap().starts_with('T')
    });
    assert_given_back(&screen);
    kill_process(Pid::from_child(&top.0), Signal::CONT).unwrap();
    wait_for("the return of top", || !screen.is_cooked());
    screen.type_keys("q");
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
    assert_given_back(&screen);
}

#[test]
fn a_daemon_that_ends_is_reported_and_top_goes_on() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch.socket(), Manner::Answers(document()));
    let mut screen = Screen::new();
    let mut top = start(&scratch, &screen);
    drop(daemon);
    // ratatui writes only the cells that change, so a sentence does not come in one piece.
    wait_for("the notice", || screen.text().contains("onnections"));
    screen.type_keys("q");
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
}
