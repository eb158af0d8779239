//! Slow, idle and greedy clients beside honest ones, against the real daemon. What honest ones get is compared with what they
//! got just before in the same test, with a wide margin: other work may run on the machine.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set up has failed")]
#![expect(clippy::print_stdout, reason = "what was kept is said, for `--nocapture`")]

mod attackers;
mod bodies;
mod connections;
mod honest;
mod readers;
mod shapes;
