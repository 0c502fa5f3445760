//! Structures of numbers that every row of results has, under the same names.

/// Defines a structure of numbers, with their names.
macro_rules! numbers {
    (
        $(#[$doc:meta])* pub struct $name:ident {
            $($(#[$field_doc:meta])* pub $field:ident: u64,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct $name { $($(#[$field_doc])* pub $field: u64,)* }

        impl $name {
            const COUNT: usize = [$(stringify!($field)),*].len();
            /// The names of the numbers, in the order of [`values`](Self::values).
            pub const NAMES: [&str; Self::COUNT] = [$(stringify!($field)),*];

            /// Returns the numbers, in the order of [`NAMES`](Self::NAMES).
            #[must_use]
            pub const fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$field),*]
            }

            /// Returns the mean of each number, rounded down.
            #[must_use]
            pub fn means(all: &[Self]) -> Self {
                let count = all.len().max(1) as u64;
                Self { $($field: all.iter().map(|one| one.$field).sum::<u64>() / count,)* }
            }
        }
    };
}

pub(crate) use numbers;
