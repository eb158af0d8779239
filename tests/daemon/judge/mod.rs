//! The judge against a scripted endpoint, in the daemon and by itself.

mod calls;
mod guard;
mod lasting;
mod limits;
mod rules;
mod wire;
