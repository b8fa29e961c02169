//! The numbers that stores keep for the values of an enum.

/// Gives an enum the methods `code` and `from_code`. Its `ALL` lists the values in the order of their
/// numbers.
macro_rules! codes {
    ($of:ident, $what:literal) => {
        impl $of {
            /// The number that stores keep for it; it never changes.
            #[must_use]
            pub fn code(self) -> u8 {
                self as u8
            }

            #[doc = concat!("The ", $what, " with this number.")]
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }
    };
}
pub(crate) use codes;
