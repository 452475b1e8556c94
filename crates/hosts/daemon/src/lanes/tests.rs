use super::*;

const RING: u32 = 4096;

fn key(client: ClientId, end: u32) -> EndKey {
    EndKey { client, end }
}

fn lanes(max: u32) -> Lanes {
    Lanes::new(RING, max, 100, 50)
}

/// A lane between end `n` of client 1 and end `n` of client 2, in generation 1.
fn take(lanes: &mut Lanes, n: u32) -> Result<LaneRef, NoLane> {
    lanes.take([(key(1, n), 1), (key(2, n), 1)])
}

fn release(lanes: &mut Lanes, n: u32) {
    lanes.release(key(1, n), 1);
    lanes.release(key(2, n), 1);
}

#[test]
fn chunks_of_a_pair_grow() {
    let mut lanes = lanes(10_000);
    let mut sizes = Vec::new();
    for n in 0..(16 + 64 + 256 + 512 + 1) {
        let lane = take(&mut lanes, n).unwrap();
        let (geometry, _) = lanes.chunk_for(lane, 1).unwrap();
        if sizes.last().is_none_or(|(chunk, _)| *chunk != lane.chunk) {
            sizes.push((lane.chunk, geometry.lanes()));
        }
    }
    let sizes: Vec<u32> = sizes.into_iter().map(|(_, lanes)| lanes).collect();
    assert_eq!(sizes, [16, 64, 256, 512, 512]);
}

#[test]
fn a_lane_is_free_only_after_both_ends() {
    let mut lanes = lanes(1);
    let first = take(&mut lanes, 0).unwrap();
    assert_eq!(take(&mut lanes, 1), Err(NoLane::Full));
    lanes.release(key(1, 0), 1);
    lanes.release(key(1, 0), 1);
    assert_eq!(take(&mut lanes, 1), Err(NoLane::Full));
    lanes.release(key(2, 0), 2);
    assert_eq!(take(&mut lanes, 1), Err(NoLane::Full));
    lanes.release(key(2, 0), 1);
    assert_eq!(take(&mut lanes, 1), Ok(first));
    assert_eq!(lanes.in_use(), 1);
}

#[test]
fn a_new_generation_ends_the_former_ones() {
    let mut lanes = lanes(1);
    take(&mut lanes, 0).unwrap();
    lanes.release_former(key(1, 0), 1);
    assert_eq!(lanes.in_use(), 1);
    lanes.release_former(key(1, 0), 2);
    lanes.release_former(key(2, 0), 2);
    assert_eq!(lanes.in_use(), 0);
}

#[test]
fn a_reused_lane_has_a_clean_header() {
    let mut lanes = lanes(10);
    let lane = take(&mut lanes, 0).unwrap();
    let dirt = [0xFF; LANE_HEADER_BYTES];
    let at = |lanes: &Lanes| {
        let (geometry, memory) = lanes.chunk_for(lane, 1).unwrap();
        (
            memory.unwrap().raw(),
            geometry.lane_header_offset(lane.lane),
        )
    };
    let (memory, offset) = at(&lanes);
    memfd::write_at(memory, &dirt, offset).unwrap();
    release(&mut lanes, 0);
    assert_eq!(take(&mut lanes, 1), Ok(lane));
    let mut header = [1; LANE_HEADER_BYTES];
    memfd::read_at(memory, &mut header, offset).unwrap();
    assert_eq!(header, [0; LANE_HEADER_BYTES]);
}

#[test]
fn beyond_the_warm_lanes_ring_memory_is_given_back() {
    let mut lanes = lanes(1000);
    let count = 16 + 40;
    let taken: Vec<LaneRef> = (0..count).map(|n| take(&mut lanes, n).unwrap()).collect();
    let second = taken[20].chunk;
    let chunk = &lanes.chunks[&second];
    let memory = chunk.memory.raw();
    let geometry = chunk.geometry;
    for lane in taken.iter().filter(|lane| lane.chunk == second) {
        let at = geometry.ring_offset(lane.lane, 0);
        memfd::write_at(memory, &[7; 2 * RING as usize], at).unwrap();
    }
    for n in 0..count {
        release(&mut lanes, n);
    }
    let kept = (0..geometry.lanes())
        .filter(|lane| {
            let mut byte = [0];
            memfd::read_at(memory, &mut byte, geometry.ring_offset(*lane, 1)).unwrap();
            byte == [7]
        })
        .count();
    assert_eq!(kept, WARM_LANES_MAX);
    // All can be used again.
    for n in 0..count {
        take(&mut lanes, n).unwrap();
    }
}

#[test]
fn chunk_and_parking_are_given_once_to_each_side() {
    let mut lanes = lanes(10);
    let lane = take(&mut lanes, 0).unwrap();
    for (client, peer) in [(1, 2), (2, 1)] {
        assert!(lanes.chunk_for(lane, client).unwrap().1.is_some());
        assert!(lanes.needs_parking(client, peer));
        lanes.set_given(lane, client, peer);
        assert!(lanes.chunk_for(lane, client).unwrap().1.is_none());
        assert!(!lanes.needs_parking(client, peer));
    }
}

#[test]
fn a_program_connected_to_itself_needs_no_parking_table_of_its_own() {
    let mut lanes = lanes(10);
    let lane = lanes.take([(key(1, 0), 1), (key(1, 1), 1)]).unwrap();
    assert!(!lanes.needs_parking(1, 1));
    assert!(lanes.chunk_for(lane, 1).unwrap().1.is_some());
    lanes.set_given(lane, 1, 1);
    assert!(lanes.chunk_for(lane, 1).unwrap().1.is_none());
    lanes.release(key(1, 0), 1);
    assert_eq!(lanes.in_use(), 1);
    assert!(lanes.remove_client(1).is_empty());
    assert_eq!((lanes.in_use(), lanes.chunk_count()), (0, 0));
}

#[test]
fn memory_outlives_the_dead_until_the_survivor_has_read_it() {
    let mut lanes = lanes(10);
    take(&mut lanes, 0).unwrap();
    assert_eq!(lanes.remove_client(1), [2]);
    assert_eq!((lanes.in_use(), lanes.chunk_count()), (1, 1));
    lanes.release(key(2, 0), 1);
    assert_eq!((lanes.in_use(), lanes.chunk_count()), (0, 0));
    assert!(lanes.remove_client(2).is_empty());
    assert!(lanes.pairs.is_empty() && lanes.peers.is_empty() && lanes.holds.is_empty());
}

#[test]
fn an_end_holds_a_bounded_number_of_lanes() {
    let mut lanes = lanes(100);
    for heir in 0..LANES_PER_END_MAX as u32 {
        lanes.take([(key(1, 0), 1), (key(2, heir), 1)]).unwrap();
    }
    let one_more = lanes.take([(key(1, 0), 1), (key(2, 99), 1)]);
    assert_eq!(one_more, Err(NoLane::Full));
    lanes.release(key(1, 0), 1);
    lanes.take([(key(1, 0), 1), (key(2, 99), 1)]).unwrap();
}

#[test]
fn no_more_chunks_than_descriptors() {
    let mut lanes = Lanes::new(RING, 1000, 1, 50);
    take(&mut lanes, 0).unwrap();
    let other_pair = lanes.take([(key(1, 1), 1), (key(3, 0), 1)]);
    assert_eq!(other_pair, Err(NoLane::Full));
    take(&mut lanes, 1).unwrap();
}

#[test]
fn one_user_cannot_take_what_is_for_all() {
    let mut lanes = lanes(8);
    for (client, user) in [(1, Some(1000)), (2, Some(1000)), (3, Some(1001)), (4, None)] {
        lanes.set_payer(client, user);
    }
    let end = |client, n| (key(client, n), 1);
    for n in 0..4 {
        take(&mut lanes, n).unwrap();
    }
    // Four of eight, half of them, are this user's, whoever is at the other end.
    assert_eq!(take(&mut lanes, 4), Err(NoLane::Share));
    assert_eq!(lanes.take([end(1, 4), end(4, 4)]), Err(NoLane::Share));
    for n in 5..9 {
        lanes.take([end(3, n), end(4, n)]).unwrap();
    }
    assert_eq!(lanes.in_use(), 8);
    // A lane that is free again is the user's to take.
    release(&mut lanes, 0);
    take(&mut lanes, 9).unwrap();
    lanes.remove_client(1);
    lanes.remove_client(2);
    lanes.set_payer(5, Some(1000));
    assert_eq!(lanes.in_use(), 4);
    lanes.take([end(5, 0), end(4, 10)]).unwrap();
}

#[test]
fn chunks_are_shared_like_lanes() {
    let mut lanes = Lanes::new(RING, 1000, 4, 50);
    for client in 1..=9 {
        lanes.set_payer(client, Some(1000));
    }
    let end = |client| (key(client, client), 1);
    lanes.take([end(1), end(2)]).unwrap();
    lanes.take([end(3), end(4)]).unwrap();
    assert_eq!(lanes.take([end(5), end(6)]), Err(NoLane::Share));
    lanes.remove_client(1);
    lanes.remove_client(2);
    lanes.take([end(5), end(6)]).unwrap();
}
