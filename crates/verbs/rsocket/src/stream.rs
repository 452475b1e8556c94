//! One direction each way of a connected rsocket: bytes go by RDMA writes into the peer's
//! receive buffer, whose halves it offers in turn, with immediate data that says how many.
//! Nothing here blocks.

use std::ptr::null_mut;

use super::region::Region;
use super::wire::{Buffer, ConnData, DATA_LEN_MAX, IOMAP_LEN, Message, SGE_LEN, TABLE_ENTRIES};
use crate::ffi::*;
use sluice_rdmacm::verbs::check;
use sluice_rdmacm::{Errno, calls};

/// Places in the send queue that data leaves to messages about the connection.
const CONTROL_PLACES: u32 = 8;
/// Receives that are posted beyond the credits, for messages that need none.
const CONTROL_RECEIVES: u32 = 8;
/// Completions taken at a time.
const COMPLETIONS: usize = 16;

const WC_RECV: u32 = 1 << 7;

#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub send_queue: u32,
    pub receive_queue: u16,
    pub inline: u32,
    pub send_buffer: usize,
    pub receive_buffer: usize,
    pub iomaps: u8,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            iomaps: 0,
        }
    }
}

/// A buffer of this side that the peer may write to by offset.
struct IoMap {
    mr: *mut ibv_mr,
    offset: u64,
    addr: u64,
    len: usize,
    /// The peer's table has it.
    told: bool,
    index: u8,
    remote: bool,
}

pub struct Stream {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    pd: *mut ibv_pd,
    sizes: Sizes,
    receive: Region,
    send: Region,
    /// The table that the peer writes, its IO mappings, then messages to the peer's.
    table: Region,
    /// Places free in the send queue.
    places: u32,
    /// Data messages sent, how many may be, and how many the peer takes at a time.
    sent: u16,
    granted: u16,
    credits: u16,
    /// The peer's table, and its entry that is due next.
    peer_table: Buffer,
    peer_entry: usize,
    peer_iomaps: u8,
    /// This side's table: the entry in use, and what is left of its buffer.
    entry: usize,
    target: Buffer,
    send_at: usize,
    send_free: usize,
    /// Bytes that came and were not read, and where they begin.
    received: usize,
    receive_at: usize,
    /// Bytes read that the peer does not know of.
    freed: usize,
    /// Data messages that came, and how many were granted to the peer.
    came: u16,
    told: u16,
    /// Messages to the peer's tables, to keep them until they are sent.
    notes: usize,
    iomaps: Vec<IoMap>,
    pub peer_closed: bool,
    pub broken: Option<Errno>,
    write_closed: bool,
}

// SAFETY: libibverbs objects may be used from every thread, and the stream itself is
// behind its socket's lock.
unsafe impl Send for Stream {}

/// Messages to the peer's tables that can be under way.
const NOTES: usize = CONTROL_PLACES as usize;

impl Stream {
    pub fn queue_sizes(sizes: &Sizes) -> (u32, u32) {
        (
            sizes.send_queue.max(2 * CONTROL_PLACES),
            u32::from(sizes.receive_queue) + CONTROL_RECEIVES,
        )
    }

    /// A stream over a QP in INIT, with its receives posted.
    pub fn new(
        qp: *mut ibv_qp,
        cq: *mut ibv_cq,
        pd: *mut ibv_pd,
        sizes: Sizes,
    ) -> Result<Self, Errno> {
        let receive = Region::new(pd, sizes.receive_buffer)?;
        let table_len = Self::notes_at(&sizes) + NOTES * IOMAP_LEN;
        let stream = Self {
            qp,
            cq,
            pd,
            receive,
            send: Region::new(pd, sizes.send_buffer)?,
            table: Region::new(pd, table_len)?,
            places: Self::queue_sizes(&sizes).0,
            sent: 0,
            granted: 0,
            credits: 0,
            peer_table: Buffer::default(),
            peer_entry: 1,
            peer_iomaps: 0,
            entry: 0,
            target: Buffer::default(),
            send_at: 0,
            send_free: sizes.send_buffer,
            received: 0,
            receive_at: 0,
            freed: sizes.receive_buffer / 2,
            came: 0,
            told: sizes.receive_queue,
            notes: 0,
            iomaps: Vec::new(),
            peer_closed: false,
            broken: None,
            write_closed: false,
            sizes,
        };
        for _ in 0..Self::queue_sizes(&stream.sizes).1 {
            stream.post_receive()?;
        }
        Ok(stream)
    }

    fn notes_at(sizes: &Sizes) -> usize {
        TABLE_ENTRIES * SGE_LEN + usize::from(sizes.iomaps) * IOMAP_LEN
    }

    /// What the peer has to know before it can send.
    pub fn conn_data(&self) -> ConnData {
        ConnData {
            credits: self.sizes.receive_queue,
            iomap_count: self.sizes.iomaps,
            table: Buffer {
                addr: self.table.addr(0),
                key: self.table.rkey(),
                length: TABLE_ENTRIES as u32,
            },
            first: Buffer {
                addr: self.receive.addr(0),
                key: self.receive.rkey(),
                length: (self.receive.len() / 2) as u32,
            },
        }
    }

    pub fn connected(&mut self, peer: &ConnData) {
        self.granted = peer.credits;
        self.credits = peer.credits;
        self.peer_table = peer.table;
        self.peer_iomaps = peer.iomap_count;
        self.target = peer.first;
    }

    fn post_receive(&self) -> Result<(), Errno> {
        let mut wr = ibv_recv_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
        };
        let mut bad = null_mut();
        // SAFETY: the QP lives as long as the stream; the request lives through the call.
        check(unsafe { (calls().post_recv)(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// One RDMA write; its completion gives `wr_id` bytes of the send buffer back.
    fn post(
        &mut self,
        from: Option<(u64, u32, u32)>,
        inline: bool,
        to: (u64, u32),
        message: Option<Message>,
        wr_id: u64,
    ) -> Result<(), Errno> {
        self.post_word(from, inline, to, message.map(Message::emit), wr_id)
    }

    fn post_word(
        &mut self,
        from: Option<(u64, u32, u32)>,
        inline: bool,
        to: (u64, u32),
        word: Option<u32>,
        wr_id: u64,
    ) -> Result<(), Errno> {
        let mut sge = from.map_or(
            ibv_sge {
                addr: 0,
                length: 0,
                lkey: 0,
            },
            |(addr, length, lkey)| ibv_sge { addr, length, lkey },
        );
        // SAFETY: all zeros is a valid request.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = wr_id;
        wr.sg_list = &raw mut sge;
        wr.num_sge = i32::from(from.is_some());
        wr.opcode = IBV_WR_RDMA_WRITE;
        if let Some(word) = word {
            wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            wr.imm_data = word.to_be();
        }
        wr.send_flags = IBV_SEND_SIGNALED | if inline { IBV_SEND_INLINE } else { 0 };
        wr.wr.rdma = send_wr_rdma {
            remote_addr: to.0,
            rkey: to.1,
        };
        let mut bad = null_mut();
        // SAFETY: the QP lives as long as the stream, the request and its list through the call. What is
        // sent lies in registered memory or, inline, lives through the call.
        check(unsafe { (calls().post_send)(self.qp, &raw mut wr, &raw mut bad) })?;
        self.places -= 1;
        Ok(())
    }

    /// Takes what has completed and tells the peer what it should know. Whether there was something.
    pub fn progress(&mut self) -> bool {
        let mut has_come = false;
        // SAFETY: all zeros is a valid completion.
        let mut done: [ibv_wc; COMPLETIONS] = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: the CQ lives as long as the stream; the array has the room said.
            let count =
                unsafe { (calls().poll_cq)(self.cq, COMPLETIONS as i32, done.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                self.broken.get_or_insert(Errno(libc::EIO));
                return true;
            };
            has_come |= count > 0;
            for wc in &done[..count.min(COMPLETIONS)] {
                if let Err(errno) = self.completed(wc) {
                    self.broken.get_or_insert(errno);
                }
            }
            if count < COMPLETIONS {
                break;
            }
        }
        if self.broken.is_none() && !self.peer_closed {
            self.tell_peer();
        }
        has_come
    }

    fn completed(&mut self, wc: &ibv_wc) -> Result<(), Errno> {
        if wc.status != IBV_WC_SUCCESS {
            // Flushed, because the connection ended, or the peer does not answer.
            return Err(Errno(libc::ECONNRESET));
        }
        if wc.opcode & WC_RECV == 0 {
            self.places += 1;
            self.send_free += wc.wr_id as usize;
            return Ok(());
        }
        match Message::parse(u32::from_be(wc.imm_data)) {
            Some(Message::Data(len)) => {
                self.came = self.came.wrapping_add(1);
                self.received += len as usize;
                // More than was offered, or more messages: the peer does not keep to the protocol.
                let is_granted = self.told.wrapping_sub(self.came) <= self.sizes.receive_queue;
                if self.received > self.receive.len() || !is_granted {
                    self.received = 0;
                    return Err(Errno(libc::EPROTO));
                }
            }
            Some(Message::Credits(limit)) => {
                // What was granted cannot be taken back, and nothing beyond the peer's queue be granted.
                let left = |limit: u16| limit.wrapping_sub(self.sent);
                if !(left(self.granted)..=self.credits).contains(&left(limit)) {
                    return Err(Errno(libc::EPROTO));
                }
                self.granted = limit;
            }
            Some(Message::Disconnect | Message::Shutdown) => self.peer_closed = true,
            Some(Message::IoMap(_) | Message::KeepAlive) => {}
            None => return Err(Errno(libc::EPROTO)),
        }
        if self.broken.is_none() {
            self.post_receive()?;
        }
        Ok(())
    }

    /// Offers the half of the receive buffer that was read, and grants messages.
    fn tell_peer(&mut self) {
        let half = self.receive.len() / 2;
        let granted = self.told.wrapping_sub(self.came);
        let used = self.sizes.receive_queue.saturating_sub(granted);
        if self.places == 0 || self.peer_table.addr == 0 {
            return;
        }
        let limit = self.came.wrapping_add(self.sizes.receive_queue);
        let posted = if self.freed >= half {
            // The halves are freed in the order in which they were offered.
            let offered = Buffer {
                addr: self.receive.addr(self.peer_entry * half),
                key: self.receive.rkey(),
                length: half as u32,
            };
            let to = self.peer_table.addr + (self.peer_entry * SGE_LEN) as u64;
            self.post_note(&offered.emit(), to, Message::Credits(limit))
                .map(|()| {
                    self.freed -= half;
                    self.peer_entry = (self.peer_entry + 1) % TABLE_ENTRIES;
                })
        } else if used >= self.sizes.receive_queue / 2 {
            self.post(None, false, (0, 0), Some(Message::Credits(limit)), 0)
        } else {
            return;
        };
        match posted {
            Ok(()) => self.told = limit,
            Err(errno) => self.broken = Some(errno),
        }
    }

    /// A few bytes to a table of the peer.
    fn post_note(&mut self, bytes: &[u8], to: u64, message: Message) -> Result<(), Errno> {
        let at = Self::notes_at(&self.sizes) + self.notes * IOMAP_LEN;
        self.notes = (self.notes + 1) % NOTES;
        self.table.write_slice(at, bytes);
        let from = (self.table.addr(at), bytes.len() as u32, self.table.lkey());
        let key = self.peer_table.key;
        self.post(Some(from), false, (to, key), Some(message), 0)
    }

    /// Whether `write` would take at least one byte now.
    pub fn writable(&mut self) -> bool {
        self.next_target();
        self.places > CONTROL_PLACES
            && self.sent != self.granted
            && self.target.length > 0
            && self.send_free > 0
    }

    /// The peer's next half, once it has offered one.
    fn next_target(&mut self) {
        if self.target.length > 0 {
            return;
        }
        let next = (self.entry + 1) % TABLE_ENTRIES;
        let at = next * SGE_LEN;
        // The peer may write to the entry meanwhile, so each word of it is read once.
        let length = self.table.load_last(at + SGE_LEN - 4);
        if length > 0 {
            let offered = Buffer {
                addr: u64::from_ne_bytes(self.table.read_array(at)),
                key: u32::from_ne_bytes(self.table.read_array(at + 8)),
                length,
            };
            self.table.write_slice(at, &[0; SGE_LEN]);
            if !offered.is_possible() {
                self.broken.get_or_insert(Errno(libc::EPROTO));
                return;
            }
            self.entry = next;
            self.target = offered;
        }
    }

    /// Sends as many bytes as can go now; 0 when none can.
    ///
    /// # Safety
    /// `from` has `len` bytes.
    pub unsafe fn write(&mut self, from: *const u8, len: usize) -> Result<usize, Errno> {
        let mut taken = 0;
        while taken < len && self.writable() {
            let left = len - taken;
            let room = (self.target.length.min(DATA_LEN_MAX) as usize).min(left);
            let (size, source, inline) = if room <= self.sizes.inline as usize {
                // SAFETY: within the caller's bytes.
                (room, unsafe { from.add(taken) } as u64, true)
            } else {
                let contiguous = self.send.len() - self.send_at;
                let size = room.min(contiguous).min(self.send_free);
                // SAFETY: within the caller's bytes.
                unsafe { self.send.write(self.send_at, from.add(taken), size) };
                (size, self.send.addr(self.send_at), false)
            };
            let lkey = if inline { 0 } else { self.send.lkey() };
            let held = if inline { 0 } else { size };
            let to = (self.target.addr, self.target.key);
            let message = Message::Data(size as u32);
            self.post(
                Some((source, size as u32, lkey)),
                inline,
                to,
                Some(message),
                held as u64,
            )?;
            self.sent = self.sent.wrapping_add(1);
            self.target.addr += size as u64;
            self.target.length -= size as u32;
            if !inline {
                self.send_at = (self.send_at + size) % self.send.len();
                self.send_free -= size;
            }
            taken += size;
        }
        Ok(taken)
    }

    /// Bytes that have come and were not read.
    pub fn readable(&self) -> usize {
        self.received
    }

    /// Copies what has come, from `skipped` bytes behind its beginning on, and leaves it there.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    pub unsafe fn peek(&self, to: *mut u8, len: usize, skipped: usize) -> usize {
        let total = len.min(self.received.saturating_sub(skipped));
        let mut done = 0;
        let mut at = (self.receive_at + skipped.min(self.received)) % self.receive.len();
        while done < total {
            let size = (total - done).min(self.receive.len() - at);
            // SAFETY: within the caller's room.
            unsafe { self.receive.read(at, to.add(done), size) };
            at = (at + size) % self.receive.len();
            done += size;
        }
        total
    }

    /// Takes what has come, at most `len` bytes.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    pub unsafe fn read(&mut self, to: *mut u8, len: usize) -> usize {
        // SAFETY: the caller's contract.
        let total = unsafe { self.peek(to, len, 0) };
        self.receive_at = (self.receive_at + total) % self.receive.len();
        self.received -= total;
        self.freed += total;
        if self.broken.is_none() && !self.peer_closed {
            self.tell_peer();
        }
        total
    }

    /// Says that nothing more will be sent, and with `all` that nothing more is taken.
    pub fn close_write(&mut self, all: bool) {
        if self.broken.is_some() || (self.write_closed && !all) || self.places == 0 {
            return;
        }
        self.write_closed = true;
        let message = if all {
            Message::Disconnect
        } else {
            Message::Shutdown
        };
        if let Err(errno) = self.post(None, false, (0, 0), Some(message), 0) {
            self.broken = Some(errno);
        }
    }

    /// Everything that was sent has arrived.
    pub fn drained(&self) -> bool {
        self.places == Self::queue_sizes(&self.sizes).0
    }

    /// Lets the peer write `len` bytes at `addr` by offset (`remote`), or only this side
    /// use them.
    pub fn map(
        &mut self,
        addr: u64,
        len: usize,
        remote: bool,
        offset: Option<u64>,
    ) -> Result<u64, Errno> {
        let used: Vec<u8> = self
            .iomaps
            .iter()
            .filter(|map| map.remote)
            .map(|map| map.index)
            .collect();
        let index = (0..self.peer_iomaps).find(|index| !used.contains(index));
        if remote && index.is_none() {
            return Err(Errno(libc::ENOBUFS));
        }
        let length = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let mut access = super::region::ACCESS_LOCAL_WRITE;
        if remote {
            access |= super::region::ACCESS_REMOTE_WRITE;
        }
        let start = addr as *mut std::ffi::c_void;
        // SAFETY: the program's buffer, which riomap(3) wants to stay until riounmap.
        let mr = sluice_rdmacm::verbs::check_pointer(unsafe {
            (calls().reg_mr)(self.pd, start, length as usize, access)
        })?;
        // An address is an offset that no other mapping has.
        let offset = offset.unwrap_or(addr);
        self.iomaps.push(IoMap {
            mr,
            offset,
            addr,
            len,
            told: !remote,
            index: index.unwrap_or(0),
            remote,
        });
        Ok(offset)
    }

    pub fn unmap(&mut self, addr: u64, len: usize) -> Result<(), Errno> {
        let at = self
            .iomaps
            .iter()
            .position(|map| map.addr == addr && map.len == len)
            .ok_or(Errno::INVAL)?;
        let map = self.iomaps.remove(at);
        // SAFETY: registered by `map`, and out of the list now.
        check(unsafe { (calls().dereg_mr)(map.mr) })
    }

    /// Tells the peer of new mappings, before later data. `false` when it must wait.
    pub fn tell_iomaps(&mut self) -> Result<bool, Errno> {
        for at in 0..self.iomaps.len() {
            let map = &self.iomaps[at];
            if map.told {
                continue;
            }
            if self.places <= CONTROL_PLACES {
                return Ok(false);
            }
            // SAFETY: registered by `map` and in the list, so not deregistered.
            let key = unsafe { (*map.mr).rkey };
            let buffer = Buffer {
                addr: map.addr,
                key,
                length: map.len as u32,
            };
            let index = map.index;
            let mut bytes = [0; IOMAP_LEN];
            bytes[..8].copy_from_slice(&map.offset.to_ne_bytes());
            bytes[8..].copy_from_slice(&buffer.emit());
            let to = self.peer_table.addr
                + (TABLE_ENTRIES * SGE_LEN + usize::from(index) * IOMAP_LEN) as u64;
            self.post_note(&bytes, to, Message::IoMap(index))?;
            self.iomaps[at].told = true;
        }
        Ok(true)
    }

    /// Writes into a buffer that the peer mapped; as many bytes as can go now.
    ///
    /// # Safety
    /// `from` has `len` bytes.
    pub unsafe fn write_mapped(
        &mut self,
        from: *const u8,
        len: usize,
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut taken = 0;
        while taken < len && self.places > CONTROL_PLACES && self.send_free > 0 {
            let at = offset.checked_add(taken as u64).ok_or(Errno::INVAL)?;
            let (target, room) = self.find_mapped(at).ok_or(Errno(libc::EFAULT))?;
            let contiguous = self.send.len() - self.send_at;
            let size = room.min(len - taken).min(contiguous).min(self.send_free);
            // SAFETY: within the caller's bytes.
            unsafe { self.send.write(self.send_at, from.add(taken), size) };
            let source = (self.send.addr(self.send_at), size as u32, self.send.lkey());
            self.post(
                Some(source),
                false,
                (target.addr, target.key),
                None,
                size as u64,
            )?;
            self.send_at = (self.send_at + size) % self.send.len();
            self.send_free -= size;
            taken += size;
        }
        Ok(taken)
    }

    /// Where the byte at `offset` of the peer is, and how many follow it.
    fn find_mapped(&self, offset: u64) -> Option<(Buffer, usize)> {
        (0..usize::from(self.sizes.iomaps)).find_map(|index| {
            let at = TABLE_ENTRIES * SGE_LEN + index * IOMAP_LEN;
            let start = u64::from_ne_bytes(self.table.read_array(at));
            let buffer = Buffer::parse(&self.table.read_array(at + 8));
            let inside = offset.checked_sub(start)?;
            if inside >= u64::from(buffer.length) {
                return None;
            }
            let target = Buffer {
                addr: buffer.addr.checked_add(inside)?,
                ..buffer
            };
            Some((target, buffer.length as usize - inside as usize))
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for map in self.iomaps.drain(..) {
            // SAFETY: registered by `map`.
            unsafe { (calls().dereg_mr)(map.mr) };
        }
    }
}

#[cfg(test)]
pub(crate) mod liars;
