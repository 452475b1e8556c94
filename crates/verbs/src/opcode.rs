//! Facts about opcodes.
