//! Signals: one number per trace, in [0,1], higher is better, or absent.
