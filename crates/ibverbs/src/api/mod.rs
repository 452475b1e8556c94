//! The calls of libibverbs. Each is a thin shell over the engine: it finds the engine's object
//! behind the program's pointer, converts, and answers the way the manual page says: a positive
//! error number, or -1 or NULL and `errno`.

pub mod names;
pub mod rates;
pub mod sysfs;
