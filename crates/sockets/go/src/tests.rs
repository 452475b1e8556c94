use super::*;

/// Where the code of these programs is.
const CODE: u64 = 0x40_1000;

/// Build information as Go 1.18 and newer write it.
fn information(version: &str) -> Vec<u8> {
    let mut data = vec![0_u8; 64];
    data.extend_from_slice(b"\xff Go buildinf:\x08\x02");
    data.resize(96, 0);
    data.push(version.len() as u8);
    data.extend_from_slice(version.as_bytes());
    data
}

fn code(parts: &[&[u8]]) -> Vec<u8> {
    let mut code = Vec::new();
    for part in parts {
        code.extend_from_slice(part);
        code.resize(code.len().next_multiple_of(32), 0xcc);
    }
    code
}

const ALL: [&[u8]; 6] = [SYSCALL6, SETTLS, CLONE, EXIT_THREAD, EXIT, VFORK];
/// Which of them [`Runtime`] is about.
const OF_RUNTIME: [usize; 2] = [0, 4];
/// And [`Threads`].
const OF_THREADS: [usize; 3] = [1, 2, 3];

/// What is found, with the version of the data as a text of its own.
fn find(parts: &[&[u8]], version: &str) -> Result<Runtime<'static>, Unknown<'static>> {
    let data: &'static [u8] = information(version).leak();
    Runtime::find(&[(CODE, &code(parts))], &[(0, b"other data"), (0, data)])
}

fn threads(parts: &[&[u8]]) -> Result<Threads, Unknown<'static>> {
    Threads::find(&[(CODE, &code(parts))])
}

#[test]
fn a_runtime_with_all_of_its_functions_is_found() {
    let runtime = find(&ALL, "go1.26.8").unwrap();
    assert_eq!(runtime.version, "go1.26.8");
    assert_eq!(runtime.syscall6, CODE);
    let rest = runtime.vfork.unwrap() + VFORK.len() as u64;
    assert_eq!(runtime.vfork_rest(), rest);
    let without = find(&ALL[..5], "go1.23rc2").unwrap();
    assert_eq!((without.vfork, without.vfork_rest()), (None, 0));
    let threads = threads(&ALL).unwrap();
    assert_eq!(threads.clone_child(), threads.clone + 18);
}

#[test]
fn code_in_several_pieces_is_searched_as_one() {
    let (first, second) = (code(&ALL[..4]), code(&ALL[4..]));
    let data = information("go1.26");
    let pieces: [Piece; 2] = [(CODE, &first), (2 * CODE, &second)];
    let runtime = Runtime::find(&pieces, &[(0, &data)]).unwrap();
    assert_eq!((runtime.syscall6, runtime.exit), (CODE, 2 * CODE));
    let twice: [Piece; 2] = [(CODE, &first), (2 * CODE, &first)];
    let found = Runtime::find(&twice, &[(0, &data)]);
    assert_eq!(found, Err(Unknown::Instructions("Syscall6", 2)));
}

#[test]
fn a_function_that_is_missing_twice_there_or_different_refuses_the_program() {
    for (index, part) in ALL.into_iter().enumerate().take(5) {
        let refusal = |parts: &[&[u8]]| {
            let of_threads = threads(parts).err();
            let refused = find(parts, "go1.26").err();
            assert_eq!(refused.is_some(), OF_RUNTIME.contains(&index));
            assert_eq!(of_threads.is_some(), OF_THREADS.contains(&index));
            refused.or(of_threads)
        };
        let mut parts = ALL.to_vec();
        parts.remove(index);
        let missing = refusal(&parts);
        assert!(
            matches!(missing, Some(Unknown::Instructions(_, 0))),
            "{missing:?}"
        );
        let mut parts = ALL.to_vec();
        parts.push(part);
        let twice = refusal(&parts);
        assert!(
            matches!(twice, Some(Unknown::Instructions(_, 2))),
            "{twice:?}"
        );
    }
    // Another way to the vfork, which would run children in the tables of their parent unseen.
    let mut parts = ALL.to_vec();
    let other = [b"\x90", VFORK_CORE].concat();
    parts.push(&other);
    let two = find(&parts, "go1.26");
    assert_eq!(two, Err(Unknown::Instructions("rawVforkSyscall", 2)));
    parts.remove(5);
    let one = find(&parts, "go1.26");
    assert_eq!(one, Err(Unknown::Instructions("rawVforkSyscall", 1)));
}

#[test]
fn versions_that_wait_by_other_ways_are_refused() {
    for version in [
        "go1.22.12",
        "go1.19",
        "go1.x",
        "devel",
        "",
        "go2.1",
        "go1.-3",
        "go1.99999999999999999999",
    ] {
        assert_eq!(find(&ALL, version), Err(Unknown::Version(version)));
    }
    let code = code(&ALL);
    let refused = |data: &[u8]| Runtime::find(&[(CODE, &code)], &[(0, data)]).is_err();
    assert!(refused(b"no information"));
    assert!(refused(b""));
    for length in [0_u8, 101, 255] {
        let mut data = information("go1.26");
        data[96] = length;
        assert!(refused(&data));
    }
    let mut data = information("go1.26");
    data[98] = 0xff;
    assert!(refused(&data), "a version that is no text");
    for cut in 64..data.len() {
        assert!(refused(&data[..cut]));
    }
}

#[test]
fn each_change_fits_into_what_was_recognised() {
    let runtime = find(&ALL, "go1.26").unwrap();
    let threads = threads(&ALL).unwrap();
    let known = [
        (runtime.syscall6, SYSCALL6),
        (threads.settls, SETTLS),
        (threads.clone, CLONE),
        (threads.exit_thread, EXIT_THREAD),
        (runtime.exit, EXIT),
        (runtime.vfork.unwrap(), VFORK),
    ];
    for (_, what) in known {
        assert!(JUMP_BYTES <= what.len());
    }
    for (at, bytes) in threads.keep_thread_pointer() {
        let end = at + bytes.len() as u64;
        assert!(threads.settls <= at && end <= threads.settls + SETTLS.len() as u64);
    }
    assert_eq!(
        jump(0x1122_3344_5566_7788),
        *b"\xff\x25\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11"
    );
}
