//! [`Fact`]: something that is not known yet, absent, or known for good.

/// One thing that the handshake can tell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Fact<T> {
    /// It is not known yet.
    #[default]
    Open,
    /// There is none, or it cannot become known.
    Absent,
    /// It is this, for good.
    Is(T),
}
