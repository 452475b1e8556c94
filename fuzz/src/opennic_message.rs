//! What a vfio-user client sends to the model.

use opennic_model::vfio_user::message::{HEADER_LEN, Header, Request};

pub fn run(data: &[u8]) {
    let Some((header, body)) = data.split_first_chunk::<HEADER_LEN>() else {
        return;
    };
    let Ok(header) = Header::parse(header) else {
        return;
    };
    let body = &body[..body.len().min(header.len - HEADER_LEN)];
    if let Ok(Request::Write { bytes, .. }) = Request::parse(header.command, body) {
        assert!(bytes.len() <= body.len());
    }
    assert_eq!(header.reply(body).len(), HEADER_LEN + body.len());
    assert_ne!(&header.error(0)[12..16], [0; 4]);
}
