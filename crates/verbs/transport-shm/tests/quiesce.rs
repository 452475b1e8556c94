//! A queue pair that was moved to ERR or RESET, or destroyed, touches no memory any more, whoever
//! carries its operations out.
#![allow(unsafe_code)]

mod common;

use std::time::Duration;

use common::{End, World, pair_every_way};
use sluice_verbs::{QpAttr, QpState, QpType, WrOpcode, qp_mask};

const BYTES: usize = 1 << 20;
const ROUNDS: u64 = 12;

/// Connected, and with little patience: the peer leaves in every round.
fn connected(world: &mut World) -> End {
    let mut end = world.end(QpType::Rc, BYTES, None);
    world.introduce(&mut end);
    end.to_init();
    end.to_rtr();
    end.send_with(8, 3, 0);
    world.meet();
    end
}

fn write_until_the_end(world: &mut World) {
    for _ in 0..ROUNDS {
        let end = connected(world);
        end.memory.fill(0, BYTES, 0x80);
        let sge = [end.sge(0, BYTES)];
        while end
            .run(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0))
            .status
            == 0
        {}
        world.meet();
        end.qp.destroy().unwrap();
    }
}

fn leave_in_the_middle(world: &mut World) {
    for round in 0..ROUNDS {
        let end = connected(world);
        common::until("a write", || end.memory.byte(BYTES - 1) != 0);
        let attr = QpAttr {
            qp_state: match round % 3 {
                0 => QpState::Err,
                _ => QpState::Reset,
            } as u32,
            ..QpAttr::default()
        };
        if round % 3 == 2 {
            end.qp.destroy().unwrap();
        } else {
            end.qp.modify(&attr, qp_mask::STATE).unwrap();
        }
        // It is the program's again.
        // SAFETY: the test's memory, of that many bytes.
        unsafe { end.memory.start.write_bytes(0, BYTES) };
        std::thread::sleep(Duration::from_millis(5));
        let touched = (0..BYTES).find(|at| end.memory.byte(*at) != 0);
        assert_eq!(touched, None, "round {round}");
        world.meet();
        if round % 3 != 2 {
            end.qp.destroy().unwrap();
        }
    }
}

#[test]
fn who_has_left_is_written_to_no_more() {
    pair_every_way(
        "who_has_left_is_written_to_no_more",
        write_until_the_end,
        leave_in_the_middle,
    );
}
