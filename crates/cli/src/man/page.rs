//! What the pages written by hand are made of, and what several of them say.

/// A section of a page.
pub struct Section {
    pub title: &'static str,
    pub blocks: &'static [Block],
}

/// A part of a section.
pub enum Block {
    /// A paragraph.
    Text(&'static str),
    /// A term and what it means.
    Entry(&'static str, &'static str),
    /// What an example does, and its commands, one a line.
    Example(&'static str, &'static str),
}

/// The sections of one page.
pub struct Page {
    pub name: &'static str,
    pub(super) sections: &'static [Section],
}

use Block::Entry;

pub(super) const SOCKET_VARIABLE: Block = Entry(
    "SLUICE_SOCKET",
    "The daemon's control socket, if --socket does not name it.",
);
pub(super) const LIBDIR_VARIABLE: Block = Entry(
    "SLUICE_LIBDIR",
    "The folder of libsluice_preload.so, sluiced and sluice-bench. By default they are looked for \
     beside sluice and in ../lib/sluice from there.",
);
pub(super) const USUAL_STATUS: Section = Section {
    title: "EXIT STATUS",
    blocks: &[
        Entry("0", "Success."),
        Entry("1", "It failed; standard error says why and what to do."),
        Entry("2", "The command line is wrong."),
    ],
};
