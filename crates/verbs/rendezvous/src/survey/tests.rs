//! A process that answers, and everything that somebody may put in its place.

use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixListener;
use std::slice;

use super::*;
use crate::tests::directory;
use crate::{Rendezvous, Reporter};

const PATIENCE: Duration = Duration::from_secs(60);

/// What is found when a process that answers has got a processor for it: one place has two seconds.
fn answered(place: &Place, is_answered: impl Fn(&Survey) -> bool) -> Survey {
    let start = Instant::now();
    loop {
        let survey = look(slice::from_ref(place), PATIENCE);
        if is_answered(&survey) || start.elapsed() > PATIENCE {
            return survey;
        }
    }
}

fn has_bytes(survey: &Survey) -> bool {
    let mut all = survey.processes.iter();
    all.any(|one| matches!(one.answer, Answer::Bytes(_)))
}

fn make(name: &str) -> Place {
    let path = directory(name);
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    place_of(path)
}

fn place_of(path: PathBuf) -> Place {
    Place {
        path,
        uid: unix::effective_uid(),
    }
}

fn listen(path: &Path, backlog: i32) -> unix::Fd {
    let socket = unix::seqpacket().unwrap();
    unix::bind(socket.raw(), path.as_os_str().as_bytes()).unwrap();
    unix::listen(socket.raw(), backlog).unwrap();
    socket
}

/// A socket whose process has gone. A child between fork and exec, of another test's, may have it for a while.
fn die(path: &Path) {
    drop(listen(path, 1));
    let start = Instant::now();
    let is_there = || {
        let socket = unix::seqpacket().unwrap();
        unix::connect(socket.raw(), path.as_os_str().as_bytes()) != Err(Errno(libc::ECONNREFUSED))
    };
    while is_there() {
        assert!(start.elapsed() < PATIENCE, "somebody listens");
    }
}

#[test]
fn a_process_that_answers_is_found_with_its_name() {
    let place = place_of(directory("survey"));
    assert_eq!(
        look(std::slice::from_ref(&place), PATIENCE),
        Survey::default()
    );
    Reporter::start(&place.path, || b"hello".to_vec()).unwrap();
    // Twice: it answers whoever comes.
    for _ in 0..2 {
        let survey = answered(&place, has_bytes);
        let [found] = &survey.processes[..] else {
            panic!("{survey:?}")
        };
        assert_eq!(found.pid, Some(std::process::id()));
        assert_eq!(found.uid, place.uid);
        let own = program_of(std::process::id());
        assert_eq!(found.program, own);
        assert_eq!(found.answer, Answer::Bytes(b"hello".to_vec()));
        assert_eq!((survey.leftovers, survey.cut), (0, false));
    }
    fs::remove_dir_all(&place.path).unwrap();
}

#[test]
fn answers_are_of_a_bounded_length() {
    let place = place_of(directory("long"));
    Reporter::start(&place.path, || vec![b'x'; 10 * ANSWER_BYTES_MAX]).unwrap();
    let survey = answered(&place, has_bytes);
    let Answer::Bytes(bytes) = &survey.processes[0].answer else {
        panic!("{survey:?}")
    };
    assert_eq!(bytes.len(), ANSWER_BYTES_MAX);
    fs::remove_dir_all(&place.path).unwrap();
}

/// A child of fork has no descriptor of it: when the parent is gone, so is the process.
#[test]
fn what_killed_processes_left_is_counted_and_swept_up_by_the_next() {
    let place = make("left");
    let dead = place.path.join("r7.sock");
    die(&dead);
    fs::write(place.path.join(NUMBERS), b"").unwrap();
    fs::write(place.path.join("b9.sock"), b"").unwrap();
    let survey = look(std::slice::from_ref(&place), PATIENCE);
    assert_eq!((survey.processes.len(), survey.leftovers), (0, 2));
    assert!(dead.exists(), "looking changes nothing");
    Reporter::start(&place.path, Vec::new).unwrap();
    assert!(!dead.exists());
    // Whoever claims a block takes away both kinds, and nothing of those that live.
    die(&dead);
    let rendezvous = Rendezvous::open(&place.path).unwrap();
    let block = rendezvous.claim(&[]).unwrap();
    assert!(!dead.exists() && !place.path.join("b9.sock").exists());
    let survey = look(std::slice::from_ref(&place), PATIENCE);
    assert_eq!(survey.leftovers, 0);
    rendezvous.release(&block);
    fs::remove_dir_all(&place.path).unwrap();
}

#[test]
fn directories_of_namespaces_that_nobody_is_in_are_left_over() {
    let parent = make("beside").path;
    let place = place_of(parent.join("verbs"));
    let beside = |name: &str| parent.join(name);
    let used = Rendezvous::open_passing(&beside("verbs-roce-1"), "verbs-roce-").unwrap();
    for dead in ["verbs-roce-2", "other-roce-3"] {
        fs::create_dir(beside(dead)).unwrap();
        fs::write(beside(dead).join(NUMBERS), b"").unwrap();
    }
    symlink(beside("verbs-roce-2"), beside("verbs-roce-4")).unwrap();
    assert_eq!(look(slice::from_ref(&place), PATIENCE).leftovers, 1);
    // The next one sweeps it up.
    drop(Rendezvous::open_passing(&beside("verbs-roce-5"), "verbs-roce-").unwrap());
    assert_eq!(look(&[place], PATIENCE).leftovers, 0);
    drop(used);
    fs::remove_dir_all(&parent).unwrap();
}

#[test]
fn what_is_no_socket_of_the_owner_is_not_talked_to() {
    let (place, elsewhere) = (make("odd"), make("elsewhere"));
    let other = listen(&elsewhere.path.join("other"), 8);
    let name = |number: u32| place.path.join(format!("r{number}.sock"));
    symlink(elsewhere.path.join("other"), name(1)).unwrap();
    symlink("/dev/zero", name(2)).unwrap();
    symlink(name(3), name(3)).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(name(4)).status();
    assert!(fifo.unwrap().success());
    File::create(name(5)).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir(name(6)).unwrap();
    // Of another kind than those that answer.
    let _stream = UnixListener::bind(name(8)).unwrap();
    fs::write(place.path.join("r99999999999.sock"), b"").unwrap();
    fs::write(place.path.join("r-1.sock"), b"").unwrap();
    symlink("/dev/zero", place.path.join(NUMBERS)).unwrap();
    fs::write(place.path.join("b9.sock"), b"").unwrap();
    let survey = look(std::slice::from_ref(&place), PATIENCE);
    assert_eq!(survey, Survey::default());
    assert_eq!(unix::accept(other.raw()).unwrap_err(), Errno::AGAIN);
    for place in [place, elsewhere] {
        fs::remove_dir_all(&place.path).unwrap();
    }
}

#[test]
fn one_that_never_answers_does_not_keep_the_others_from_it() {
    let place = make("silent");
    Reporter::start(&place.path, || b"here".to_vec()).unwrap();
    // Asked before the other one, whose number is hardly ever 0.
    let _silent = listen(&place.path.join("r0.sock"), 8);
    let survey = answered(&place, has_bytes);
    let answers: Vec<&Answer> = survey.processes.iter().map(|one| &one.answer).collect();
    assert_eq!(answers.len(), 2, "{survey:?}");
    assert!(answers.contains(&&Answer::Silent));
    assert!(answers.contains(&&Answer::Bytes(b"here".to_vec())));
    fs::remove_dir_all(&place.path).unwrap();
}

#[test]
fn one_with_a_full_queue_is_there_and_nobody_is_kept_waiting() {
    let place = make("full");
    let path = place.path.join("r1.sock");
    let _full = listen(&path, 1);
    let mut waiting = Vec::new();
    loop {
        let socket = unix::seqpacket().unwrap();
        match unix::connect(socket.raw(), path.as_os_str().as_bytes()) {
            Ok(()) => waiting.push(socket),
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                break;
            }
        }
    }
    let survey = look(std::slice::from_ref(&place), PATIENCE);
    assert_eq!(survey.processes.len(), 1);
    assert_eq!(survey.processes[0].pid, None);
    assert_eq!(survey.processes[0].answer, Answer::Silent);
    fs::remove_dir_all(&place.path).unwrap();
}

#[test]
fn a_place_that_is_not_the_users_is_said_and_not_looked_at() {
    let place = make("foreign");
    let _listens = listen(&place.path.join("r1.sock"), 8);
    let foreign = Place {
        uid: place.uid.wrapping_add(1),
        ..place.clone()
    };
    let link = place_of(directory("foreign-link"));
    symlink(&place.path, &link.path).unwrap();
    let fifo = place_of(directory("foreign-fifo"));
    let made = std::process::Command::new("mkfifo")
        .arg(&fifo.path)
        .status();
    assert!(made.unwrap().success());
    let survey = look(&[foreign, link.clone(), fifo.clone()], PATIENCE);
    assert_eq!(survey.processes, []);
    assert_eq!(survey.failures.len(), 3, "{survey:?}");
    assert!(survey.failures[0].1.contains("belongs to uid"));
    fs::remove_file(&link.path).unwrap();
    fs::remove_file(&fifo.path).unwrap();
    fs::remove_dir_all(&place.path).unwrap();
}

#[test]
fn a_parent_in_tmp_that_is_a_link_is_not_followed() {
    let target = make("target-of-parent");
    fs::DirBuilder::new()
        .mode(0o700)
        .create(target.path.join("verbs"))
        .unwrap();
    let link = PathBuf::from(format!("/tmp/slv-parent-{}", std::process::id()));
    symlink(&target.path, &link).unwrap();
    let survey = look(&[place_of(link.join("verbs"))], PATIENCE);
    assert_eq!(survey.failures.len(), 1, "{survey:?}");
    fs::remove_file(&link).unwrap();
    fs::remove_dir_all(&target.path).unwrap();
}

#[test]
fn states_are_read_behind_any_name() {
    assert_eq!(state_of(b"12 (a) T (b) R) T 1 2"), Some(b'T'));
    assert_eq!(state_of(b"12 (x) S 1"), Some(b'S'));
    for broken in [&b""[..], b"12", b"12 (x", b"12 (x)", b"12 (x) "] {
        assert_eq!(state_of(broken), None);
    }
}
