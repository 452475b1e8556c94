use super::*;

const OWN: u32 = 990;

fn pool() -> Pool {
    Pool::new(1 << 32, OWN, Instant::now())
}

fn origin(uid: u32, owner: u32) -> Origin {
    let netns = 1;
    Origin { uid, owner, netns }
}

/// Each has a client, which keeps its process.
fn with_client(pool: &mut Pool, uid: u32, owner: u32) -> u32 {
    let number = pool.receiver_for(origin(uid, owner));
    let receiver = pool.receivers.get_mut(&number).unwrap();
    receiver.clients.insert(uid);
    number
}

fn owner_of(pool: &Pool, number: u32) -> u32 {
    pool.receivers[&number].origin.owner
}

/// N6: a process of root's for each of 65,536 ids of one user.
#[test]
fn all_ids_of_one_user_have_a_bound_of_processes() {
    let mut pool = pool();
    for uid in 100_000..110_000 {
        let number = with_client(&mut pool, uid, 1000);
        assert_eq!(owner_of(&pool, number), 1000);
    }
    assert_eq!(pool.receivers.len(), RECEIVERS_PER_OWNER_MAX);
    // None has many more clients than another one.
    let clients = pool.receivers.values().map(|it| it.clients.len());
    let (least, most) = (clients.clone().min(), clients.max());
    assert!(most.unwrap() - least.unwrap() <= 1);
    // Others, and the user's own first id, are read as before.
    let other = with_client(&mut pool, 1001, 1001);
    assert_eq!(owner_of(&pool, other), 1001);
}

/// The same where nothing says whose the ids are.
#[test]
fn all_users_have_a_bound_of_processes_and_root_shares_none() {
    let mut pool = pool();
    for uid in 100_000..102_000 {
        with_client(&mut pool, uid, uid);
    }
    assert_eq!(pool.receivers.len(), RECEIVERS_MAX);
    for uid in [0, OWN] {
        let number = with_client(&mut pool, uid, uid);
        assert_eq!(owner_of(&pool, number), uid);
    }
    let late = with_client(&mut pool, 5000, 5000);
    assert!(owner_of(&pool, late) >= 100_000);
}

#[test]
fn of_processes_without_clients_who_has_most_loses_the_oldest() {
    let mut pool = pool();
    let began = Instant::now();
    let idle = |pool: &mut Pool, uid: u32, owner: u32, since: u64| {
        let number = pool.receiver_for(origin(uid, owner));
        let receiver = pool.receivers.get_mut(&number).unwrap();
        receiver.idle_since = Some(began + Duration::from_secs(since));
        number
    };
    let quiet = idle(&mut pool, 1001, 1001, 0);
    let numbers: Vec<u32> = (0..IDLE_MAX as u32)
        .map(|at| idle(&mut pool, 100_000 + at, 1000, u64::from(at) + 1))
        .collect();
    assert_eq!(pool.surplus(), Some(numbers[0]));
    pool.receivers.remove(&numbers[0]);
    assert_eq!(pool.surplus(), None);
    assert!(pool.receivers.contains_key(&quiet));
    // One with clients is none of them.
    with_client(&mut pool, 2000, 2000);
    assert_eq!(pool.surplus(), None);
}

/// A process that stands still in a file system that does not answer ends with that, and not before: each cycle of
/// connecting, stopping it and going would leave one more.
#[test]
fn processes_that_do_not_end_have_a_bound() {
    let mut pool = pool();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let began = Instant::now();
    let mut made = 0;
    for round in 0..200 {
        let now = began + round * 2 * IDLE;
        let number = pool.receiver_for(origin(1000, 1000));
        let receiver = pool.receivers.get_mut(&number).unwrap();
        if receiver.running.is_none() {
            made += 1;
            // It reads what nobody writes.
            let stands_still = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let (channel, _) = unix::seqpacket_pair().unwrap();
            let process = stands_still;
            receiver.running = Some(Running { channel, process });
        }
        receiver.idle_since = Some(now);
        pool.end_if_idle(&poll, number, now + IDLE);
        // Nothing is to be done for one that may not end.
        let waits = pool.receivers.contains_key(&number);
        let due = pool.next_deadline(now + IDLE);
        assert!(!waits || due.is_none_or(|due| due > now + IDLE));
    }
    assert_eq!(made, ENDING_PER_OWNER_MAX + 1);
    assert!(pool.may_end(1001), "others are as before");
    let running = pool.receivers.into_values().filter_map(|it| it.running);
    for mut it in pool.ending.into_iter().map(|it| it.running).chain(running) {
        it.process.kill().unwrap();
        it.process.wait().unwrap();
    }
}
