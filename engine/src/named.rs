//! Enums with a name for each variant.

/// Declares such an enum, with `VARIANT = "NAME"` for each.
macro_rules! named {
    ($(#[$about:meta])* pub enum $kind:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        pub enum $kind {
            $($(#[$doc])* $variant,)*
        }

        impl $kind {
            /// All of them, each at the place of its discriminant.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name in results, labels and files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

pub(crate) use named;
