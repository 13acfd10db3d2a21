//! pid 1 of a jail; see [`brig_jailer::init`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(u8::try_from(brig_jailer::init::run()).unwrap_or(1))
}
