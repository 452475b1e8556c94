//! Latency and bandwidth between two processes, through the engine's interface, beside memcpy
//! of the same size. `cargo run --release --example shm_pingpong [kernel]`
#![allow(unsafe_code)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{End, Way, World, until};
use sluice_verbs::{QpType, SendWr, WrOpcode, send_flags};

const ROUNDS: u64 = 200_000;
const KERNEL_ROUNDS: u64 = 20_000;
const BLOCK: usize = 64 * 1024;
const AREA: usize = 4 << 20;

fn main() {
    match std::env::var("SLV_ROLE").as_deref() {
        Ok("first") => measure(&mut World::new(), true),
        Ok(_) => measure(&mut World::new(), false),
        Err(_) => start(),
    }
}

fn start() {
    let way = match std::env::args().nth(1).as_deref() {
        Some("kernel") => Way::Kernel,
        Some("owner") => Way::Owner,
        _ => Way::Shared,
    };
    let directory = std::env::temp_dir().join(format!("slv-bench-{}", std::process::id()));
    let (left, right) = UnixStream::pair().expect("a socket pair");
    let mut children: Vec<_> = [("first", left), ("second", right)]
        .into_iter()
        .map(|(role, socket)| {
            let mut command = Command::new(std::env::current_exe().expect("our own path"));
            command
                .env("SLV_ROLE", role)
                .env("SLV_DIR", &directory)
                .env(way.env().0, way.env().1)
                .stdin(Stdio::from(OwnedFd::from(socket)));
            if way == Way::Owner {
                command.env("SLUICE_VERBS_CMA", "0");
            }
            command.spawn().expect("a second process")
        })
        .collect();
    for child in &mut children {
        child.wait().expect("the process ends");
    }
    let _ = std::fs::remove_dir_all(directory);
}

fn report(first: bool, what: &str, rounds: u64, start: Instant, per_round: f64) {
    if first {
        let us = start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / per_round;
        println!("{what:28} {us:8.3} us");
    }
}

fn measure(world: &mut World, first: bool) {
    let rounds = if world.way == Way::Shared {
        ROUNDS
    } else {
        KERNEL_ROUNDS
    };
    let end = world.connected(QpType::Rc, AREA);
    write_pingpong(&end, rounds, first);
    world.meet();
    send_pingpong(world, &end, rounds, first);
    world.meet();
    if first {
        one_sided(&end, rounds);
        bandwidth(&end);
    }
    world.meet();
    message_rate(world, 1, first);
    world.meet();
    message_rate(world, 100, first);
    world.meet();
}

fn write_pingpong(end: &End, rounds: u64, first: bool) {
    let mut start = Instant::now();
    for round in 1..=rounds + rounds / 10 {
        if round == rounds / 10 {
            start = Instant::now();
        }
        if !first {
            until("write", || end.memory.word(0) == round);
        }
        end.memory.set_word(64, round);
        let sge = [end.sge(64, 8)];
        end.qp
            .post_send(&end.request(WrOpcode::RdmaWrite, round, &sge, 0))
            .expect("post");
        while end.cq.poll_one().is_none() {}
        if first {
            until("write", || end.memory.word(0) == round);
        }
    }
    report(first, "write 8 B, one way", rounds, start, 2.0);
}

fn send_pingpong(world: &mut World, end: &End, rounds: u64, first: bool) {
    for id in 0..64 {
        end.post_recv(id, 128, 64);
    }
    world.meet();
    let sge = [end.sge(64, 8)];
    let mut wr = end.request(WrOpcode::Send, 1 << 32, &sge, 0);
    wr.flags = 0;
    let mut start = Instant::now();
    for round in 1..=rounds + rounds / 10 {
        if round == rounds / 10 {
            start = Instant::now();
        }
        wr.flags = if round % 64 == 0 {
            send_flags::SIGNALED
        } else {
            0
        };
        let send = |wr: &SendWr<'_>| end.qp.post_send(wr).expect("post");
        let receive = || {
            loop {
                let wc = end.good();
                if wc.wr_id < 1 << 32 {
                    end.post_recv(wc.wr_id, 128, 64);
                    return;
                }
            }
        };
        if first {
            send(&wr);
            receive();
        } else {
            receive();
            send(&wr);
        }
    }
    report(first, "send 8 B, one way", rounds, start, 2.0);
}

fn one_sided(end: &End, rounds: u64) {
    let sge = [end.sge(64, 8)];
    for (what, opcode) in [
        ("read 8 B", WrOpcode::RdmaRead),
        ("fetch and add", WrOpcode::AtomicFetchAndAdd),
        ("write 8 B, until completion", WrOpcode::RdmaWrite),
    ] {
        let mut wr = end.request(opcode, 1 << 33, &sge, 1024);
        wr.compare_add = 1;
        let start = Instant::now();
        for _ in 0..rounds {
            end.qp.post_send(&wr).expect("post");
            while !matches!(end.cq.poll_one(), Some(wc) if wc.wr_id == 1 << 33) {}
        }
        report(true, what, rounds, start, 1.0);
    }
}

fn bandwidth(end: &End) {
    let rounds = 20_000u64;
    let bytes = rounds as f64 * BLOCK as f64;
    let gbps = |start: Instant| bytes * 8.0 / start.elapsed().as_secs_f64() / 1e9;
    let (mut source, mut target) = (vec![1u8; AREA], vec![0u8; AREA]);
    let mut best = [0f64; 3];
    for _ in 0..3 {
        let start = Instant::now();
        for _ in 0..rounds {
            target[..BLOCK].copy_from_slice(std::hint::black_box(&source[..BLOCK]));
            std::hint::black_box(&mut target);
        }
        source[0] = target[1];
        best[0] = best[0].max(gbps(start));
        let sge = [end.sge(BLOCK, BLOCK)];
        for (index, opcode) in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead]
            .into_iter()
            .enumerate()
        {
            let start = Instant::now();
            for _ in 0..rounds {
                end.qp
                    .post_send(&end.request(opcode, 1 << 33, &sge, BLOCK))
                    .expect("post");
                while !matches!(end.cq.poll_one(), Some(wc) if wc.wr_id == 1 << 33) {}
            }
            best[index + 1] = best[index + 1].max(gbps(start));
        }
    }
    println!("memcpy 64 KiB                {:8.1} Gb/s", best[0]);
    for (what, value) in [("write 64 KiB", best[1]), ("read 64 KiB", best[2])] {
        println!(
            "{what:28} {value:8.1} Gb/s  {:.2} of memcpy",
            value / best[0]
        );
    }
}

/// Messages of 64 B over some queue pairs, one completion queue.
fn message_rate(world: &mut World, pairs: usize, first: bool) {
    let cq = world.context.create_cq(60_000, 0, None, 0).expect("a CQ");
    let mut ends = Vec::new();
    for _ in 0..pairs {
        let mut end = world.end_with(QpType::Rc, 8192, &cq);
        world.introduce(&mut end);
        end.to_ready();
        if !first {
            for id in 0..200 {
                end.post_recv(id, 0, 64);
            }
        }
        ends.push(end);
    }
    world.meet();
    let total = 1_000_000u64;
    let start = Instant::now();
    if first {
        let (mut posted, mut done) = (0u64, 0u64);
        let mut credit = vec![4i32; pairs];
        let mut index = 0;
        while done < total {
            while posted < total && credit[index] > 0 {
                credit[index] -= 1;
                let end = &ends[index];
                let sge = [end.sge(0, 64)];
                for at in 0..32u64 {
                    let mut wr = end.request(WrOpcode::Send, index as u64, &sge, 0);
                    wr.flags = if at == 31 { send_flags::SIGNALED } else { 0 };
                    end.qp.post_send(&wr).expect("post");
                }
                posted += 32;
                index = (index + 1) % pairs;
            }
            if let Some(wc) = cq.poll_one() {
                assert_eq!(wc.status, 0);
                credit[wc.wr_id as usize] += 1;
                done += 32;
                index = wc.wr_id as usize;
            }
        }
        let rate = done as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("send 64 B, {pairs:3} QPs            {rate:8.2} M/s");
    } else {
        let by_number: std::collections::HashMap<u32, usize> = ends
            .iter()
            .enumerate()
            .map(|(index, end)| (end.qp.num(), index))
            .collect();
        let mut got = 0;
        let mut wcs = [std::mem::MaybeUninit::uninit(); 16];
        while got < total {
            let count = cq.poll(&mut wcs);
            for wc in &wcs[..count] {
                // SAFETY: the first `count` were written.
                let wc = unsafe { wc.assume_init() };
                assert_eq!(wc.status, 0);
                ends[by_number[&wc.qp_num]].post_recv(wc.wr_id, 0, 64);
                got += 1;
            }
        }
    }
    world.meet();
}
