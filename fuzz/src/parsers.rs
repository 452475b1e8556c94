//! Parsers of what peers send: any bytes are an error or a message that says the same when it is
//! written again.
#![allow(unsafe_code)]

/// Programs to `sluiced` and back.
pub mod control_message {
    use sluice_control::message::{FromDaemon, MESSAGE_BYTES_MAX, ToDaemon};

    pub fn run(data: &[u8]) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        if let Ok(message) = ToDaemon::decode(data) {
            assert_eq!(ToDaemon::decode(message.encode(&mut buffer)), Ok(message));
        }
        if let Ok(message) = FromDaemon::decode(data) {
            assert_eq!(FromDaemon::decode(message.encode(&mut buffer)), Ok(message));
        }
    }
}

/// Connection managers to each other.
pub mod cm_message {
    use sluice_rdmacm::message::{MESSAGE_LEN_MAX, Message};

    pub fn run(data: &[u8]) {
        if let Ok(message) = Message::parse(data) {
            let bytes = message.emit();
            assert!(bytes.len() <= MESSAGE_LEN_MAX);
            assert_eq!(bytes, data, "two spellings of {message:?}");
        }
    }
}

/// Stream rsockets to each other: private data and immediate data.
pub mod rsocket_message {
    use sluice_rsocket::wire::{Buffer, ConnData, Message};

    pub fn run(data: &[u8]) {
        if let Some(parsed) = ConnData::parse(data) {
            assert_eq!(ConnData::parse(&parsed.emit()), Some(parsed));
        }
        if let Some(bytes) = data.first_chunk() {
            assert_eq!(Buffer::parse(bytes).emit(), *bytes);
        }
        for word in data.chunks_exact(4) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if let Some(message) = Message::parse(word) {
                assert_eq!(message.emit(), word, "two spellings of {message:?}");
            }
        }
    }
}

/// Verbs processes to each other.
pub mod verbs_hello {
    use crate::private::hello::Message;

    pub fn run(data: &[u8]) {
        if let Some(message) = Message::decode(data) {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }
}

/// Ends of RDMA over TCP to each other.
pub mod iwarp_formats {
    use sluice_wire::iwarp::{Terminate, fuzz};

    pub fn run(data: &[u8]) {
        fuzz::startup(data);
        fuzz::segment(data);
        fuzz::stream(data, false);
        fuzz::stream(data, true);
        let _ = Terminate::parse(data);
    }
}

/// The `sluiced` of two hosts to each other, inside of TLS: frames, and the hello and the refusal in
/// them.
pub mod peering_frames {
    use sluice_peering::frame::{self, Kind};
    use sluice_peering::hello::{Hello, Refusal};

    pub fn run(data: &[u8]) {
        hello(data);
        let mut rest = data;
        // Each frame takes at least its header.
        while let Ok(Some(found)) = frame::split(rest) {
            let mut again = Vec::new();
            frame::append(&mut again, found.kind, found.body);
            assert_eq!(again.len(), found.bytes());
            assert!(rest.starts_with(&again), "two spellings of {found:?}");
            match found.kind {
                Kind::Hello => hello(found.body),
                Kind::Refuse => {
                    let refusal = Refusal::decode(found.body);
                    assert_eq!(refusal.is_some(), found.body.len() >= 5);
                }
                _ => {}
            }
            rest = &rest[found.bytes()..];
        }
    }

    /// What follows the known fields is not looked at.
    fn hello(body: &[u8]) {
        let versions = Hello::versions_of(body);
        if let Ok(hello) = Hello::decode(body) {
            assert_eq!(Ok(hello.versions), versions);
            assert!(
                body.starts_with(&hello.encode()),
                "two spellings of {hello:?}"
            );
            let unproven = Hello {
                proof: [0; 32],
                ..hello
            };
            assert_eq!(Hello::decode(&Hello::without_proof(body)), Ok(unproven));
        }
    }
}

/// The file of a program that `sluice` is to start.
pub mod program_file {
    use crate::private::elf;
    use sluice_sys::memfd;
    use std::path::PathBuf;
    use std::sync::OnceLock;

    /// Longer files say nothing new: the module looks at beginnings.
    const BYTES_MAX: usize = 1 << 16;

    pub fn run(data: &[u8]) {
        static FILE: OnceLock<sluice_sys::unix::Fd> = OnceLock::new();
        let file = FILE.get_or_init(|| memfd::create(c"program").expect("memfd_create"));
        let data = &data[..data.len().min(BYTES_MAX)];
        // A script could name a device whose opening waits for somebody.
        if data.starts_with(b"#!") && data.windows(4).any(|word| word == b"/dev") {
            return;
        }
        memfd::set_len(file.raw(), 0).expect("ftruncate");
        memfd::write_at(file.raw(), data, 0).expect("pwrite");
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.raw()));
        if let Some(verdict) = elf::inspect(&path) {
            // The texts are for people; they must exist.
            let _ = verdict.obstacle.map(|obstacle| obstacle.to_string());
        }
    }
}
