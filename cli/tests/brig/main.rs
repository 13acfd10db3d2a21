//! The `brig` command as a process.

#[cfg(test)]
mod daemon;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod run;
#[cfg(test)]
mod standalone;
