//! [`labelled!`](crate::labelled): enum variants as metric labels.

/// Gives a fieldless enum its variants in a row and their names for metric labels.
#[macro_export]
macro_rules! labelled {
    ($name:ident { $($variant:ident => $label:literal),+ $(,)? }) => {
        impl $name {
            /// Every variant, for metrics that are to start at zero.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name as a metric label, in snake case.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
