//! Chained setters for settings, filters and other structs that gain fields.
//!
//! Code that starts from a constructor or the default and sets what differs still compiles when a
//! field is added; a literal of all fields does not.

/// Makes a setter for each field. One after `?` takes a value or an `Option` of it.
macro_rules! setters {
    ($type:ident { $($rest:tt)* }) => {
        impl $type {
            $crate::setters::setters!(@fields $($rest)*);
        }
    };
    (@fields) => {};
    (@fields $field:ident: $value:ty $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = $field;
            self
        }
        $crate::setters::setters!(@fields $($($rest)*)?);
    };
    (@fields $field:ident? $value:ty $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), "); ")]
        #[doc = "none removes it."]
        #[must_use]
        pub fn $field(mut self, $field: impl Into<Option<$value>>) -> Self {
            self.$field = $field.into();
            self
        }
        $crate::setters::setters!(@fields $($($rest)*)?);
    };
}

pub(crate) use setters;
