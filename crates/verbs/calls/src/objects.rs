//! The C objects and what of the engine stands behind each.
//!
//! An object is one allocation that begins with the structure of the header. The program gets a
//! pointer to that, and brings it back until it destroys the object. Nothing here can tell a
//! pointer that never was one of ours: as with every C library, passing one is the program's
//! fault.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use sluice_verbs as engine;

use crate::ffi::*;

/// Says that an object begins with a C structure, so that pointers convert.
pub trait Object: Sized {
    type C;

    /// The object behind the program's pointer.
    ///
    /// # Safety
    /// `pointer` came from [`Object::give`] of the same type and was not taken back.
    unsafe fn of<'a>(pointer: *mut Self::C) -> &'a Self {
        // SAFETY: the caller's contract; `give` made the pointer from a Box of Self.
        unsafe { &*pointer.cast::<Self>() }
    }

    /// Hands the object to the program.
    fn give(self: Box<Self>) -> *mut Self::C {
        Box::into_raw(self).cast::<Self::C>()
    }

    /// Frees an object that the program has destroyed.
    ///
    /// # Safety
    /// As [`Object::of`]; the program does not use the pointer again.
    unsafe fn take(pointer: *mut Self::C) -> Box<Self> {
        // SAFETY: the caller's contract.
        unsafe { Box::from_raw(pointer.cast::<Self>()) }
    }
}

macro_rules! object {
    ($(#[$meta:meta])* $name:ident: $c:ident { $($(#[$field_meta:meta])* $field:ident : $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name {
            /// The program reads it, and writes what the header's inline functions write.
            pub c: UnsafeCell<$c>,
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Object for $name {
            type C = $c;
        }
    };
}

object! {
    /// A protection domain, or a parent domain, which stands for another one.
    Pd: ibv_pd {
        engine: Arc<engine::Pd>,
        /// Parent domains that stand for this one.
        children: AtomicU32,
        /// The domain that this parent domain stands for; NULL for a domain itself.
        parent: *mut ibv_pd,
    }
}

object! {
    Mr: ibv_mr {
        engine: Arc<engine::Mr>,
        /// Regions of the device memory that this one lies in, if it does.
        neighbours: Option<Arc<AtomicU32>>,
    }
}

object! {
    Mw: ibv_mw {
        engine: Arc<engine::Mw>,
    }
}

object! {
    Xrcd: ibv_xrcd {
        engine: Arc<engine::Xrcd>,
    }
}

object! {
    Ah: ibv_ah {
        engine: Arc<engine::Ah>,
    }
}

object! {
    Td: ibv_td {}
}

object! {
    Channel: ibv_comp_channel {
        engine: Arc<engine::Channel>,
    }
}

object! {
    Srq: ibv_srq {
        engine: Arc<engine::Srq>,
    }
}

/// The completion that the program looks at, between start_poll and end_poll.
#[derive(Default)]
pub struct Current {
    pub wc: engine::Wc,
    /// When it was taken, if the program wants to know; see [`crate::cq_ex`].
    pub monotonic_ns: u64,
    pub wall_ns: u64,
    pub wants_monotonic: bool,
    pub wants_wall: bool,
}

/// A completion queue. Always with room for the extended structure, whose functions are there
/// when it was made by `ibv_create_cq_ex`.
#[repr(C)]
pub struct Cq {
    pub c: UnsafeCell<ibv_cq_ex>,
    pub engine: Arc<engine::Cq>,
    /// The completion that the extended interface is looking at. Only the thread that polls uses
    /// it: between start_poll and end_poll the program keeps others away.
    pub current: UnsafeCell<Current>,
}

impl Object for Cq {
    type C = ibv_cq;
}

/// The engine's object behind an optional pointer.
///
/// # Safety
/// `pointer` is NULL or as [`Object::of`] wants it.
pub unsafe fn optional<'a, T: Object>(pointer: *mut T::C) -> Option<&'a T> {
    // SAFETY: the caller's contract.
    (!pointer.is_null()).then(|| unsafe { T::of(pointer) })
}

/// The number of an error for the program.
pub fn number(error: engine::Error) -> std::ffi::c_int {
    error.errno().0
}
