//! One function's socket: one client at a time, and what it set up. When the client is gone the
//! function is reset, and the next one may come.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::DmaMaps;
use super::message::{HEADER_LEN, Header, Request, SetIrqs, Unknown};
use crate::card::Card;
use crate::doorbell;
use crate::pci::{self, Config, VECTORS};
use crate::{qdma, shell};

/// For the rest of a message that has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of a message: what QEMU's client takes at most.
const DESCRIPTORS_MAX: usize = 16;
const CONFIG_REGION: u32 = 7;
const REGIONS: u32 = 9;
const IRQS: u32 = 5;
const MSIX: u32 = 2;

pub struct Endpoint {
    function: usize,
    listener: UnixListener,
    client: Option<UnixStream>,
    doorbells: OwnedFd,
    config: Config,
    interrupts: Vec<Option<File>>,
    pub maps: DmaMaps,
}

impl Endpoint {
    pub fn new(path: &Path, function: usize, doorbells: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            function,
            listener: UnixListener::bind(path)?,
            client: None,
            doorbells,
            config: Config::new(function),
            interrupts: (0..VECTORS).map(|_| None).collect(),
            maps: DmaMaps::default(),
        })
    }

    /// What to wait for.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.client {
            Some(client) => client.as_fd(),
            None => self.listener.as_fd(),
        }
    }

    pub fn has_client(&self) -> bool {
        self.client.is_some()
    }

    /// Sends an interrupt, if the guest has set it up.
    pub fn interrupt(&self, vector: u16) {
        if let Some(Some(file)) = self.interrupts.get(usize::from(vector)) {
            // Full means that the guest has one that it did not look at.
            let _ = (&*file).write(&1_u64.to_ne_bytes());
        }
    }

    /// Serves what the descriptor is ready for: a client that comes, or one message of it.
    pub fn serve(&mut self, card: &mut Card) -> io::Result<()> {
        let Some(client) = self.client.take() else {
            let (client, _) = self.listener.accept()?;
            client.set_read_timeout(Some(PATIENCE))?;
            client.set_write_timeout(Some(PATIENCE))?;
            self.client = Some(client);
            return Ok(());
        };
        match self.message(&client, card) {
            Ok(()) => {
                self.client = Some(client);
                Ok(())
            }
            Err(error) => {
                self.reset(card);
                self.maps.clear();
                self.interrupts.fill_with(|| None);
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    fn reset(&mut self, card: &mut Card) {
        card.reset_function(self.function);
        self.config = Config::new(self.function);
    }

    fn message(&mut self, client: &UnixStream, card: &mut Card) -> io::Result<()> {
        let mut bytes = [0; HEADER_LEN];
        let mut files = Vec::new();
        let got = receive(client, &mut bytes, &mut files)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut reader = client;
        reader.read_exact(&mut bytes[got..])?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let header = Header::parse(&bytes).map_err(invalid)?;
        let mut body = vec![0; header.len - HEADER_LEN];
        reader.read_exact(&mut body)?;
        let answer = match Request::parse(header.command, &body) {
            Ok(request) => self.answer(request, files, card),
            Err(Unknown::Command) => Err(libc::ENOSYS),
            Err(Unknown::Body) => Err(libc::EINVAL),
        };
        if header.no_reply {
            return Ok(());
        }
        match answer {
            Ok(Answer { body, doorbells }) => {
                let bytes = header.reply(&body);
                let file = doorbells.then(|| self.doorbells.as_fd());
                send(client, &bytes, file)
            }
            Err(errno) => send(client, &header.error(errno), None),
        }
    }

    fn answer(
        &mut self,
        request: Request<'_>,
        files: Vec<OwnedFd>,
        card: &mut Card,
    ) -> Result<Answer, i32> {
        let body = match request {
            Request::Version { major: 0, minor } => version(minor),
            Request::Version { .. } => return Err(libc::ENOTSUP),
            Request::DmaMap {
                offset,
                address,
                len,
            } => {
                let mut files = files.into_iter();
                let file = files.next().map(|file| (File::from(file), offset));
                if files.next().is_some() {
                    return Err(libc::EINVAL);
                }
                self.maps
                    .add(address, len, file)
                    .map_err(|_| libc::EINVAL)?;
                Vec::new()
            }
            Request::DmaUnmap { address, len, all } => {
                if all {
                    self.maps.clear();
                } else {
                    self.maps.remove(address, len).map_err(|_| libc::ENOENT)?;
                }
                let flags = if all { 1_u32 << 2 } else { 0 };
                let mut body = Vec::new();
                body.extend(24_u32.to_le_bytes());
                body.extend(flags.to_le_bytes());
                body.extend(address.to_le_bytes());
                body.extend(len.to_le_bytes());
                body
            }
            Request::DeviceInfo => {
                const RESET: u32 = 1;
                const PCI: u32 = 2;
                words(&[16, RESET | PCI, REGIONS, IRQS])
            }
            Request::RegionInfo { index, room } => return region(index, room),
            Request::IrqInfo { index } => irq(index)?,
            Request::SetIrqs(set) => {
                self.set_irqs(set, files)?;
                Vec::new()
            }
            Request::Read {
                region,
                offset,
                len,
            } => {
                let mut body = access(region, offset, len);
                let start = body.len();
                body.resize(start + len, 0);
                self.read(region, offset, &mut body[start..], card)?;
                body
            }
            Request::Write {
                region,
                offset,
                bytes,
            } => {
                self.write(region, offset, bytes, card)?;
                access(region, offset, bytes.len())
            }
            Request::Reset => {
                self.reset(card);
                Vec::new()
            }
        };
        Ok(Answer {
            body,
            doorbells: false,
        })
    }

    fn set_irqs(&mut self, set: SetIrqs, files: Vec<OwnedFd>) -> Result<(), i32> {
        if set.index >= IRQS {
            return Err(libc::EINVAL);
        }
        if set.index != MSIX || !set.trigger {
            return Ok(());
        }
        if set.count == 0 {
            self.interrupts.fill_with(|| None);
            return Ok(());
        }
        let start = usize::try_from(set.start).map_err(|_| libc::EINVAL)?;
        let count = usize::try_from(set.count).map_err(|_| libc::EINVAL)?;
        let end = start.checked_add(count).ok_or(libc::EINVAL)?;
        let slots = self.interrupts.get_mut(start..end).ok_or(libc::EINVAL)?;
        let mut files = files.into_iter();
        for slot in slots {
            // Fewer descriptors than interrupts: the rest is switched off.
            *slot = files.next().filter(|_| set.descriptors).map(|file| {
                // A stranger's descriptor must not be able to stop this thread.
                let _ = rustix::io::ioctl_fionbio(&file, true);
                File::from(file)
            });
        }
        Ok(())
    }

    fn read(
        &mut self,
        region: u32,
        offset: u64,
        bytes: &mut [u8],
        card: &mut Card,
    ) -> Result<(), i32> {
        if region == CONFIG_REGION {
            self.config.read(offset, bytes);
            return Ok(());
        }
        let len = region_len(region).ok_or(libc::EINVAL)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(libc::EINVAL)?;
        if end > len {
            return Err(libc::EINVAL);
        }
        // Registers are words, read once each; a part of one is a part of its word.
        let mut word = [0; 4];
        for (at, byte) in (offset as u32..).zip(bytes) {
            if at % 4 == 0 || u64::from(at) == offset {
                word = match region {
                    0 => card.read_engine(self.function, at & !3),
                    _ => card.shell.read(at & !3),
                }
                .to_le_bytes();
            }
            *byte = word[(at % 4) as usize];
        }
        Ok(())
    }

    fn write(
        &mut self,
        region: u32,
        offset: u64,
        bytes: &[u8],
        card: &mut Card,
    ) -> Result<(), i32> {
        if region == CONFIG_REGION {
            if self.config.write(offset, bytes) {
                card.reset_function(self.function);
            }
            return Ok(());
        }
        let len = region_len(region).ok_or(libc::EINVAL)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(libc::EINVAL)?;
        if end > len {
            return Err(libc::EINVAL);
        }
        // Less than a word is not a register write (PG302, "Register Space": 32-bit access only).
        let (words, _) = bytes.as_chunks::<4>();
        for (at, word) in (offset as u32..).step_by(4).zip(words) {
            let value = u32::from_le_bytes(*word);
            match region {
                0 => card.write_engine(self.function, at, value),
                _ => card.shell.write(at, value),
            }
        }
        Ok(())
    }
}

struct Answer {
    body: Vec<u8>,
    /// Whether the file with the doorbells goes with it.
    doorbells: bool,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn version(minor: u16) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(0_u16.to_le_bytes());
    body.extend(minor.min(1).to_le_bytes());
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{DESCRIPTORS_MAX},"max_data_xfer_size":{}}}}}"#,
        super::message::DATA_LEN_MAX
    );
    body.extend(capabilities.bytes());
    body.push(0);
    body
}

/// The beginning of the answer to a read or write.
fn access(region: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + len);
    body.extend(offset.to_le_bytes());
    body.extend(region.to_le_bytes());
    body.extend((len as u32).to_le_bytes());
    body
}

fn region_len(index: u32) -> Option<u64> {
    match index {
        0 => Some(qdma::BAR_LEN),
        2 => Some(shell::BAR_LEN),
        CONFIG_REGION => Some(pci::LEN as u64),
        _ => None,
    }
}

/// `struct vfio_region_info`; for BAR 0 with the part that can be mapped.
fn region(index: u32, room: u32) -> Result<Answer, i32> {
    const READ_WRITE: u32 = 3;
    const MAPPABLE: u32 = 4;
    const CAPABILITIES: u32 = 8;
    const SPARSE: [u32; 4] = [1 | 1 << 16, 0, 1, 0];
    const INFO_LEN: u32 = 32;
    const FULL_LEN: u32 = INFO_LEN + 32;
    if index >= REGIONS {
        return Err(libc::EINVAL);
    }
    let len = region_len(index).unwrap_or(0);
    let mapped = index == 0;
    let (flags, argsz, capabilities) = match (len, mapped) {
        (0, _) => (0, INFO_LEN, 0),
        (_, false) => (READ_WRITE, INFO_LEN, 0),
        (_, true) => (READ_WRITE | MAPPABLE | CAPABILITIES, FULL_LEN, INFO_LEN),
    };
    let whole = mapped && room >= FULL_LEN;
    let mut body = words(&[argsz, flags, index, capabilities]);
    body.extend(len.to_le_bytes());
    body.extend(0_u64.to_le_bytes());
    if whole {
        body.extend(words(&SPARSE));
        body.extend(qdma::DOORBELLS.to_le_bytes());
        body.extend((doorbell::LEN as u64).to_le_bytes());
    }
    Ok(Answer {
        body,
        doorbells: whole,
    })
}

/// `struct vfio_irq_info`.
fn irq(index: u32) -> Result<Vec<u8>, i32> {
    const EVENTFD: u32 = 1;
    const NO_RESIZE: u32 = 8;
    match index {
        MSIX => Ok(words(&[16, EVENTFD | NO_RESIZE, index, VECTORS.into()])),
        0..IRQS => Ok(words(&[16, EVENTFD, index, 0])),
        _ => Err(libc::EINVAL),
    }
}

fn receive(client: &UnixStream, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(bytes)];
    let message = recvmsg(client, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            files.extend(rights);
        }
    }
    Ok(message.bytes)
}

fn send(client: &UnixStream, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [io::IoSlice::new(bytes)];
    let sent = sendmsg(client, &parts, &mut control, SendFlags::NOSIGNAL)?;
    let mut writer = client;
    writer.write_all(&bytes[sent..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::Wire;
    use crate::faults::Faults;

    struct Client {
        stream: UnixStream,
        endpoint: Endpoint,
        card: Card,
    }

    impl Client {
        fn new() -> Self {
            let place = tempfile::tempdir().expect("a folder");
            let path = place.path().join("socket");
            let (mut card, doorbells) =
                Card::new(vec![Wire::Open], Faults::default()).expect("a card");
            let doorbells = doorbells.into_iter().next().expect("doorbells");
            let mut endpoint = Endpoint::new(&path, 0, doorbells).expect("a socket");
            let stream = UnixStream::connect(&path).expect("a connection");
            endpoint.serve(&mut card).expect("a client");
            Self {
                stream,
                endpoint,
                card,
            }
        }

        /// The error and the body of the answer.
        fn ask(&mut self, command: u16, body: &[u8]) -> (u32, Vec<u8>) {
            let mut bytes = Vec::new();
            bytes.extend(7_u16.to_le_bytes());
            bytes.extend(command.to_le_bytes());
            bytes.extend(((HEADER_LEN + body.len()) as u32).to_le_bytes());
            bytes.extend([0; 8]);
            bytes.extend(body);
            self.stream.write_all(&bytes).expect("sent");
            self.endpoint.serve(&mut self.card).expect("served");
            let mut header = [0; HEADER_LEN];
            self.stream.read_exact(&mut header).expect("an answer");
            let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4"));
            let mut body = vec![0; number(4) as usize - HEADER_LEN];
            self.stream.read_exact(&mut body).expect("its body");
            (number(12), body)
        }
    }

    #[test]
    fn registers_are_read_whole_and_in_part() {
        let mut client = Client::new();
        let read = |client: &mut Client, offset, len| {
            let (error, body) = client.ask(9, &access(0, offset, len));
            assert_eq!(error, 0);
            body[16..].to_vec()
        };
        assert_eq!(read(&mut client, 0, 4), [0, 0, 0xD3, 0x1F]);
        assert_eq!(read(&mut client, 2, 2), [0xD3, 0x1F]);
        assert_eq!(read(&mut client, 0x11C, 8), [0, 0, 3, 0, 0, 8, 0, 0]);
        let (error, _) = client.ask(9, &access(0, qdma::BAR_LEN - 2, 4));
        assert_eq!(error, libc::EINVAL as u32);
        let (error, _) = client.ask(9, &access(5, 0, 4));
        assert_eq!(error, libc::EINVAL as u32);
    }

    #[test]
    fn an_unknown_command_is_answered_and_the_next_one_understood() {
        let mut client = Client::new();
        assert_eq!(client.ask(11, &[1; 40]).0, libc::ENOSYS as u32);
        let (error, body) = client.ask(4, &[0; 16]);
        assert_eq!((error, body), (0, words(&[16, 3, REGIONS, IRQS])));
    }

    #[test]
    fn a_lie_about_the_length_ends_the_client_and_the_next_one_may_come() {
        let mut client = Client::new();
        client.stream.write_all(&[0xFF; HEADER_LEN]).expect("sent");
        client
            .endpoint
            .serve(&mut client.card)
            .expect_err("no message");
        assert!(!client.endpoint.has_client());
        let mut byte = [0];
        assert_eq!(client.stream.read(&mut byte).expect("the end"), 0);
    }

    #[test]
    fn the_doorbells_come_with_the_region_that_has_them() {
        let answer = region(0, 64).expect("BAR 0");
        assert!(answer.doorbells);
        assert_eq!(&answer.body[48..56], qdma::DOORBELLS.to_le_bytes());
        assert!(!region(0, 32).expect("BAR 0").doorbells);
        assert!(!region(2, 64).expect("BAR 2").doorbells);
        assert!(region(9, 64).is_err());
    }
}
