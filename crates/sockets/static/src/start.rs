//! What a program finds on its stack when it starts: arguments, environment and what the kernel tells it (System V
//! ABI for x86-64, "Initial Stack and Register State").

use crate::image::Image;

/// Types of what the kernel tells (getauxval(3)).
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_EXECFN: u64 = 31;

/// The words from the stack pointer upwards, without the strings that they point to.
///
/// `auxiliary` is what the kernel told the program that is running; what it said of that program's file is said of
/// `image`. `path` is the address of the program's name.
pub fn words(
    arguments: &[u64],
    environment: &[u64],
    auxiliary: &[(u64, u64)],
    image: &Image,
    path: u64,
) -> Vec<u64> {
    let mut words = vec![arguments.len() as u64];
    words.extend_from_slice(arguments);
    words.push(0);
    words.extend_from_slice(environment);
    words.push(0);
    for &(kind, value) in auxiliary {
        let value = match kind {
            AT_NULL => break,
            AT_PHDR => image.headers.0,
            AT_PHENT => 56,
            AT_PHNUM => image.headers.1,
            AT_BASE => 0,
            AT_ENTRY => image.entry,
            AT_EXECFN => path,
            _ => value,
        };
        words.extend([kind, value]);
    }
    words.extend([AT_NULL, 0]);
    // The stack pointer is a multiple of 16.
    if !words.len().is_multiple_of(2) {
        words.push(0);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_said_of_this_program_is_said_of_the_other() {
        let image = Image {
            segments: Vec::new(),
            entry: 0x40_1000,
            headers: (0x40_0040, 6),
        };
        let told = [
            (AT_PHDR, 1),
            (AT_BASE, 2),
            (6, 4096),
            (AT_ENTRY, 3),
            (AT_EXECFN, 4),
            (AT_NULL, 9),
        ];
        let words = words(&[10, 11], &[20], &told, &image, 77);
        let expected = [
            2, 10, 11, 0, 20, 0, 3, 0x40_0040, 7, 0, 6, 4096, 9, 0x40_1000, 31, 77, 0, 0,
        ];
        assert_eq!(words, expected);
    }
}
