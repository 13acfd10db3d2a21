//! The `brig` command as a process.

#[cfg(test)]
mod attach;
#[cfg(test)]
mod daemon;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod interact;
#[cfg(test)]
mod process;
#[cfg(test)]
mod reconnect;
#[cfg(test)]
mod run;
#[cfg(test)]
mod session;
#[cfg(test)]
mod standalone;
