//! [`Fact`]: something that is not known yet, absent, or known for good.

/// Something that the handshake can tell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Fact<T> {
    /// Not known yet.
    #[default]
    Open,
    /// There is none.
    Absent,
    /// There may be one, and it cannot become known.
    Unknowable,
    /// Known, for good.
    Is(T),
}
