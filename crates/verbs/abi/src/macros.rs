//! How the structures are written down once, for the compiler and for the layout test.

/// Structures that have the name, the fields and the order of fields of the C header.
macro_rules! c_structs {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident : $type:ty),* $(,)? })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }
        )*

        #[cfg(test)]
        pub(super) const LAYOUTS: &[super::Layout] = &[
            $(super::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            },)*
        ];
    };
}
