//! A libibverbs, loaded at run time.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::choice::DeviceChoice;
use crate::error::Error;

/// What programs are linked with.
const SYSTEM: &str = "libibverbs.so.1";

/// A libibverbs. It stays loaded as long as the process lives: it has threads and tables of its own.
///
/// One process can use one libibverbs: the providers of the system's library look for a library of
/// that name, and find the one that was loaded first.
#[derive(Clone)]
pub struct Library {
    functions: Arc<Functions>,
    path: PathBuf,
}

impl Library {
    /// The library for the device: ours, which is the file `ours`, or for `hw:NAME` the one that
    /// the dynamic linker finds as `libibverbs.so.1`.
    ///
    /// # Errors
    /// [`Error::Environment`] if the variables of [`DeviceChoice::environment`] are not set,
    /// [`Error::Load`], [`Error::Symbol`].
    pub fn load(choice: &DeviceChoice, ours: &Path) -> Result<Self, Error> {
        choice.check_environment()?;
        match choice {
            DeviceChoice::Hardware(_) => Self::open(Path::new(SYSTEM)),
            // A name without a slash would be looked for in the system's folders.
            _ => Self::open(&std::path::absolute(ours).map_err(|error| Error::Load {
                library: ours.to_owned(),
                reason: error.to_string(),
            })?),
        }
    }

    fn open(path: &Path) -> Result<Self, Error> {
        let refused = |reason: String| Error::Load {
            library: path.to_owned(),
            reason,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| refused("its name has a zero byte".to_owned()))?;
        // SAFETY: a C string. The library's constructors run, which is what was asked for.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refused(linker_error()));
        }
        let functions = Functions::find(handle).map_err(|(name, version)| Error::Symbol {
            library: path.to_owned(),
            name,
            version,
        })?;
        Ok(Self {
            functions: Arc::new(functions),
            path: path.to_owned(),
        })
    }

    /// One that a test has made.
    #[cfg(test)]
    pub(crate) fn fake(functions: Arc<Functions>, path: PathBuf) -> Self {
        Self { functions, path }
    }

    /// What was loaded: a file, or the name that the dynamic linker was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn functions(&self) -> &Arc<Functions> {
        &self.functions
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Library").field(&self.path).finish()
    }
}

/// What dlopen(3) last said in this thread.
fn linker_error() -> String {
    // SAFETY: the string is valid until the next call of the dynamic linker in this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason was given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// The functions of the interface: name in this crate, symbol, version node, type.
macro_rules! functions {
    ($($field:ident = $symbol:literal @ $version:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are not inline in the header.
        pub(crate) struct Functions {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// The name and version that is missing, if one is.
            fn find(handle: *mut c_void) -> Result<Self, (&'static str, &'static str)> {
                Ok(Self {
                    $($field: {
                        let (name, version) = ($symbol, $version);
                        let address = find(handle, name, version).ok_or((name, version))?;
                        // SAFETY: the symbol of this name and version has this type
                        // (infiniband/verbs.h); the library is never unloaded.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

fn find(handle: *mut c_void, name: &str, version: &str) -> Option<*mut c_void> {
    let (name, version) = (CString::new(name).ok()?, CString::new(version).ok()?);
    // SAFETY: C strings, and a handle of dlopen.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    (!address.is_null()).then_some(address)
}

functions! {
    get_device_list = "ibv_get_device_list" @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = "ibv_free_device_list" @ "IBVERBS_1.1": fn(*mut *mut ibv_device);
    get_device_name = "ibv_get_device_name" @ "IBVERBS_1.1": fn(*mut ibv_device) -> *const c_char;
    open_device = "ibv_open_device" @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    close_device = "ibv_close_device" @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    query_device = "ibv_query_device" @ "IBVERBS_1.1":
        fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port = "ibv_query_port" @ "IBVERBS_1.1":
        fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid_ex = "_ibv_query_gid_ex" @ "IBVERBS_1.11":
        fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    alloc_pd = "ibv_alloc_pd" @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = "ibv_dealloc_pd" @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    reg_mr = "ibv_reg_mr" @ "IBVERBS_1.1":
        fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr = "ibv_dereg_mr" @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    create_comp_channel = "ibv_create_comp_channel" @ "IBVERBS_1.0":
        fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = "ibv_destroy_comp_channel" @ "IBVERBS_1.0":
        fn(*mut ibv_comp_channel) -> c_int;
    create_cq = "ibv_create_cq" @ "IBVERBS_1.1":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq = "ibv_destroy_cq" @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
    get_cq_event = "ibv_get_cq_event" @ "IBVERBS_1.1":
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = "ibv_ack_cq_events" @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint);
    create_srq = "ibv_create_srq" @ "IBVERBS_1.1":
        fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq = "ibv_destroy_srq" @ "IBVERBS_1.1": fn(*mut ibv_srq) -> c_int;
    create_qp = "ibv_create_qp" @ "IBVERBS_1.1":
        fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = "ibv_modify_qp" @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp = "ibv_destroy_qp" @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
    get_async_event = "ibv_get_async_event" @ "IBVERBS_1.1":
        fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event = "ibv_ack_async_event" @ "IBVERBS_1.1": fn(*mut ibv_async_event);
}

/// The outcome of a call that answers 0, an error number, or -1 and `errno`.
pub(crate) fn check(call: &'static str, answer: c_int) -> Result<(), Error> {
    let error = match answer {
        0 => return Ok(()),
        1.. => io::Error::from_raw_os_error(answer),
        _ => io::Error::last_os_error(),
    };
    Err(Error::Call { call, error })
}

/// The outcome of a call that answers an object, or NULL and `errno`.
pub(crate) fn object<T>(call: &'static str, pointer: *mut T) -> Result<*mut T, Error> {
    if pointer.is_null() {
        let error = io::Error::last_os_error();
        return Err(Error::Call { call, error });
    }
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_is_refused_with_a_reason() {
        let error = Library::open(Path::new("/etc/passwd")).unwrap_err();
        assert!(error.to_string().contains("/etc/passwd: "), "{error}");
        let error = Library::open(Path::new("/nonexistent/l.so")).unwrap_err();
        assert!(matches!(error, Error::Load { .. }), "{error}");
    }

    #[test]
    fn a_library_that_is_another_one_lacks_the_functions() {
        let error = Library::open(Path::new("libc.so.6")).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Symbol {
                    name: "ibv_get_device_list",
                    ..
                }
            ),
            "{error}"
        );
    }
}
