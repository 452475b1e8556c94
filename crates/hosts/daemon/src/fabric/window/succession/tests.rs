//! Time is the tests'.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use sluice_sys::memfd::{self, SEAL_SHRINK};

use super::super::fake::{self, Fake};
use super::*;

fn window(path: PathBuf, now: Instant) -> Window {
    let users = vec![0];
    Window::new(&Choice { path, users }, now)
}

/// Nobody listens there, ever.
fn alone() -> Window {
    window(fake::path(), Instant::now())
}

fn join(window: &mut Window, memory: &Fd) -> Result<(), String> {
    window.join(fake::same(memory), Origin::Server, "a")
}

fn ids(window: &Window) -> Vec<WindowId> {
    window.all().map(Shared::id).collect()
}

fn id(memory: &Fd) -> WindowId {
    let shared = Shared::open(fake::same(memory), Origin::Server, "a");
    shared.expect("a window").id()
}

#[test]
fn other_memory_retires_the_one_before_until_nobody_uses_it() {
    let (first, second) = (fake::memory(), fake::memory());
    let mut window = alone();
    let now = Instant::now();
    assert_eq!(window.state(), "no memory");
    join(&mut window, &first).expect("memory");
    join(&mut window, &second).expect("memory");
    let both = [id(&second), id(&first)];
    assert_eq!(ids(&window), both);
    assert!(window.is_retired(both[1]) && !window.is_retired(both[0]));
    let uses_first = |used: WindowId| used == both[1];
    let hour = Duration::from_secs(3600);
    window.give_back(now + hour, uses_first);
    // It is used again and again for short.
    for round in 2..100 {
        window.give_back(now + round * hour, |_| false);
        window.give_back(now + round * hour + LINGER / 2, |_| false);
        assert_eq!(ids(&window), both);
        window.give_back(now + round * hour + 2 * LINGER, uses_first);
        assert_eq!(ids(&window), both);
    }
    let end = now + 200 * hour;
    window.give_back(end, |_| false);
    assert_eq!(ids(&window), both);
    window.give_back(end + LINGER, |_| false);
    assert_eq!(ids(&window), both[..1]);
    // The one that lanes come from is kept, used or not.
    window.give_back(end + hour, |_| false);
    window.give_back(end + 2 * hour, |_| false);
    assert_eq!(ids(&window), both[..1]);
}

#[test]
fn the_same_memory_changes_nothing() {
    let (first, second) = (fake::memory(), fake::memory());
    let mut window = alone();
    join(&mut window, &first).expect("memory");
    let before = window.all().next().map(|shared| shared.memory.raw());
    join(&mut window, &first).expect("the same memory");
    assert_eq!(ids(&window), [id(&first)]);
    let after = window.all().next().map(|shared| shared.memory.raw());
    assert_eq!(before, after);
    // That of a server before the last one is in use again.
    join(&mut window, &second).expect("memory");
    join(&mut window, &first).expect("memory");
    assert_eq!(ids(&window), [id(&first), id(&second)]);
}

#[test]
fn memory_that_comes_too_often_waits_for_room() {
    let memories: Vec<Fd> = (0..=MEMORIES_MAX).map(|_| fake::memory()).collect();
    let mut window = alone();
    for memory in &memories[..MEMORIES_MAX] {
        join(&mut window, memory).expect("memory");
    }
    let now = Instant::now();
    window.give_back(now, |_| true);
    let last = &memories[MEMORIES_MAX];
    let before = ids(&window);
    join(&mut window, last).expect_err("all are in use");
    assert_eq!(ids(&window), before);
    // One that is not in use goes at once, however young.
    window.give_back(now, |used| used != before[2]);
    join(&mut window, last).expect("room");
    assert_eq!(ids(&window), [id(last), before[0], before[1], before[3]]);
}

#[test]
fn what_is_no_window_of_this_host_leaves_it_in_the_one_that_it_has() {
    let first = fake::memory();
    let mut window = alone();
    join(&mut window, &first).expect("memory");
    let memory = |bytes: u64, seals: u32| {
        let memory = memfd::create(c"sluice-test").expect("memory");
        memfd::set_len(memory.raw(), bytes).expect("a size");
        memfd::add_seals(memory.raw(), seals).expect("seals");
        memory
    };
    // The beginning of a window, less than all of it.
    let short = memory(8192, SEAL_SHRINK);
    let mut header = [0; 4096];
    memfd::read_at(first.raw(), &mut header, 0).expect("its header");
    memfd::write_at(short.raw(), &header, 0).expect("a copy");
    // All of it, which is not the same memory.
    let copy = memory(4 << 20, SEAL_SHRINK);
    memfd::write_at(copy.raw(), &header, 0).expect("a copy");
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let null = std::fs::File::open("/dev/null").expect("a device");
    let open = |fd: &dyn AsRawFd| {
        let fd = sluice_sys::unix::duplicate(fd.as_raw_fd());
        fd.expect("a descriptor")
    };
    let lies = [
        memory(4 << 20, SEAL_SHRINK),
        memory(4 << 20, 0),
        memory(0, SEAL_SHRINK),
        memory(1, SEAL_SHRINK),
        // More than this machine has; it costs nothing while nobody writes there.
        memory(1 << 45, SEAL_SHRINK),
        short,
        copy,
        open(&reader),
        open(&null),
    ];
    for lie in &lies {
        let why = join(&mut window, lie).expect_err("no window");
        assert!(why.contains("stays in the memory that it has"), "{why}");
        assert_eq!(ids(&window), [id(&first)]);
    }
}

/// From the socket to the memory, with a server that is started anew, lies, and gives its first memory out again.
#[test]
fn a_window_follows_its_server() {
    let path = fake::path();
    let begun = Instant::now();
    let mut window = window(path.clone(), begun);
    let (first, second) = (fake::memory(), fake::memory());
    let mut now = begun;
    let mut turn = |window: &mut Window, is_done: &mut dyn FnMut(&Window) -> bool| {
        for _ in 0..100_000 {
            now = window.next_deadline().expect("it goes on").max(now);
            let now_ns = now.duration_since(begun).as_nanos() as u64;
            window.turn(now, now_ns, "a", &mut Changes::default());
            if is_done(window) {
                return;
            }
        }
        panic!("it does not get there");
    };
    for (round, memory) in [&first, &second, &first, &first].into_iter().enumerate() {
        let mut there = Fake::at(&path);
        // It connects, and waits for what the server says.
        turn(&mut window, &mut |_| there.is_asked());
        there.serve(memory);
        turn(&mut window, &mut |window| window.state() == "served");
        assert_eq!(ids(&window)[0], id(memory), "{round}");
        drop(there);
        turn(&mut window, &mut |window| window.state() == "no server");
        assert_eq!(ids(&window)[0], id(memory), "it stays in its memory");
    }
}
