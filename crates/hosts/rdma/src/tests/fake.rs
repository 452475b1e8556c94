//! A libibverbs that does what a test says. Its one device completes requests when it is told to,
//! and says whatever completion it is given, also one that no library should.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::library::{Functions, Library};
use crate::{DeviceChoice, Error, Limits, Node};

/// A request that was posted and not completed.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub qpn: u32,
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: c_uint,
    pub length: u32,
    pub remote: u64,
}

/// Whether the device has shared receive queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shared {
    #[default]
    Has,
    /// It says that it has none.
    None,
    /// It says that it has some, and makes none.
    Refused,
}

#[derive(Default)]
pub struct Fake {
    pub completions: VecDeque<ibv_wc>,
    pub posted: VecDeque<Posted>,
    /// `wr_id`s of receive buffers that were posted, and with how many calls.
    pub receives: Vec<u64>,
    pub receive_calls: usize,
    /// Buffers that were posted to a queue pair, by its number.
    pub own_receives: Vec<(u32, u64)>,
    /// What `ibv_post_recv` answers, if not 0.
    pub refuse_receives: c_int,
    /// Type, and the queue pair if it is about one.
    pub events: VecDeque<(u32, *mut ibv_qp)>,
    pub unacknowledged: i32,
    pub channel_events: u32,
    pub queue_pairs: Vec<*mut ibv_qp>,
    pub armed: bool,
    /// Calls of `ibv_post_send`.
    pub send_calls: usize,
    /// What it answers for the next requests, once so many are posted.
    pub refuse: c_int,
    pub refuse_behind: usize,
    /// What `ibv_poll_cq` answers, if not what there is.
    pub poll_answer: Option<c_int>,
    wake: Option<c_int>,
    channel_fd: Option<c_int>,
    next_qpn: u32,
    vendor_id: u32,
    shared: Shared,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::default();
}

/// What this thread's device has seen, and what it is to say.
pub fn with<T>(body: impl FnOnce(&mut Fake) -> T) -> T {
    FAKE.with(|fake| body(&mut fake.borrow_mut()))
}

pub fn completion(wr_id: u64, status: u32, qpn: u32) -> ibv_wc {
    // SAFETY: plain numbers.
    let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
    wc.wr_id = wr_id;
    wc.status = status;
    wc.qp_num = qpn;
    wc
}

impl Fake {
    /// So many requests succeed, in order. Those that asked for it have a completion.
    pub fn succeed(&mut self, count: usize) {
        for _ in 0..count {
            let posted = self.posted.pop_front().expect("something was posted");
            if posted.flags & IBV_SEND_SIGNALED != 0 {
                let done = completion(posted.wr_id, IBV_WC_SUCCESS, posted.qpn);
                self.completions.push_back(done);
            }
        }
    }

    /// The first request fails, and its queue pair with it.
    pub fn fail(&mut self, status: u32) {
        let posted = self.posted.pop_front().expect("something was posted");
        let failed = completion(posted.wr_id, status, posted.qpn);
        self.completions.push_back(failed);
        self.flush(posted.qpn);
    }

    fn flush(&mut self, qpn: u32) {
        for qp in &self.queue_pairs {
            // SAFETY: made by create_qp, and not destroyed.
            unsafe {
                if (**qp).qp_num == qpn {
                    (**qp).state = IBV_QPS_ERR;
                }
            }
        }
        for (of, wr_id) in std::mem::take(&mut self.own_receives) {
            if of == qpn {
                let flushed = completion(wr_id, IBV_WC_WR_FLUSH_ERR, qpn);
                self.completions.push_back(flushed);
            } else {
                self.own_receives.push((of, wr_id));
            }
        }
        let all = std::mem::take(&mut self.posted);
        for posted in all {
            if posted.qpn == qpn {
                let flushed = completion(posted.wr_id, IBV_WC_WR_FLUSH_ERR, qpn);
                self.completions.push_back(flushed);
            } else {
                self.posted.push_back(posted);
            }
        }
    }

    /// The receive buffer that the next arrival at a queue pair uses up.
    fn take_buffer(&mut self, qpn: u32) -> u64 {
        if self.shared == Shared::Has {
            return self.receives.remove(0);
        }
        let mut own = self.own_receives.iter();
        let at = own.position(|(of, _)| *of == qpn).expect("a buffer");
        self.own_receives.remove(at).1
    }

    /// A write with a number arrives.
    pub fn arrive(&mut self, qpn: u32, number: u32, bytes: u32) {
        let buffer = self.take_buffer(qpn);
        let mut wc = completion(buffer, IBV_WC_SUCCESS, qpn);
        (wc.opcode, wc.imm_data) = (IBV_WC_RECV_RDMA_WITH_IMM, number.to_be());
        wc.byte_len = bytes;
        self.completions.push_back(wc);
    }

    /// A message of so many bytes is said to have arrived.
    pub fn receive(&mut self, qpn: u32, bytes: u32) {
        let buffer = self.take_buffer(qpn);
        let mut wc = completion(buffer, IBV_WC_SUCCESS, qpn);
        (wc.opcode, wc.byte_len) = (IBV_WC_RECV, bytes);
        self.completions.push_back(wc);
    }

    /// A completion was added to the armed queue.
    pub fn ring(&mut self) {
        self.armed = false;
        self.channel_events += 1;
        self.wake(self.channel_fd);
    }

    pub fn happen(&mut self, event: u32, qp: *mut ibv_qp) {
        self.events.push_back((event, qp));
        self.wake(self.wake);
    }

    /// The queue pair that was made as the n-th of those that are there.
    pub fn number(&self, index: usize) -> u32 {
        // SAFETY: made by create_qp, and not destroyed.
        unsafe { (*self.queue_pairs[index]).qp_num }
    }

    fn wake(&self, fd: Option<c_int>) {
        let one = 1_u64;
        // SAFETY: eight bytes, as eventfd(2) wants them.
        unsafe { libc::write(fd.expect("open"), (&raw const one).cast(), 8) };
    }
}

/// A node of a new device.
pub fn node(limits: Limits) -> Node {
    open("127.0.0.1", limits).unwrap()
}

pub fn open(address: &str, limits: Limits) -> Result<Node, Error> {
    open_of(0x2_c903, address, limits)
}

/// A node of a device without what its links would share.
pub fn node_without(shared: Shared, limits: Limits) -> Node {
    begin(0x2_c903, shared, "127.0.0.1", limits).unwrap()
}

pub fn open_of(vendor_id: u32, address: &str, limits: Limits) -> Result<Node, Error> {
    begin(vendor_id, Shared::Has, address, limits)
}

fn begin(vendor_id: u32, shared: Shared, address: &str, limits: Limits) -> Result<Node, Error> {
    with(|fake| {
        *fake = Fake {
            next_qpn: 0x100,
            vendor_id,
            shared,
            ..Fake::default()
        }
    });
    let library = Library::fake(Arc::new(functions()), PathBuf::from("fake"));
    let choice = DeviceChoice::Hardware("fake0".to_owned());
    Node::open(&library, &choice, address.parse().unwrap(), limits)
}

/// A zeroed structure that lives for ever.
fn made<T>() -> *mut T {
    // SAFETY: only for structures of numbers, pointers and optional functions.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

fn event_fd() -> c_int {
    // SAFETY: no precondition.
    unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) }
}

fn refused<T>(error: c_int) -> *mut T {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error };
    ptr::null_mut()
}

fn none_now() -> c_int {
    refused::<u8>(libc::EAGAIN);
    -1
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let list = Box::leak(Box::new([made::<ibv_device>(), ptr::null_mut()]));
    // SAFETY: the caller's pointer.
    unsafe { *count = 1 };
    list.as_mut_ptr()
}

unsafe extern "C" fn free_device_list(_list: *mut *mut ibv_device) {}

unsafe extern "C" fn get_device_name(_device: *mut ibv_device) -> *const c_char {
    c"fake0".as_ptr()
}

unsafe extern "C" fn open_device(_device: *mut ibv_device) -> *mut ibv_context {
    let context = made::<ibv_context>();
    let fd = event_fd();
    with(|fake| fake.wake = Some(fd));
    // SAFETY: just made.
    unsafe {
        (*context).async_fd = fd;
        (*context).ops.poll_cq = Some(poll_cq);
        (*context).ops.req_notify_cq = Some(req_notify_cq);
        (*context).ops.post_srq_recv = Some(post_srq_recv);
        (*context).ops.post_recv = Some(post_recv);
        (*context).ops.post_send = Some(post_send);
    }
    context
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: opened above.
    unsafe { libc::close((*context).async_fd) }
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's pointer.
    let attr = unsafe { &mut *attr };
    (attr.max_qp_wr, attr.max_srq_wr, attr.max_cqe) = (1 << 16, 1 << 16, 1 << 20);
    (attr.max_qp, attr.phys_port_cnt) = (1 << 10, 1);
    attr.vendor_id = with(|fake| fake.vendor_id);
    attr.max_srq = i32::from(with(|fake| fake.shared != Shared::None));
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { ((*attr).gid_tbl_len, (*attr).active_mtu) = (4, 3) };
    0
}

/// The address is the third entry; the first is of another type, the second empty.
unsafe extern "C" fn query_gid_ex(
    _: *mut ibv_context,
    _: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    _: u32,
    _: usize,
) -> c_int {
    if index == 1 {
        return libc::ENODATA;
    }
    // SAFETY: the caller's pointer.
    let entry = unsafe { &mut *entry };
    entry.gid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    entry.gid_type = if index == 0 { 1 } else { IBV_GID_TYPE_ROCE_V2 };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let pd = made::<ibv_pd>();
    // SAFETY: just made.
    unsafe { (*pd).context = context };
    pd
}

unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn reg_mr(_: *mut ibv_pd, at: *mut c_void, n: usize, _: c_int) -> *mut ibv_mr {
    let mr = made::<ibv_mr>();
    // SAFETY: just made.
    unsafe { ((*mr).addr, (*mr).length, (*mr).lkey, (*mr).rkey) = (at, n, 5, 6) };
    mr
}

unsafe extern "C" fn dereg_mr(_: *mut ibv_mr) -> c_int {
    0
}

unsafe extern "C" fn create_comp_channel(_: *mut ibv_context) -> *mut ibv_comp_channel {
    let channel = made::<ibv_comp_channel>();
    let fd = event_fd();
    with(|fake| fake.channel_fd = Some(fd));
    // SAFETY: just made.
    unsafe { (*channel).fd = fd };
    channel
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: made above.
    unsafe { libc::close((*channel).fd) }
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    _: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let cq = made::<ibv_cq>();
    // SAFETY: just made.
    unsafe { (*cq).context = context };
    cq
}

unsafe extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    0
}

unsafe extern "C" fn get_cq_event(
    _: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    with(|fake| match fake.channel_events {
        0 => none_now(),
        _ => {
            fake.channel_events -= 1;
            fake.unacknowledged += 1;
            0
        }
    })
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, count: c_uint) {
    with(|fake| fake.unacknowledged -= count as i32);
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if with(|fake| fake.shared != Shared::Has) {
        return refused(libc::EOPNOTSUPP);
    }
    let srq = made::<ibv_srq>();
    // SAFETY: just made, and the domain exists.
    unsafe { (*srq).context = (*pd).context };
    srq
}

unsafe extern "C" fn destroy_srq(_: *mut ibv_srq) -> c_int {
    0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's pointer.
    if unsafe { (*init).cap.max_inline_data } > 0 {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's pointer.
    let is_own = unsafe { (*init).srq.is_null() && (*init).cap.max_recv_wr > 0 };
    assert_ne!(is_own, with(|fake| fake.shared == Shared::Has));
    let qp = made::<ibv_qp>();
    with(|fake| {
        // SAFETY: just made, and the domain exists.
        unsafe { ((*qp).context, (*qp).qp_num) = ((*pd).context, fake.next_qpn) };
        fake.next_qpn += 1;
        fake.queue_pairs.push(qp);
    });
    qp
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, _: c_int) -> c_int {
    // SAFETY: the caller's pointers.
    let (state, qpn) = unsafe {
        (*qp).state = (*attr).qp_state;
        ((*qp).state, (*qp).qp_num)
    };
    if state == IBV_QPS_ERR {
        with(|fake| fake.flush(qpn));
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    with(|fake| fake.queue_pairs.retain(|other| *other != qp));
    0
}

unsafe extern "C" fn get_async_event(_: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    with(|fake| match fake.events.pop_front() {
        None => none_now(),
        Some((event_type, qp)) => {
            fake.unacknowledged += 1;
            // SAFETY: the caller's pointer.
            unsafe { ((*event).event_type, (*event).element) = (event_type, qp.cast()) };
            0
        }
    })
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {
    with(|fake| fake.unacknowledged -= 1);
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    with(|fake| {
        if let Some(answer) = fake.poll_answer {
            return answer;
        }
        let mut polled = 0;
        while polled < count {
            let Some(next) = fake.completions.pop_front() else {
                break;
            };
            // SAFETY: the caller has room for so many.
            unsafe { wc.add(polled as usize).write(next) };
            polled += 1;
        }
        polled
    })
}

unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    with(|fake| fake.armed = true);
    0
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    with(|fake| {
        fake.receive_calls += 1;
        while !wr.is_null() {
            // SAFETY: the caller's list.
            unsafe {
                fake.receives.push((*wr).wr_id);
                wr = (*wr).next;
            }
        }
    });
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's pointer.
    let (qpn, state) = unsafe { ((*qp).qp_num, (*qp).state) };
    assert_ne!(state, 0, "it takes none yet");
    with(|fake| {
        fake.receive_calls += 1;
        if fake.refuse_receives != 0 {
            // SAFETY: the caller's pointer.
            unsafe { *refused = wr };
            return fake.refuse_receives;
        }
        while !wr.is_null() {
            // SAFETY: the caller's list.
            unsafe {
                fake.own_receives.push((qpn, (*wr).wr_id));
                wr = (*wr).next;
            }
        }
        if state == IBV_QPS_ERR {
            fake.flush(qpn);
        }
        0
    })
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    with(|fake| fake.send_calls += 1);
    while !wr.is_null() {
        // SAFETY: the caller's pointers.
        let (posted, state) = unsafe {
            let posted = Posted {
                qpn: (*qp).qp_num,
                wr_id: (*wr).wr_id,
                opcode: (*wr).opcode,
                flags: (*wr).send_flags,
                length: if (*wr).num_sge == 0 {
                    0
                } else {
                    (*(*wr).sg_list).length
                },
                remote: (*wr).wr.rdma.remote_addr,
            };
            (posted, (*qp).state)
        };
        let answer = with(|fake| {
            if fake.refuse != 0 && fake.posted.len() >= fake.refuse_behind {
                return fake.refuse;
            }
            fake.posted.push_back(posted);
            if state == IBV_QPS_ERR {
                fake.flush(posted.qpn);
            }
            0
        });
        // SAFETY: the caller's pointers.
        unsafe {
            if answer != 0 {
                *refused = wr;
                return answer;
            }
            wr = (*wr).next;
        }
    }
    0
}

fn functions() -> Functions {
    Functions {
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid_ex,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_srq,
        destroy_srq,
        create_qp,
        modify_qp,
        destroy_qp,
        get_async_event,
        ack_async_event,
    }
}
