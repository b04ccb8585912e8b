//! Standard output of commands. Whoever reads it may go away, as `head` does: then a command ends, and nothing is wrong.

use std::{
    fmt::Arguments,
    io::{self, ErrorKind, Write},
    process,
};

/// Prints a line, in place of `println!`, which panics when nobody reads it.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::out::print(format_args!("{}\n", format_args!($($part)*)))
    };
}

/// Prints text as it is, in place of `print!`.
macro_rules! say_text {
    ($($part:tt)*) => {
        $crate::out::print(format_args!($($part)*))
    };
}

/// Prints. Ends the program where nobody reads it any more, or it cannot be written.
pub(crate) fn print(text: Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else {
        return;
    };
    if error.kind() == ErrorKind::BrokenPipe {
        process::exit(0);
    }
    eprintln!("underpass: cannot write to standard output: {error}");
    process::exit(1);
}
