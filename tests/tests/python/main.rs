//! What Python code finds in a jail, seen by the caller of the real product.

#[cfg(test)]
mod display;
#[cfg(test)]
mod environment;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod program;
