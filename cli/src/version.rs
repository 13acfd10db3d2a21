//! `brig version`.

use crate::exit::Exit;
use crate::output::screen::Screen;

/// Shows the version of this program.
pub(crate) fn version(screen: &mut Screen) -> Exit {
    screen.out.text(concat!("brig ", env!("CARGO_PKG_VERSION"), "\n"));
    Exit::Success
}
