//! What is changed of a static program of Go's.

use sluice_go::{Piece, Runtime, Threads, Unknown, jump};

use crate::image::{Image, Segment};

/// Who is jumped to instead.
#[derive(Debug, Clone, Copy)]
pub struct Targets {
    pub syscall6: u64,
    pub clone: u64,
    pub exit_thread: u64,
    pub exit: u64,
    pub vfork: u64,
}

/// Looks for Go's runtime in a whole file.
///
/// # Errors
/// [`Unknown`], where it is another program, or of a version whose instructions are others.
pub fn find<'a>(image: &Image, file: &'a [u8]) -> Result<(Runtime<'a>, Threads), Unknown<'a>> {
    let pieces = |is_it: fn(&&Segment) -> bool| -> Vec<Piece<'a>> {
        let found = image.segments.iter().filter(is_it);
        found
            .map(|it| (it.address, &file[it.file_range()]))
            .collect()
    };
    let code = pieces(|it| it.is_executable);
    let data = pieces(|it| it.is_writable);
    Ok((Runtime::find(&code, &data)?, Threads::find(&code)?))
}

/// What to write where, so that the runtime jumps to `targets`.
pub fn changes(runtime: &Runtime, threads: &Threads, targets: &Targets) -> Vec<(u64, Vec<u8>)> {
    let mut changes = vec![
        (runtime.syscall6, jump(targets.syscall6).to_vec()),
        (threads.clone, jump(targets.clone).to_vec()),
        (threads.exit_thread, jump(targets.exit_thread).to_vec()),
        (runtime.exit, jump(targets.exit).to_vec()),
    ];
    let vfork = runtime.vfork;
    changes.extend(vfork.map(|place| (place, jump(targets.vfork).to_vec())));
    let kept = threads.keep_thread_pointer();
    changes.extend(kept.map(|(place, bytes)| (place, bytes.to_vec())));
    changes
}
